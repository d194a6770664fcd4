package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// settingsOf runs config --json.
func settingsOf(t *testing.T, environ []string) map[string]setting {
	t.Helper()
	var all []setting
	need.OK(t, json.Unmarshal([]byte(must(t, environ, "config", "--json")), &all))
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
		"PETSTORE_REPLICA_URLS=postgres://me:hunter2@db3/petstore?sslmode=disable postgres://me@db4/petstore?password=hunter2&sslmode=require",
		"PETSTORE_WEBHOOK_PROXY=http://me:hunter2@proxy:3128", "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318",
	}
	got := settingsOf(t, environ)
	for _, want := range []setting{
		{"DATABASE_URL", "the database petstore at db1:5432 or db2:5432 (user me, TLS if the server has it)", "environment"},
		{"PETSTORE_DIRECT_URL", "the database petstore at db1:5432 or db2:5432 (user me, TLS if the server has it)", "derived"},
		{"PETSTORE_RATE_LIMIT", "60", "environment"},
		{"PETSTORE_RATE_BURST", "10", "derived"},
		{"PETSTORE_ACCOUNT_RATE_LIMIT", "240", "derived"},
		{"PETSTORE_MAX_CONNECTIONS", "2000", "default"},
		{"PETSTORE_REPLICA_URLS", "the database petstore at db3:5432 (user me, no TLS); the database petstore at db4:5432 (user me, TLS with any certificate)", "environment"},
		{"PETSTORE_WEBHOOK_PROXY", "REDACTED", "environment"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318", "environment"},
		{"PETSTORE_API_KEY", "REDACTED", "environment"},
		{"PETSTORE_SECRET_KEY", "", "default"},
		{"PETSTORE_TRUSTED_PROXIES", "10.0.0.0/8,::1", "environment"},
		{"PETSTORE_REQUEST_TIMEOUT", "6s", "default"},
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

// TestSecretsAreHidden: neither config nor the mistake of a variable prints a part of a password, whether
// or not the value is valid.
func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	values := []string{
		"hunter2,petstore_hunter2", "me:hunter2@host.example", "postgres:/me:hunter2@host.example", "failed to configure TLS hunter2",
		"host=host.example user=me password=hunter2", "host=host.example password='41941 hunter2", "password=41941 hunter2",
	}
	for _, url := range []string{
		"me:41941@host.example/x", "me:hunter2@host.example", ":hunter2@host.example", "host.example/x?user=me&password=hunter2", "host.example/x?sslpassword=hunter2&sslkey=k",
		"me:41941/hunter2@host.example/x", "me:41941/hunter2?41941@host.example/x", "me:41941/hunter2?a=41941@host.example/x", "me:41941@hunter2@host.example/x",
		"me:41941@41941/hunter2@host.example", "me:41941?hunter2@host.example/x", "me:41941#hunter2@host.example/x", "me:41941 hunter2@host.example/x", "me:%zzhunter2@host.example/x",
		"me:hunter2@host.example/x?sslmode=verify-full&sslrootcert=/hunter2.pem", "me:hunter2@host.example/x?sslmode=hunter2", "me:41941@host.example/x?sslrootcert=/ca.pem password=hunter2",
		"me:41941@host.example/x,postgres://me:hunter2@host.example/x", "me:41941@host.example/x\npostgres://me:hunter2@host.example/x",
	} {
		values = append(values, "postgres://"+url, "http://"+url)
	}
	for _, name := range []string{
		"DATABASE_URL", "PETSTORE_DIRECT_URL", "PETSTORE_REPLICA_URLS", "PETSTORE_URL", "PETSTORE_API_KEY", "PETSTORE_SECRET_KEY", "PETSTORE_WEBHOOK_PROXY",
		"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "PETSTORE_BASE_URL",
	} {
		for _, value := range values {
			for _, command := range []string{"config", "config --json"} {
				stdout, stderr, err := execute(t, []string{"OTEL_TRACES_EXPORTER=otlp", name + "=" + value}, strings.Fields(command)...)
				if said := fmt.Sprint(stdout, stderr, err); strings.Contains(said, "41941") || strings.Contains(said, "hunter2") {
					t.Errorf("%s=%q: petstore %s prints %s", name, value, command, said)
				}
			}
		}
	}
}
