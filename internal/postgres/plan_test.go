package postgres_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
	"petstore/migrations"
)

var update = flag.Bool("update", false, "write the locks of the migrations")

// TestMigrationLocks checks that the locks of each migration are as migrations/locks.txt says.
// With -update it writes the file.
func TestMigrationLocks(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "migrations lock the shards too")
	got := measureLocks(t, migrations.FS)
	if *update {
		need.OK(t, os.WriteFile("../../migrations/"+migrations.Locks, []byte(got), 0o600))
		return
	}
	want, err := fs.ReadFile(migrations.FS, migrations.Locks)
	if diff := gocmp.Diff(string(want), got); diff != "" || err != nil {
		t.Errorf("the locks of the migrations differ from migrations/%s; run make generate (%v, -file +measured):\n%s", migrations.Locks, err, diff)
	}
}

// toys are migrations that take different locks.
var toys = []struct{ name, up, want string }{
	{"create", "CREATE TABLE owners (id bigint PRIMARY KEY);\nCREATE TABLE toys (id bigint, owner_id bigint, size int);", ""},
	{"add_column", "ALTER TABLE toys ADD COLUMN name text;", "toys ACCESS EXCLUSIVE, blocks reads and writes"},
	{"change_type", "ALTER TABLE toys ALTER COLUMN size TYPE bigint;", "toys ACCESS EXCLUSIVE, blocks reads and writes, rewrites"},
	{"rewrite_again", "ALTER TABLE toys ADD COLUMN seen timestamptz DEFAULT clock_timestamp();", "toys ACCESS EXCLUSIVE, blocks reads and writes, rewrites"},
	{"index", "CREATE INDEX toys_size_idx ON toys (size);", "toys SHARE, blocks writes"},
	{"index_concurrently", "CREATE INDEX CONCURRENTLY toys_name_idx ON toys (name);", "toys SHARE UPDATE EXCLUSIVE, blocks nothing"},
	{"drop_concurrently", "SET lock_timeout = '1min';\nDROP INDEX CONCURRENTLY toys_size_idx;", "toys SHARE UPDATE EXCLUSIVE, blocks nothing"},
	{
		"reference", "ALTER TABLE toys ADD CONSTRAINT toys_owner_fkey FOREIGN KEY (owner_id) REFERENCES owners NOT VALID;",
		"owners SHARE ROW EXCLUSIVE, blocks writes; toys SHARE ROW EXCLUSIVE, blocks writes",
	},
	{
		"validate", "ALTER TABLE toys VALIDATE CONSTRAINT toys_owner_fkey;",
		"owners ROW SHARE, blocks nothing; toys SHARE UPDATE EXCLUSIVE, blocks nothing",
	},
	{"fill", "UPDATE toys SET name = 'Ball' WHERE name IS NULL;\nSELECT count(*) FROM owners;", "toys ROW EXCLUSIVE, blocks nothing"},
	{"two", "UPDATE toys SET size = 1;\nLOCK TABLE toys IN EXCLUSIVE MODE;\nCREATE TABLE more (id int);\nALTER TABLE more ADD COLUMN name text;", "toys EXCLUSIVE, blocks writes"},
	{"partition", "CREATE TABLE days (at date) PARTITION BY RANGE (at);\nCREATE TABLE day PARTITION OF days FOR VALUES FROM ('2026-11-23') TO ('2026-11-24');", ""},
	{"change_partitions", "ALTER TABLE days ADD COLUMN name text;", "days ACCESS EXCLUSIVE, blocks reads and writes"},
	{"drop", "DROP TABLE toys;", "owners ACCESS EXCLUSIVE, blocks reads and writes; toys ACCESS EXCLUSIVE, blocks reads and writes"},
}

