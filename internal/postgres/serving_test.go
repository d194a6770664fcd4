package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

// served is a migrated database and a role of the test's own that serves there.
type served struct {
	*pgtest.Database
	migrations *postgres.Migrations
	role       string
}

func newServed(t *testing.T) *served {
	t.Helper()
	database := pgtest.NewEmpty(t)
	s := &served{Database: database, migrations: openMigrations(t, database.OwnerURL), role: newRole(t, database, "LOGIN")}
	if _, err := s.migrations.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.migrations.GrantServing(t.Context(), s.role); err != nil {
		t.Fatal(err)
	}
	return s
}

// newRole makes a role that goes when the test ends.
func newRole(t *testing.T, database *pgtest.Database, options string) string {
	t.Helper()
	role := "petstore_test_" + strings.ToLower(rand.Text()[:8])
	owner := open(t, database.OwnerURL, 1) // which closes after the role is gone
	if _, err := owner.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s %s", role, options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, statement := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			if _, err := owner.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
				t.Error(err)
			}
		}
	})
	return role
}

// TestServingRoleChangesRowsAlone: what is not a change of a row that some query
// makes is refused, and so is every way to more.
func TestServingRoleChangesRowsAlone(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	pool := open(t, s.OwnerURL, 1, "role", s.role)
	for _, statement := range []string{
		"CREATE TABLE mine (id int)", "CREATE TEMPORARY TABLE mine (id int)", "CREATE UNLOGGED TABLE mine AS SELECT FROM pets",
		"CREATE VIEW mine AS SELECT FROM pets", "CREATE INDEX ON pets (name)", "CREATE SCHEMA mine", "CREATE SEQUENCE mine",
		"CREATE TYPE mine AS ENUM ()", "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'", "CREATE EXTENSION pgcrypto",
		"CREATE TRIGGER mine BEFORE INSERT ON pets FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
		"CREATE ROLE mine", "CREATE DATABASE mine", "SELECT INTO mine FROM pets",
		"ALTER TABLE pets ADD COLUMN mine int", "ALTER TABLE pets RENAME TO mine", "ALTER TABLE pets DISABLE TRIGGER ALL",
		"ALTER TABLE pets OWNER TO CURRENT_USER", "ALTER TABLE pets DROP CONSTRAINT pets_name_check", "ALTER SEQUENCE pets_id_seq RESTART",
		"ALTER SCHEMA public RENAME TO mine", "ALTER ROLE CURRENT_USER SUPERUSER", "ALTER SYSTEM SET fsync = off",
		"DROP TABLE orders", "DROP INDEX pets_status_idx", "DROP SCHEMA public CASCADE", "TRUNCATE orders", "TRUNCATE pets CASCADE",
		"COMMENT ON TABLE pets IS 'mine'", "CLUSTER pets USING pets_pkey", "REINDEX TABLE pets", "REFRESH MATERIALIZED VIEW pets",
		"SELECT nextval('pets_id_seq')", "SELECT setval('pets_id_seq', 1)", "SELECT last_value FROM pets_id_seq",
		"UPDATE goose_db_version SET version_id = 0", "DELETE FROM goose_db_version", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)",
		"UPDATE signing_keys SET secret = secret", "DELETE FROM signing_keys", "DELETE FROM accounts", "DELETE FROM api_keys", "DELETE FROM messages",
		"UPDATE messages SET message = 'mine'", "SET session_replication_role = replica",
		"COPY pets TO '/tmp/mine'", "COPY pets FROM PROGRAM 'true'", "SELECT pg_read_file('postgresql.conf')", "SELECT passwd FROM pg_shadow",
	} {
		_, err := pool.Exec(t.Context(), statement)
		const insufficientPrivilege = "42501"
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != insufficientPrivilege {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if _, err := pool.Exec(t.Context(), "GRANT ALL ON pets TO PUBLIC"); err != nil { // a warning
		t.Error(err)
	}
	if diff := cmp.Diff(s.needed(t), s.privileges(t)); diff != "" {
		t.Errorf("after all that, the privileges (-needed +has):\n%s", diff)
	}
	var owned int
	if err := s.Pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_shdepend WHERE refobjid = $1::regrole AND deptype = 'o'", s.role).Scan(&owned); err != nil || owned != 0 {
		t.Errorf("the role owns %d objects: %v", owned, err)
	}
}

// TestServingPrivileges: the role may do to each table what a query does, and
// nothing else.
func TestServingPrivileges(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	if diff := cmp.Diff(s.needed(t), s.privileges(t)); diff != "" {
		t.Errorf("privileges (-needed by queries/ +granted):\n%s", diff)
	}
	// more than that is taken away by the next migration
	for _, statement := range []string{
		"GRANT ALL ON ALL TABLES IN SCHEMA public TO ", "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ", "GRANT CREATE ON SCHEMA public TO PUBLIC, ",
	} {
		if _, err := s.Pool.Exec(t.Context(), statement+s.role); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.migrations.GrantServing(t.Context(), s.role); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.needed(t), s.privileges(t)); diff != "" {
		t.Errorf("privileges, granted again (-needed by queries/ +granted):\n%s", diff)
	}
	var more []string
	err := s.Pool.QueryRow(t.Context(), `
		SELECT array(SELECT sequencename::text FROM pg_sequences WHERE has_sequence_privilege($1, sequencename::text, 'USAGE, SELECT, UPDATE'))
		    || array(SELECT 'schema' WHERE has_schema_privilege($1, 'public', 'CREATE'))
		    || array(SELECT 'database' WHERE has_database_privilege($1, current_database(), 'CREATE, TEMPORARY'))`, s.role).Scan(&more)
	if err != nil || len(more) > 0 {
		t.Errorf("more than rows can be changed in %v: %v", more, err)
	}
}

