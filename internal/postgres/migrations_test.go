package postgres_test

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3/lock"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
	"petstore/migrations"
)

// allMigrations returns all migrations, in their order.
func allMigrations(t *testing.T) (names []string, texts map[string]string) {
	t.Helper()
	names, texts = need.Value(fs.Glob(migrations.FS, "*.sql"))(t), map[string]string{}
	if len(names) < 12 {
		t.Fatalf("the migrations are %q", names)
	}
	for _, name := range names {
		texts[name] = string(need.Value(fs.ReadFile(migrations.FS, name))(t))
	}
	return names, texts
}

// numbered returns the versions of all migrations, which count from 1.
func numbered(t *testing.T) (all []int64) {
	t.Helper()
	names, _ := allMigrations(t)
	for i := range names {
		all = append(all, int64(i+1))
	}
	return all
}

func openMigrations(t *testing.T, url string) *postgres.Migrations {
	t.Helper()
	migrations := need.Value(postgres.OpenMigrations(t.Context(), url))(t)
	t.Cleanup(migrations.Close)
	return migrations
}

// schema describes the whole schema, one line per object.
func schema(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return pgtest.List[string](t, pool, `
		WITH ours AS (
			SELECT c.oid, c.relname, c.relkind, c.reloptions
			FROM pg_class c
			WHERE c.relnamespace = 'public'::regnamespace AND c.relname !~ '^goose_db_version'
			  AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e') -- of an extension
		)
		SELECT format('%s %s %s', relkind, relname, reloptions) FROM ours
		UNION ALL
		SELECT format('column %s.%s %s %s storage=%s not null=%s identity=%s default=%s collation=%s',
		              o.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attstorage, a.attnotnull, a.attidentity,
		              pg_get_expr(d.adbin, d.adrelid), (SELECT collname FROM pg_collation WHERE oid = a.attcollation))
		FROM ours o
		JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0
		LEFT JOIN pg_attrdef d ON d.adrelid = o.oid AND d.adnum = a.attnum
		WHERE o.relkind IN ('r', 'p')
		UNION ALL
		SELECT format('constraint %s.%s %s', o.relname, k.conname, pg_get_constraintdef(k.oid))
		FROM ours o JOIN pg_constraint k ON k.conrelid = o.oid
		UNION ALL
		SELECT pg_get_indexdef(oid) FROM ours WHERE relkind IN ('i', 'I')
		UNION ALL
		SELECT format('sequence %s', s.*) FROM pg_sequences s WHERE s.schemaname = 'public' AND s.sequencename !~ '^goose_db_version'
		UNION ALL
		SELECT format('comment %s.%s %s', o.relname, d.objsubid, d.description)
		FROM ours o JOIN pg_description d ON d.objoid = o.oid AND d.classoid = 'pg_class'::regclass
		UNION ALL
		SELECT format('function %s %s %s', p.oid::regprocedure, array_remove(p.proconfig, 'plan_cache_mode=force_generic_plan'), p.prosrc) -- which Citus lacks
		FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
		UNION ALL
		SELECT format('type %s', t.typname) FROM pg_type t
		WHERE t.typnamespace = 'public'::regnamespace AND t.typtype IN ('d', 'e') -- domains and enums
		ORDER BY 1`)
}

func versions(migrations []postgres.Migration) []int64 {
	all := []int64{}
	for _, one := range migrations {
		all = append(all, one.Version)
	}
	return all
}

