package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestCommandsFindDev runs client and database commands below the folder of a running dev,
// without variables, and after its end.
func TestCommandsFindDev(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	below := filepath.Join(dir, "src", "shop")
	need.OK(t, os.MkdirAll(below, 0o755))
	need.OK(t, os.Mkdir(filepath.Join(dir, devDir), 0o755)) // as an older version did
	environ := []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0"}
	dev := begin(t, dir, environ, "dev")
	export := strings.Fields(dev.expect("export PETSTORE_URL="))[1:]
	dev.address()
	wantPrivate(t, filepath.Join(dir, devDir))
	base, key := strings.TrimPrefix(export[0], "PETSTORE_URL="), strings.TrimPrefix(export[1], "PETSTORE_API_KEY=")

	run := func(environ []string, line string) (stdout string, err error) {
		stdout, _, err = executeIn(t, below, environ, "", strings.Fields(line)...)
		return stdout, err
	}
	for line, want := range map[string]string{
		"api /pets/1":             `{"id":1,"name":"Rex","categoryId":1,"status":"available"}`,
		"key list --account demo": "in force",
		"account list --json":     `"name":"demo"`,
		"migrate status":          "00001_create_accounts.sql",
		"trigger pet.created":     "  pet.created  /pets/",
		"listen --print-secret":   "whsec_",
	} {
		if got, err := run(nil, line); err != nil || !strings.Contains(got, want) {
			t.Errorf("petstore %s: %q, %v; want %s", line, got, err, want)
		}
	}

	for environ, want := range map[string][]setting{
		"":                                {{"PETSTORE_URL", base, "dev"}, {"PETSTORE_API_KEY", redacted, "dev"}},
		"PETSTORE_URL=" + base + "/":      {{"PETSTORE_URL", base + "/", "environment"}, {"PETSTORE_API_KEY", redacted, "dev"}},
		"PETSTORE_URL=http://127.0.0.1:1": {{"PETSTORE_URL", "http://127.0.0.1:1", "environment"}, {"PETSTORE_API_KEY", "", "default"}},
	} {
		var all []setting
		if got, err := run([]string{environ}, "config --json"); err != nil || json.Unmarshal([]byte(got), &all) != nil {
			t.Fatal(got, err)
		}
		for _, one := range want {
			if !slices.Contains(all, one) {
				t.Errorf("with %q, config does not print %v", environ, one)
			}
		}
	}

	// Variables and flags come first, and the key of dev goes to no other server.
	for _, test := range []struct{ environ, line, want string }{
		{"PETSTORE_URL=http://127.0.0.1:1", "api /pets", "PETSTORE_API_KEY must be set to an API key for http://127.0.0.1:1; petstore key create prints one"},
		{"", "api /pets --url http://127.0.0.1:1", "PETSTORE_API_KEY must be set to an API key for http://127.0.0.1:1; petstore key create prints one"},
		{"PETSTORE_API_KEY=" + strings.Replace(key, "petstore_", "petstore_0", 1), "api /pets", "PETSTORE_API_KEY has no API key, which begins with petstore_; check for missing characters or spaces"},
		{"DATABASE_URL=postgres:///x?host=/nowhere", "account list", "cannot connect to PostgreSQL at the socket /nowhere/.s.PGSQL.5432: there is no such socket; check that it runs there, or correct DATABASE_URL"},
	} {
		if _, err := run([]string{test.environ}, test.line); err == nil || err.Error() != test.want {
			t.Errorf("%s petstore %s: %v, want %s", test.environ, test.line, err, test.want)
		}
	}
	if got, err := run([]string{"PETSTORE_API_KEY=" + key}, "api /account"); err != nil || !strings.Contains(got, `"name":"demo"`) {
		t.Errorf("with the key only, api prints %q, %v", got, err)
	}
	if got, err := run([]string{"PETSTORE_DIRECT_URL=postgres:///x?host=/nowhere"}, "migrate status"); err != nil || !strings.Contains(got, "00001") {
		t.Errorf("beside a direct URL of another database, migrate status prints %q, %v", got, err)
	}
	for _, url := range []string{base, base + "/"} {
		if got, err := run([]string{"PETSTORE_URL=" + url}, "api /account"); err != nil || !strings.Contains(got, `"name":"demo"`) {
			t.Errorf("with the URL %s only, api prints %q, %v", url, got, err)
		}
	}

	for _, environ := range [][]string{export, export[1:]} {
		if _, err := run(environ, "trigger order.placed"); err != nil {
			t.Errorf("with the variables %q, trigger ends with %v", environ, err)
		}
	}

	second := begin(t, dir, environ, "dev")
	second.expect("another petstore dev runs in this folder")
	second.exits(exitFailure)

	dev.exits(0, os.Interrupt)
	wantNoDev(t, dir, below)
	if text, err := os.ReadFile(filepath.Join(dir, devDir, devFile)); err != nil || len(text) > 0 {
		t.Errorf("after its end, dev leaves %q, %v", text, err)
	}
	stale := need.Value(json.Marshal(devServer{URL: base, APIKey: key, DatabaseURL: "postgres:///x"}))(t)
	need.OK(t, os.WriteFile(filepath.Join(dir, devDir, devFile), stale, 0o600)) // as kill -9 does
	wantNoDev(t, dir, below)
}

// wantNoDev checks that commands say that dev does not run.
func wantNoDev(t *testing.T, dir, below string) {
	t.Helper()
	for _, line := range []string{"api /pets", "listen", "trigger order.placed", "account list", "migrate up"} {
		if _, _, err := executeIn(t, below, nil, "", strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), ", because petstore dev does not run in "+dir) {
			t.Errorf("petstore %s: %v", line, err)
		}
	}
}

// TestDevFileOfOthers checks that a command does not follow the file of another user, and says so.
func TestDevFileOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, devDir, devFile)
	need.OK(t, os.Mkdir(filepath.Dir(file), 0o755))
	need.OK(t, os.Symlink(devFile, file)) // root can open all other files
	for line, variable := range map[string]string{"api /pets": "PETSTORE_API_KEY", "account list": "DATABASE_URL"} {
		_, _, err := executeIn(t, dir, nil, "", strings.Fields(line)...)
		if err == nil || !strings.HasPrefix(err.Error(), variable+" must be set ") || !strings.Contains(err.Error(), ", because "+file+" cannot be read: ") {
			t.Errorf("petstore %s: %v", line, err)
		}
	}
	// Only root can give a file to another user. Everybody else can name a file of root.
	need.OK(t, errors.Join(os.Remove(file), os.Symlink("/etc/hosts", file)))
	if os.Geteuid() == 0 {
		need.OK(t, os.Remove(file))
		writeFile(t, file, `{"url":"http://127.0.0.1:1"}`)
		need.OK(t, os.Chown(file, 65534, 65534))
	}
	if _, _, err := executeIn(t, dir, nil, "", "api", "/pets"); err == nil || !strings.Contains(err.Error(), file+" belongs to another user") {
		t.Error(err)
	}
}
