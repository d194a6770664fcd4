package groupcommit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// poison makes PostgreSQL fail each message that names an action and an SQLSTATE, such as
// "raise 53100".
const poison = `
	CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		CASE split_part(NEW.message, ' ', 1)
			WHEN 'raise', 'commit' THEN RAISE EXCEPTION 'poison' USING ERRCODE = split_part(NEW.message, ' ', 2);
			WHEN 'terminate' THEN PERFORM pg_terminate_backend(pg_backend_pid());
			WHEN 'sleep' THEN PERFORM pg_sleep(split_part(NEW.message, ' ', 2)::float);
		END CASE;
		RETURN NULL;
	END
	$$;
	CREATE TRIGGER at_once AFTER INSERT ON messages FOR EACH ROW WHEN (NEW.message ~ '^(raise|terminate|sleep) ') EXECUTE FUNCTION poison();
	CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.message ~ '^commit ') EXECUTE FUNCTION poison()`

// send makes a write that creates a message.
func send(text string) *Write {
	return change(Write{Creates: account.Messages}, func(s *State) { s.CreateMessage(text) })
}

// together runs writes of a store as togetherOf does.
func (f *fixture) together(c *Committer, writes ...*Write) (failures []error, decided []int32) {
	f.t.Helper()
	return f.togetherOf(c, of(one, writes...)...)
}

// togetherOf runs writes that arrive while another group runs, which the first of them could
// join. It returns their errors, and how often each was decided.
func (f *fixture) togetherOf(c *Committer, writes ...storeWrite) (failures []error, decided []int32) {
	f.t.Helper()
	failures, decided = make([]error, len(writes)), make([]int32, len(writes))
	var arriving, running sync.WaitGroup
	arriving.Add(len(writes))
	begun := make(chan struct{})
	var once sync.Once
	running.Go(func() {
		_, err := c.Do(f.t.Context(), one, change(Write{Pet: writes[0].Pet}, func(*State) {
			once.Do(func() { close(begun) })
			arriving.Wait()
		}))
		if err != nil {
			f.t.Errorf("the first write: %v", err)
		}
	})
	<-begun
	for i, w := range writes {
		decide := w.Decide
		w.Decide = func(s *State) (Response, error) {
			atomic.AddInt32(&decided[i], 1)
			return decide(s)
		}
		running.Go(func() {
			_, failures[i] = c.Do(&joining{Context: f.t.Context(), joined: sync.OnceFunc(arriving.Done)}, w.Store, w.Write)
		})
	}
	running.Wait()
	return failures, decided
}

// joining is the context of a write. It calls joined when something asks for its deadline, as a
// [coalesce.Coalescer] does when a call has joined a waiting group.
type joining struct {
	context.Context

	joined func()
}

func (j *joining) Deadline() (time.Time, bool) {
	j.joined()
	return j.Context.Deadline()
}

// sent makes a number of messages.
func sent(number int) (writes []*Write) {
	for range number {
		writes = append(writes, send("hello"))
	}
	return writes
}

// messages counts the messages of a store.
func (f *fixture) messages() (count int) {
	f.t.Helper()
	return pgtest.Read[int](f.t, f.database.Pool, "SELECT count(*) FROM messages")
}

// stateOf returns the SQLSTATE of an error.
func stateOf(err error) string {
	if failed, ok := errors.AsType[*pgconn.PgError](err); ok {
		return failed.Code
	}
	return ""
}

