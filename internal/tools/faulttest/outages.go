package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// responseLimit is the maximum response time while the database is unavailable.
const responseLimit = 8 * time.Second

// databaseKilled is row 5: when PostgreSQL is killed and restarted, no account loses an
// acknowledged order. Requests meanwhile get 503, and the service recovers by itself.
func databaseKilled(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	w := s.startWritersOf(ctx, spread(16, smallStores))
	sleep(ctx, time.Second)
	s.db.signal(syscall.SIGKILL)
	sleep(ctx, 1500*time.Millisecond)
	s.db.start(ctx)
	back := s.awaitWorking(ctx, 3*time.Second)
	sleep(ctx, time.Second)
	l := w.finish()
	s.checkWriters(ctx, l)
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; working again after %s; %s", l.summary(), round(l.slowest), len(l.placed), round(back), s.checkStores(ctx))
}

// checkWriters fails the row unless all responses to writers are 201 or 503 and in time,
// and no order is lost.
func (s *deployment) checkWriters(ctx context.Context, l *ledger) {
	l.wantOnly(http.StatusCreated, http.StatusServiceUnavailable)
	l.wantInTime()
	s.audit(ctx, l)
}

// databaseFrozen is row 7: if the database keeps its connections open but does not respond,
// requests get 503 by their deadline.
func databaseFrozen(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	w := s.startWriters(ctx, 16) // so that every connection of the pool is in use
	sleep(ctx, 300*time.Millisecond)
	l := w.finish()
	s.db.signal(syscall.SIGSTOP)
	defer s.db.signal(syscall.SIGCONT) // it may run already
	var frozen ledger
	must.Parallel(48, func(number int) {
		if number%2 == 0 {
			frozen.record(s.order(ctx, 1+number))
		} else {
			frozen.record(s.getPet(ctx, 1+number))
		}
	})
	frozen.wantOnly(http.StatusServiceUnavailable)
	frozen.wantInTime()
	s.db.signal(syscall.SIGCONT)
	back := s.awaitWorking(ctx, 3*time.Second)
	s.audit(ctx, l)
	return fmt.Sprintf("%s, slowest %s; working again after %s", frozen.summary(), round(frozen.slowest), round(back))
}

// silentShutdown is row 27: on SIGTERM the service ends within its grace period even if the
// database is silent. The exit code is 0 if every request got its response, and 1 if a
// request took longer than the grace period.
func silentShutdown(ctx context.Context, f *fixture) string {
	const grace = 8 * time.Second
	s := f.open(ctx, "PETSTORE_SHUTDOWN_GRACE="+grace.String(), "PETSTORE_REQUEST_TIMEOUT=3s")
	fast := s.shutDownSilently(ctx, grace, "", 0)
	s.api.restart(ctx)
	slow := s.shutDownSilently(ctx, grace, fmt.Sprintf("POST /store/orders HTTP/1.1\r\nHost: petstore\r\n"+
		"Authorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{", s.key), 1)
	return fmt.Sprintf("ended after %s, exit code 0; with a slow body after %s, exit code 1; grace period %s", round(fast), round(slow), grace)
}

// shutDownSilently sends SIGTERM to a service under load whose database is frozen, and which may have
// received a part of a request. It returns how long the service took to end.
func (s *deployment) shutDownSilently(ctx context.Context, grace time.Duration, request string, wantCode int) time.Duration {
	w := s.startWriters(ctx, 16)
	defer w.finish()
	sleep(ctx, 500*time.Millisecond)
	s.db.signal(syscall.SIGSTOP)
	defer s.db.signal(syscall.SIGCONT)
	if request != "" {
		conn := dialSlow(ctx, s.api.addr)
		defer conn.Close()
		must.Get(io.WriteString(conn, request))
	}
	sleep(ctx, 300*time.Millisecond)
	began := time.Now()
	code := s.api.process.Terminate(ctx)
	took := time.Since(began)
	must.Hold(took <= grace && code == wantCode, "with %q: exit code %d after %s; want %d within %s", request, code, round(took), wantCode, grace)
	return took
}
