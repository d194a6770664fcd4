package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// passedOn are the parameters that a connection pooler applies for each of its clients
// (https://www.pgbouncer.org/config.html#ignore_startup_parameters). It refuses others
// at startup, and a later SET would affect the next client of the server connection. An
// operator can make it ignore them, so that no error shows that they are missing.
var passedOn = []string{"application_name", "timezone"}

// settings are the session parameters that a pooler does not pass on, by name.
type settings map[string]string

// takeSettings sets the default session parameters that the URL does not set. It moves
// those that a pooler would refuse from the startup packet to the result.
func takeSettings(config *pgx.ConnConfig) settings {
	taken := settings{}
	for name, value := range sessionParameters {
		if fromURL, ok := config.RuntimeParams[name]; ok {
			value = fromURL
		}
		if slices.Contains(passedOn, name) {
			config.RuntimeParams[name] = value
			continue
		}
		delete(config.RuntimeParams, name)
		taken[name] = value
	}
	return taken
}

// asJSON returns the settings as a JSON object. Arrays would need their own quoting.
func (s settings) asJSON() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings always have a JSON form
	}
	return string(text)
}

// origin is the server and database that a connection leads to, and the way to them.
type origin struct {
	// server is the start time of the postmaster in microseconds, and the id of the
	// database, because other databases do not get its notifications. Every role may read
	// them. The address does not identify the server, because it may have several.
	server string
	// pooled reports whether a connection pooler is in between. The server may then
	// change, and so may the session from one transaction to the next.
	pooled bool
}

// originKey is the key of CustomData under which identify stores the origin.
const originKey = "petstore origin"

// serverQuery selects the server of an [origin].
const serverQuery = `SELECT extract(epoch FROM pg_postmaster_start_time()) || ' ' || (SELECT oid FROM pg_database WHERE datname = current_database())`

// identify stores the origin of a new connection, and
// applies the settings unless the connection leads through a pooler. A pooler makes up
// the process id that it tells its clients, so the backend has another one.
func identify(ctx context.Context, conn *pgconn.PgConn, s settings) error {
	result := conn.ExecParams(ctx, serverQuery+`, pg_backend_pid() <> $1::bigint,
		(SELECT count(set_config(key, value, false)) FROM jsonb_each_text($2) WHERE pg_backend_pid() = $1::bigint)`,
		[][]byte{fmt.Append(nil, conn.PID()), []byte(s.asJSON())}, nil, nil, nil).Read()
	if result.Err != nil {
		return result.Err
	}
	row := result.Rows[0]
	conn.CustomData()[originKey] = origin{server: string(row[0]), pooled: string(row[1]) == "t"}
	return nil
}

// originOf returns what a connection leads to.
func originOf(conn *pgx.Conn) origin {
	o, _ := conn.PgConn().CustomData()[originKey].(origin)
	return o
}

// ThroughPooler reports whether a connection of a [DB] leads through a pooler.
func ThroughPooler(conn *pgx.Conn) bool { return originOf(conn).pooled }

// CheckSession returns an error that tells the operator what to change if statements
// would not run as they must:
//
//   - The settings of the session differ from the settings of the pool, because a pooler does
//     not pass them on. On Citus the defaults of the role must be the same, because
//     workers see no others.
//   - The pool prepares statements, and a pooler does not keep them.
//
// Unlike a statement, it waits until the hosts of the URL have had their time, one after the other.
func (d *DB) CheckSession(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return &acquireError{err}
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it changes nothing
	return errors.Join(d.checkSettings(ctx, tx), checkPrepared(ctx, tx))
}

// checkSettings compares the settings in a transaction, which it leaves changed.
func (d *DB) checkSettings(ctx context.Context, tx pgx.Tx) error {
	var citus bool
	var role string
	err := tx.QueryRow(ctx, "SELECT to_regclass('pg_dist_partition') IS NOT NULL, session_user::text", pgx.QueryExecModeExec).Scan(&citus, &role)
	if err != nil {
		return err
	}
	before, defaults, err := d.readSettings(ctx, tx)
	if err != nil {
		return err
	}
	if citus {
		before = defaults
	}
	// PostgreSQL writes a value in one way only, so that 5s and 5000 are equal.
	if _, err := tx.Exec(ctx, "SELECT set_config(key, value, true) FROM jsonb_each_text($1::jsonb)", pgx.QueryExecModeExec, d.settings.asJSON()); err != nil {
		return err
	}
	wanted, _, err := d.readSettings(ctx, tx)
	if err != nil {
		return err
	}
	missing := settings{}
	for name, value := range d.settings {
		if before[name] != wanted[name] {
			missing[name] = value
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the database role %s lacks settings that a connection pooler or Citus does not pass on; run as its administrator: %s; then make the pooler reconnect",
		quote(role), strings.Join(missing.statements(role), "; "))
}

// readSettings returns the values and the defaults of the settings in a session.
func (d *DB) readSettings(ctx context.Context, tx pgx.Tx) (values, defaults settings, err error) {
	rows, err := tx.Query(ctx, "SELECT name, setting, reset_val FROM pg_settings WHERE name = ANY($1)",
		pgx.QueryExecModeExec, slices.Collect(maps.Keys(d.settings)))
	if err != nil {
		return nil, nil, err
	}
	values, defaults = settings{}, settings{}
	var name, value, reset string
	_, err = pgx.ForEachRow(rows, []any{&name, &value, &reset}, func() error {
		values[name], defaults[name] = value, reset
		return nil
	})
	return values, defaults, err
}

// RoleSettings returns the statements that give a role the settings of a pool. They are
// necessary behind a connection pooler and on Citus.
func RoleSettings(role string) []string {
	all := settings{}
	for name, value := range sessionParameters {
		if !slices.Contains(passedOn, name) {
			all[name] = value
		}
	}
	return all.statements(role)
}

// statements returns the statements that give a role these settings, sorted.
func (s settings) statements(role string) []string {
	var statements []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		statements = append(statements, fmt.Sprintf("ALTER ROLE %s SET %s = '%s'", quote(role), name, strings.ReplaceAll(s[name], "'", "''")))
	}
	return statements
}

// errPrepared says what to do if a pooler does not keep prepared statements.
var errPrepared = errors.New("the connection pooler does not keep prepared statements; " +
	"add default_query_exec_mode=exec to DATABASE_URL, or set max_prepared_statements in PgBouncer 1.21 or later")

// checkPrepared returns an error if the pool prepares statements and a pooler passes
// them on unchanged. The next transaction may then run without them. A pooler that
// keeps them (max_prepared_statements) gives them names of its own.
func checkPrepared(ctx context.Context, tx pgx.Tx) error {
	conn := tx.Conn()
	mode := conn.Config().DefaultQueryExecMode
	switch {
	case !originOf(conn).pooled:
		return nil
	case mode == pgx.QueryExecModeDescribeExec: // the unnamed statement, in two round trips
		return errPrepared
	case mode != pgx.QueryExecModeCacheStatement:
		return nil
	}
	const name = "petstore_check"
	if _, err := tx.Prepare(ctx, name, "SELECT"); err != nil {
		return err
	}
	var unchanged bool
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = $1)", pgx.QueryExecModeExec, name).Scan(&unchanged)
	if err := errors.Join(err, conn.Deallocate(ctx, name)); err != nil {
		return err
	}
	if unchanged {
		return errPrepared
	}
	return nil
}
