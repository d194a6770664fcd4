package groupcommit

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// freezer is a proxy of a database that stops forwarding at a mark. It stands for a client
// that freezes while it sends a batch.
type freezer struct {
	net.Conn // to the server

	mark   []byte
	frozen chan struct{} // closed at the mark
	thaw   chan struct{} // closed to go on
	once   *sync.Once
}

// Write forwards bytes from the client.
func (f *freezer) Write(p []byte) (int, error) {
	at := bytes.Index(p, f.mark)
	if at < 0 {
		return f.Conn.Write(p)
	}
	before, err := f.Conn.Write(p[:at])
	if err != nil {
		return before, err
	}
	f.once.Do(func() { close(f.frozen) })
	<-f.thaw
	after, err := f.Conn.Write(p[at:])
	return before + after, err
}

// openFrozen returns a Committer whose connections freeze at a mark.
func (f *fixture) openFrozen(mark string) (*Committer, *freezer) {
	f.t.Helper()
	shared := &freezer{mark: []byte(mark), frozen: make(chan struct{}), thaw: make(chan struct{}), once: new(sync.Once)}
	return f.openThrough(func(client, server net.Conn) {
		one := *shared
		one.Conn = server
		go func() { _, _ = io.Copy(&one, client); _ = server.Close() }()
		_, _ = io.Copy(client, server)
	}), shared
}

// openThrough returns a Committer whose connections lead through a proxy. They end when forward returns.
func (f *fixture) openThrough(forward func(client, server net.Conn)) *Committer {
	f.t.Helper()
	config := need.Value(pgconn.ParseConfig(f.database.DirectURL))(f.t)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	through := pgtest.Through(f.t, f.database.DirectURL, func(client net.Conn) {
		server, err := (&net.Dialer{}).DialContext(f.t.Context(), network, address)
		if err != nil {
			return
		}
		defer server.Close()
		forward(client, server)
	})
	return newCommitter(pgtest.Open(f.t, through, 2))
}

// emitting makes a write that has an event with this text.
func emitting(petID, quantity int64, text string) *Write {
	w := restock(petID, quantity)
	decide := w.Decide
	w.Decide = func(s *State) (Response, error) {
		s.Emit(event.Event{Type: event.InventoryUpdated, Subject: "/store/inventory/1", Data: []byte(`{"text":"` + text + `"}`)})
		return decide(s)
	}
	return w
}

// TestFrozenClient: a client freezes while it sends the last batch of a transaction.
// Others write to the account meanwhile, and their events come first.
func TestFrozenClient(t *testing.T) {
	t.Parallel()
	for name, isApart := range map[string]bool{"in a common group": false, "in a group of its store": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const mark = "~~~~"
			f := newFixture(t)
			frozen, proxy := f.openFrozen(mark)
			before := "idle in transaction" // the one statement of the batch has not arrived
			if isApart {
				frozen.apart.excludeHeld(one.AccountID, time.Hour)
			}
			if isApart || pgtest.Is(pgtest.Citus) {
				before = "active" // the other statements of the batch have run
			}
			ended := make(chan error, 1)
			go func() {
				_, err := frozen.Do(t.Context(), one, emitting(1, 5, strings.Repeat("x", 50_000)+strings.Repeat(mark, 100)))
				ended <- err
			}()
			select {
			case <-proxy.frozen:
			case err := <-ended:
				t.Fatalf("the client has not frozen: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for reading := false; !reading; { // until the server has run the statements before
				need.OK(t, f.database.Pool.QueryRow(ctx, `SELECT EXISTS (
					SELECT FROM pg_stat_activity
					WHERE datname = current_database() AND state = $1 AND wait_event = 'ClientRead')`, before).Scan(&reading))
			}
			if _, err := f.Do(t.Context(), one, emitting(2, 5, "y")); err != nil {
				t.Errorf("a write of another client: %v", err)
			}
			close(proxy.thaw)
			if err := <-ended; err != nil {
				t.Errorf("the frozen client: %v", err)
			}
			var feed string
			err := f.database.Pool.QueryRow(t.Context(), "SELECT string_agg(sequence || ' ' || right(data->>'text', 1), ', ' ORDER BY sequence) FROM events").Scan(&feed)
			if err != nil || feed != "1 y, 2 ~" {
				t.Errorf("the feed is %s, %v", feed, err)
			}
		})
	}
}