// TestPoisonedWriteFailsAlone: one write makes the server fail its group with any SQLSTATE,
// at its statement or at COMMIT. Its neighbors do not fail, and each has its effect once. A write
// without neighbors does not run again if the database fails it. One that is lost to another runs once in a
// group and four times alone.
func TestPoisonedWriteFailsAlone(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	const neighbors = 6
	f := newFixture(t)
	f.exec(poison)
	actions := map[string]string{"terminate now": "57P01"} // the SQLSTATEs by text
	for _, state := range []string{
		"22003", "22P02", "23505", "23514", "25006", "25P03", "40001", "40P01", "53000", "53100", "53200", "53300", "53400", "55000", "55P03",
		"57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58030", "P0001", "XX000", "XX001",
	} {
		actions["raise "+state], actions["commit "+state] = state, state
	}
	stored, again := 0, int32(0)
	for text, state := range actions {
		writes := append(sent(neighbors), send(text))
		stored += neighbors
		failures, decided := f.together(f.Committer, writes...)
		for i, err := range failures[:neighbors] {
			if again += decided[i] - 1; err != nil {
				t.Errorf("a neighbor of %q: %v", text, err)
			}
		}
		if got := stateOf(failures[neighbors]); got != state {
			t.Errorf("%q fails with %q: %v", text, got, failures[neighbors])
		}
		if got := f.messages(); got != stored {
			t.Fatalf("%d messages after %q, want %d", got, text, stored)
		}
	}
	if int(again) < len(actions) {
		t.Errorf("%d neighbors ran again in %d groups, so most did not share one with the poisoned write", again, len(actions))
	}
	lone := f.openAgain()
	for state, want := range map[string]int{"25006": 1, "53100": 1, "55P03": 1, "57014": 1, "57P01": 1, "58030": 1, "40001": 5} {
		w, times := send("raise "+state), 0
		decide := w.Decide
		w.Decide = func(s *State) (Response, error) {
			times++
			return decide(s)
		}
		if _, err := lone.Do(t.Context(), one, w); stateOf(err) != state || times != want {
			t.Errorf("a write that fails with %s ran %d times, want %d: %v", state, times, want, err)
		}
	}
}

// TestStoreOfFailureIsApart: a write without neighbors fails, in a common group or in one of
// its store. Its store then has groups of its own, which take places of the payer.
func TestStoreOfFailureIsApart(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	f := newFixture(t)
	f.exec(poison)
	f.exec(`
		CREATE FUNCTION time_out() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE EXCEPTION 'too slow' USING ERRCODE = '57014';
		END
		$$;
		CREATE TRIGGER too_slow AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION time_out()`)
	for store, w := range map[Store]*Write{one: order(1, 1), two: send("raise 57014")} {
		if _, err := f.Do(t.Context(), store, w); stateOf(err) != "57014" {
			t.Fatal(err)
		}
		if !f.apart.begin(store.AccountID) || !f.apart.isHeld(store.AccountID) {
			t.Errorf("store %d shares groups, or its own take no place", store.AccountID)
		}
	}
}

// TestHangingWriteDelaysItsNeighborsBriefly: a write of a group hangs. The group gives up
// before statement_timeout, and the neighbors run again while the write hangs alone.
func TestHangingWriteDelaysItsNeighborsBriefly(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	const neighbors = 20
	f := newFixture(t)
	f.exec(poison)
	failures, decided := f.together(f.Committer, append(sent(neighbors), send("sleep 2"))...)
	if err := errors.Join(failures...); err != nil {
		t.Error(err)
	}
	if decided[neighbors] != 2 {
		t.Errorf("the write that hangs ran %d times, want once in the group and once alone", decided[neighbors])
	}
	if got := f.messages(); got != neighbors+1 {
		t.Errorf("%d messages, want %d", got, neighbors+1)
	}
	// A message has the time at which its transaction began.
	var beside bool
	const during = "SELECT max(created_at) < min(created_at) FILTER (WHERE message = 'sleep 2') + interval '2 s' FROM messages"
	if err := f.database.Pool.QueryRow(t.Context(), during).Scan(&beside); err != nil || !beside {
		t.Errorf("the neighbors did not run while the write hung: %v", err)
	}
}

