package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/postgres"
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
	host string
	port int32
}

// findCluster returns the cluster that the database of the server's URL belongs to.
func (s *server) findCluster(ctx context.Context) (*cluster, error) {
	rows, err := s.lease.Query(ctx, "SELECT nodename, nodeport, groupid = 0 FROM pg_dist_node WHERE noderole = 'primary' ORDER BY groupid, nodeid")
	if err != nil {
		return nil, fmt.Errorf("the database is not on a Citus coordinator: %w", err)
	}
	c := &cluster{}
	var found node
	var isCoordinator bool
	_, err = pgx.ForEachRow(rows, []any{&found.host, &found.port, &isCoordinator}, func() error {
		if isCoordinator {
			c.coordinator = found
		} else {
			c.workers = append(c.workers, found)
		}
		return nil
	})
	if err == nil && (c.coordinator.host == "" || len(c.workers) == 0) {
		err = errors.New("the Citus cluster has no worker; call citus_set_coordinator_host and citus_add_node")
	}
	return c, err
}

// onWorkers runs a statement on each worker, outside of a transaction and in the
// database of a connection to the coordinator.
func (c *cluster) onWorkers(ctx context.Context, conn *pgx.Conn, sql string) error {
	var hosts, statements []string
	var ports []int32
	for _, worker := range c.workers {
		hosts, ports, statements = append(hosts, worker.host), append(ports, worker.port), append(statements, sql)
	}
	rows, err := conn.Query(ctx, `
		SELECT format('%s:%s: %s', node_name, node_port, result)
		FROM master_run_on_worker($1, $2, $3, parallel => true)
		WHERE NOT success`, hosts, ports, statements)
	if err != nil {
		return err
	}
	failures, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(failures) > 0 {
		err = fmt.Errorf("%q", failures)
	}
	return err
}

// makeEmpty makes the template of [NewEmpty] on all nodes, without any table: the
// database of a coordinator that knows its workers.
func (s *server) makeEmpty(ctx context.Context) error {
	c, name := s.cluster, s.emptyTemplate()
	if done, err := s.isTemplate(ctx, name); err != nil || done {
		return err
	}
	if err := s.everywhere(ctx, s.lease, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)", "CREATE DATABASE "+quote(name)); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.databaseURL(name).String())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const extension = "CREATE EXTENSION citus"
	if _, err = conn.Exec(ctx, extension); err == nil {
		err = c.onWorkers(ctx, conn, extension)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT citus_set_coordinator_host($1, $2)", c.coordinator.host, c.coordinator.port)
	}
	for _, worker := range c.workers {
		if err == nil {
			_, err = conn.Exec(ctx, "SELECT citus_add_node($1, $2)", worker.host, worker.port)
		}
	}
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	return s.finish(ctx, name)
}

// distribute distributes the tables of the template.
func (c *cluster) distribute(ctx context.Context, address *url.URL) error {
	query := address.Query()
	query.Set("citus.shard_count", shardCount)
	of := *address
	of.RawQuery = query.Encode()
	m, err := postgres.OpenMigrations(ctx, of.String())
	if err != nil {
		return err
	}
	return errors.Join(m.Distribute(ctx, func(string, time.Duration) {}), m.Close())
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
func (s *server) setDefaults(ctx context.Context, name string) error {
	var statements strings.Builder
	for _, statement := range postgres.RoleSettings(name) {
		statements.WriteString(strings.Replace(statement, "ALTER ROLE", "ALTER DATABASE", 1) + ";")
	}
	_, err := s.pool.Exec(ctx, statements.String())
	return err
}
