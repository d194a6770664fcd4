package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"petstore/internal/tools/must"
)

// wrongClocks is row 41: the clock of one worker is an hour ahead, the clock of another one
// an hour behind, and the clock of a third one right. Each event reaches each webhook once, with at
// most 4 requests in flight. A delivery that fails is repeated after 5 seconds.
func wrongClocks(ctx context.Context, f *fixture) string {
	const during, busy, off = 8 * time.Second, 20 * time.Millisecond, time.Hour
	shiftable := f.shiftable(ctx)
	s := f.open(ctx, allowLoopback, "PETSTORE_WORKER=false")
	var workers []*service
	for _, shift := range []time.Duration{off, -off, 0} {
		workers = append(workers, f.run(ctx, "worker", shiftable, s.db.url(), allowLoopback, fmt.Sprintf("%s=%.0f", clockShift, shift.Seconds())))
	}
	var receivers []*receiver
	for range 6 {
		receivers = append(receivers, s.receive(ctx, func(http.ResponseWriter, *http.Request) { sleep(ctx, busy) }))
	}
	first := &firstAttempts{at: map[string]time.Time{}}
	failing := s.receive(ctx, first.fail, "pet.updated")
	w := startLoad(ctx, 4, func(number int) (response, error) {
		sleep(ctx, busy)
		if number == 0 {
			return s.do(ctx, "PATCH", "/pets/1", fmt.Sprintf(`{"name": "Pet %d"}`, time.Now().UnixNano()))
		}
		return s.order(ctx, 1+number)
	})
	sleep(ctx, during)
	w.finish().wantOnly(http.StatusOK, http.StatusCreated)
	s.awaitDelivered(ctx, 15*time.Second)
	for _, worker := range workers {
		must.Hold(strings.Contains(worker.metrics(ctx), `petstore_webhook_attempt_duration_seconds_count{outcome="delivered"}`), "a worker has delivered nothing")
	}
	return checkClocks(receivers, failing, first)
}

// checkClocks checks what the receivers have got.
func checkClocks(receivers []*receiver, failing *receiver, first *firstAttempts) string {
	const inFlight = 4
	total := 0
	for _, r := range append(receivers, failing) {
		requests, events := r.received()
		if r == failing {
			events += len(first.waits)
		}
		must.OK(r.err)
		must.Hold(requests == events && r.most <= inFlight, "%d requests, want %d; %d at a time, want at most %d", requests, events, r.most, inFlight)
		total += requests
	}
	least, most := slices.Min(first.waits), slices.Max(first.waits)
	figures := fmt.Sprintf("%d requests to %d webhooks, at most %d at a time, no duplicates; the second of two attempts came after %s to %s",
		total, len(receivers)+1, inFlight, round(least), round(most))
	must.Hold(least >= 4*time.Second && most <= 10*time.Second, "%s, want 4 to 10 s", figures)
	return figures
}

// firstAttempts fails the first attempt of every third delivery.
type firstAttempts struct {
	mu     sync.Mutex
	events int
	at     map[string]time.Time
	waits  durations // between the first attempt and the second
}

func (f *firstAttempts) fail(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := r.Header.Get("Webhook-Id")
	if at, found := f.at[id]; found {
		f.waits = append(f.waits, time.Since(at))
		return
	}
	if f.events++; f.events%3 > 0 {
		return
	}
	f.at[id] = time.Now()
	w.WriteHeader(http.StatusServiceUnavailable)
}

// clockShift is the environment variable with the seconds that the clock of a program of
// [fixture.shiftable] is off.
const clockShift = "FAULTTEST_CLOCK_SHIFT"

// shiftable builds the same program with a clock that can be off, and returns its path. Go
// compiles all packages for it, and keeps them for the next time.
func (f *fixture) shiftable(ctx context.Context) (binary string) {
	const before = "\nfunc Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	const after = `
var clockShift = func() int {
	text, _ := syscall.Getenv("` + clockShift + `")
	seconds, _ := atoi(text)
	return seconds
}()

func Now() Time {
	sec, nsec, mono := runtimeNow()
	sec += int64(clockShift)
`
	root := must.Get(exec.CommandContext(ctx, "go", "env", "GOROOT").Output())
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text := strings.Replace(string(must.Get(os.ReadFile(file))), before, after, 1)
	text = strings.Replace(text, "\nimport (\n", "\nimport (\n\t\"syscall\"\n", 1)
	must.Hold(strings.Contains(text, after), "%s does not contain %q; adapt row 41 to this version of Go", file, before)
	replaced := map[string]string{file: text}
	maps.Copy(replaced, f.program.replaced)
	binary = filepath.Join(f.dir, "petstore-clock")
	must.OK(build(ctx, program{binary, replaced}))
	return binary
}
