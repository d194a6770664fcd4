package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"petstore/internal/auth"
)

// anonymousClients is row 29: clients without a key do not lock out others, neither by
// guessing keys nor by never ending their headers.
func anonymousClients(ctx context.Context, f *fixture) (string, error) {
	guessed, err := guessedKeys(ctx, f)
	if err != nil {
		return "", err
	}
	halved, err := incompleteHeaders(ctx, f)
	return guessed + "; " + halved, err
}

// guessedKeys is the first part of row 29. Clients guess well-formed keys from one address,
// on 320 connections under the default limits. They cause at most 50 lookups a second. A
// key in use always works in time, and so does a valid key from the same address that the
// service has not seen before.
func guessedKeys(ctx context.Context, f *fixture) (string, error) {
	const (
		connections  = 320
		lookupsASec  = 50
		burstLookups = 20 // until the address is over its limit
		p99Limit     = 250 * time.Millisecond
		newKeyLimit  = time.Second
		memoryLimit  = 256 << 20
	)
	db, err := f.startDatabase(ctx, filepath.Join(f.dir, "guesses"), map[string]string{"log_statement": "all"})
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, db.url(), "PETSTORE_AUTH_FAILURE_LIMIT=20") // the default
	if err != nil {
		return "", err
	}
	newKey, err := f.runCommand(ctx, db.url(), "key", "create", "--account", accountName)
	if err != nil {
		return "", err
	}
	if _, err := s.want(ctx, http.StatusOK, "GET", "/pets/1", ""); err != nil {
		return "", err
	}
	before, err := db.keyLookups()
	if err != nil {
		return "", err
	}
	began := time.Now()
	guessing, stop := context.WithCancel(ctx)
	defer stop()
	guesses, ended := s.guessKeys(guessing, connections)
	times, newKeyTook, useErr := s.useKeys(ctx, s.withKey(strings.TrimSpace(newKey)))
	took := time.Since(began)
	after, lookupsErr := db.keyLookups()
	stop()
	ended.Wait()
	memory, memoryErr := s.api.memory("VmHWM")
	if err := errors.Join(useErr, lookupsErr, memoryErr); err != nil {
		return "", err
	}
	lookups := after - before
	figures := fmt.Sprintf("%d guesses (%s): %d lookups in %s, %.0f a second; key in use: %d requests, p99 %s; new key: %s; memory at most %d MB",
		guesses.total(), guesses.summary(), lookups, round(took), float64(lookups)/took.Seconds(), len(times), round(times.p99()), round(newKeyTook), memory>>20)
	if times.p99() > p99Limit || newKeyTook > newKeyLimit || memory > memoryLimit || float64(lookups) > lookupsASec*took.Seconds()+burstLookups {
		return "", errors.New(figures)
	}
	return figures, guesses.only(http.StatusUnauthorized, http.StatusTooManyRequests)
}

// useKeys reads pets for eight seconds with the key of the deployment, and once in the
// middle with a new key. It returns the response times.
func (s *deployment) useKeys(ctx context.Context, newKey *client) (times durations, newKeyTook time.Duration, err error) {
	const during = 8 * time.Second
	for began := time.Now(); time.Since(began) < during; sleep(ctx, 10*time.Millisecond) {
		resp, err := s.want(ctx, http.StatusOK, "GET", fmt.Sprintf("/pets/%d", 1+len(times)%pets), "")
		if err != nil {
			return nil, 0, fmt.Errorf("the key in use, after %s: %w", round(time.Since(began)), err)
		}
		times = append(times, resp.took)
		if newKeyTook == 0 && time.Since(began) > during/2 {
			resp, err := newKey.want(ctx, http.StatusOK, "GET", "/pets/1", "")
			if err != nil {
				return nil, 0, fmt.Errorf("the new key: %w", err)
			}
			newKeyTook = resp.took
		}
	}
	return times, newKeyTook, nil
}

// guessKeys sends requests with well-formed keys that do not exist, on that many
// connections, until the context ends.
func (s *deployment) guessKeys(ctx context.Context, connections int) (*ledger, *sync.WaitGroup) {
	l, group := &ledger{}, &sync.WaitGroup{}
	for range connections {
		group.Go(func() {
			for ctx.Err() == nil {
				resp, err := s.withKey(auth.NewSecret().Reveal()).do(ctx, "GET", "/pets/1", "")
				if ctx.Err() == nil {
					l.record(resp, err)
				}
			}
		})
	}
	return l, group
}

// keyLookups counts the statements that looked up keys, in the log of the database. The
// database must log its statements.
func (d *database) keyLookups() (int, error) {
	log, err := os.ReadFile(filepath.Join(d.options.Dir, "postgres.log"))
	return strings.Count(string(log), "-- name: APIKeyLookUp "), err
}
