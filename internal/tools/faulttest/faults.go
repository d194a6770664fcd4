package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"petstore/internal/tools/must"
)

// fault is a mistake to plant in the program. A row that does not detect it proves nothing.
type fault struct {
	row  int
	what string
	file string
	// before occurs exactly once in the file. It is replaced by after.
	before, after string
}

// faults has at least one mistake for each row.
var faults = []fault{
	{5, "an account with a backlog stays in the common groups", "internal/groupcommit/apart.go", "if a.writes[account] > backlog {", "if a.writes[account] < 0 {"},
	{5, "commits do not wait for the disk", "internal/postgres/pool.go", `"timezone": `, `"synchronous_commit": "off", "timezone": `},
	{7, "a request has no deadline", "internal/gate/log.go", "began.Add(g.options.RequestTimeout)", "began.Add(time.Hour)"},
	{9, "a full disk is an internal error", "internal/postgres/errors.go", `classInsufficientResource = "53"`, `classInsufficientResource = "5X"`},
	{9, "commits do not wait for the disk", "internal/postgres/pool.go", `"timezone": `, `"synchronous_commit": "off", "timezone": `},
	{13, "overload is an internal error", "internal/gate/errors.go", "return ErrTooManyConcurrent.WithRetryAfter(", "return ErrInternal.WithRetryAfter("},
	{13, "a request keeps its place after its end", "internal/gate/limits.go", "p.pool.Give(r.payer, p.weight)", "_ = p"},
	{22, "commits do not wait for the standby", "internal/postgres/pool.go", `"timezone": `, `"synchronous_commit": "off", "timezone": `},
	{22, "only the first host is used", "internal/postgres/pool.go", "config.MaxConnLifetime = maxConnLifetime", "config.MaxConnLifetime = maxConnLifetime\n\tconfig.ConnConfig.Fallbacks = nil"},
	{22, "a webhook does not get the first event of a page", "internal/delivery/dispatch.go", "if to.AfterSequence < e.Sequence &&", "if to.AfterSequence+1 < e.Sequence &&"},
	{27, "shutdown waits for requests beyond the grace period", "cmd/petstore/serve.go", "context.WithTimeout(context.WithoutCancel(ctx), limit)", "context.WithTimeout(context.WithoutCancel(ctx), time.Minute)"},
	{28, "an account may use all places and bodies", "internal/admission/resources.go", "const shares = 4", "const shares = 1"},
	{28, "all accounts share a rate limit", "internal/gate/limits.go", "Limiter: l.accounts, Key: identity.Payer()}", "Limiter: l.accounts}"},
	{
		30, "orders do not lock the stock that they read", "db/batch.go",
		"  AND inventory.pet_id = ANY (ARRAY(SELECT unnest($2::bigint[])))\nFOR NO KEY UPDATE SKIP LOCKED",
		"  AND inventory.pet_id = ANY (ARRAY(SELECT unnest($2::bigint[])))",
	},
	{30, "commits do not wait for the disk", "internal/postgres/pool.go", `"timezone": `, `"synchronous_commit": "off", "timezone": `},
	{30, "startup takes four seconds more", "cmd/petstore/serve.go", "public, err := listen(cmd.Context()", "time.Sleep(4 * time.Second)\npublic, err := listen(cmd.Context()"},
	early(),
	{36, "the position of a replica is ignored", "internal/postgres/position.go", "p.Timeline == other.Timeline && p.LSN >= other.LSN", "p.Timeline == other.Timeline"},
	{36, "all timelines count as the first", "internal/postgres/position.go", "return Position{uint32(number), uint64(lsn)}", "return Position{min(1, uint32(number)), uint64(lsn)}"},
	{36, "the token has the position before the commit", "internal/postgres/pipeline.go", "\tqueued.Queue(\"COMMIT\")\n", "\tearly, _ := scanPrimary(p.conn.QueryRow(ctx, primaryPosition))\n\tdefer func() { p.position = early }()\n\tqueued.Queue(\"COMMIT\")\n"},
	{36, "the next page ignores the state of the page before", "internal/gate/consistency.go", "return reader.Require(position)", "_ = position\n\treturn nil"},
	{36, "a shared read may be older than a client allows", "internal/api/shared_reads.go", "err = reader.Saw(shared.seen)", "_ = shared.seen"},
	{37, "events commit after their changes", "internal/groupcommit/write.go", "\tevent.Queue(ctx, queries,", "\t_ = p.Commit(ctx, nil)\n\tevent.Queue(ctx, queries,"},
	{37, "a store whose feed was not locked is reported as written", "internal/groupcommit/group.go", "s.feedHeld = true // unless the statement returns it", "s.feedHeld = false"},
	{37, "an event has no stock", "internal/api/emit.go", "a.Inventory = &item", "_ = item"},
	{37, "a page begins after the newest event", "internal/feed/page.go", "\t\tpage.Next = event.IDOf(q.Account, row.Sequence, row.Nonce)\n", "\t\tpage.Next = newest\n"},
	{38, "shutdown rejects requests that still arrive", "cmd/petstore/serve.go", "handler.ShutDown()\n", "handler.ShutDown()\nserver.Handler = http.NotFoundHandler()\n"},
	{38, "shutdown cuts off requests in progress", "cmd/petstore/serve.go", "handler.ShutDown()\n", "_ = server.Close()\n"},
	{38, "a stream begins at the end", "internal/api/events.go", "q.After, q.Latest = &id, false", "q.Latest = id.Sequence > 0"},
	{38, "a process looks for the events of others every 5 s", "internal/feed/feed.go", "interval = 100 * time.Millisecond", "interval = 5 * time.Second"},
	{39, "a process delivers to 20 webhooks at a time", "internal/admission/resources.go", `"webhooks that receive deliveries", Total: 400`, `"webhooks that receive deliveries", Total: 20`},
	{40, "the leases of dead processes do not run out", "db/delivery.sql.go", "::boolean AND w.lease_until <= statement_timestamp())", "::boolean AND false)"},
	{40, "messages are not locked before their deliveries are counted", "db/delivery.sql.go", "    LIMIT 1\n    FOR NO KEY UPDATE\n", "    LIMIT 1\n"},
	{40, "redirects are followed", "internal/egress/egress.go", "response.Header.Del(\"Location\")", ""},
	{42, "each result has a transaction of its own", "internal/delivery/drain.go", "d.record(ctx, collect(first, results))", "d.record(ctx, []result{first})"},
	{44, "each sandbox has a share of the webhooks", "internal/delivery/dispatch.go", "endpoint{accountID, to.ID}, payer, to.IsSlow)", "endpoint{accountID, to.ID}, accountID, to.IsSlow)"},
	{44, "a payer may have all places", "internal/admission/resources.go", `"webhooks that receive deliveries", Total: 400`, `"webhooks that receive deliveries", Total: 120, Share: 120`},
	{45, "a request without a key keeps its connection", "internal/gate/handle.go", "\t\terr := g.sunset(c, deprecated)\n", "\t\tg.options.Known(c.Request.Context())\n\t\terr := g.sunset(c, deprecated)\n"},
	{45, "client connections are not limited", "internal/listener/connections.go", "\tif c.open >= c.most {", "\tif c.open >= 1_000_000 {"},
	{45, "headers may have 64 KiB", "internal/listener/connections.go", "server.MaxHeaderBytes -= headerSlop", "server.MaxHeaderBytes = 60 << 10"},
	{45, "garbage collection has no memory limit", "cmd/petstore/serve.go", "debug.SetMemoryLimit(memoryLimit)", "debug.SetMemoryLimit(1 << 40)"},
	{49, "a migration keeps its lock for seconds", sampleFolder + "/90001_add_pets_notes.sql", "ADD COLUMN notes text;", "ADD COLUMN notes text;\nSELECT pg_sleep(5);"},
	{49, "a migration drops a column that the last release uses", sampleFolder + "/90001_add_pets_notes.sql", "ADD COLUMN notes text;", "ADD COLUMN notes text;\nALTER TABLE categories DROP COLUMN description;"},
	{49, "a migration restarts the numbers of events", sampleFolder + "/90001_add_pets_notes.sql", "ADD COLUMN notes text;", "ADD COLUMN notes text;\nUPDATE account_state SET last_sequence = 0;\nDELETE FROM events;"},
	{49, "migrate up revokes a privilege that the last release needs", "internal/postgres/grants.go", "UPDATE (category_id, name, name_key, status) ON pets", "UPDATE (category_id, name_key, status) ON pets"},
	{49, "the program refuses a newer schema", "internal/postgres/schema.go", "case version < latestVersion:", "case version != latestVersion:"},
	{50, "commits do not wait for the copy of the WAL", "internal/postgres/pool.go", `"timezone": `, `"synchronous_commit": "off", "timezone": `},
	{50, "events commit after their changes", "internal/groupcommit/write.go", "\tevent.Queue(ctx, queries,", "\t_ = p.Commit(ctx, nil)\n\tevent.Queue(ctx, queries,"},
	{51, "the record is written twice a second", "internal/exchange/recorder.go", "interval = 50 * time.Millisecond", "interval = 500 * time.Millisecond"},
	{51, "a request waits for a full buffer", "internal/exchange/recorder.go", "\tif err != nil {\n\t\tr.Drop(e.Account)\n", "\tfor end := time.Now().Add(time.Second); err != nil && time.Now().Before(end); err = r.buffer.Take(context.Background(), e.Payer, e.size()) {\n\t\ttime.Sleep(10 * time.Millisecond)\n\t}\n\tif err != nil {\n\t\tr.Drop(e.Account)\n"},
	{51, "dropped requests are not counted", "internal/exchange/recorder.go", "r.waiting.drops[account]++", "r.waiting.drops[account] += 0"},
	{52, "each attempt to import a row has a key of its own", "internal/transfer/import.go", `"%s %s %v", r.journal.Digest,`, `"%s %s %v", time.Now(),`},
	{52, "import does not read the journal", "internal/transfer/journal.go", "case err == nil && !isNew:", "case err == nil && isNew:"},
	{52, "a row is in the journal before it is sent", "internal/transfer/import.go", "if err := r.journal.begin(one.line); err != nil {", "if err := r.journal.write(formatDone(one.line, 1, one.hash())); err != nil {"},
	{52, "the server ignores the Idempotency-Key", "internal/api/commit.go", `if in.idempotencyKey != "" {`, `if in.idempotencyKey == "-" {`},
	{53, "events commit after their changes", "internal/groupcommit/write.go", "\tevent.Queue(ctx, queries,", "\t_ = p.Commit(ctx, nil)\n\tevent.Queue(ctx, queries,"},
	{53, "the next page ignores the state of the page before", "internal/gate/consistency.go", "return reader.Require(position)", "_ = position\n\treturn nil"},
	{
		54, "a handshake is a response", "internal/listener/connections.go", "\tsecure := tls.Server(c.tcp, c.of.tls)\n",
		`	config := c.of.tls.Clone()
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.responded()
		return c.of.tls.GetCertificate(hello)
	}
	secure := tls.Server(c.tcp, config)
`,
	},
	{54, "streams that wait are not limited", "internal/listener/streams.go", "if s.total > s.most {", "if s.total > 1_000_000 {"},
	{
		54, "the connection with the most streams is closed, whatever client it has", "internal/listener/streams.go",
		`		if group.strangers == (ofStrangers > s.most/spareShare) &&
			(chosen == nil || cmp.Or(cmp.Compare(groups[group], groups[chosen.streamGroup()]), cmp.Compare(count, s.of[chosen])) > 0) {
`,
		"\t\tif ofStrangers < 0 && group.strangers || chosen == nil || cmp.Compare(count, s.of[chosen]) > 0 {\n",
	},
	{54, "data of closed streams are free", "internal/listener/frames.go", " && f.open[stream] > 0 {\n\t\t\tcost = 0", " {\n\t\t\tcost = 0"},
	{54, "frames are not limited", "internal/listener/frames.go", "if f.budget < 0 && !c.cut {", "if f.budget < -1e9 && !c.cut {"},
	{55, "cursors and tokens survive a restore", "internal/postgres/restore.go", "SET secret = sha256(", "SET secret = secret WHERE secret = sha256("},
	{56, "transactions of the worker have no bound", "internal/postgres/pool.go", "if d.bound > 0 {", "if d.bound > 1<<60 {"},
}

