package api_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// replicaReads lets clients read on the standby of a database, on the engine
// [pgtest.Replica]. Every GET and HEAD then has the newest consistency token that a
// response had. Before the first one, it has consistency=eventual.
type replicaReads struct {
	replicas *postgres.Replicas
	stop     func()
	polls    sync.WaitGroup

	mu    sync.Mutex
	token string
	at    postgres.Position
}

// leastShare is the share of the reads that the standby must serve, of those that all tests
// of this package allow. The primary serves the others, because the standby is late.
const leastShare = 0.7

// manyReads is more than a single test makes, and fewer than a leg of .ci/run makes.
const manyReads = 1000

// All reads of tests so far on servers with a standby, those that allow it, and those that it served.
var reads, readsAllowed, readsOfStandby atomic.Uint64

// readersOf has the replicaReads of each database of a test, because servers on one database
// share the tokens.
var readersOf sync.Map // of *replicaReads by *pgtest.Database

// shareReplica is openReplica for servers on one database, until the test ends.
func shareReplica(t testing.TB, database *pgtest.Database, primary *postgres.DB) *replicaReads {
	t.Helper()
	if known, ok := readersOf.Load(database); ok {
		primary.ReportPositions()    // as OpenReplicas does with the pool of the first server
		return known.(*replicaReads) //nolint:forcetypeassert // all are
	}
	r := need.Value(openReplica(database, primary))(t)
	readersOf.Store(database, r)
	t.Cleanup(func() {
		readersOf.Delete(database)
		r.close()
	})
	return r
}

// openReplica returns the replicaReads of a database; nil: it has no standby.
func openReplica(database *pgtest.Database, primary *postgres.DB) (*replicaReads, error) {
	if database.ReplicaURL == "" {
		return nil, nil
	}
	const maxConns, maxLag, patience = 8, time.Minute, 30 * time.Second
	ctx, cancel := context.WithCancel(context.Background()) // until close
	replicas, err := postgres.OpenReplicas(ctx, primary, []string{database.ReplicaURL},
		postgres.ReplicaOptions{MaxConns: maxConns, MaxLag: maxLag, Patience: patience, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		cancel()
		return nil, err
	}
	r := &replicaReads{replicas: replicas, stop: cancel}
	r.polls.Go(func() { replicas.Run(ctx) })
	late := time.After(patience)
	for poll := time.NewTicker(time.Millisecond); !replicas.Status(0).InRotation; {
		select {
		case <-poll.C:
		case <-late:
			r.close()
			return nil, errors.New("the standby is not in rotation")
		}
	}
	return r, nil
}

// close closes the connections to the standby.
func (r *replicaReads) close() {
	if r == nil {
		return
	}
	r.stop()
	r.polls.Wait()
	r.replicas.Close()
	for _, reason := range postgres.ReadReasons() {
		reads.Add(r.replicas.Reads(reason))
		if reason != postgres.ReadByDefault {
			readsAllowed.Add(r.replicas.Reads(reason))
		}
	}
	readsOfStandby.Add(r.replicas.Reads(postgres.ReadFresh))
}

// readingPrimary returns the same server with a client that allows no standby. It is for
// tests that disturb the primary and expect failures of reads, which the standby serves. It is
// also for those that read what another program wrote, whose tokens they do not have.
func (p *petstore) readingPrimary() *petstore {
	other := *p
	other.replica = nil
	return &other
}

// startWithoutStandby starts a server that knows no standby, for tests of what only such a server does.
func startWithoutStandby(t testing.TB) *petstore {
	t.Helper()
	database := *pgtest.New(t)
	database.ReplicaURL = ""
	return startOn(t, &database)
}

// prefer allows a request to read on the standby, if it is a read that does not decide itself.
func (r *replicaReads) prefer(request *http.Request) (preference string) {
	isRead := request.Method == http.MethodGet || request.Method == http.MethodHead
	if r == nil || !isRead || strings.Contains(strings.Join(request.Header.Values("Prefer"), ","), "consistency") {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	preference = "consistency=eventual"
	if r.token != "" {
		preference = "consistency=" + r.token
	}
	request.Header.Add("Prefer", preference)
	return preference
}

// learn keeps the token of a response if it is the newest one. It removes the preference
// that prefer added from the header of the response.
func (r *replicaReads) learn(t testing.TB, server *api.Server, header http.Header, preference string) {
	t.Helper()
	if r == nil {
		return
	}
	if applied := header.Get("Preference-Applied"); preference != "" && applied != "" {
		header.Del("Preference-Applied")
		if rest := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(applied, preference+", "), preference), ", "); rest != "" {
			header.Set("Preference-Applied", rest)
		}
	}
	token := header.Get("Petstore-Consistency")
	if token == "" {
		return
	}
	header.Del("Petstore-Consistency")
	at, err := server.PositionOf(t.Context(), token)
	if err != nil {
		t.Errorf("the token %q: %v", token, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The token of an unknown position makes the next reads use the primary.
	if unknown := at == (postgres.Position{}); unknown || r.token == "" || at.LSN > r.at.LSN {
		r.token, r.at = token, at
	}
}

// checkShare says on the engine [pgtest.Replica] how many reads the standby served. It
// returns false if those are too few of many reads, because then the run shows nothing.
func checkShare() bool {
	allowed, served := readsAllowed.Load(), readsOfStandby.Load()
	if !pgtest.Is(pgtest.Replica) {
		return true
	}
	fmt.Fprintf(os.Stderr, "the standby served %d of %d reads that allow it\n", served, allowed)
	return reads.Load() < manyReads || float64(served) >= leastShare*float64(allowed) && served > 0
}
