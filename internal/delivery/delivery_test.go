package delivery_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/delivery"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

func TestMain(m *testing.M) {
	pgtest.Widen()
	m.Run()
}

// key is the key of all webhooks.
var key = []byte("0123456789abcdef0123456789abcdef")

// stored returns the form in which a vault without keys stores a key.
func stored(key []byte) []byte { return append([]byte{0}, key...) }

// feed is a database with an account, whose feed the test writes with the privileges of the
// serving role.
type feed struct {
	t       testing.TB
	owner   *pgtest.Database
	db      *postgres.DB
	queries *db.Queries
	account int64
	hooks   int
}

func newFeed(t testing.TB) *feed {
	t.Helper()
	f := &feed{t: t, owner: pgtest.New(t)}
	f.db = f.open()
	f.queries = db.New(f.db)
	return f.of(t, "owner")
}

// of returns the feed of an account of the same database, for a subtest if it has one. It creates the account.
func (f *feed) of(t testing.TB, name string) *feed {
	t.Helper()
	id := need.Value(postgres.Transact(t.Context(), f.db, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		row, err := account.Ensure(ctx, db.New(tx), name)
		return row.ID, err
	}))(t)
	return &feed{t: t, owner: f.owner, db: f.db, queries: f.queries, account: id}
}

// sandbox returns the feed of a new sandbox of the account.
func (f *feed) sandbox() *feed {
	f.t.Helper()
	id := f.account + 1000
	f.exec("INSERT INTO accounts (id, kind, parent_id, name, sample_id, sample, expires_at) OVERRIDING SYSTEM VALUE VALUES ($1, 'sandbox', $2, 'sandbox', $2, 'empty', now() + interval '1 day')", id, f.account)
	f.exec("INSERT INTO account_state (account_id) VALUES ($1)", id)
	return &feed{t: f.t, owner: f.owner, db: f.db, queries: f.queries, account: id}
}

// open opens a pool as a worker has it.
func (f *feed) open() *postgres.DB {
	f.t.Helper()
	return pgtest.Open(f.t, f.owner.URL, delivery.Connections)
}

func (f *feed) options() delivery.Options {
	f.t.Helper()
	return delivery.Options{
		DB:      f.db,
		Client:  &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: http.DefaultTransport.(*http.Transport).Clone()},
		Vault:   &webhook.Vault{},
		Grace:   100 * time.Millisecond,
		Metrics: telemetry.NewMetrics(),
		Log:     slog.New(slog.NewTextHandler(testWriter{f.t}, nil)),
	}
}

// work runs a worker until the test ends.
func (f *feed) work() *delivery.Worker {
	f.t.Helper()
	return f.workWith(f.options())
}

func (f *feed) workWith(options delivery.Options) *delivery.Worker {
	f.t.Helper()
	worker, _ := f.start(options)
	return worker
}

// start runs a worker until stop is called or the test ends.
func (f *feed) start(options delivery.Options) (worker *delivery.Worker, stop func()) {
	f.t.Helper()
	worker = delivery.New(options)
	worker.TakeOver()
	return worker, need.Background(f.t, worker.Run)
}

// awaitIdle waits until nobody delivers to the only webhook any more, after somebody has.
func (f *feed) awaitIdle() {
	f.t.Helper()
	await(f, true, "SELECT lease > 0 AND lease_until IS NULL FROM webhooks")
}

// webhook creates a webhook for a receiver and returns its id.
func (f *feed) webhook(url string, types ...string) string {
	f.t.Helper()
	if len(types) == 0 {
		types = []string{"*"}
	}
	f.hooks++
	id := fmt.Sprintf("wh_%016x%016x", f.account, f.hooks)
	need.Value(f.queries.WebhookCreate(f.t.Context(), db.WebhookCreateParams{AccountID: f.account, ID: id, URL: url, Types: types, Secret: stored(key)}))(f.t)
	return id
}

func (f *feed) emit(events ...event.Event) {
	f.t.Helper()
	need.Value(postgres.Transact(f.t.Context(), f.db, func(ctx context.Context, tx pgx.Tx) (any, error) {
		return nil, event.Append(ctx, db.New(tx), f.account, events...)
	}))(f.t)
}

// test creates the delivery of a webhook.test event, as the API does.
func (f *feed) test(webhookID string, i int) {
	f.t.Helper()
	f.probe(webhookID, "webhook.test", i)
}

// probe creates the delivery of a test or a probe, as the API does.
func (f *feed) probe(webhookID, kind string, i int) {
	f.t.Helper()
	event := fmt.Sprintf("evt_%032x", i)
	f.request(webhookID, func(ctx context.Context, queries *db.Queries) (any, error) {
		return queries.WebhookDeliveryCreateTest(ctx, db.WebhookDeliveryCreateTestParams{
			AccountID: f.account, ID: fmt.Sprintf("dlv_%032x", i), WebhookID: webhookID, EventID: event, Type: kind,
			Body: fmt.Sprintf(`{"id":%q,"type":"webhook.test","data":{}}`, event),
		})
	})
}