// early returns the mistake that a group sends its responses 50 ms before it writes. It loses orders
// that were acknowledged just before the service is killed.
func early() fault {
	const file = "internal/groupcommit/groupcommit.go"
	const decide = `func(ctx context.Context, p *postgres.Pipeline) error {
		if err := g.lock(ctx, p); err != nil {
			return err
		}
		for i, w := range g.writes {
			var err error
			if decided[i], err = g.states[w.AccountID].tryDecide(w.Write); err != nil {
				return err
			}
		}`
	const write = `
		return g.write(ctx, p)
	})
`
	return fault{
		30, "the response is sent before the commit", file, "position, err := postgres.Pipe(ctx, c.db, " + decide + write,
		`acknowledged := make(chan error, 2)
	go func() {
		_, err := postgres.Pipe(context.WithoutCancel(ctx), c.db, ` + decide + `
			acknowledged <- nil
			pause, _ := context.WithTimeout(ctx, 50_000_000)
			<-pause.Done()` + write + `
		acknowledged <- err
	}()
	position, err := postgres.Position{}, <-acknowledged
`,
	}
}

// plantFaults builds the program with each fault of the rows and runs the row on it. It fails
// with the faults that the rows missed.
func (s *suite) plantFaults(ctx context.Context, chosen []row) {
	var missed []string
	for _, f := range faults {
		i := slices.IndexFunc(chosen, func(r row) bool { return r.number == f.row })
		if i < 0 {
			continue
		}
		source, changed := f.plant(".")
		planted := program{filepath.Join(s.dir, "fault"), source, changed}
		planted.build(ctx)
		figures, logs, err := s.runRow(ctx, planted, chosen[i])
		must.OK(ctx.Err())
		verdict, text := "detected", figures
		if why, ok := errors.AsType[skipError](err); ok {
			verdict, text = "-", "skipped: "+why.Error()
		} else if why, ok := errors.AsType[setupError](err); ok {
			verdict, text = "NOT RUN", why.Error()
			missed = append(missed, fmt.Sprintf("%d (%s)", f.row, f.what))
		} else if err != nil {
			text, _, _ = strings.Cut(err.Error(), "\n")
			must.OK(os.RemoveAll(logs)) // the fault was detected, so nobody needs the logs
		} else {
			verdict = "MISSED"
			missed = append(missed, fmt.Sprintf("%d (%s)", f.row, f.what))
		}
		fmt.Fprintf(s.stdout, "%2d  %-55s %-8s %.150s\n", f.row, f.what, verdict, text)
	}
	must.Hold(len(missed) == 0, "not detected: %s", strings.Join(missed, ", "))
}

