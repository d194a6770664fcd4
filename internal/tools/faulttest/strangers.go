package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"petstore/internal/auth"
)

// Row 29. Strangers without a key keep nobody out, whether they guess keys or never
// end their headers.
func strangers(ctx context.Context, b *bench) (string, error) {
	guessed, err := guessedKeys(ctx, b)
	if err != nil {
		return "", err
	}
	halved, err := halfHeaders(ctx, b)
	return guessed + "; " + halved, err
}

// guessedKeys is the first part of row 29: strangers who guess well-formed keys from
// one address, on 320 connections and under the default limits, cost the database at
// most 50 lookups a second. A key in use is always served in time, and so is a valid
// key from the same address that the service has not seen before.
func guessedKeys(ctx context.Context, b *bench) (string, error) {
	const (
		connections   = 320
		during        = 8 * time.Second
		lookupsASec   = 50
		p99Limit      = 250 * time.Millisecond
		newKeyLimit   = time.Second
		memoryLimit   = 256 << 20
		failuresAMin  = 20 // the default of PETSTORE_AUTH_FAILURE_LIMIT
		burstLookups  = 20 // before the address is over its limit
		pauseOfClient = 10 * time.Millisecond
	)
	db, err := b.startDatabase(ctx, filepath.Join(b.dir, "guesses"), map[string]string{"log_statement": "all"})
	if err != nil {
		return "", err
	}
	api, err := b.serve(ctx, db.url(), fmt.Sprintf("PETSTORE_AUTH_FAILURE_LIMIT=%d", failuresAMin))
	if err != nil {
		return "", err
	}
	s := &shop{bench: b, db: db, api: api, client: &client{base: api.url(), key: b.key}}
	unseen, err := b.petstore(ctx, db.url(), "key", "create", "--account", "unseen")
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
	var times []time.Duration
	var unseenTook time.Duration
	for time.Since(began) < during {
		pet := 1 + len(times)%pets
		read, err := s.want(ctx, http.StatusOK, "GET", fmt.Sprintf("/pets/%d", pet), "")
		if err != nil {
			return "", fmt.Errorf("a key in use, after %s: %w", round(time.Since(began)), err)
		}
		times = append(times, read.took)
		if unseenTook == 0 && time.Since(began) > during/2 {
			a, err := s.as(strings.TrimSpace(unseen)).want(ctx, http.StatusOK, "GET", "/pets/1", "")
			if err != nil {
				return "", fmt.Errorf("a valid key that was not seen before: %w", err)
			}
			unseenTook = a.took
		}
		wait(ctx, pauseOfClient)
	}
	took := time.Since(began)
	after, err := db.keyLookups()
	stop()
	ended.Wait()
	if err != nil {
		return "", err
	}
	memory, err := api.memory("VmHWM")
	if err != nil {
		return "", err
	}
	slices.Sort(times)
	p99 := times[len(times)*99/100]
	lookups := after - before
	figures := fmt.Sprintf("%d guesses (%s): %d lookups in %s, %.0f a second; a key in use: %d requests, p99 %s; a new key %s; %d MB at most",
		guesses.total(), guesses.count(), lookups, round(took), float64(lookups)/took.Seconds(), len(times), round(p99), round(unseenTook), memory>>20)
	if p99 > p99Limit || unseenTook > newKeyLimit || memory > memoryLimit || float64(lookups) > lookupsASec*took.Seconds()+burstLookups {
		return "", errors.New(figures)
	}
	return figures, guesses.only(http.StatusUnauthorized, http.StatusTooManyRequests)
}

// guessKeys sends requests with well-formed keys that nobody has, one after the
// other on each connection, until the context ends.
func (s *shop) guessKeys(ctx context.Context, connections int) (*ledger, *sync.WaitGroup) {
	l, group := &ledger{}, &sync.WaitGroup{}
	for range connections {
		group.Go(func() {
			for ctx.Err() == nil {
				a, err := s.as(auth.NewSecret().Reveal()).do(ctx, "GET", "/pets/1", "")
				if ctx.Err() == nil {
					l.note(a, err)
				}
			}
		})
	}
	return l, group
}

// keyLookups counts the statements that have looked up keys. The database must log
// its statements.
func (d *database) keyLookups() (int, error) {
	log, err := os.ReadFile(filepath.Join(d.options.Dir, "postgres.log"))
	return strings.Count(string(log), "-- name: APIKeyLookUp "), err
}
