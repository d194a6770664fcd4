package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// served is a migrated database with a serving role of its own test.
type served struct {
	*pgtest.Database
	migrations *postgres.Migrations
	role       string
}

func newServed(t *testing.T) *served {
	t.Helper()
	database := pgtest.NewEmpty(t)
	role, _ := database.NewRole(t)
	s := &served{Database: database, migrations: openMigrations(t, database.OwnerURL), role: role}
	need.Value(s.migrations.Up(t.Context()))(t)
	need.OK(t, s.migrations.GrantServing(t.Context(), s.role))
	return s
}

// wantOnlyRows checks that the serving role can only change rows as queries do, and cannot get more privileges.
func (s *served) wantOnlyRows(t *testing.T) {
	t.Helper()
	before := s.privileges(t)
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
		"SELECT nextval('accounts_id_seq')", "SELECT setval('pets_id_seq', 1)", "SELECT last_value FROM pets_id_seq",
		"UPDATE goose_db_version SET version_id = 0", "DELETE FROM goose_db_version", "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)",
		"UPDATE signing_keys SET secret = secret", "DELETE FROM signing_keys", "UPDATE accounts SET parent_id = NULL",
		"UPDATE messages SET message = 'mine'", "UPDATE api_keys SET scope = 'admin'", "UPDATE api_keys SET account_id = 1", "UPDATE api_keys SET expires_at = NULL",
		"UPDATE orders SET pet_id = 1", "UPDATE accounts SET id = DEFAULT", "INSERT INTO api_keys (revoked_at) VALUES (NULL)", "SET session_replication_role = replica",
		"COPY pets TO '/tmp/mine'", "COPY pets FROM PROGRAM 'true'", "SELECT pg_read_file('postgresql.conf')", "SELECT passwd FROM pg_shadow",
		"SELECT lo_create(0)", "SELECT lo_creat(-1)", "SELECT lo_from_bytea(0, 'mine')", "SELECT lo_import('/etc/passwd')",
	} {
		_, err := pool.Exec(t.Context(), statement)
		if stateOf(err) != insufficientPrivilege {
			t.Errorf("%s: %v", statement, err)
		}
	}
	pgtest.Exec(t, pool, "GRANT ALL ON pets TO PUBLIC") // only a warning
	need.Same(t, before, s.privileges(t), "privileges after all attempts (want: before, got: after)")
	if owned := pgtest.Read[int](t, s.Pool, "SELECT count(*) FROM pg_shdepend WHERE refobjid = $1::regrole AND deptype = 'o'", s.role); owned != 0 {
		t.Errorf("the role owns %d objects", owned)
	}
}

// TestServingPrivileges checks that the role can only change rows, that it may run every query, and that some
// query needs each of its privileges.
func TestServingPrivileges(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.wantOnlyRows(t)
	granted := s.privileges(t)
	queries := s.prepareQueries(t)
	if rejected := queries.rejected(t, ""); len(rejected) > 0 {
		t.Errorf("the role may not run the queries %v", rejected)
	}
	for _, privilege := range granted {
		if needed := len(queries.rejected(t, privilege)) > 0; needed == slices.Contains(postgres.FormerPrivileges, privilege) {
			t.Errorf("the privilege %s: a query needs it: %t; keep it only if one does or, in formerPrivileges, if one of the last release does", privilege, needed)
		}
	}
	// the next migration revokes additional privileges
	for _, statement := range []string{
		"GRANT ALL ON ALL TABLES IN SCHEMA public TO ", "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ", "GRANT CREATE ON SCHEMA public TO PUBLIC, ",
		"GRANT EXECUTE ON FUNCTION maintain_events() TO PUBLIC, ",
	} {
		pgtest.Exec(t, s.Pool, statement+s.role)
	}
	pgtest.Exec(t, s.Pool, "DO $$ BEGIN EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC, "+s.role+"', current_database()); END $$")
	need.OK(t, s.migrations.GrantServing(t.Context(), s.role))
	need.Same(t, granted, s.privileges(t), "privileges after granting again (want: before, got: after)")
	var more []string
	err := s.Pool.QueryRow(t.Context(), `
		SELECT array(SELECT sequencename::text FROM pg_sequences
			WHERE schemaname = 'public'
			  AND (has_sequence_privilege($1, sequencename::text, 'SELECT, UPDATE')
			   OR has_sequence_privilege($1, sequencename::text, 'USAGE') <> (sequencename IN ('categories_id_seq', 'pets_id_seq', 'orders_id_seq'))))
		    || array(SELECT 'schema' WHERE has_schema_privilege($1, 'public', 'CREATE'))
		    || array(SELECT 'function' WHERE has_function_privilege('public', 'maintain_events()', 'EXECUTE'))
		    || array(SELECT 'no connection' WHERE NOT has_database_privilege($1, current_database(), 'CONNECT'))
		    || array(SELECT 'database' WHERE has_database_privilege($1, current_database(), 'CREATE, TEMPORARY'))`, s.role).Scan(&more)
	if err != nil || len(more) > 0 {
		t.Errorf("the role can change more than rows in %v; list a sequence that queries read here and in servingSequences: %v", more, err)
	}
}

