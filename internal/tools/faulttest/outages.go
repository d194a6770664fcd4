package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// responseLimit is the maximum response time while the database is unavailable.
const responseLimit = 8 * time.Second

// databaseKilled is row 5: when PostgreSQL is killed and restarted, no account loses an
// acknowledged order. Requests meanwhile get 503, and the service recovers by itself.
func databaseKilled(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	w := s.startWritersOf(ctx, spread(16, smallStores))
	sleep.For(ctx, time.Second)
	s.db.signal(syscall.SIGKILL)
	sleep.For(ctx, 1500*time.Millisecond)
	s.db.start(ctx)
	back := s.awaitWorking(ctx, 3*time.Second)
	sleep.For(ctx, time.Second)
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
	sleep.For(ctx, 300*time.Millisecond)
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
	sleep.For(ctx, 500*time.Millisecond)
	s.db.signal(syscall.SIGSTOP)
	defer s.db.signal(syscall.SIGCONT)
	if request != "" {
		conn := dialSlow(ctx, s.api.addr)
		defer conn.Close()
		must.Get(io.WriteString(conn, request))
	}
	sleep.For(ctx, 300*time.Millisecond)
	began := time.Now()
	code := s.api.process.Terminate(ctx)
	took := time.Since(began)
	must.Hold(took <= grace && code == wantCode, "with %q: exit code %d after %s; want %d within %s", request, code, round(took), wantCode, grace)
	return took
}

// diskFails is row 9: no acknowledged order is lost when the disk is full or fsync fails.
// Failed writes get 503, and orders succeed again soon after the disk recovers. It needs
// root and strace.
func diskFails(ctx context.Context, f *fixture) string {
	if os.Geteuid() != 0 {
		must.OK(skipError("mounting a small disk needs root"))
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		must.OK(skipError("strace is not installed"))
	}
	disk := filepath.Join(f.dir, "disk")
	must.OK(os.Mkdir(disk, 0o711))
	run.Program(ctx, "mount", "-t", "tmpfs", "-o", "size=192m,mode=0711", "petstore", disk)
	f.cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_ = exec.CommandContext(ctx, "cp", filepath.Join(disk, "pg", "postgres.log"), f.dir).Run() // fails if the server has not started
		_ = exec.CommandContext(ctx, "umount", "--lazy", disk).Run()                               // a failure only costs memory
	})
	db := f.startDatabase(ctx, filepath.Join(disk, "pg"), map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB"})
	s := f.openWith(ctx, db, db.url())
	full := s.failDisk(ctx, "disk full", func() { s.fillDisk(ctx, filepath.Join(disk, "ballast")) })
	failing := s.failDisk(ctx, "fsync failing", func() { s.failSync(ctx, strace) })
	return full + "; " + failing
}

// recoveryLimit is how long orders may fail after the disk has recovered.
const recoveryLimit = 10 * time.Second

// fillDisk fills the disk until orders fail, then makes room again.
func (s *deployment) fillDisk(ctx context.Context, file string) {
	ballast := must.Get(os.Create(file))
	defer ballast.Close()
	_, err := io.Copy(ballast, must.Get(os.Open("/dev/zero")))
	must.Hold(errors.Is(err, syscall.ENOSPC), "filling the disk: %v", err)
	must.Await(ctx, 15*time.Second, func() { must.Get(s.order(ctx, pets)).check(http.StatusServiceUnavailable) })
	sleep.For(ctx, time.Second)
	must.OK(errors.Join(ballast.Close(), os.Remove(file)))
}

// failSync makes every fsync of the server fail for 1.5 seconds.
func (s *deployment) failSync(ctx context.Context, strace string) {
	args := []string{"-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO"}
	for _, pid := range s.db.processes() {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	faults := exec.CommandContext(ctx, strace, args...)
	must.OK(faults.Start())
	sleep.For(ctx, 1500*time.Millisecond)
	_ = faults.Process.Signal(syscall.SIGINT) // fails if the server and strace have ended
	_ = faults.Wait()
}

// failDisk lets the disk fail under writers. It waits until orders succeed, restarts PostgreSQL if
// it has ended, and checks the responses to the writers.
func (s *deployment) failDisk(ctx context.Context, what string, fail func()) string {
	w := s.startWriters(ctx, 16)
	sleep.For(ctx, 500*time.Millisecond)
	fail()
	restarted := ""
	back := must.Await(ctx, recoveryLimit, func() {
		select {
		case <-s.db.Done():
			restarted = ", PostgreSQL restarted"
			s.db.start(ctx)
		default:
		}
		s.checkWorks(ctx)
	})
	sleep.For(ctx, 300*time.Millisecond)
	l := w.finish()
	must.Explain(what, func() { s.checkWriters(ctx, l) })
	must.Hold(l.count(http.StatusServiceUnavailable) > 0, "%s: %s: no order failed, so the row proves nothing", what, l.summary())
	return fmt.Sprintf("%s: %s, slowest %s, 0 lost, orders again after %s%s", what, l.summary(), round(l.slowest), round(back), restarted)
}

// overload is row 13: sixty times the load costs at most 30 % of the throughput. Excess
// requests are rejected at once, and the service works normally afterwards.
func overload(ctx context.Context, f *fixture) string {
	const few, many, each, least = 16, 960, 3 * time.Second, 0.7
	s := f.open(ctx)
	measure := func(clients int) (*ledger, float64) {
		began := time.Now()
		w := s.startWriters(ctx, clients)
		sleep.For(ctx, each)
		l := w.finish()
		return l, float64(l.count(http.StatusCreated)) / time.Since(began).Seconds()
	}
	measure(few) // to warm up
	normal, goodput := measure(few)
	heavy, overloaded := measure(many)
	healthy := s.awaitWorking(ctx, time.Second)
	figures := fmt.Sprintf("%d writers %.0f/s, %d writers %.0f/s (%.0f%%): %s, slowest %s; working again after %s",
		few, goodput, many, overloaded, 100*overloaded/goodput, heavy.summary(), round(heavy.slowest), round(healthy))
	must.Hold(overloaded >= least*goodput, "%s", figures)
	normal.wantOnly(http.StatusCreated)
	heavy.wantOnly(http.StatusCreated, http.StatusServiceUnavailable, http.StatusTooManyRequests)
	heavy.wantInTime()
	s.audit(ctx, normal)
	s.audit(ctx, heavy)
	return figures
}
