//go:build plans

package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// Upper bounds of the cost of a page, independent of the number of rows.
const (
	// A list merges at most three index ranges, each as long as a page.
	mostSorted = 3 * 201
	// Index entries and rows: the ranges, the rows of the page and of a joined
	// table. A filter on rows of an index reads some more.
	mostTouched = 2000
	// Pages of 8 KiB. A deep page may read mostTimes as many as the first page, and
	// some more, because its rows are scattered.
	mostPages, mostTimes = 2000, 2
)

// recorder records the list statements that a server sends.
type recorder struct {
	mu   sync.Mutex
	sent []statement
}

type statement struct {
	sql      string
	args     []any
	byValues bool // not prepared
}

var aboutLists = regexp.MustCompile(`^-- name: (Pet|Category|Order|Inventory|Message|WebhookDelivery)(List|GetMany|Count)`)

func (r *recorder) record(sql string, args []any) {
	if !aboutLists.MatchString(sql) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := statement{sql: sql, args: slices.Clone(args)}
	if len(sent.args) > 0 && sent.args[0] == pgx.QueryExecModeCacheDescribe {
		sent.args, sent.byValues = sent.args[1:], true
	}
	r.sent = append(r.sent, sent)
}

// during returns the statements that were sent while do ran.
func (r *recorder) during(do func()) []statement {
	r.mu.Lock()
	r.sent = nil
	r.mu.Unlock()
	do()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// planner explains recorded statements.
type planner struct {
	t    *testing.T
	conn *pgx.Conn
}

// startRecorded starts a server whose statements about lists are recorded and explained. The secret
// signs its cursors.
func startRecorded(t *testing.T) (p *petstore, sent *recorder, explain planner, secret []byte) {
	t.Helper()
	database := pgtest.New(t)
	sent = &recorder{}
	pool := pgtest.Open(t, database.URL, 2, pgtest.Statements(sent.record))
	p = startOn(t, database).with(func(options *api.Options) { options.DB = pool })
	secret = need.Value(db.New(database.Pool).SigningKeyGet(t.Context(), "cursor"))(t)
	return p, sent, newPlanner(t, database.Pool), secret
}

func newPlanner(t *testing.T, pool *pgxpool.Pool) planner {
	t.Helper()
	conn := need.Value(pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig))(t)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return planner{t, conn}
}

// genericRuns executes a statement ten times with the default plan_cache_mode. It returns
// how many runs used a generic plan, which is made once.
func (p planner) genericRuns(sent []statement) (runs int) {
	p.t.Helper()
	ctx := p.t.Context()
	pgtest.Exec(p.t, p.conn, "RESET plan_cache_mode")
	for range 10 {
		rows, err := p.conn.Query(ctx, sent[0].sql, sent[0].args...)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		need.OK(p.t, err)
	}
	const plans = "SELECT generic_plans FROM pg_prepared_statements WHERE statement = $1"
	return pgtest.Read[int](p.t, p.conn, plans, sent[0].sql)
}

// cost counts the pages and rows that a statement read.
type cost struct{ pages, rows int }

// cost explains a statement. It fails the test unless there is exactly one, with an acceptable plan.
func (p planner) cost(what, mode string, sent []statement) cost {
	p.t.Helper()
	if len(sent) != 1 {
		p.t.Fatalf("%s: %d statements, want 1: %v", what, len(sent), sent)
	}
	ctx := p.t.Context()
	exec := func(sql string) {
		p.t.Helper()
		if _, err := p.conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			p.t.Fatalf("%s: %v", what, err)
		}
	}
	exec("SET plan_cache_mode = " + mode)
	exec("PREPARE list AS " + sent[0].sql)
	defer exec("DEALLOCATE list")
	places := make([]string, len(sent[0].args))
	for i := range places {
		places[i] = "$" + strconv.Itoa(i+1)
	}
	// EXECUTE takes literals only, and this protocol turns parameters into literals.
	explain := fmt.Sprintf("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE list (%s)", strings.Join(places, ", "))
	var text []byte
	if err := p.conn.QueryRow(ctx, explain, append([]any{pgx.QueryExecModeSimpleProtocol}, sent[0].args...)...).Scan(&text); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	root := plans[0].Plan
	total := cost{pages: root.Hit + root.Read}
	for _, fault := range root.faults(&total.rows) {
		p.t.Errorf("%s: %s\n%s", what, fault, root.outline(""))
	}
	if total.rows > mostTouched {
		p.t.Errorf("%s: reads %d rows, want at most %d\n%s", what, total.rows, mostTouched, root.outline(""))
	}
	if total.pages > mostPages {
		p.t.Errorf("%s: reads %d pages, want at most %d\n%s", what, total.pages, mostPages, root.outline(""))
	}
	return total
}

// node is a node of a plan.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cond     string  `json:"Index Cond"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Lossy    float64 `json:"Rows Removed by Index Recheck"`
	Hit      int     `json:"Shared Hit Blocks"`
	Read     int     `json:"Shared Read Blocks"`
	Plans    []node
}

// faults lists the forbidden nodes of a plan, and adds the rows read from tables to read.
func (n node) faults(read *int) []string {
	var all []string
	if n.Relation != "" || n.Type == "Bitmap Index Scan" {
		*read += int(math.Ceil((n.Rows + n.Filtered + n.Lossy) * n.Loops))
	}
	if n.Type == "Seq Scan" || n.Type == "Parallel Seq Scan" {
		all = append(all, "a scan of the table "+n.Relation)
	}
	if strings.Contains(n.Type, "Index") && !strings.Contains(n.Cond, "account_id = ") {
		all = append(all, fmt.Sprintf("a scan of the index %s that is not bound by account_id but by %q", n.Index, n.Cond))
	}
	for _, child := range n.Plans {
		if rows := child.Rows * child.Loops; strings.Contains(n.Type, "Sort") && rows > mostSorted {
			all = append(all, fmt.Sprintf("a sort of %.0f rows", rows))
		}
		all = append(all, child.faults(read)...)
	}
	return all
}

// outline formats a plan for failure messages.
func (n node) outline(indent string) string {
	text := fmt.Sprintf("%s%s %s %s: %v rows, %v removed, %v times\n", indent, n.Type, n.Relation, n.Index, n.Rows, n.Filtered+n.Lossy, n.Loops)
	for _, child := range n.Plans {
		text += child.outline(indent + "  ")
	}
	return text
}

// planModes returns the ways in which Postgres may plan a statement. It always
// plans an unprepared statement with its values.
func planModes(sent []statement) []string {
	if len(sent) > 0 && sent[0].byValues {
		return []string{"force_custom_plan"}
	}
	return []string{"force_generic_plan", "force_custom_plan"}
}