// TestPlan: the plan of an empty database has all migrations with the locks that PostgreSQL
// takes. The plan of a migrated database is empty. Plan, Status and Version change nothing. Down
// does not revert the migration of a later release.
func TestPlan(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "migrations lock the shards too")
	files, want := fstest.MapFS{}, []string{}
	for i, toy := range toys {
		annotation, inTransaction := "", true
		if strings.Contains(toy.up, "CONCURRENTLY") {
			annotation, inTransaction = "-- +goose NO TRANSACTION\n", false
		}
		name := fmt.Sprintf("%05d_%s.sql", i+1, toy.name)
		files[name] = &fstest.MapFile{Data: []byte(annotation + "-- +goose Up\n-- +goose StatementBegin\n" + toy.up + "\n-- +goose StatementEnd\n\n-- +goose Down\nSELECT 1;\n")}
		if strings.Count(toy.up, ";") > 1 { // several statements
			files[name].Data = []byte(annotation + "-- +goose Up\n" + toy.up + "\n\n-- +goose Down\nSELECT 1;\n")
		}
		want = append(want, fmt.Sprintf("%s %t %q: %s", name, inTransaction, toy.up, toy.want))
	}
	files[migrations.Locks] = &fstest.MapFile{Data: []byte(measureLocks(t, files))}
	database := pgtest.NewEmpty(t)
	m := need.Value(postgres.OpenMigrationsOf(t.Context(), database.OwnerURL, files))(t)
	t.Cleanup(m.Close)
	plan, err := m.Plan(t.Context())
	if diff := gocmp.Diff(want, planLines(plan)); diff != "" || err != nil {
		t.Errorf("plan: %v (-want +got):\n%s", err, diff)
	}
	status, err := m.Status(t.Context())
	if version, versionErr := m.Version(t.Context()); err != nil || versionErr != nil || len(status) != len(toys) || version != 0 {
		t.Errorf("status %v, %v; version %d, %v", status, err, version, versionErr)
	}
	if tables := pgtest.Read[int](t, database.Pool, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"); tables > 0 {
		t.Errorf("the plan has created %d objects", tables)
	}
	need.Value(m.Up(t.Context()))(t)
	need.Value(m.Down(t.Context()))(t)
	if plan, err := m.Plan(t.Context()); err != nil || len(plan) != 1 || plan[0].Name != "00014_drop.sql" {
		t.Errorf("plan after down: %+v, %v", plan, err)
	}
	pgtest.Exec(t, database.Pool, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)")
	if reverted, err := m.Down(t.Context()); err == nil || !strings.Contains(err.Error(), "the schema has the migration 99, but the last one of this program is 14") {
		t.Errorf("down from a newer schema: %+v, %v", reverted, err)
	}
}

func planLines(plan []postgres.PendingMigration) (lines []string) {
	for _, one := range plan {
		var locks []string
		for _, lock := range one.Locks {
			text := fmt.Sprintf("%s %s, blocks %s", lock.Table, lock.Mode, lock.Blocks)
			if lock.Rewrites {
				text += ", rewrites"
			}
			locks = append(locks, text)
		}
		lines = append(lines, fmt.Sprintf("%s %t %q: %s", one.Name, one.InTransaction, one.SQL, strings.Join(locks, "; ")))
	}
	return lines
}

// measureLocks applies migrations to an empty database, and returns their strongest locks on
// each table that exists before, as [migrations.Locks] has them. Names of partitions stand for
// the tables that they belong to.
func measureLocks(t *testing.T, files fs.FS) string {
	t.Helper()
	l := &lockMeter{T: t, database: pgtest.NewEmpty(t), applied: fstest.MapFS{}}
	names := need.Value(fs.Glob(files, "*.sql"))(t)
	var text strings.Builder
	for i, name := range names {
		content := need.Value(fs.ReadFile(files, name))(t)
		l.applied[name] = &fstest.MapFile{Data: content}
		for _, line := range l.apply(i == 0, !strings.Contains(string(content), "-- +goose NO TRANSACTION")) {
			text.WriteString(name + "\t" + line + "\n")
		}
	}
	return text.String()
}

// lockMeter measures the locks of one migration after the other.
type lockMeter struct {
	*testing.T
	database *pgtest.Database
	applied  fstest.MapFS // with the next one
}

// prepare makes goose record the locks of each transaction of a migration, which adds a row to
// the table of goose as its last statement.
const prepare = `
	CREATE SCHEMA measuring;
	CREATE TABLE measuring.locks (relation oid, mode text);
	CREATE FUNCTION measuring.measure() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO measuring.locks SELECT relation, mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation';
		RETURN NEW;
	END $$;
	CREATE TRIGGER measure BEFORE INSERT ON goose_db_version FOR EACH ROW EXECUTE FUNCTION measuring.measure()`

