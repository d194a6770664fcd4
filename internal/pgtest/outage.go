//go:build soak

package pgtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/sleep"
	"petstore/internal/tools/need"
)

// Outage is a way in which a worker fails for some time. The worker runs it as a shell script
// in the directory of its data. So it reaches the processes also in a container.
type Outage string

// The outages. The worker has the process id $main, and fails for $seconds.
const (
	// Frozen stops all processes.
	Frozen Outage = `
kill -STOP $main
stopped="$main $(children)"
kill -STOP $stopped
sleep $seconds
kill -CONT $stopped`

	// Dead makes the worker crash, and refuse connections.
	Dead Outage = `
cp pg_hba.conf pg_hba.before
printf 'local all all reject\nhost all all all reject\n' | cat - pg_hba.before >pg_hba.conf
kill -HUP $main
for child in $(children); do
	grep -q idle /proc/$child/cmdline && kill -KILL $child && break
done
sleep $seconds
mv pg_hba.before pg_hba.conf
kill -HUP $main`
)

const outage = `
sleep 1
main=$(head -1 postmaster.pid)
seconds=%d
children() {
	for stat in /proc/[0-9]*/stat; do
		read -r pid _ _ parent _ <$stat && [ "$parent" = $main ] && echo $pid
	done 2>/dev/null
}
%s`

// FailWorker lets the worker of an account fail for some time, and returns when that begins. The
// test must not run beside others on the cluster.
func FailWorker(t testing.TB, database *Database, accountID int64, how Outage, d time.Duration) {
	t.Helper()
	conn := need.Value(pgx.Connect(t.Context(), os.Getenv("PETSTORE_TEST_DATABASE_URL")))(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	host, port := WorkerOf(t, database, accountID)
	script := fmt.Sprintf(outage, int(d.Seconds()), how)
	run := "COPY (SELECT) TO PROGRAM $$setsid sh -c '" + strings.ReplaceAll(script, "'", `'\''`) + "' </dev/null >/dev/null 2>&1 &$$"
	var done bool
	var result string
	if err := conn.QueryRow(t.Context(), "SELECT success, result FROM master_run_on_worker(ARRAY[$1::text], ARRAY[$2::int], ARRAY[$3::text], false)", host, port, run).Scan(&done, &result); err != nil || !done {
		t.Fatalf("the worker does not run the script: %s %v", result, err)
	}
	sleep.For(t.Context(), time.Second)
}

// WorkerOf returns the address of the worker that has an account.
func WorkerOf(t testing.TB, database *Database, accountID int64) (host string, port int32) {
	t.Helper()
	need.OK(t, database.Pool.QueryRow(t.Context(), `
		SELECT node.nodename, node.nodeport
		FROM pg_dist_placement AS placement
		JOIN pg_dist_node AS node ON node.groupid = placement.groupid
		WHERE placement.shardid = get_shard_id_for_distribution_column('account_state', $1::bigint)`, accountID).Scan(&host, &port))
	return host, port
}
