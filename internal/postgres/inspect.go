package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// leastVersion is the oldest server_version_num that works: 15.
const leastVersion = 150000

// privilegePattern matches a line of [servingPrivileges]: a privilege, its columns and the table.
var privilegePattern = regexp.MustCompile(`^(\w+)(?: \((.*)\))? ON (\w+)$`)

// MissingPrivileges returns the privileges of [Migrations.GrantServing] that the role of the
// pool lacks, such as "INSERT (name) ON pets".
func (d *DB) MissingPrivileges(ctx context.Context) (missing []string, err error) {
	var what, relations, columns, privileges []string
	for _, one := range servingPrivileges {
		match := privilegePattern.FindStringSubmatch(one)
		privilege, table := match[1], match[3]
		for column := range strings.SplitSeq(match[2], ", ") {
			what = append(what, strings.Replace(fmt.Sprintf("%s (%s) ON %s", privilege, column, table), " ()", "", 1))
			relations, columns, privileges = append(relations, table), append(columns, column), append(privileges, privilege)
		}
	}
	rows, err := d.Query(ctx, `
		SELECT what
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS wanted (what, relation, column_name, privilege)
		WHERE NOT CASE column_name
			WHEN '' THEN has_table_privilege(relation, privilege)
			ELSE has_column_privilege(relation, column_name, privilege)
		END
		UNION ALL
		SELECT 'USAGE ON SEQUENCE ' || sequence FROM unnest($5::text[]) AS sequence WHERE NOT has_sequence_privilege(sequence, 'USAGE')
		UNION ALL
		SELECT 'EXECUTE ON FUNCTION ' || function FROM unnest($6::text[]) AS function WHERE NOT has_function_privilege(function, 'EXECUTE')`,
		what, relations, columns, privileges, servingSequences, servingFunctions)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Role is the role of a pool.
type Role struct {
	Name            string
	CanChangeSchema bool
}

// Role returns the role of the pool.
func (d *DB) Role(ctx context.Context) (r Role, err error) {
	err = d.QueryRow(ctx, `
		SELECT rolname, rolsuper OR has_schema_privilege(oid, current_schema(), 'CREATE')
			OR EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('accounts') AND pg_has_role(current_user, relowner, 'USAGE'))
		FROM pg_roles WHERE rolname = current_user`).Scan(&r.Name, &r.CanChangeSchema)
	return r, err
}

// Server describes the server of a pool.
type Server struct {
	Version     string
	IsSupported bool
	Remote      net.Addr
	IsEncrypted bool
	IsReadOnly  bool // a standby, or by its settings
	// IsPooled reports whether a connection pooler is in between, and IsTransaction whether it
	// gives the server connection to others after each transaction.
	IsPooled, IsTransaction bool
	// Skew is the time by which the clock of the server is ahead. Error is the most by which it
	// may be wrong.
	Skew, Error time.Duration
	// Connections is the number of clients that the strictest limit counts, without this one.
	// MaxConnections is that limit, and LimitedBy its name for an operator.
	Connections, MaxConnections int
	LimitedBy                   string
	// Waiting counts the commits of this role that have waited a second for a synchronous standby.
	Waiting int
}

// connectionLimits selects the limit that leaves the role the fewest connections. Superusers are exempt
// from the limits of roles and databases.
const connectionLimits = `
	SELECT name, used, most
	FROM pg_roles AS r
	JOIN pg_database AS d ON d.datname = current_database()
	CROSS JOIN LATERAL (
		SELECT count(*) AS all_clients, count(*) FILTER (WHERE usesysid = r.oid) AS of_role, count(*) FILTER (WHERE datid = d.oid) AS of_database
		FROM pg_stat_activity
		-- backend_type is NULL for sessions of other roles, unless this role has pg_read_all_stats
		WHERE (backend_type = 'client backend' OR (backend_type IS NULL AND datid IS NOT NULL)) AND pid <> pg_backend_pid()
	) AS clients
	CROSS JOIN LATERAL (VALUES
		('max_connections', all_clients, current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- coalesce(current_setting('reserved_connections', true)::int, 0)),
		('the CONNECTION LIMIT of the role', of_role, CASE WHEN NOT r.rolsuper THEN r.rolconnlimit END),
		('the CONNECTION LIMIT of the database', of_database, CASE WHEN NOT r.rolsuper THEN d.datconnlimit END)
	) AS limits (name, used, most)
	WHERE r.rolname = session_user AND most >= 0
	ORDER BY most - used
	LIMIT 1`

// Inspect describes the server. The pool must have two connections.
func (d *DB) Inspect(ctx context.Context) (s Server, err error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return s, &acquireError{err}
	}
	defer conn.Release()
	raw := conn.Conn().PgConn().Conn()
	_, s.IsEncrypted = raw.(*tls.Conn)
	s.Remote, s.IsPooled = raw.RemoteAddr(), ThroughPooler(conn.Conn())
	var number, backend int
	var now time.Time
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_backend_pid(),
			(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - interval '1 second'),
			current_setting('transaction_read_only')::boolean`).
		Scan(&s.Version, &number, &backend, &s.Waiting, &s.IsReadOnly)
	if err != nil {
		return s, err
	}
	s.IsSupported = number >= leastVersion
	if err := conn.QueryRow(ctx, connectionLimits).Scan(&s.LimitedBy, &s.Connections, &s.MaxConnections); err != nil {
		return s, err
	}
	began := time.Now()
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return s, err
	}
	s.Error = time.Since(began) / 2
	s.Skew = now.Sub(began.Add(s.Error))
	if s.IsPooled {
		// In session mode, the first connection keeps its server connection while it is idle.
		var other, again int
		err = errors.Join(
			d.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&other),
			conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&again))
		s.IsTransaction = other == backend || again != backend
	}
	return s, err
}

// EnabledWebhooks counts the enabled webhooks of all accounts, except those that are being deleted.
func (d *DB) EnabledWebhooks(ctx context.Context) (count int, err error) {
	err = d.QueryRow(ctx, `
		SELECT count(*)
		FROM webhooks AS w
		JOIN account_state AS s ON s.account_id = w.account_id
		WHERE w.status = 'enabled' AND w.deleted_at IS NULL AND NOT s.closed`).Scan(&count)
	return count, err
}

// WebhookOrigins returns the schemes, hosts and ports of enabled webhooks, the newest first.
func (d *DB) WebhookOrigins(ctx context.Context, limit int) ([]string, error) {
	rows, err := d.Query(ctx, `
		SELECT substring(url FROM '(?i)^https?://[^/?#]+') AS origin
		FROM webhooks
		WHERE status = 'enabled' AND deleted_at IS NULL
		GROUP BY origin
		ORDER BY max(created_at) DESC
		LIMIT $1`, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