// TestGrantServing: GrantServing rejects a role that can change the schema.
// Concurrent grants work, and the schema of an unknown later release is left alone.
func TestGrantServing(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	owner := pgtest.Read[string](t, s.Pool, "SELECT current_user::text")
	superuser, _ := s.NewRole(t, "SUPERUSER")
	heir, _ := s.NewRole(t, "IN ROLE", pgx.Identifier{owner}.Sanitize())
	for role, want := range map[string]string{
		"nobody_at_all": "CREATE ROLE",
		owner:           "can change the schema",
		superuser:       "can change the schema",
		heir:            "can change the schema",
	} {
		if err := s.migrations.GrantServing(t.Context(), role); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("granting to %s: %v, want an error with %q", role, err, want)
		}
	}

	var grants sync.WaitGroup
	for range 5 {
		migrations := openMigrations(t, s.OwnerURL)
		grants.Go(func() {
			if err := migrations.GrantServing(t.Context(), s.role); err != nil {
				t.Errorf("concurrent grant: %v", err)
			}
		})
	}
	grants.Wait()

	pgtest.Exec(t, s.Pool, `
		INSERT INTO goose_db_version (version_id, is_applied) SELECT max(version_id) + 1, true FROM goose_db_version;
		CREATE TABLE later (id int); GRANT SELECT, DELETE ON later, messages TO `+s.role)
	ahead := s.privileges(t)
	if err := s.migrations.GrantServing(t.Context(), s.role); !errors.Is(err, postgres.ErrLaterSchema) {
		t.Errorf("granting in the schema of a later release: %v", err)
	}
	need.Same(t, ahead, s.privileges(t), "privileges of a later release (want: before, got: after)")
	if !slices.Contains(ahead, "DELETE ON later") {
		t.Errorf("the later release has granted %q", ahead)
	}
}

// privileges lists the privileges of the role, as "DELETE ON pets" and "SELECT
// (name) ON pets".
func (s *served) privileges(t *testing.T) []string {
	t.Helper()
	all := pgtest.List[string](t, s.Pool, `
		WITH tables AS (
			SELECT oid, relname FROM pg_class
			WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relnamespace = 'public'::regnamespace
			  AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e') -- of an extension
		)
		SELECT p.name || ' ON ' || relname
		FROM tables, unnest('{DELETE,TRUNCATE,TRIGGER}'::text[]) AS p (name)
		WHERE has_table_privilege($1, tables.oid, p.name)
		UNION ALL
		SELECT p.name || ' (' || attname || ') ON ' || relname
		FROM tables
		JOIN pg_attribute ON attrelid = tables.oid AND attnum > 0 AND NOT attisdropped
		CROSS JOIN unnest('{SELECT,INSERT,UPDATE,REFERENCES}'::text[]) AS p (name)
		WHERE has_column_privilege($1, tables.oid, attnum, p.name)`, s.role)
	slices.Sort(all)
	return all
}

// queryPattern matches the queries in Go code.
var queryPattern = regexp.MustCompile("(?s)const \\w+ = `(-- name: (\\w+) .*?)`")

// copyPattern matches the queries in queries/ that copy rows.
var copyPattern = regexp.MustCompile(`(?s)(-- name: (\w+) :copyfrom.*?);`)

// preparedQueries holds all queries, prepared on one connection of the owner.
type preparedQueries struct {
	*pgx.Conn

	role    string
	queries map[string]string // by name
	explain map[string]string // EXPLAIN statement of each query, by name
}

// prepareQueries prepares every query, and those about the schema and the partitions, which
// are not in queries/.
func (s *served) prepareQueries(t *testing.T) *preparedQueries {
	t.Helper()
	queries := map[string]string{"SchemaFit": postgres.SchemaVersions}
	// sqlc generates no SQL for queries that copy rows.
	for pattern, query := range map[string]*regexp.Regexp{"../../db/*.go": queryPattern, "partitions.go": queryPattern, "../../queries/*.sql": copyPattern} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("queries %v: %v", files, err)
		}
		for _, file := range files {
			text := need.Value(os.ReadFile(file))(t)
			for _, found := range query.FindAllStringSubmatch(string(text), -1) {
				queries[found[2]] = found[1]
			}
		}
	}
	functions := appendEvents(t)
	maps.Copy(functions, appendExchanges(t))
	for name, statement := range functions {
		var parameters []string
		queries[name] = regexp.MustCompile(`@\w+`).ReplaceAllStringFunc(statement, func(parameter string) string {
			if !slices.Contains(parameters, parameter) {
				parameters = append(parameters, parameter)
			}
			return fmt.Sprint("$", slices.Index(parameters, parameter)+1)
		})
	}
	conn := need.Value(pgx.Connect(t.Context(), s.OwnerURL))(t)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	// A generic plan: a plan for NULL might omit a table.
	pgtest.Exec(t, conn, "SET plan_cache_mode = force_generic_plan")
	p := &preparedQueries{conn, s.role, queries, map[string]string{}}
	for name, query := range queries {
		prepared, err := conn.Prepare(t.Context(), "p_"+name, query)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		arguments := strings.TrimSuffix(strings.Repeat("NULL, ", len(prepared.ParamOIDs)), ", ")
		if arguments != "" {
			arguments = "(" + arguments + ")"
		}
		p.explain[name] = fmt.Sprintf("EXPLAIN EXECUTE %s%s", pgx.Identifier{"p_" + name}.Sanitize(), arguments)
	}
	return p
}

// rejected lists the queries that the role may not run, without one of its
// privileges unless that is empty. With a privilege, it stops at the first query.
func (p *preparedQueries) rejected(t *testing.T, without string) (names []string) {
	t.Helper()
	tx := need.Value(p.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if without != "" {
		pgtest.Exec(t, tx, "REVOKE "+without+" FROM "+p.role)
	}
	pgtest.Exec(t, tx, "SET LOCAL ROLE "+p.role)
	_, table, _ := strings.Cut(without, " ON ")
	for name, explain := range p.explain {
		if !strings.Contains(p.queries[name], table) {
			continue
		}
		err := pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
			_, err := savepoint.Exec(t.Context(), explain)
			return err
		})
		if stateOf(err) == insufficientPrivilege {
			if names = append(names, name); without != "" {
				return names
			}
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	slices.Sort(names)
	return names
}
