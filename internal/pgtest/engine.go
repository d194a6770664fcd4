package pgtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Engine is the kind of database of a test run. PETSTORE_TEST_ENGINE names it; the
// default is [Postgres].
type Engine string

// The engines. .ci/engines runs the tests on all of them.
const (
	Postgres  Engine = "postgres"  // one server
	PgBouncer Engine = "pgbouncer" // one server behind a PgBouncer in transaction mode
	Replica   Engine = "replica"   // a server with a streaming standby
)

var engines = []Engine{Postgres, PgBouncer, Replica}

// CurrentEngine returns the engine of this test run. The error is an unknown name.
func CurrentEngine() (Engine, error) {
	name := Engine(os.Getenv("PETSTORE_TEST_ENGINE"))
	if name == "" {
		return Postgres, nil
	}
	if !slices.Contains(engines, name) {
		return "", fmt.Errorf("PETSTORE_TEST_ENGINE is %q, but must be one of %s", name, strings.Trim(fmt.Sprint(engines), "[]"))
	}
	return name, nil
}
