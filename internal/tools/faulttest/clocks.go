package main

import (
	"context"
	"errors"
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
)

// clocksRow is the number of the row that needs [fixture.shiftable].
const clocksRow = 41

// clockShift is the environment variable with the seconds that the clock of a program of
// [fixture.shiftable] is off.
const clockShift = "FAULTTEST_CLOCK_SHIFT="

// wrongClocks is row 41: the clock of one worker is an hour ahead, the clock of another one
// an hour behind, and the clock of a third one right. Each event reaches each webhook once, with at
// most 4 requests in flight. A delivery that fails is repeated after 5 seconds.
func wrongClocks(ctx context.Context, f *fixture) (string, error) {
	const during, busy, off = 8 * time.Second, 20 * time.Millisecond, time.Hour
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, db.url(), allowLoopback, "PETSTORE_WORKER=false")
	if err != nil {
		return "", err
	}
	var admins []string
	for _, shift := range []time.Duration{off, -off, 0} {
		admin, err := freeAddr(ctx)
		if err != nil {
			return "", err
		}
		admins = append(admins, admin)
		extra := []string{allowLoopback, "PETSTORE_ADMIN_ADDR=" + admin, fmt.Sprintf("%s%.0f", clockShift, shift.Seconds())}
		if _, err := f.run(ctx, &service{command: "worker", binary: f.shifted, dbURL: db.url(), extra: extra}); err != nil {
			return "", err
		}
	}
	var receivers []*receiver
	for range 6 {
		r, err := s.receive(ctx, s.client, func(http.ResponseWriter, *http.Request) { sleep(ctx, busy) })
		if err != nil {
			return "", err
		}
		receivers = append(receivers, r)
	}
	first := &firstAttempts{at: map[string]time.Time{}}
	failing, err := s.receive(ctx, s.client, first.fail, "pet.updated")
	if err != nil {
		return "", err
	}
	l := startLoad(ctx, 4, func(number int) (response, error) {
		sleep(ctx, busy)
		if number == 0 {
			return s.do(ctx, "PATCH", "/pets/1", fmt.Sprintf(`{"name": "Pet %d"}`, time.Now().UnixNano()))
		}
		return s.order(ctx, 1+number)
	})
	sleep(ctx, during)
	if err := l.finish().only(http.StatusOK, http.StatusCreated); err != nil {
		return "", err
	}
	if err := s.awaitDelivered(ctx, 15*time.Second); err != nil {
		return "", err
	}
	for _, admin := range admins {
		if err := hasDelivered(ctx, admin); err != nil {
			return "", err
		}
	}
	return checkClocks(receivers, failing, first)
}

// hasDelivered returns an error unless a process has delivered to webhooks.
func hasDelivered(ctx context.Context, admin string) error {
	resp, err := (&client{base: "http://" + admin}).want(ctx, http.StatusOK, "GET", "/metrics", "")
	if err != nil {
		return err
	}
	if !strings.Contains(string(resp.body), `petstore_webhook_attempt_duration_seconds_count{outcome="delivered"}`) {
		return errors.New("a worker has delivered nothing")
	}
	return nil
}

// checkClocks checks what the receivers have got.
func checkClocks(receivers []*receiver, failing *receiver, first *firstAttempts) (string, error) {
	const inFlight = 4
	total := 0
	for _, r := range append(receivers, failing) {
		requests, events := r.received()
		if r == failing {
			events += len(first.waits)
		}
		if r.err != nil {
			return "", r.err
		}
		if requests != events || r.most > inFlight {
			return "", fmt.Errorf("%d requests, want %d; %d at a time, want at most %d", requests, events, r.most, inFlight)
		}
		total += requests
	}
	least, most := slices.Min(first.waits), slices.Max(first.waits)
	figures := fmt.Sprintf("%d requests to %d webhooks, at most %d at a time, no duplicates; the second of two attempts came after %s to %s",
		total, len(receivers)+1, inFlight, round(least), round(most))
	if least < 4*time.Second || most > 10*time.Second {
		return "", fmt.Errorf("%s, want 4 to 10 s", figures)
	}
	return figures, nil
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

// awaitDelivered waits until no delivery is pending, except those to some webhooks, and all
// events are dispatched.
func (s *deployment) awaitDelivered(ctx context.Context, within time.Duration, except ...string) error {
	_, err := eventually(ctx, within, func() error {
		var pending, behind int
		err := s.db.read(ctx, `
			SELECT (SELECT count(*) FROM webhook_deliveries WHERE status = 'pending' AND webhook_id <> ALL (coalesce($1::text[], '{}'))),
			       (SELECT count(*) FROM webhooks JOIN account_state USING (account_id) WHERE after_sequence < last_sequence)`, []any{except}, &pending, &behind)
		if err == nil && pending+behind > 0 {
			err = fmt.Errorf("%d deliveries are pending, and %d webhooks do not have the newest events", pending, behind)
		}
		return err
	})
	return err
}

// shiftable returns the path of the same program, whose clock is off by the seconds in an
// environment variable. Go compiles all packages for it, and keeps them for the next time.
func (f *fixture) shiftable(ctx context.Context) (binary string, err error) {
	const before = "\nfunc Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	const after = `
var clockShift = func() int {
	text, _ := syscall.Getenv("FAULTTEST_CLOCK_SHIFT")
	seconds, _ := atoi(text)
	return seconds
}()

func Now() Time {
	sec, nsec, mono := runtimeNow()
	sec += int64(clockShift)
`
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text := strings.Replace(string(source), before, after, 1)
	text = strings.Replace(text, "\nimport (\n", "\nimport (\n\t\"syscall\"\n", 1)
	if !strings.Contains(text, after) {
		return "", fmt.Errorf("%s does not contain %q; adapt row 41 to this version of Go", file, before)
	}
	replaced := map[string]string{file: text}
	maps.Copy(replaced, f.program.replaced)
	binary = filepath.Join(f.dir, "petstore-clock")
	return binary, build(ctx, program{binary, replaced})
}
