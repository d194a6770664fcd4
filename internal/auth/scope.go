package auth

import "fmt"

// Scope is what a key may do; a greater one includes the lesser.
type Scope int

// The scopes, from the least to the greatest.
const (
	Read Scope = iota + 1
	Write
	Admin
)

var scopeNames = map[Scope]string{Read: "read", Write: "write", Admin: "admin"}

// ParseScope reads the name of a scope.
func ParseScope(name string) (Scope, error) {
	for scope, known := range scopeNames {
		if name == known {
			return scope, nil
		}
	}
	return 0, fmt.Errorf("auth: %q is not a scope: use read, write or admin", name)
}

// Includes reports whether a key of scope s may do what needs the other.
func (s Scope) Includes(other Scope) bool { return s >= other }

// String is the name by which the API and the database know the scope.
func (s Scope) String() string { return scopeNames[s] }
