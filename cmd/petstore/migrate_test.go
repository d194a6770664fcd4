package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// TestMigrateDryRun: migrate up --dry-run prints the pending migrations with their locks, and
// changes nothing. In the schema of a later release, the commands agree.
func TestMigrateDryRun(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	environ := []string{"DATABASE_URL=" + database.OwnerURL}
	text := must(t, environ, "migrate", "up", "--dry-run")
	need.Contains(t, "the plan", text,
		"-- 00001_create_accounts.sql, in a transaction, which holds its locks until its end\n-- locks no table that exists before it\n\nCREATE TABLE accounts (",
		"-- 00004_create_categories.sql, in a transaction, which holds its locks until its end\n-- locks accounts: SHARE ROW EXCLUSIVE, blocks writes\n\nCREATE TABLE categories (",
	)
	if strings.Contains(text, "+goose") || strings.Contains(text, "\nDROP TABLE accounts") {
		t.Errorf("the plan has annotations or reverts migrations:\n%s", text)
	}
	var plan []postgres.PendingMigration
	need.OK(t, json.Unmarshal([]byte(must(t, environ, "migrate", "up", "--dry-run", "--json")), &plan))
	want := postgres.TableLock{Table: "accounts", Mode: "SHARE ROW EXCLUSIVE", Blocks: "writes"}
	if len(plan) < 20 || plan[0].Locks == nil || plan[3].Name != "00004_create_categories.sql" || !plan[3].InTransaction || len(plan[3].Locks) != 1 || plan[3].Locks[0] != want {
		t.Errorf("the plan as JSON: %+v", plan)
	}
	wantOutput(t, environ, "0\n", "migrate", "version")
	must(t, environ, "migrate", "up")
	wantOutput(t, environ, "-- the schema is current\n", "migrate", "up", "--dry-run")
	wantOutput(t, environ, "[]\n", "migrate", "up", "--dry-run", "--json")
	status := must(t, environ, "migrate", "status")
	pgtest.Exec(t, database.Pool, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)")
	for line, want := range map[string]string{"up": "", "up --dry-run": "", "up --dry-run --json": "[]\n", "status": status} {
		stdout, stderr, err := execute(t, environ, append([]string{"migrate"}, strings.Fields(line)...)...)
		if err != nil || stderr != "the schema has later migrations, up to 99999\n" || stdout != want {
			t.Errorf("migrate %s in the schema of a later release: %v, %q, %q", line, err, stderr, stdout)
		}
	}
	newer := fmt.Sprintf("the schema has the migration 99999, but the last one of this program is %d; use the program of the later release", len(plan))
	wantSentence(t, environ, []string{"migrate", "down", "--yes"}, false, newer)
	role, _ := database.NewRole(t)
	wantText(t, append(environ, "PETSTORE_SERVING_ROLE="+role), "granted "+role+" nothing", "migrate", "up")
	wantSentence(t, []string{"DATABASE_URL=postgres://127.0.0.1:1/petstore?connect_timeout=2"}, []string{"migrate", "up", "--dry-run"}, false,
		"cannot connect to PostgreSQL at 127.0.0.1:1: connection refused; check that it runs there, or correct DATABASE_URL")
}
