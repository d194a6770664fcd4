package pgtest

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/postgres"
	"petstore/internal/tools/must"
)

// shardCount is the number of shards of a table, small because a test has few accounts.
const shardCount = "4"

// TwoNodes is SQL that makes a database look like a Citus cluster of two nodes to a pool, with
// half of the accounts each. A node whose port is locked is frozen, and one in the table dead is dead.
const TwoNodes = `
CREATE TABLE pg_dist_shard (logicalrelid regclass, shardid bigint, shardminvalue text);
CREATE TABLE pg_dist_placement (shardid bigint, groupid int);
CREATE TABLE pg_dist_node (groupid int, nodename text, nodeport int, noderole text);
CREATE TABLE dead (port int);
INSERT INTO pg_dist_shard VALUES ('account_state', 1, '-2147483648'), ('account_state', 2, '0');
INSERT INTO pg_dist_placement VALUES (1, 1), (2, 2);
INSERT INTO pg_dist_node VALUES (1, 'one', 1, 'primary'), (2, 'two', 2, 'primary');
GRANT SELECT ON pg_dist_shard, pg_dist_placement, pg_dist_node, dead TO PUBLIC;
CREATE FUNCTION run_on(id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE on_port int := CASE WHEN hashint8(id) < 0 THEN 1 ELSE 2 END;
BEGIN
	PERFORM pg_advisory_xact_lock_shared(on_port);
	IF EXISTS (SELECT FROM dead WHERE port = on_port) THEN
		RAISE 'connection to the remote node failed' USING ERRCODE = '08006';
	END IF;
END $$;
CREATE FUNCTION citus_check_connection_to_node(host text, on_port int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(on_port);
	RETURN NOT EXISTS (SELECT FROM dead WHERE port = on_port);
END $$`

// cluster is the Citus cluster of a server, which is its coordinator. The databases of
// one name on all nodes are one distributed database. They find each other by name,
// because the nodes know each other by address. So a clone on every node is a clone of a
// distributed database.
//
// Only the coordinator connects to workers, so their addresses may be unknown here.
type cluster struct {
	coordinator node
	workers     []node
}

type node struct {
	Host string
	Port int32
	// Group is 0 for the coordinator.
	Group int32
}

// findCluster returns the cluster that the database of the server's URL belongs to.
func (s *server) findCluster(ctx context.Context) *cluster {
	rows, _ := s.lease.Query(ctx, "SELECT nodename, nodeport, groupid FROM pg_dist_node WHERE noderole = 'primary' ORDER BY groupid, nodeid")
	nodes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[node])
	must.Hold(err == nil, "the database is not on a Citus coordinator: %w", err)
	must.Hold(len(nodes) > 1 && nodes[0].Group == 0, "the Citus cluster has no worker; call citus_set_coordinator_host and citus_add_node")
	return &cluster{coordinator: nodes[0], workers: nodes[1:]}
}

// onWorkers runs a statement on each worker, outside of a transaction and in the
// database of a connection to the coordinator.
func (c *cluster) onWorkers(ctx context.Context, conn *pgx.Conn, sql string) {
	var hosts, statements []string
	var ports []int32
	for _, worker := range c.workers {
		hosts, ports, statements = append(hosts, worker.Host), append(ports, worker.Port), append(statements, sql)
	}
	rows, _ := conn.Query(ctx, `
		SELECT format('%s:%s: %s', node_name, node_port, result)
		FROM master_run_on_worker($1, $2, $3, parallel => true)
		WHERE NOT success`, hosts, ports, statements)
	failures := must.Get(pgx.CollectRows(rows, pgx.RowTo[string]))
	must.Hold(len(failures) == 0, "%s: %q", sql, failures)
}

// makeEmpty makes the template of [NewEmpty] on all nodes, without any table: the
// database of a coordinator that knows its workers.
func (s *server) makeEmpty(ctx context.Context) {
	s.makeTemplate(ctx, s.emptyTemplate(), "", func(address *url.URL) {
		conn := must.Get(pgx.Connect(ctx, address.String()))
		defer conn.Close(context.WithoutCancel(ctx))
		s.everywhere(ctx, conn, "CREATE EXTENSION citus")
		must.Get(conn.Exec(ctx, "SELECT citus_set_coordinator_host($1, $2)", s.cluster.coordinator.Host, s.cluster.coordinator.Port))
		for _, worker := range s.cluster.workers {
			must.Get(conn.Exec(ctx, "SELECT citus_add_node($1, $2)", worker.Host, worker.Port))
		}
	})
}

// distributeTables distributes the tables of the template.
func distributeTables(ctx context.Context, address *url.URL) {
	of, query := *address, address.Query()
	query.Set("citus.shard_count", shardCount)
	of.RawQuery = query.Encode()
	m := must.Get(postgres.OpenMigrations(ctx, of.String()))
	defer m.Close()
	must.OK(m.Distribute(ctx, func(string, time.Duration) {}))
}

// endSessions returns statements that end all sessions on a database of a node. Its
// clients, the other nodes and the maintenance daemon of Citus then no longer connect.
func endSessions(name string) []string {
	return []string{
		"ALTER DATABASE " + quote(name) + " ALLOW_CONNECTIONS false",
		"SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE datname = '" + name + "'",
	}
}

// ownerParameters are the settings of the pool of a test on a cluster. Some tests make a
// statement fail or wait with a trigger. A test is not bound by the limits of the server.
var ownerParameters = map[string]string{
	"citus.enable_unsafe_triggers": "on", "statement_timeout": "0", "lock_timeout": "0",
	"idle_in_transaction_session_timeout": "0", "enable_seqscan": "on",
}

// setDefaults gives a database the settings without which a server does not start on
// Citus. An operator would give them to the role, but tests also start servers as the
// owner.
func (s *server) setDefaults(ctx context.Context, name string) {
	var statements strings.Builder
	for _, statement := range postgres.RoleSettings(name) {
		statements.WriteString(strings.Replace(statement, "ALTER ROLE", "ALTER DATABASE", 1) + ";")
	}
	must.Get(s.pool.Exec(ctx, statements.String()))
}
