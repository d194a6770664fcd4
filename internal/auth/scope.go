package auth

import "fmt"

// Scope is the set of operations that a key may use. A higher scope includes the
// lower ones.
type Scope int

// The scopes, from lowest to highest.
const (
	Read Scope = iota + 1
	Write
	Admin
)

var scopeNames = map[Scope]string{Read: "read", Write: "write", Admin: "admin"}

// ParseScope returns the scope with a name.
func ParseScope(name string) (Scope, error) {
	for scope, known := range scopeNames {
		if name == known {
			return scope, nil
		}
	}
	return 0, fmt.Errorf("auth: %q is not a scope: use read, write or admin", name)
}

// Includes reports whether a key of scope s may use an operation that needs the
// other scope.
func (s Scope) Includes(other Scope) bool { return s >= other }

// String returns the name of the scope in the API and the database.
func (s Scope) String() string { return scopeNames[s] }
