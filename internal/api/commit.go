package api

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
)

// post runs the write of a POST, once under an Idempotency-Key, and sends its response.
// The request must not have a precondition, because a collection has no entity tag.
func (s *Server) post(c *gin.Context, in *input, w groupcommit.Write) error {
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	if in.idempotencyKey != "" {
		w.Key = &groupcommit.Key{APIKeyID: gate.Caller(c).KeyID, Key: in.idempotencyKey, Fingerprint: fingerprint(c.Request, in.body)}
	}
	return s.commit(c, w)
}

// commit runs a write and sends its response.
func (s *Server) commit(c *gin.Context, w groupcommit.Write) error {
	store := groupcommit.Store{AccountID: gate.Caller(c).AccountID, Sandbox: gate.Caller(c).IsSandbox(), Payer: gate.Caller(c).Payer()}
	made, err := s.committer.Do(c.Request.Context(), store, &w)
	if err != nil {
		return err
	}
	if made.Replayed {
		c.Header("Idempotent-Replayed", "true")
		s.options.Metrics.Replayed()
	} else {
		s.announceEvents(store.AccountID)
	}
	s.gate.ReportPosition(c, made.Position)
	writeCommitted(c, made.Response)
	return nil
}

// announceEvents wakes everybody who waits for the events of a commit of this process.
func (s *Server) announceEvents(accountID int64) {
	s.feed.Announce(accountID)
	s.options.Announce(accountID)
}

// writeCommitted sends the response to a write. A 202 has no entity tag, because it does
// not represent the resource as a later GET returns it.
func writeCommitted(c *gin.Context, r groupcommit.Response) {
	if r.Location != "" {
		c.Header("Location", r.Location)
	}
	switch r.Status {
	case http.StatusNoContent:
		c.Status(r.Status)
	case http.StatusAccepted:
		c.Header("Cache-Control", "private, no-cache")
		httpjson.Send(c.Writer, r.Status, httpjson.ContentType, r.Body)
	default:
		httpjson.SendTagged(c.Writer, r.Status, r.Body)
	}
}

// created is the response to a POST that created a resource.
func created(location string, resource any) (groupcommit.Response, error) {
	body, err := encode(resource)
	return groupcommit.Response{Status: http.StatusCreated, Location: location, Body: body}, err
}

// updated is the response to a PATCH or PUT.
func updated(resource any) (groupcommit.Response, error) {
	body, err := encode(resource)
	return groupcommit.Response{Status: http.StatusOK, Body: body}, err
}

// deleted is the response to a DELETE.
var deleted = groupcommit.Response{Status: http.StatusNoContent}

// refused is the decision not to write anything.
func refused(err error) (groupcommit.Response, error) { return groupcommit.Response{}, err }

const maxIdempotencyKey = 255 // bytes

// idempotencyKey returns the Idempotency-Key of a POST, or "" if it has none. A request
// whose response has a secret must not have one. The error is
// [errInvalidIdempotencyKey].
func idempotencyKey(r *http.Request, secret bool) (string, error) {
	fields := r.Header.Values("Idempotency-Key")
	if len(fields) == 0 {
		return "", nil
	}
	if secret {
		return "", errInvalidIdempotencyKey.WithViolations([]httpjson.Violation{{
			Header: "Idempotency-Key", Code: "not_allowed", Message: "`Idempotency-Key` is not allowed, because the server never stores a response with a secret. Remove the header.",
		}})
	}
	key := fields[0]
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(fields) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, invisible) {
		return "", errInvalidIdempotencyKey.WithViolations([]httpjson.Violation{{
			Header: "Idempotency-Key", Code: "invalid_format", Message: "`Idempotency-Key` must have 1 to 255 visible ASCII characters and appear once.",
		}})
	}
	return key, nil
}

// fingerprint distinguishes requests with the same key by their path and body.
func fingerprint(r *http.Request, body []byte) []byte {
	hash := sha256.New()
	hash.Write([]byte(r.URL.EscapedPath() + "\n"))
	hash.Write(body)
	return hash.Sum(nil)
}

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
