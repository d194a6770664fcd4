package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Row 28. One hostile account with six keys does its worst under the default
// limits. Another account, with six keys too, notices nothing but a busy machine: no refusal, and a p99
// of at most five times its own before, or 50 ms on a machine that idles at less.
func hostileAccount(ctx context.Context, b *bench) (string, error) {
	const (
		keys           = 6
		idle, attacked = 3 * time.Second, 8 * time.Second
		slower, floor  = 5, 50 * time.Millisecond
		memoryLimit    = 256 << 20
	)
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	s.api.kill()
	s.api.extra = []string{"PETSTORE_RATE_LIMIT=600"}
	if err := s.api.start(); err != nil {
		return "", err
	}
	if _, err := s.api.ready(ctx, 10*time.Second); err != nil {
		return "", err
	}
	a := &attacker{shop: s}
	var normal []*client
	for range keys {
		for _, account := range []string{"hostile", "normal"} {
			key, err := b.petstore(ctx, s.db.url(), "key", "create", "--account", account, "--scope", "write")
			if err != nil {
				return "", err
			}
			if key = strings.TrimSpace(key); account == "hostile" {
				a.keys = append(a.keys, key)
			} else {
				normal = append(normal, s.as(key))
			}
		}
	}
	if err := a.prepare(ctx); err != nil {
		return "", err
	}
	before, err := normalClients(ctx, normal, idle)
	if err != nil {
		return "", fmt.Errorf("before the attack: %w", err)
	}
	stop := a.begin(ctx)
	during, err := normalClients(ctx, normal, attacked)
	stop()
	if err != nil {
		return "", fmt.Errorf("during the attack: %w", err)
	}
	peak, err := s.api.memory("VmHWM")
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("another account: no refusal, p99 %s (%s before); memory at most %d MB; the hostile account: %s",
		round(during), round(before), peak>>20, a.l.count())
	if limit := max(slower*before, floor); during > limit || peak > memoryLimit {
		return "", errors.New(figures)
	}
	return figures, nil
}

// normalClients read pets and lists and place orders with keys of their own, again and
// again at a pace that the default limits allow. The result is the p99; every response
// must be a success.
func normalClients(ctx context.Context, clients []*client, during time.Duration) (time.Duration, error) {
	const pause = 170 * time.Millisecond // 18 requests a second, and the limit allows 100 and 10 a second
	var mu sync.Mutex
	var times []time.Duration
	failures := make([]error, len(clients))
	began := time.Now()
	var group sync.WaitGroup
	for i, c := range clients {
		group.Go(func() {
			for round := i; time.Since(began) < during && failures[i] == nil; round++ {
				took, err := c.normalRound(ctx, 1+round%pets)
				if err != nil {
					failures[i] = fmt.Errorf("after %s: %w", time.Since(began), err)
				}
				mu.Lock()
				times = append(times, took...)
				mu.Unlock()
				wait(ctx, pause)
			}
		})
	}
	group.Wait()
	slices.Sort(times)
	return times[len(times)*99/100], errors.Join(failures...)
}

// normalRound is what a normal client does with a pet.
func (c *client) normalRound(ctx context.Context, pet int) (times []time.Duration, err error) {
	for _, ask := range []func() (answer, error){
		func() (answer, error) { return c.do(ctx, "GET", fmt.Sprintf("/pets/%d", pet), "") },
		func() (answer, error) { return c.do(ctx, "GET", fmt.Sprintf("/categories?limit=%d", pet), "") },
		func() (answer, error) { return c.order(ctx, pet) },
	} {
		response, err := ask()
		if err == nil && response.status >= http.StatusMultipleChoices {
			err = errors.New(response.String())
		}
		if err != nil {
			return times, err
		}
		times = append(times, response.took)
	}
	return times, nil
}

// attacker is the hostile account.
type attacker struct {
	*shop
	keys []string
	l    ledger
}

// prepare makes lists whose count is expensive and whose pages are large.
func (a *attacker) prepare(ctx context.Context) error {
	return errors.Join(
		a.db.exec(ctx, `
			INSERT INTO pets (category_id, name, name_key, status)
			SELECT 1, 'bulk ' || number, 'bulk ' || number, 'sold'
			FROM generate_series(1, 200000) AS number`),
		a.db.exec(ctx, `
			INSERT INTO messages (account_id, id, message)
			SELECT accounts.id, 'msg_' || lpad(to_hex(number), 32, '0'), repeat('🐕', 4000)
			FROM accounts, generate_series(1, 50) AS number
			WHERE accounts.name = 'hostile'`),
		a.db.exec(ctx, "VACUUM ANALYZE pets"),
	)
}

// begin attacks in every way at once until the function that it returns is called.
func (a *attacker) begin(ctx context.Context) (stop func()) {
	// Of each key: with six, more than there are places for arriving bodies and for
	// pages. One comes after the other, since a key may send 100 requests at once and
	// ten a second.
	const slowBodies, slowReaders, flooders = 88, 24, 4
	const readAfter, floodAfter = 500 * time.Millisecond, 4 * time.Second
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	unknown := largeBody(1 << 20)
	for i, key := range a.keys {
		for range slowReaders {
			group.Go(func() {
				wait(ctx, readAfter)
				a.hold(ctx, "GET /messages?limit=200 HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer "+key+"\r\n\r\n")
			})
		}
		for range slowBodies {
			group.Go(func() {
				a.hold(ctx, "POST /messages HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer "+key+
					"\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			})
		}
		hostile := a.as(key)
		hostile.judge = nil // the body is the attack
		for flooder := range flooders {
			group.Go(func() {
				wait(ctx, floodAfter)
				for ; ctx.Err() == nil; wait(ctx, 200*time.Millisecond) {
					a.l.note(hostile.do(ctx, "GET", fmt.Sprintf("/pets?limit=%d&name=bulk", 1+10*i+flooder), "", "Prefer", "count=exact"))
					a.l.note(hostile.do(ctx, "GET", fmt.Sprintf("/pets?status=sold&name=b&limit=%d", 1+10*i+flooder), "", "Prefer", "count=exact"))
					a.l.note(hostile.do(ctx, "GET", "/store/inventory/summary", ""))
				}
			})
		}
		for range 2 {
			group.Go(func() {
				wait(ctx, floodAfter)
				for ; ctx.Err() == nil; wait(ctx, time.Second) {
					a.l.note(hostile.do(ctx, "POST", "/pets", unknown))
					a.l.note(hostile.do(ctx, "POST", "/pets", unknown[:60_000]+`"":0}`))
				}
			})
		}
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// largeBody is an object of about this size, all of whose fields are unknown.
func largeBody(size int) string {
	var text strings.Builder
	text.WriteByte('{')
	for i := 0; text.Len() < size; i++ {
		fmt.Fprintf(&text, `"%x":0,`, i)
	}
	return strings.TrimSuffix(text.String(), ",") + "}"
}

// hold sends the text and keeps the connection as long as the server does, again and
// again, without reading more than the status of a response.
func (a *attacker) hold(ctx context.Context, text string) {
	for ; ctx.Err() == nil; wait(ctx, time.Second) {
		conn, err := dialSlow(ctx, a.api.addr)
		if err != nil {
			continue
		}
		release := context.AfterFunc(ctx, func() { conn.Close() })
		status := make([]byte, len("HTTP/1.1 200"))
		_, _ = io.WriteString(conn, text) // fails with what follows
		if _, err := io.ReadFull(conn, status); err == nil && strings.HasSuffix(string(status), "200") {
			wait(ctx, 12*time.Second)
		}
		release()
		conn.Close()
	}
}
