package api

import (
	"net/http"

	"petstore/internal/httpjson"
)

// checkUntagged evaluates the preconditions of a write to a resource without an entity
// tag. The error is [httpjson.ErrPreconditionFailed].
func checkUntagged(r *http.Request) error {
	_, err := httpjson.CheckPreconditions(r, httpjson.NoTag)
	return err
}

// checkTag evaluates the preconditions of a write to a resource as it is. The error is
// [httpjson.ErrPreconditionFailed].
func checkTag(r *http.Request, current any) error {
	if !httpjson.IsConditional(r) {
		return nil
	}
	representation, err := encode(current)
	if err != nil {
		return err
	}
	_, err = httpjson.CheckPreconditions(r, httpjson.ETag(representation))
	return err
}