// lockModes are the modes of pg_locks from weak to strong, without that of every SELECT.
var lockModes = []string{
	"RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock",
}

// apply applies the next migration. It returns a line of [migrations.Locks] for each lock,
// without the name of the migration.
func (l *lockMeter) apply(isFirst, inTransaction bool) (lines []string) {
	l.Helper()
	m := need.Value(postgres.OpenMigrationsOf(l.Context(), l.database.OwnerURL, l.applied))(l)
	defer m.Close()
	if isFirst {
		need.Value(m.Down(l.Context()))(l) // creates the table of goose
		pgtest.Exec(l, l.database.Pool, prepare)
	}
	pgtest.Exec(l, l.database.Pool, "TRUNCATE measuring.locks")
	before := l.tables()
	up := func() error { _, err := m.Up(l.Context()); return err }
	if inTransaction {
		need.OK(l, up())
	} else {
		need.OK(l, l.measureBeside(before, up))
	}
	after := l.tables()
	strongest := map[string]int{}
	rewritten := map[string]bool{}
	for _, lock := range l.locks() {
		table, existed := before[lock.Relation]
		if mode := slices.Index(lockModes, lock.Mode); existed && mode >= 0 {
			strongest[table.name] = max(strongest[table.name], mode)
			now, exists := after[lock.Relation]
			rewritten[table.name] = rewritten[table.name] || exists && now.file != table.file
		}
	}
	for table, mode := range strongest {
		line := table + "\t" + strings.ToUpper(regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(strings.TrimSuffix(lockModes[mode], "Lock"), "$1 $2"))
		if rewritten[table] {
			line += "\trewrites"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// measureBeside calls a function, and records the locks that its session takes until it waits.
// An open transaction has written to all tables, so the statements of a migration without a
// transaction wait for it.
func (l *lockMeter) measureBeside(tables map[uint32]table, up func() error) error {
	writer := pgtest.Begin(l, l.database.Pool)
	for _, one := range tables {
		pgtest.Exec(l, writer, "LOCK TABLE "+one.name+" IN ROW EXCLUSIVE MODE")
	}
	ended := make(chan error, 1)
	waiting, stop := context.WithCancel(l.Context())
	defer stop()
	go func() {
		ended <- up()
		stop()
	}()
	if pgtest.AwaitLockWaiters(waiting, l.database.Pool, 1) != nil {
		return cmp.Or(<-ended, fmt.Errorf("a migration without a transaction has taken no lock that can be measured, as CREATE INDEX CONCURRENTLY does"))
	}
	pgtest.Exec(l, l.database.Pool, `INSERT INTO measuring.locks
		SELECT relation, mode FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE application_name = 'petstore migrate' AND datname = current_database() AND locktype = 'relation'`)
	if err := writer.Rollback(l.Context()); err != nil {
		return err
	}
	return <-ended
}

// table is a table of the schema: the name of itself or of the table that it is a partition of,
// and its file, which changes when it is written again.
type table struct {
	name string
	file uint32
}

// tables returns all tables but that of goose, by their oids.
func (l *lockMeter) tables() map[uint32]table {
	l.Helper()
	rows, err := l.database.Pool.Query(l.Context(), `
		SELECT c.oid, coalesce(inhparent::regclass, c.oid::regclass)::text, coalesce(pg_relation_filenode(c.oid), 0)
		FROM pg_class AS c LEFT JOIN pg_inherits ON inhrelid = c.oid
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'goose_db_version'`)
	if err != nil {
		l.Fatal(err)
	}
	all := map[uint32]table{}
	var oid uint32
	var one table
	need.Value(pgx.ForEachRow(rows, []any{&oid, &one.name, &one.file}, func() error { all[oid] = one; return nil }))(l)
	return all
}

// measuredLock is a row of measuring.locks.
type measuredLock struct {
	Relation uint32
	Mode     string
}

func (l *lockMeter) locks() []measuredLock {
	l.Helper()
	rows := need.Value(l.database.Pool.Query(l.Context(), "SELECT relation, mode FROM measuring.locks"))(l)
	return need.Value(pgx.CollectRows(rows, pgx.RowToStructByPos[measuredLock]))(l)
}
