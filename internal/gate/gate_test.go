package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/pgtest"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// logLine is the log line of a request.
type logLine struct{ Level, Error string }

// lines is a log, line by line.
type lines chan logLine

func (l lines) Write(text []byte) (int, error) {
	var line logLine
	err := json.Unmarshal(text, &line)
	l <- line
	return len(text), err
}

// response is a response with the log line of its request.
type response struct {
	status           int
	retryAfter, body string
	line             logLine
}

// get sends a request to a gate whose only operation has a handler.
func get(t *testing.T, handle func(*gate.Gate, *gin.Context) error) response {
	t.Helper()
	pool := pgtest.Open(t, pgtest.New(t).URL, 2)
	queries := db.New(pool)
	owner := need.Value(account.Ensure(t.Context(), queries, "tester"))(t)
	_, secret, err := auth.Issue(t.Context(), queries, auth.NewKey{AccountID: owner.ID, Name: "test", Scope: auth.Read})
	need.OK(t, err)
	log := make(lines, 1)
	options := gate.Options{
		DB: pool, Verifier: auth.NewVerifier(queries, db.New(pool.Writing())), Log: slog.New(slog.NewJSONHandler(log, nil)), RequestTimeout: time.Minute,
		KeyLimit: ratelimit.Limit{PerMinute: 60, Burst: 100},
	}
	options.SetDefaults()
	var g *gate.Gate
	g, err = gate.New(options, gate.API{Routes: []gate.Route{{
		Method: http.MethodGet, Path: "/things", Operation: "listThings", Scope: auth.Read, Attributes: gate.Waits | gate.Streams,
		Handle: func(c *gin.Context) error { return handle(g, c) },
	}}})
	need.OK(t, err)
	listening := need.Server(t, g.ServeHTTP)
	request := need.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, listening.URL+"/things", http.NoBody))(t)
	request.Header.Set("Authorization", "Bearer "+secret.Reveal())
	resp, err := listening.Client().Do(request)
	need.OK(t, err)
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // a panic cuts it off
	return response{resp.StatusCode, resp.Header.Get("Retry-After"), string(text), <-log}
}

// TestNoSecondWait: if a request loses its connection to the database after it has waited, its client
// gets an error. Otherwise it would wait again, and miss what it has waited for.
func TestNoSecondWait(t *testing.T) {
	t.Parallel()
	calls := 0
	got := get(t, func(g *gate.Gate, c *gin.Context) error {
		calls++
		return g.Await(c, gate.Watched{}, time.Minute, gate.Seen{More: true}, func(context.Context) (gate.Seen, error) {
			return gate.Seen{}, &pgconn.PgError{Code: "08006", Message: "lost"}
		})
	})
	if calls != 1 || got.status != http.StatusServiceUnavailable || got.retryAfter == "" || !strings.Contains(got.line.Error, "lost") {
		t.Errorf("%d calls, and the response is %+v", calls, got)
	}
}

// TestWaitPaysOnce: a request that waits pays a look once, also if the look loses its connection to the database.
func TestWaitPaysOnce(t *testing.T) {
	t.Parallel()
	looks := 0
	got := get(t, func(g *gate.Gate, c *gin.Context) error {
		const cost = 60 // the key has 99
		c.Status(http.StatusOK)
		return g.Await(c, gate.Watched{}, time.Minute, gate.Seen{More: true, Cost: cost}, func(context.Context) (gate.Seen, error) {
			if looks++; looks < 3 {
				return gate.Seen{}, &pgconn.PgError{Code: "08006", Message: "lost"}
			}
			return gate.Seen{More: true, Cost: cost}, nil // it cannot pay this one
		})
	})
	if looks != 3 || got.status != http.StatusOK {
		t.Errorf("%d looks, and the response is %+v", looks, got)
	}
}

// TestTimeAfterAWait: the wait for a place of a load does not count in the time of the request, and other
// waits do.
func TestTimeAfterAWait(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pool     func(*gate.Limits) *admission.Pool
		extended bool
	}{
		"load":  {func(l *gate.Limits) *admission.Pool { return l.Loads }, true},
		"count": {func(l *gate.Limits) *admission.Pool { return l.Counts }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			get(t, func(g *gate.Gate, c *gin.Context) error {
				pool, payer := test.pool(g.Limits), gate.Caller(c).Payer()
				if err := pool.Take(t.Context(), payer, 1); err != nil {
					return err
				}
				go func() {
					for !pool.IsContended() {
						runtime.Gosched()
					}
					pool.Give(payer, 1)
				}()
				before, _ := c.Request.Context().Deadline()
				leave, err := g.Enter(c, pool)
				if err != nil {
					t.Error(err)
					return err
				}
				leave()
				if after, _ := c.Request.Context().Deadline(); after.After(before) != test.extended {
					t.Errorf("the request ended at %s, and after the wait at %s", before, after)
				}
				c.Status(http.StatusOK)
				return nil
			})
		})
	}
}

// TestBugsInStreams: the log has the panic or the error that ends a stream. An error that passes is none.
func TestBugsInStreams(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		read func() error
		want logLine
	}{
		"panic":                {func() error { panic("a bug") }, logLine{"ERROR", "a bug"}},
		"error":                {func() error { return errors.New("a bug") }, logLine{"ERROR", "a bug"}},
		"unavailable database": {func() error { return &pgconn.PgError{Code: "53300"} }, logLine{"INFO", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := get(t, func(g *gate.Gate, c *gin.Context) error {
				return g.Stream(c, gate.Watched{}, gate.Part{Text: []byte("data: first\n\n"), More: true}, func(context.Context) (gate.Part, error) {
					return gate.Part{}, test.read()
				})
			})
			if line := got.line; !strings.Contains(got.body, "data: first") || line.Level != test.want.Level || !strings.Contains(line.Error, test.want.Error) || (line.Error == "") != (test.want.Error == "") {
				t.Errorf("the response is %+v", got)
			}
		})
	}
}

// TestAddingEvents: the memory for the events of a part grows with their size, not with its square.
func TestAddingEvents(t *testing.T) { //nolint:paralleltest // it measures the memory of all tests
	const events, size, most = 50, 16 << 10, 10
	allocated := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.TotalAlloc
	}
	var part gate.Part
	value, before := strings.Repeat("x", size), allocated()
	for range events {
		need.OK(t, part.Add("id", "kind", value))
	}
	if used := allocated() - before; used > most*events*size {
		t.Errorf("%d events of %d bytes need %d bytes", events, size, used)
	}
}