// TestGroupKeepsLowerTimeouts: a group lowers the statement_timeout of the session, and does
// not raise it.
func TestGroupKeepsLowerTimeouts(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	f := newFixture(t)
	f.exec(`
		CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			NEW.message := current_setting('statement_timeout');
			RETURN NEW;
		END
		$$;
		CREATE TRIGGER record BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION record()`)
	for session, want := range map[string]string{
		"0": "1s 3s", "500ms": "500ms 500ms", "999": "999ms 999ms", "1500ms": "1s 1500ms", "5s": "1s 3s", "2min": "1s 3s", "1d": "1s 3s",
	} {
		// Without a pooler, whose sessions do not have the setting.
		pool := need.Value(postgres.Open(t.Context(), f.database.DirectURL+"&statement_timeout="+session, 4))(t)
		var got []string
		for _, kind := range []groupKind{ownGroup, waitingGroup} {
			f.exec("DELETE FROM messages")
			if _, err := newCommitter(pool).run(t.Context(), newGroup(kind, of(one, sent(2)...)...)); err != nil {
				t.Errorf("with %s: %v", session, err)
			}
			limits := pgtest.Read[string](t, f.database.Pool, "SELECT string_agg(DISTINCT message, ',') FROM messages")
			got = append(got, limits)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("with %s, a group has the limit %s, want %s", session, got, want)
		}
		pool.Close()
	}
}

// cutter is a connection to a client that breaks at the second CommandComplete of a kind, with an error of the
// server.
type cutter struct {
	net.Conn
	tag   string
	after bool // the client receives the message
	last  pgproto3.ErrorResponse
	seen  *atomic.Bool // the first message, of the write during which the others arrive
}

// terminated and crashed are errors of a server that ends connections.
var (
	terminated = pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command"}
	crashed    = pgproto3.ErrorResponse{Severity: "PANIC", SeverityUnlocalized: "PANIC", Code: "58030", Message: "could not fsync file"}
)

// Write forwards bytes of the server.
func (c cutter) Write(p []byte) (int, error) {
	const header = 5
	at := bytes.Index(p, []byte(c.tag+"\x00"))
	if at < 0 || !c.seen.Swap(true) {
		return c.Conn.Write(p)
	}
	end := at - header
	if c.after {
		end = at + len(c.tag) + 1
	}
	last, err := c.last.Encode(p[:end:end])
	if err == nil {
		_, err = c.Conn.Write(last)
	}
	return 0, errors.Join(err, c.Close(), io.ErrClosedPipe)
}

// openCut opens a committer whose connections break.
func (f *fixture) openCut(by cutter) *Committer {
	by.seen = new(atomic.Bool)
	return f.openThrough(func(client, server net.Conn) {
		go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
		one := by
		one.Conn = client
		_, _ = io.Copy(one, server)
	})
}

// TestConnectionsThatEnd: the server ends the connection of a group. Its writes fail unless the server has
// reported the commit. A server that crashes while it commits has committed when it starts again, so none of
// them may run again.
func TestConnectionsThatEnd(t *testing.T) {
	t.Parallel()
	const writes = 10
	f := newFixture(t)
	for when, test := range map[string]struct {
		cut     cutter
		fails   bool
		decided int32 // how often each write was decided
		stored  int
	}{
		"instead of BEGIN": {cutter{tag: "BEGIN", last: terminated}, true, 0, 0},
		"after COMMIT":     {cutter{tag: "COMMIT", after: true, last: terminated}, false, 1, writes},
		"during COMMIT":    {cutter{tag: "COMMIT", last: crashed}, true, 1, writes},
	} {
		f.exec("DELETE FROM messages")
		failures, decided := f.together(f.openCut(test.cut), sent(writes)...)
		for i, err := range failures {
			if failed := err != nil; failed != test.fails || failed && !postgres.Unavailable(err) || decided[i] != test.decided {
				t.Errorf("%s: write %d was decided %d times: %v", when, i, decided[i], err)
			}
		}
		if got := f.messages(); got != test.stored {
			t.Errorf("%s: %d messages, want %d", when, got, test.stored)
		}
	}
}
