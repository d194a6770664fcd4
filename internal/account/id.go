package account

import (
	"regexp"
	"strconv"
)

// The prefixes of the ids that clients and operators see. A sandbox is an account too, so
// its id is also the id of its account.
const (
	idPrefix        = "acc_"
	sandboxIDPrefix = "sbx_"
)

// sandboxIDPattern matches the ids of sandboxes. An id in the database has at most 16 digits.
var sandboxIDPattern = regexp.MustCompile(`^` + sandboxIDPrefix + `([1-9][0-9]{0,15})$`)

// PublicID returns the id of an account in the form that clients and operators see: acc_3,
// or sbx_1042 for a sandbox.
func PublicID(id int64, sandbox bool) string {
	prefix := idPrefix
	if sandbox {
		prefix = sandboxIDPrefix
	}
	return prefix + strconv.FormatInt(id, 10)
}

// ParseSandboxID returns the account of the sandbox with a public id. It accepts only the
// form that [PublicID] returns.
func ParseSandboxID(text string) (id int64, ok bool) {
	match := sandboxIDPattern.FindStringSubmatch(text)
	if match == nil {
		return 0, false
	}
	id, err := strconv.ParseInt(match[1], 10, 64)
	return id, err == nil
}
