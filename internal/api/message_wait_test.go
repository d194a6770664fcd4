package api_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	deliverer "petstore/internal/delivery"
	feedevent "petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// newMessage queues a message, and returns its path and its entity tag.
func (p *petstore) newMessage() (path, etag string) {
	p.t.Helper()
	path = p.post("/messages", object{"message": "hello"}).want(202).header.Get("Location")
	return path, p.get(path).want(200).header.Get("ETag")
}

// endMessage gives a message another status, as the worker of another process does.
func (p *petstore) endMessage(path, status string) {
	p.t.Helper()
	row, err := postgres.Transact(p.t.Context(), p.pool, func(ctx context.Context, tx pgx.Tx) (accountID int64, err error) {
		if err := tx.QueryRow(ctx, "UPDATE messages SET status = $2 WHERE '/messages/' || id = $1 RETURNING account_id", path, status).Scan(&accountID); err != nil {
			return 0, err
		}
		return accountID, feedevent.Append(ctx, db.New(tx), accountID, feedevent.Event{Type: feedevent.MessageDelivered, Subject: path, Data: []byte("{}")})
	})
	if err != nil || row == 0 {
		p.t.Fatal(err)
	}
}

// waits waits until a number of requests wait.
func (p *petstore) waits(number int) {
	p.t.Helper()
	need.Within(p.t, 30*time.Second, "requests wait", func() bool { return p.server.WaitingForEvents() == number })
}

// TestWaitForMessage: a request waits while its message is queued. It ends when the worker
// of another process has delivered the message, and not at other events.
func TestWaitForMessage(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p, other := startOn(t, database), startOn(t, database)
	path, etag := p.newMessage()
	here, there := p.waitFor(path), other.waitFor(path)
	p.waits(1)
	other.waits(1)
	p.newPet("Rex", 1)
	second, _ := p.newMessage()
	p.endMessage(second, "failed")
	p.waits(1)

	received := need.Server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	need.Value(db.New(p.db).WebhookCreate(t.Context(), db.WebhookCreateParams{
		AccountID: p.accountID(), ID: "wh_0198c5f27d3a7c419b0e5a1f3c2d4e6f", URL: received.URL, Types: []string{"message.queued"}, Secret: make([]byte, 33),
	}))(t)
	p.deliver()
	for _, received := range []func() *response{here, there} {
		got := received()
		if one := decode[message](got.want(200)); one.Status != "delivered" || "/messages/"+one.ID != path || got.header.Get("Preference-Applied") != "wait=30" || got.header.Get("ETag") == etag {
			t.Errorf("%s %v", got.body, got.header)
		}
	}
	for _, value := range []string{"wait=30", "wait=31", "wait=9223372036", "wait=9223372036854775808"} {
		again := p.do("GET", path, nil, "Prefer", value).want(200)
		again.wantHeader("Preference-Applied", "wait=30")
		need.Same(t, "delivered", decode[message](again).Status, "%s: the status of a delivered message", value)
	}
	p.waits(0)
}

// deliver runs a worker of another process until the test ends.
func (p *petstore) deliver() {
	p.t.Helper()
	pool := pgtest.Open(p.t, p.direct, deliverer.Connections)
	worker := deliverer.New(deliverer.Options{
		DB: pool, Client: client, Vault: &webhook.Vault{}, Metrics: telemetry.NewMetrics(), Log: slog.New(slog.DiscardHandler),
	})
	need.Background(p.t, worker.Run)
}

// TestMessageWaitEnds: a wait ends after its time, and preconditions hold for the message
// after the wait.
func TestMessageWaitEnds(t *testing.T) {
	t.Parallel()
	p := start(t)
	path, etag := p.newMessage()
	got := p.do("GET", path, nil, "Prefer", "wait=1").want(200)
	got.wantHeader("Preference-Applied", "wait=1").wantHeader("ETag", etag)
	need.Same(t, "queued", decode[message](got).Status, "the status after the time")
	p.do("GET", path, nil, "Prefer", "wait=1", "If-None-Match", etag).want(304)
	for _, value := range []string{"wait=0", "wait=-1", "wait=x", "wait", "respond-async"} {
		p.do("GET", path, nil, "Prefer", value).want(200).wantHeader("Preference-Applied", "")
	}
	bob := p.as(p.newKey("bob", auth.Admin))
	bob.do("GET", path, nil, "Prefer", "wait=30").wantError(404, "message_not_found")
	p.do("GET", "/messages/msg_00000000000070008000000000000000", nil, "Prefer", "wait=30").wantError(404, "message_not_found")
	waiting := p.waitFor(path)
	p.waits(1)
	p.endMessage(path, "failed")
	need.Same(t, "failed", decode[message](waiting().want(200)).Status, "the status after the wait")
	p.do("GET", path, nil, "Prefer", "wait=30", "If-Match", etag).want(412).wantHeader("Preference-Applied", "")
}

// TestMessageWaitIsCutShort: a wait ends when the client disconnects and when the server shuts down,
// which closes the connection.
func TestMessageWaitIsCutShort(t *testing.T) {
	t.Parallel()
	p := start(t)
	path, _ := p.newMessage()

	disconnect := p.leaving(1, "GET", path, "", "Prefer", "wait=30")
	p.waits(1)
	disconnect()
	p.waits(0)

	waiting := p.waitFor(path)
	p.waits(1)
	p.server.ShutDown()
	if got := waiting(); decode[message](got.want(200)).Status != "queued" || !got.closes {
		t.Errorf("%s, and the connection closes: %t", got.body, got.closes)
	}
}

// TestWaitsNeedNoPlaces: more requests wait than the account has places. An event wakes
// them all while another request has the only place. They get it one after the other.
func TestWaitsNeedNoPlaces(t *testing.T) {
	t.Parallel()
	p := startAlone(t).patient(func(o *api.Options) { o.MaxInFlight = 4 }) // one for each account
	path, _ := p.newMessage()
	_, next := p.feed("/events?after=latest")
	const each = 3
	var waiting []func() *response
	for i := range each {
		waiting = append(waiting, p.waitFor(path))
		p.waits(2*i + 1)
		waiting = append(waiting, p.waitFor(next))
		p.waits(2*i + 2)
	}
	release := p.lockTable("pets", 1, func() { waiting = append(waiting, p.begin("GET", "/pets", nil)) })
	defer release()
	p.endMessage(path, "delivered")
	p.waits(0)
	release()
	for _, received := range waiting {
		received().want(200)
	}
}
