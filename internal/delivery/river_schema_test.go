package delivery_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"petstore/internal/pgtest"
)

// riverObjects describes what a database has for River: tables, columns, constraints,
// indexes, types and functions. River's own table of its migrations is not needed.
const riverObjects = `
WITH tables AS (
    SELECT oid, relname, relpersistence FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname LIKE 'river%' AND relname <> 'river_migration'
)
SELECT format('table %s, persistence %s', relname, relpersistence) AS object FROM tables
UNION ALL
SELECT format('column %s.%s %s, not null: %s, default %s, identity "%s", generated "%s", collation %s', relname, attname, format_type(atttypid, atttypmod), attnotnull,
              coalesce(pg_get_expr(adbin, adrelid), 'none'), attidentity, attgenerated, attcollation::regcollation)
FROM tables JOIN pg_attribute ON attrelid = tables.oid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND NOT attisdropped
UNION ALL
SELECT format('constraint %s.%s %s', relname, conname, pg_get_constraintdef(pg_constraint.oid))
FROM tables JOIN pg_constraint ON conrelid = tables.oid
WHERE contype <> 'n'
UNION ALL
SELECT format('index %s', pg_get_indexdef(indexrelid)) FROM tables JOIN pg_index ON indrelid = tables.oid
UNION ALL
SELECT format('trigger %s', pg_get_triggerdef(pg_trigger.oid)) FROM tables JOIN pg_trigger ON tgrelid = tables.oid WHERE NOT tgisinternal
UNION ALL
SELECT format('type %s: %s', typname, string_agg(enumlabel, ', ' ORDER BY enumsortorder))
FROM pg_type JOIN pg_enum ON enumtypid = pg_type.oid
WHERE typnamespace = 'public'::regnamespace AND typname LIKE 'river%'
GROUP BY typname
UNION ALL
SELECT format('function %s(%s) returns %s, volatility %s: %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid), provolatile, trim(regexp_replace(prosrc, '\s+', ' ', 'g')))
FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'river%'`

// TestRiverSchema: our migrations make the schema that the migrations of this version of
// River make.
func TestRiverSchema(t *testing.T) {
	t.Parallel()
	ours, rivers := pgtest.New(t).Pool, pgtest.NewEmpty(t).Pool
	migrator, err := rivermigrate.New(riverpgxv5.New(rivers), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	want := describeRiver(t, rivers)
	if len(want) < 40 {
		t.Errorf("River has %d objects", len(want))
	}
	if diff := cmp.Diff(want, describeRiver(t, ours)); diff != "" {
		t.Errorf("the schema of River (-River's migrations +ours):\n%s", diff)
	}
	for _, change := range []string{
		"ALTER TABLE river_job ALTER COLUMN max_attempts TYPE integer",
		"ALTER TABLE river_job ALTER COLUMN priority DROP NOT NULL",
		"ALTER TABLE river_queue ALTER COLUMN metadata DROP DEFAULT",
		"ALTER TABLE river_job ADD COLUMN more text",
		"ALTER TABLE river_leader SET LOGGED",
		"ALTER TABLE river_job DROP CONSTRAINT queue_length",
		"DROP INDEX river_job_unique_idx",
		"ALTER TYPE river_job_state RENAME VALUE 'pending' TO 'waiting'",
		"CREATE OR REPLACE FUNCTION river_job_state_in_bitmask(bitmask bit(8), state river_job_state) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'",
	} {
		tx, err := ours.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if cmp.Equal(want, describeRiver(t, tx)) {
			t.Errorf("the comparison does not notice %s", change)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// describeRiver returns the set of [riverObjects].
func describeRiver(t *testing.T, database querier) map[string]bool {
	t.Helper()
	rows, err := database.Query(t.Context(), riverObjects)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, object := range objects {
		set[object] = true
	}
	return set
}
