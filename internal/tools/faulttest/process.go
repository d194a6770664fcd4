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

// serviceKilled is row 10: the service may be killed at any moment. No acknowledged order
// is lost, and it is ready within three seconds of a restart.
func serviceKilled(ctx context.Context, f *fixture) (string, error) {
	const kills = 3
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	w := s.startWriters(ctx, 16)
	var slowest time.Duration
	for range kills {
		sleep(ctx, 700*time.Millisecond)
		s.api.kill()
		if err := s.api.start(); err != nil {
			return "", err
		}
		took, err := s.awaitWorking(ctx, 3*time.Second)
		if err != nil {
			return "", err
		}
		slowest = max(slowest, took)
	}
	sleep(ctx, 500*time.Millisecond)
	l := w.finish()
	return fmt.Sprintf("%s, 0 of %d lost; working at most %s after a restart", l.summary(), len(l.placed), round(slowest)),
		errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable, noResponse), s.audit(ctx, l))
}

// terminated is row 11: on SIGTERM the service exits with 0 and loses nothing. It finishes
// requests in progress, even slow ones, and cuts off at most 0.5 % of the requests under
// load.
func terminated(ctx context.Context, f *fixture) (string, error) {
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	slow, slowErr := s.terminatedSlow(ctx)
	if err := s.api.start(); err != nil {
		return "", err
	}
	if _, err := s.api.awaitReady(ctx, 3*time.Second); err != nil {
		return "", err
	}
	cut, cutErr := s.terminatedUnderLoad(ctx)
	return slow + "; " + cut, errors.Join(slowErr, cutErr)
}

// terminatedSlow sends SIGTERM while eight orders wait for a lock.
func (s *deployment) terminatedSlow(ctx context.Context) (string, error) {
	const orders, groups = 8, 2 // the first order has the first group, and the others share the next
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	var l ledger
	var group sync.WaitGroup
	for pet := range orders {
		group.Go(func() { l.record(s.order(ctx, 1+pet)) })
	}
	if err := s.db.awaitLockWaits(ctx, groups); err != nil {
		return "", err
	}
	if err := s.api.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	sleep(ctx, time.Second) // long after the server has stopped accepting connections
	release()
	group.Wait()
	code, err := s.api.exitCode(ctx)
	if err == nil && (code != 0 || l.statuses[http.StatusCreated] != orders) {
		err = fmt.Errorf("%d slow orders: %s, exit code %d", orders, l.summary(), code)
	}
	return fmt.Sprintf("slow orders %s, exit code %d", l.summary(), code), errors.Join(err, s.audit(ctx, &l))
}

// terminatedUnderLoad sends SIGTERM under writers that keep their connections.
func (s *deployment) terminatedUnderLoad(ctx context.Context) (string, error) {
	const clients, tolerated = 16, 0.005
	var l ledger
	var group sync.WaitGroup
	for id := range clients {
		group.Go(func() {
			for {
				resp, err := s.order(ctx, 1+id)
				if errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
					return // the service has ended, so nothing was sent
				}
				l.record(resp, err)
			}
		})
	}
	sleep(ctx, 1500*time.Millisecond)
	code, err := s.api.terminate(ctx)
	if err != nil {
		return "", err
	}
	group.Wait()
	cut := l.statuses[noResponse]
	if share := float64(cut) / float64(l.total()); share > tolerated || code != 0 {
		return "", fmt.Errorf("%d of %d requests cut off under load, exit code %d", cut, l.total(), code)
	}
	return fmt.Sprintf("under load %s: %d cut, 0 lost", l.summary(), cut),
		errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable, noResponse), s.audit(ctx, &l))
}

// simultaneousStarts is row 19: several instances may migrate and start at the same time.
func simultaneousStarts(ctx context.Context, f *fixture) (string, error) {
	const instances = 4
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	const empty = "empty"
	if err := db.EnsureDatabase(ctx, empty); err != nil {
		return "", err
	}
	// The lock makes the first migration wait, because it creates the same table. So
	// instances that do not wait for each other run it together.
	release, err := db.holdLock(ctx, empty, "CREATE TABLE categories ()")
	if err != nil {
		return "", err
	}
	defer release()
	services, failures := make([]*service, instances), make([]error, instances)
	var group sync.WaitGroup
	for i := range instances {
		group.Go(func() {
			if _, err := f.runCommand(ctx, db.URL(empty), "migrate", "up"); err != nil {
				failures[i] = err
				return
			}
			services[i], failures[i] = f.serve(ctx, db.URL(empty))
		})
	}
	sleep(ctx, 2500*time.Millisecond)
	release()
	began := time.Now()
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d ready %s after the release of the lock", instances, instances, round(time.Since(began))), nil
}