// retry makes a delivery due, as the API does.
func (f *feed) retry(webhookID, deliveryID string) {
	f.t.Helper()
	f.request(webhookID, func(ctx context.Context, queries *db.Queries) (any, error) {
		return queries.WebhookDeliveryRetry(ctx, db.WebhookDeliveryRetryParams{AccountID: f.account, WebhookID: webhookID, ID: deliveryID})
	})
}

// request runs a change that makes a delivery of a webhook due, as the API does.
func (f *feed) request(webhookID string, change func(context.Context, *db.Queries) (any, error)) {
	f.t.Helper()
	need.Value(postgres.Transact(f.t.Context(), f.db, func(ctx context.Context, tx pgx.Tx) (any, error) {
		queries := db.New(tx)
		if _, err := queries.WebhookGetLocked(ctx, db.WebhookGetLockedParams{AccountID: f.account, ID: webhookID}); err != nil {
			return nil, err
		}
		if err := queries.WebhookRetryNow(ctx, db.WebhookRetryNowParams{AccountID: f.account, ID: webhookID}); err != nil {
			return nil, err
		}
		return change(ctx, queries)
	}))(f.t)
}

// pets returns events of a number of pets.
func pets(from, to int) []event.Event {
	var events []event.Event
	for i := from; i <= to; i++ {
		events = append(events, event.Event{Type: event.PetCreated, Subject: "/pets/" + strconv.Itoa(i), Data: fmt.Appendf(nil, `{"pet":{"id":%d}}`, i)})
	}
	return events
}

// message queues a message now, and returns its id.
func (f *feed) message() string {
	f.t.Helper()
	random := uuid.Must(uuid.NewV7())
	id := "msg_" + hex.EncodeToString(random[:])
	f.exec("INSERT INTO messages (account_id, id, message) VALUES ($1, $2, 'hello')", f.account, id)
	f.emit(event.Event{Type: event.MessageQueued, Subject: "/messages/" + id, Data: fmt.Appendf(nil, `{"message":{"id":%q}}`, id)})
	return id
}

func (f *feed) exec(sql string, args ...any) {
	f.t.Helper()
	pgtest.Exec(f.t, f.owner.Pool, sql, args...)
}

// read returns the single value of a query.
func read[T any](f *feed, sql string, args ...any) (value T) {
	f.t.Helper()
	return pgtest.Read[T](f.t, f.owner.Pool, sql, args...)
}

// has fails the test unless a query returns a value.
func has[T comparable](f *feed, want T, sql string, args ...any) {
	f.t.Helper()
	if got := read[T](f, sql, args...); got != want {
		f.t.Errorf("%s %v is %v, want %v", sql, args, got, want)
	}
}

// await waits until a query returns a value.
func await[T comparable](f *feed, want T, sql string, args ...any) {
	f.t.Helper()
	var got T
	if !eventually(f.t, func() bool { got = read[T](f, sql, args...); return got == want }) {
		f.t.Fatalf("%s %v is %v, want %v", sql, args, got, want)
	}
}

// eventually reports whether a condition holds before the test must end. A look can cost
// milliseconds of CPU time, so it looks every 25 ms.
func eventually(t testing.TB, holds func() bool) bool {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	if testing.Short() {
		deadline = time.Now().Add(10 * time.Second)
	}
	for tick := time.NewTicker(25 * time.Millisecond); time.Now().Before(deadline); <-tick.C {
		if holds() {
			return true
		}
	}
	return false
}

// received is a request to a receiver.
type received struct {
	header http.Header
	body   string
	event  event.Representation
}

// receiver is an endpoint of a client.
type receiver struct {
	t      testing.TB
	url    string
	status atomic.Int32 // of all responses, unless it has a handler

	mu       sync.Mutex
	requests []received
	running  int
	most     int // requests at a time
}

// receive starts a receiver. The handler runs after the request is noted; nil: it returns
// its status, which is 204.
func receive(t testing.TB, handle http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{t: t}
	r.status.Store(http.StatusNoContent)
	server := need.Server(t, func(w http.ResponseWriter, request *http.Request) {
		r.note(request)
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.running--
		}()
		if handle == nil {
			w.WriteHeader(int(r.status.Load()))
			return
		}
		handle(w, request)
	})
	t.Cleanup(server.CloseClientConnections)
	r.url = server.URL
	return r
}

// reject starts a receiver that returns a status, until its status changes.
func reject(t testing.TB, status int32) *receiver {
	t.Helper()
	r := receive(t, nil)
	r.status.Store(status)
	return r
}

func (r *receiver) note(request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		r.t.Error(err)
	}
	one := received{header: request.Header.Clone(), body: string(body)}
	var sent struct {
		ID       string
		Sequence int64
		Type     string
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		r.t.Errorf("%s: %v", body, err)
	}
	one.event.ID, one.event.Sequence, one.event.Type = sent.ID, sent.Sequence, sent.Type
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, one)
	r.running++
	r.most = max(r.most, r.running)
}

func (r *receiver) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.requests...)
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

// await waits for a number of requests, and returns them.
func (r *receiver) await(count int) []received {
	r.t.Helper()
	if !eventually(r.t, func() bool { return r.count() >= count }) {
		r.t.Fatalf("%d requests, want %d", r.count(), count)
	}
	return r.got()
}

// testWriter writes to the log of a test that may have ended.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Output().Write(p) //nolint:errcheck // a log
	return len(p), nil
}
