package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Row 10. The service may be killed at any moment: what it acknowledged is
// there, and it is ready within three seconds of its next start.
func serviceKilled(ctx context.Context, b *bench) (string, error) {
	const kills = 3
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	w := s.startWriters(ctx, 16)
	var slowest time.Duration
	for range kills {
		wait(ctx, 700*time.Millisecond)
		s.api.kill()
		if err := s.api.start(); err != nil {
			return "", err
		}
		took, err := s.working(ctx, 3*time.Second)
		if err != nil {
			return "", err
		}
		slowest = max(slowest, took)
	}
	wait(ctx, 500*time.Millisecond)
	l := w.finish()
	return fmt.Sprintf("%s, 0 of %d lost; working at most %s after a start", l.count(), len(l.placed), round(slowest)),
		errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable, noAnswer), s.audit(ctx, l))
}

// Row 11. SIGTERM ends the service with 0 and loses nothing: what has begun is
// finished, however slow, and under load hardly a request is cut off.
func terminated(ctx context.Context, b *bench) (string, error) {
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	slow, slowErr := s.terminatedSlow(ctx)
	if err := s.api.start(); err != nil {
		return "", err
	}
	if _, err := s.api.ready(ctx, 3*time.Second); err != nil {
		return "", err
	}
	cut, cutErr := s.terminatedUnderLoad(ctx)
	return slow + "; " + cut, errors.Join(slowErr, cutErr)
}

// terminatedSlow ends a service that has eight orders in its hands, which wait
// for a lock.
func (s *shop) terminatedSlow(ctx context.Context) (string, error) {
	const orders = writers
	release, err := s.db.hold(ctx, databaseName, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	var l ledger
	var group sync.WaitGroup
	for pet := range orders { // of different pets, which are placed each by a statement of its own
		group.Go(func() { l.note(s.order(ctx, 1+pet)) })
	}
	if err := s.db.untilWait(ctx, orders); err != nil {
		return "", err
	}
	if err := s.api.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	wait(ctx, time.Second) // well after new connections are refused
	release()
	group.Wait()
	code, err := s.api.exitCode(ctx)
	if err == nil && (code != 0 || l.statuses[http.StatusCreated] != orders) {
		err = fmt.Errorf("%d slow orders: %s, exit code %d", orders, l.count(), code)
	}
	return fmt.Sprintf("slow orders %s, exit code %d", l.count(), code), errors.Join(err, s.audit(ctx, &l))
}

// terminatedUnderLoad ends a service under writers that keep their connections.
func (s *shop) terminatedUnderLoad(ctx context.Context) (string, error) {
	const clients, tolerated = 16, 0.005
	var l ledger
	var group sync.WaitGroup
	for id := range clients {
		group.Go(func() {
			for {
				a, err := s.order(ctx, 1+id)
				if errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
					return // there is no service any more, so nothing was asked
				}
				l.note(a, err)
			}
		})
	}
	wait(ctx, 1500*time.Millisecond)
	code, err := s.api.terminate(ctx)
	if err != nil {
		return "", err
	}
	group.Wait()
	cut := l.statuses[noAnswer]
	if share := float64(cut) / float64(l.total()); share > tolerated || code != 0 {
		return "", fmt.Errorf("%d of %d requests cut off under load, exit code %d", cut, l.total(), code)
	}
	return fmt.Sprintf("under load %s: %d cut, 0 lost", l.count(), cut),
		errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable, noAnswer), s.audit(ctx, &l))
}

// Row 19. Several instances may migrate and start at the same moment.
func simultaneousStarts(ctx context.Context, b *bench) (string, error) {
	const instances = 4
	db, err := b.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	const empty = "empty"
	if err := db.EnsureDatabase(ctx, empty); err != nil {
		return "", err
	}
	// Whoever comes to the first migration waits there, for a table that may or may
	// not come to be: so all that do not wait for each other meet.
	release, err := db.hold(ctx, empty, "CREATE TABLE categories ()")
	if err != nil {
		return "", err
	}
	defer release()
	services, failures := make([]*service, instances), make([]error, instances)
	var group sync.WaitGroup
	for i := range instances {
		group.Go(func() {
			if _, err := b.petstore(ctx, db.URL(empty), "migrate", "up"); err != nil {
				failures[i] = err
				return
			}
			services[i], failures[i] = b.serve(ctx, db.URL(empty))
		})
	}
	wait(ctx, 2500*time.Millisecond)
	release()
	began := time.Now()
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d ready %s after they could begin to migrate", instances, instances, round(time.Since(began))), nil
}