// plant returns the absolute path of the file that a fault changes, and its text with the
// fault.
func (f fault) plant(root string) (file, text string) {
	file = must.Get(filepath.Abs(filepath.Join(root, f.file)))
	source := string(must.Get(os.ReadFile(file)))
	count := strings.Count(source, f.before)
	must.Hold(count == 1, "fault %q: %q occurs %d times in %s, want once; update the fault in faults.go", f.what, f.before, count, f.file)
	return file, strings.Replace(source, f.before, f.after, 1)
}

// compileFaults checks that the package of each fault of the rows compiles with it. It fails with
// the faults that do not compile.
func compileFaults(ctx context.Context, out io.Writer, chosen []row) {
	dir := must.Get(os.MkdirTemp("", "petstore-faulttest-"))
	defer os.RemoveAll(dir)
	compiled, uncompiled := 0, 0
	var failures []error
	for _, f := range faults {
		switch {
		case !slices.ContainsFunc(chosen, func(r row) bool { return r.number == f.row }):
		case filepath.Ext(f.file) != ".go":
			uncompiled++
		default:
			compiled++
			failures = append(failures, must.Attempt(func() {
				must.Explain(fmt.Sprintf("fault %q does not compile; update it in faults.go", f.what), func() {
					source, text := f.plant(".")
					program{filepath.Join(dir, "petstore"), source, text}.goCommand(ctx, "./"+filepath.Dir(f.file), "list", "-export")
				})
			}))
		}
	}
	must.OK(errors.Join(failures...))
	fmt.Fprintf(out, "%d faults compile; %d are in SQL, which only a row runs\n", compiled, uncompiled)
}
