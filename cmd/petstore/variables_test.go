package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	p := &program{environ: []string{
		"PETSTORE_RATE_LIMT=60", "PETSTORE_REPLICA_URL=postgres://x:hunter2@y", "PETSTORE_NEW_FEATURE=on", "PETSTORE_=1", "petstore_rate_limit=1",
		// No mistakes: known ones, others' prefixes, the tests, CI, compose files, service links.
		"PETSTORE_RATE_LIMIT=60", "OTEL_TRACES_EXPORTER=none", "PETSTORES=1", "PATH=/bin", "PETSTORE_TEST_IDLE=1m", "PETSTORE_IMAGE=x", "PETSTORE_PORT=8080", "PETSTORE_SQLC_DATABASE_URL=x",
		"PETSTORE_SERVICE_HOST=10.0.0.1", "PETSTORE_SERVICE_PORT=80", "PETSTORE_SERVICE_PORT_HTTP=80", "PETSTORE_PORT_80_TCP=tcp://10.0.0.1:80", "PETSTORE_PORT_80_TCP_ADDR=10.0.0.1",
		"PETSTORE_ADMIN_SERVICE_HOST=10.0.0.1", "PETSTORE_DB_PORT_5432_TCP_PROTO=tcp",
	}}
	want := []string{
		"PETSTORE_",
		"PETSTORE_NEW_FEATURE",
		"PETSTORE_RATE_LIMT (did you mean PETSTORE_RATE_LIMIT?)",
		"PETSTORE_REPLICA_URL (did you mean PETSTORE_REPLICA_URLS?)",
	}
	got := p.unknownVariables()
	if len(got) > 0 && strings.HasPrefix(got[0], "PETSTORE_ ") { // every variable begins with it
		got[0] = "PETSTORE_"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unknown variables (-want +got):\n%s", diff)
	}
}

// TestUnknownVariablesAreNamed: every kind of command names them and goes on. If it fails because
// another variable is invalid, its error names them too.
func TestUnknownVariablesAreNamed(t *testing.T) {
	t.Parallel()
	const typo, hint = "PETSTORE_RATE_LIMT=60", "PETSTORE_RATE_LIMT (did you mean PETSTORE_RATE_LIMIT?)"
	stdout, stderr, err := execute(t, []string{typo}, "openapi")
	if err != nil || stderr != "petstore: warning: "+unknownWarning+": "+hint+"\n" || strings.Contains(stdout, "RATE_LIMT") {
		t.Errorf("openapi: %v, stderr %q", err, stderr)
	}
	database := []string{typo, "DATABASE_URL=postgres://localhost:1/petstore", "PETSTORE_STARTUP_WAIT=1ms", "PETSTORE_ADDR=127.0.0.1:0"}
	for _, command := range []string{"serve", "worker", "migrate version"} {
		_, stderr, err := execute(t, database, strings.Fields(command)...)
		if strings.Count(stderr, hint) != 1 || err == nil || strings.Contains(err.Error(), "RATE_LIMT") {
			t.Errorf("petstore %s: %v, stderr:\n%s", command, err, stderr)
		}
	}
	wantSentence(t, []string{typo, "PETSTORE_ADDR=8080"}, []string{"healthcheck"}, false,
		`invalid configuration: PETSTORE_ADDR must be host:port or :port with a port from 0 to 65535, but is "8080"; unknown variable `+hint)
}