// TestGrantServing: a role that could change the schema anyway is refused, many
// may grant at once, and a release that is not known is left alone.
func TestGrantServing(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	var owner string
	if err := s.Pool.QueryRow(t.Context(), "SELECT current_user::text").Scan(&owner); err != nil {
		t.Fatal(err)
	}
	for role, want := range map[string]string{
		"nobody_at_all":                     "CREATE ROLE",
		owner:                               "could change the schema",
		newRole(t, s.Database, "SUPERUSER"): "could change the schema",
		newRole(t, s.Database, "IN ROLE "+pgx.Identifier{owner}.Sanitize()): "could change the schema",
	} {
		if err := s.migrations.GrantServing(t.Context(), role); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("granting to %s: %v, want an error with %q", role, err, want)
		}
	}

	const processes = 5
	failed := make(chan error, processes)
	for range processes {
		migrations := openMigrations(t, s.OwnerURL)
		go func() { failed <- migrations.GrantServing(t.Context(), s.role) }()
	}
	for range processes {
		if err := <-failed; err != nil {
			t.Errorf("granting at once: %v", err)
		}
	}

	if _, err := s.Pool.Exec(t.Context(), `
		INSERT INTO goose_db_version (version_id, is_applied) SELECT max(version_id) + 1, true FROM goose_db_version;
		CREATE TABLE later (id int); GRANT SELECT, DELETE ON later, messages TO `+s.role); err != nil {
		t.Fatal(err)
	}
	ahead := s.privileges(t)
	if err := s.migrations.GrantServing(t.Context(), s.role); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(ahead, s.privileges(t)); diff != "" || !slices.Contains(ahead, "later DELETE") {
		t.Errorf("privileges of a later release (-before +after):\n%s", diff)
	}
}

// TestSchemaIsCurrentForWhomItMay: until the role is granted what it needs, the
// schema is behind.
func TestSchemaIsCurrentForWhomItMay(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	migrations, role := openMigrations(t, database.OwnerURL), newRole(t, database, "LOGIN")
	pool := open(t, database.OwnerURL, 1, "role", role)
	for _, step := range []struct {
		what string
		do   func() error
		want bool
	}{
		{"before the migration", func() error { return nil }, false},
		{"before the privileges", func() error { _, err := migrations.Up(t.Context()); return err }, false},
		{"after them", func() error { return migrations.GrantServing(t.Context(), role) }, true},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got, err := pool.SchemaIsCurrent(t.Context()); err != nil || got != step.want {
			t.Errorf("%s: current is %t, %v", step.what, got, err)
		}
	}
}

// privileges lists what the role may do to tables, as "pets SELECT".
func (s *served) privileges(t *testing.T) []string {
	t.Helper()
	rows, err := s.Pool.Query(t.Context(), `
		SELECT c.relname || ' ' || p.name
		FROM pg_class c
		CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p (name)
		WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relnamespace = 'public'::regnamespace AND has_table_privilege($1, c.oid, p.name)`, s.role)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

var (
	queryPattern = regexp.MustCompile(`(?m)^-- name: (\w+)`)
	commentLine  = regexp.MustCompile(`(?m)--.*$`)
	// verbs are how a query names a table, and the privilege that it takes.
	verbs = map[string]*regexp.Regexp{
		"SELECT": regexp.MustCompile(`\b(?:FROM|JOIN)\s+(\w+)`),
		"INSERT": regexp.MustCompile(`\bINSERT INTO\s+(\w+)`),
		"UPDATE": regexp.MustCompile(`(?:\bUPDATE\s+(\w+)\s+SET\b|\bINSERT INTO\s+(\w+)[^;]*\bDO UPDATE\b|\bFROM\s+(\w+)[^;()]*\bFOR (?:NO KEY )?UPDATE\b)`),
		"DELETE": regexp.MustCompile(`\bDELETE FROM\s+(\w+)`),
	}
)

// needed lists the privileges that the queries take, and reading the version of
// the schema, which no query does.
func (s *served) needed(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../queries/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("queries %v: %v", files, err)
	}
	rows, err := s.Pool.Query(t.Context(), "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"goose_db_version SELECT"}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, query := range queryPattern.Split(string(text), -1)[1:] {
			query = commentLine.ReplaceAllString(query, "")
			for privilege, pattern := range verbs {
				for _, found := range pattern.FindAllStringSubmatch(query, -1) {
					if table := strings.Join(found[1:], ""); slices.Contains(tables, table) { // and no name of a WITH
						all = append(all, table+" "+privilege)
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
