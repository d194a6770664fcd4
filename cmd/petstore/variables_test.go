package main

import (
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"petstore/internal/tools/need"
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
	need.Same(t, want, got, "unknown variables")
}

// TestVariablesOfScripts: the variables of the compose files, the Makefile and CI are no mistakes.
func TestVariablesOfScripts(t *testing.T) {
	t.Parallel()
	files := []string{"../../docker-compose.yml", "../../Makefile"}
	for _, root := range []string{"../../deploy", "../../.ci"} {
		need.OK(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			name := filepath.Base(path)
			if err == nil && entry.IsDir() && name == "output" { // of earlier runs
				return fs.SkipDir
			}
			if err == nil && !entry.IsDir() && (root == "../../.ci" || strings.HasPrefix(name, "compose") && strings.HasSuffix(name, ".yml")) {
				files = append(files, path)
			}
			return err
		}))
	}
	names := map[string]bool{}
	for _, file := range files {
		text := readFile(t, file)
		for _, name := range regexp.MustCompile(`\bPETSTORE_[A-Z0-9_]*[A-Z0-9]\b`).FindAllString(text, -1) {
			names[name+"=x"] = true
		}
	}
	for _, name := range []string{"PETSTORE_TLS_DIR=x", "PETSTORE_HTTPS_PORT=x", "PETSTORE_PG_NEW=x", "PETSTORE_PHP_CLIENT=x"} {
		if !names[name] {
			t.Errorf("found no %s in %v", name, files)
		}
	}
	p := &program{environ: slices.Collect(maps.Keys(names))}
	if unknown := p.unknownVariables(); len(unknown) > 0 {
		t.Errorf("unknown: %v", unknown)
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
