package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// settingsOf runs config --json.
func settingsOf(t *testing.T, environ []string) map[string]setting {
	t.Helper()
	var all []setting
	if err := json.Unmarshal([]byte(must(t, environ, "config", "--json")), &all); err != nil {
		t.Fatal(err)
	}
	byName := map[string]setting{}
	for _, one := range all {
		byName[one.Name] = one
	}
	return byName
}

func TestConfig(t *testing.T) {
	t.Parallel()
	environ := []string{
		"DATABASE_URL=postgres://me:hunter2@db1:5432,db2:5432/petstore?target_session_attrs=read-write", "PETSTORE_RATE_LIMIT=60", "PETSTORE_MAX_CONNECTIONS=",
		"PETSTORE_API_KEY=petstore_hunter2", "PETSTORE_TRUSTED_PROXIES=10.0.0.0/8, ::1", "PETSTORE_RATE_LIMT=hunter2", "PETSTORE_LOG_LEVEL=WARN",
	}
	got := settingsOf(t, environ)
	for _, want := range []setting{
		{"DATABASE_URL", "postgres://me:REDACTED@db1:5432,db2:5432/petstore?target_session_attrs=read-write", "environment"},
		{"PETSTORE_DIRECT_URL", "postgres://me:REDACTED@db1:5432,db2:5432/petstore?target_session_attrs=read-write", "derived"},
		{"PETSTORE_RATE_LIMIT", "60", "environment"},
		{"PETSTORE_RATE_BURST", "10", "derived"},
		{"PETSTORE_ACCOUNT_RATE_LIMIT", "240", "derived"},
		{"PETSTORE_MAX_CONNECTIONS", "2000", "default"},
		{"PETSTORE_API_KEY", "REDACTED", "environment"},
		{"PETSTORE_SECRET_KEY", "", "default"},
		{"PETSTORE_TRUSTED_PROXIES", "10.0.0.0/8,::1", "environment"},
		{"PETSTORE_REQUEST_TIMEOUT", "6s", "default"},
		{"PETSTORE_CORS_ORIGINS", "*", "default"},
		{"PETSTORE_LOG_LEVEL", "warn", "environment"},
		{"PETSTORE_LOG_FORMAT", "json", "derived"},
		{"PETSTORE_WORKER", "true", "default"},
		{"GOGC", "400", "derived"},
		{"GOMEMLIMIT", "192MiB", "derived"},
		{"PETSTORE_RATE_LIMT (did you mean PETSTORE_RATE_LIMIT?)", "", "unknown"},
	} {
		if got[want.Name] != want {
			t.Errorf("got %+v, want %+v", got[want.Name], want)
		}
	}
	for _, name := range variables() {
		if _, ok := got[name]; !ok {
			t.Errorf("config does not print %s", name)
		}
	}
	table := must(t, environ, "config")
	if strings.Contains(table, "hunter2") || !strings.Contains(table, "PETSTORE_RATE_LIMIT ") {
		t.Errorf("config prints:\n%s", table)
	}
	wantSentence(t, []string{"PETSTORE_ADDR=8080"}, []string{"config"}, false,
		`invalid configuration: PETSTORE_ADDR must be host:port or :port with a port from 0 to 65535, but is "8080"`)
}

// TestSettingsOfDefaults: the sources of defaults are right for every variable: one that is
// set after env.Parse is derived.
func TestSettingsOfDefaults(t *testing.T) {
	t.Parallel()
	got := settingsOf(t, []string{"DATABASE_URL=postgres://localhost/petstore"})
	parsed := config{}
	eachVariable(reflect.ValueOf(parsed), func(field reflect.StructField, _ reflect.Value) {
		name := field.Tag.Get("env")
		if name == "DATABASE_URL" || name == "PETSTORE_ADMIN_ADDR" { // set by this test and by execute
			return
		}
		hasDefault := got[name].Value != "" && got[name].Value != "false"
		if isDerived := hasDefault && field.Tag.Get("envDefault") == ""; isDerived != (got[name].Source == "derived") {
			t.Errorf("%+v, derived: %t", got[name], isDerived)
		}
	})
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"postgres://me:hunter2@db/petstore":                                  "postgres://me:REDACTED@db/petstore",
		"postgres://me:hun:t@er/2@db/petstore":                               "postgres://me:REDACTED@db/petstore",
		"postgres://:hunter2@db/petstore":                                    "postgres://:REDACTED@db/petstore",
		"postgres://me@db/petstore?password=hunter2&sslmode=require":         "postgres://me@db/petstore?password=REDACTED&sslmode=require",
		"postgres://db/petstore?sslpassword=x&sslkey=key.pem":                "postgres://db/petstore?sslpassword=REDACTED&sslkey=key.pem",
		"host=db user=me password=hunter2 dbname=petstore":                   "host=db user=me password=REDACTED dbname=petstore",
		`host=db password = 'hun\'ter 2' dbname=petstore`:                    "host=db password = REDACTED dbname=petstore",
		"host=db password=hun&ter dbname=petstore":                           "host=db password=REDACTED dbname=petstore",
		"host=db password=hun'ter dbname=petstore":                           "host=db password=REDACTED dbname=petstore",
		`host=db password=hun\ ter\\ dbname=petstore`:                        "host=db password=REDACTED dbname=petstore",
		"user='me'password=hunter2\v\vdbname=petstore":                       "user='me'password=REDACTED\v\vdbname=petstore",
		"postgres://me@db:5432/petstore?password=hun@ter&sslmode=require":    "postgres://me@db:5432/petstore?password=REDACTED&sslmode=require",
		"postgres://a:hunter2@db2/petstore\n postgres://b:hunter2@db3/store": "postgres://a:REDACTED@db2/petstore\n postgres://b:REDACTED@db3/store",
		"http://user:hunter2@proxy.example:3128":                             "http://user:REDACTED@proxy.example:3128",
		"http://localhost:8080":                                              "http://localhost:8080",
		"":                                                                   "",
	} {
		if got := redact("DATABASE_URL", value); got != want {
			t.Errorf("redact(%q) = %q, want %q", value, got, want)
		}
	}
	if got := redact("PETSTORE_SECRET_KEY", "YSBrZXk="); got != redacted {
		t.Errorf("a secret key: %q", got)
	}
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://localhost:3000/hook?to=a@b.example":  "http://localhost:3000/hook?to=a@b.example",
		"http://localhost/hook?password=hunter2&a=b": "http://localhost/hook?password=REDACTED&a=b",
		"http://me:hunter2@localhost":                "http://me:REDACTED@localhost",
		"http://me:hunter2@localhost?to=a@b.example": "http://me:REDACTED@localhost?to=a@b.example",
		"http://me:hun ter2@localhost":               "REDACTED@localhost",
		"http://me:hun/t@er2@localhost":              "REDACTED@localhost",
		"http:/me:hunter2@localhost":                 "REDACTED@localhost",
		"me:hunter2@api.example":                     "REDACTED@api.example",
		"host=db password=hunter2":                   "host=db password=REDACTED",
		"localhost:8080":                             "localhost:8080",
		"":                                           "",
	} {
		if got := redactURL(text); got != want {
			t.Errorf("redactURL(%q) = %q, want %q", text, got, want)
		}
	}
}