// TestMigrations: migrate up step by step, down to the same schemas, and up at once to the last
// one. The version and the status tell where, and the status has the right times in a time zone
// other than UTC.
func TestMigrations(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	pgtest.Exec(t, database.Pool, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Tokyo''', current_database()); END $$")
	migrations := openMigrations(t, database.URL)
	all := numbered(t)
	latest := all[len(all)-1]
	isAt := func(want int64) {
		t.Helper()
		if got, err := migrations.Version(t.Context()); err != nil || got != want {
			t.Fatalf("the version is %d (%v), want %d", got, err, want)
		}
		status, err := migrations.Status(t.Context())
		if err != nil || len(status) != len(all) {
			t.Fatalf("status %v, %v", status, err)
		}
		for i, one := range status {
			if one.Version != all[i] || one.Name == "" || (one.AppliedAt == nil) != (one.Version > want) {
				t.Errorf("the status at %d: %+v", want, one)
			}
			if one.AppliedAt != nil && time.Since(*one.AppliedAt).Abs() > time.Hour {
				t.Errorf("%s was applied at %s", one.Name, one.AppliedAt)
			}
		}
	}
	up := func() {
		t.Helper()
		applied, err := migrations.Up(t.Context())
		if diff := gocmp.Diff(all, versions(applied)); diff != "" || err != nil {
			t.Fatalf("applied (%v) (-want +got):\n%s", err, diff)
		}
		isAt(latest)
	}
	isAt(0)
	names, texts := allMigrations(t)
	schemas, files := [][]string{schema(t, database.Pool)}, fstest.MapFS{}
	for _, name := range names {
		files[name] = &fstest.MapFile{Data: []byte(texts[name])}
		step := need.Value(postgres.OpenMigrationsOf(t.Context(), database.URL, files))(t)
		need.Value(step.Up(t.Context()))(t)
		step.Close()
		schemas = append(schemas, schema(t, database.Pool))
	}
	isAt(latest)
	made := schemas[latest]
	if len(made) < 100 || len(schemas[0]) > 0 {
		t.Errorf("%d lines describe the schema, want more: %v; at first: %q", len(made), made, schemas[0])
	}
	if again, err := migrations.Up(t.Context()); len(again) > 0 || err != nil {
		t.Errorf("up again applied %v: %v", again, err)
	}
	for version := latest; version > 0; version-- {
		down, err := migrations.Down(t.Context())
		if err != nil || len(down) != 1 || down[0].Version != version {
			t.Fatalf("down from %d: %v, %v", version, down, err)
		}
		isAt(version - 1)
		need.Same(t, schemas[version-1], schema(t, database.Pool), "schema after down from %d (want: before it, got: after it)", version)
	}
	if none, err := migrations.Down(t.Context()); len(none) > 0 || err != nil {
		t.Errorf("down from an empty schema: %v, %v", none, err)
	}
	up()
	need.Same(t, made, schema(t, database.Pool), "schema after down and up (want: first, got: second)")

	running := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, running, "SELECT pg_advisory_xact_lock($1)", lock.DefaultLockID)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := migrations.Status(ctx); err != nil {
		t.Errorf("the status while a migration runs: %v", err)
	}
}

// TestMigrationsAtOnce: when five processes start at the same time, each migration
// runs once.
func TestMigrationsAtOnce(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	const processes = 5
	applied := make(chan []int64, processes)
	for range processes {
		migrations := openMigrations(t, database.URL)
		go func() {
			done, err := migrations.Up(t.Context())
			if err != nil {
				t.Error(err)
			}
			applied <- versions(done)
		}()
	}
	times := map[int64]int{}
	for range processes {
		for _, version := range <-applied {
			times[version]++
		}
	}
	want := map[int64]int{}
	for _, version := range numbered(t) {
		want[version] = 1
	}
	need.Same(t, want, times, "runs of each migration")
	need.Same(t, schema(t, shared(t).Pool), schema(t, database.Pool), "schema (want: one process, got: five)")
}

// TestMigrationsWithoutLimits: the limits of serve, which the role has behind a pooler, do
// not end a migration. Those of the URL do. The server looks whether the process still exists.
func TestMigrationsWithoutLimits(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	role, roleURL := database.NewRole(t)
	grant := "GRANT CREATE ON SCHEMA public TO " + pgx.Identifier{role}.Sanitize()
	for _, sql := range append(postgres.RoleSettings(role), grant) {
		pgtest.Exec(t, database.Pool, sql)
	}
	files := fstest.MapFS{"00001_settings.sql": {Data: []byte("-- +goose Up\n" +
		"CREATE TABLE settings AS SELECT name, setting FROM pg_settings\nWHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'enable_seqscan', 'client_connection_check_interval');\n" +
		"GRANT SELECT ON settings TO PUBLIC;\n-- +goose Down\nDROP TABLE settings;\n")}}
	for url, lockTimeout := range map[string]string{roleURL: "0", roleURL + "&lock_timeout=3s": "3000"} {
		m := need.Value(postgres.OpenMigrationsOf(t.Context(), url, files))(t)
		need.Value(m.Up(t.Context()))(t)
		got := pgtest.List[string](t, database.Pool, "SELECT name || '=' || setting FROM settings ORDER BY name")
		want := []string{"client_connection_check_interval=1000", "enable_seqscan=on", "idle_in_transaction_session_timeout=0", "lock_timeout=" + lockTimeout, "statement_timeout=0"}
		need.Same(t, want, got, "settings of a migration")
		need.Value(m.Down(t.Context()))(t)
		m.Close()
	}
}

// TestVacuumOfQueues: VACUUM of tables whose open rows are found by an index runs after changes of 3 % of the rows.
// Below 2 %, it may leave the dead entries of indexes.
func TestVacuumOfQueues(t *testing.T) {
	t.Parallel()
	got := pgtest.List[string](t, shared(t).Pool, `
		SELECT relname || ' ' || option_value
		FROM pg_class, pg_options_to_table(reloptions)
		WHERE relkind = 'r' AND relname IN ('orders', 'messages', 'webhook_deliveries') AND option_name = 'autovacuum_vacuum_scale_factor'
		ORDER BY 1`)
	need.Same(t, []string{"messages 0.03", "orders 0.03", "webhook_deliveries 0.03"}, got, "tables")
}

// TestSchemaFit: a program works with its schema and with newer ones, until a migration says
// that it does not. An older schema is behind, and one without the privileges of the role is denied.
func TestSchemaFit(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	migrations := openMigrations(t, database.OwnerURL)
	role, roleURL := database.NewRole(t)
	pool := open(t, roleURL, 1)
	for _, step := range []struct {
		what string
		do   func() error
		want postgres.SchemaFit
	}{
		{"an empty database", func() error { return nil }, postgres.SchemaBehind},
		{"before the privileges", func() error { _, err := migrations.Up(t.Context()); return err }, postgres.SchemaDenied},
		{"after them", func() error { return migrations.GrantServing(t.Context(), role) }, postgres.SchemaFits},
	} {
		need.OK(t, step.do())
		if got, err := pool.SchemaFit(t.Context()); err != nil || got != step.want {
			t.Errorf("%s: the schema is %s, %v", step.what, got, err)
		}
	}
	latest := len(numbered(t))
	const contract = "COMMENT ON TABLE goose_db_version IS 'supports programs from %d'"
	for _, test := range []struct {
		what    string
		version int
		comment string
		want    postgres.SchemaFit
	}{
		{"its own schema", latest, "", postgres.SchemaFits},
		{"older by one", latest - 1, "", postgres.SchemaBehind},
		{"older by two", latest - 2, "", postgres.SchemaBehind},
		{"newer by one", latest + 1, "", postgres.SchemaFits},
		{"newer by one, which removes what the release before this one used", latest + 1, fmt.Sprintf(contract, latest), postgres.SchemaFits},
		{"newer by two", latest + 2, "", postgres.SchemaFits},
		{"newer by two, which removes what this release uses", latest + 2, fmt.Sprintf(contract, latest+1), postgres.SchemaAhead},
		{"older by one, with a comment of an operator", latest - 1, "COMMENT ON TABLE goose_db_version IS 'ours'", postgres.SchemaBehind},
		{"its own schema after that", latest, "", postgres.SchemaFits},
	} {
		statement := fmt.Sprintf("DELETE FROM goose_db_version WHERE version_id > %d; INSERT INTO goose_db_version (version_id, is_applied) VALUES (%[1]d, true); %s",
			test.version, cmp.Or(test.comment, "COMMENT ON TABLE goose_db_version IS NULL"))
		pgtest.Exec(t, database.Pool, statement)
		if got, err := pool.SchemaFit(t.Context()); err != nil || got != test.want {
			t.Errorf("%s: the schema is %q (%v), want %q", test.what, got, err, test.want)
		} else if hasProblem := got.Problem() != ""; hasProblem != (test.want != postgres.SchemaFits) {
			t.Errorf("%s: the problem is %q", test.what, got.Problem())
		}
	}
}
