package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// hostileAccount is row 28: a hostile account with six keys attacks under the default
// limits. Another account with six keys gets no error. Its p99 is at most five times the
// value before the attack, or 50 ms if that is more.
func hostileAccount(ctx context.Context, f *fixture) (string, error) {
	const (
		keys           = 6
		idle, attacked = 3 * time.Second, 8 * time.Second
		slower, floor  = 5, 50 * time.Millisecond
		memoryLimit    = 256 << 20
	)
	db, err := f.startDatabase(ctx, "", nil)
	if err != nil {
		return "", err
	}
	// An empty variable has its default.
	s, err := f.openWith(ctx, db, db.url(), "PETSTORE_RATE_LIMIT=", "PETSTORE_AUTH_FAILURE_LIMIT=", "PETSTORE_DB_MAX_CONNS=")
	if err != nil {
		return "", err
	}
	a := &attacker{deployment: s}
	var normal []*client
	for range keys {
		for _, account := range []string{"hostile", "normal"} {
			key, err := f.runCommand(ctx, s.db.url(), "key", "create", "--account", account, "--scope", "write")
			if err != nil {
				return "", err
			}
			if key = strings.TrimSpace(key); account == "hostile" {
				a.keys = append(a.keys, key)
			} else {
				normal = append(normal, s.withKey(key))
			}
		}
	}
	if err := errors.Join(a.prepare(ctx), s.db.fillStore(ctx, "normal")); err != nil {
		return "", err
	}
	before, err := normalClients(ctx, normal, idle)
	if err != nil {
		return "", fmt.Errorf("before the attack: %w", err)
	}
	stop := a.attack(ctx)
	during, err := normalClients(ctx, normal, attacked)
	stop()
	if err != nil {
		return "", fmt.Errorf("during the attack: %w", err)
	}
	peak, err := s.api.memory("VmHWM")
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("another account: no error, p99 %s (%s before); memory at most %d MB; the hostile account: %s",
		round(during), round(before), peak>>20, a.l.summary())
	if limit := max(slower*before, floor); during > limit || peak > memoryLimit {
		return "", errors.New(figures)
	}
	return figures, nil
}

// normalClients read pets and lists and place orders, each with its own key, at a pace that
// the default limits allow. It returns the p99. Every response must be a success.
func normalClients(ctx context.Context, clients []*client, during time.Duration) (time.Duration, error) {
	// Six keys send 69 requests a second. Their account may send 400, then 40 a second.
	const pause = 260 * time.Millisecond
	var mu sync.Mutex
	var times durations
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
				sleep(ctx, pause)
			}
		})
	}
	group.Wait()
	return times.p99(), errors.Join(failures...)
}

// normalRound sends the requests of a normal client for one pet.
func (c *client) normalRound(ctx context.Context, pet int) (times []time.Duration, err error) {
	for _, send := range []func() (response, error){
		func() (response, error) { return c.do(ctx, "GET", fmt.Sprintf("/pets/%d", pet), "") },
		func() (response, error) { return c.do(ctx, "GET", fmt.Sprintf("/categories?limit=%d", pet), "") },
		func() (response, error) { return c.order(ctx, pet) },
	} {
		resp, err := send()
		if err == nil && resp.status >= http.StatusMultipleChoices {
			err = errors.New(resp.String())
		}
		if err != nil {
			return times, err
		}
		times = append(times, resp.took)
	}
	return times, nil
}

// attacker is the hostile account.
type attacker struct {
	*deployment
	keys []string
	l    ledger
}

// prepare creates lists that are expensive to count and pages that are large.
func (a *attacker) prepare(ctx context.Context) error {
	return errors.Join(
		a.db.fillStore(ctx, "hostile"),
		a.db.exec(ctx, `
			INSERT INTO pets (account_id, category_id, name, name_key, status)
			SELECT accounts.id, 1, 'bulk ' || number, 'bulk ' || number, 'sold'
			FROM accounts, generate_series(1, 200000) AS number
			WHERE accounts.name = 'hostile'`),
		a.db.exec(ctx, `
			INSERT INTO messages (account_id, id, message)
			SELECT accounts.id, 'msg_' || lpad(to_hex(number), 32, '0'), repeat('🐕', 4000)
			FROM accounts, generate_series(1, 50) AS number
			WHERE accounts.name = 'hostile'`),
		a.db.exec(ctx, "VACUUM ANALYZE pets"),
	)
}

// attack starts all attacks at once. They run until stop is called.
func (a *attacker) attack(ctx context.Context) (stop func()) {
	// Numbers for each key. Without shares, six keys together would occupy all places for
	// request bodies within four seconds. The other attacks start later, because an account
	// may send 400 requests at once, then 40 a second.
	const slowBodies, slowReaders, flooders = 100, 24, 4
	const readAfter, floodAfter = 5 * time.Second, 5500 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	unknown := largeBody(1 << 20)
	for i, key := range a.keys {
		for range slowReaders {
			group.Go(func() {
				sleep(ctx, readAfter)
				a.keepOpen(ctx, "GET /messages?limit=200 HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer "+key+"\r\n\r\n")
			})
		}
		for range slowBodies {
			group.Go(func() {
				a.keepOpen(ctx, "POST /messages HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer "+key+
					"\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			})
		}
		hostile := a.withKey(key)
		hostile.validator = nil // the attack sends invalid bodies
		for flooder := range flooders {
			group.Go(func() {
				sleep(ctx, floodAfter)
				for ; ctx.Err() == nil; sleep(ctx, 200*time.Millisecond) {
					a.l.record(hostile.do(ctx, "GET", fmt.Sprintf("/pets?limit=%d&name=bulk", 1+10*i+flooder), "", "Prefer", "count=exact"))
					a.l.record(hostile.do(ctx, "GET", fmt.Sprintf("/pets?status=sold&name=b&limit=%d", 1+10*i+flooder), "", "Prefer", "count=exact"))
					a.l.record(hostile.do(ctx, "GET", "/store/inventory/summary", ""))
				}
			})
		}
		for range 2 {
			group.Go(func() {
				sleep(ctx, floodAfter)
				for ; ctx.Err() == nil; sleep(ctx, time.Second) {
					a.l.record(hostile.do(ctx, "POST", "/pets", unknown))
					a.l.record(hostile.do(ctx, "POST", "/pets", unknown[:60_000]+`"":0}`))
				}
			})
		}
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// largeBody returns an object of about this size with only unknown fields.
func largeBody(size int) string {
	var text strings.Builder
	text.WriteByte('{')
	for i := 0; text.Len() < size; i++ {
		fmt.Fprintf(&text, `"%x":0,`, i)
	}
	return strings.TrimSuffix(text.String(), ",") + "}"
}

// keepOpen sends text and keeps the connection open as long as the server does, again and
// again. It reads only the status of the response.
func (a *attacker) keepOpen(ctx context.Context, text string) {
	for ; ctx.Err() == nil; sleep(ctx, time.Second) {
		conn, err := dialSlow(ctx, a.api.addr)
		if err != nil {
			continue
		}
		release := context.AfterFunc(ctx, func() { conn.Close() })
		status := make([]byte, len("HTTP/1.1 200"))
		_, _ = io.WriteString(conn, text) // if it fails, so does the read
		if _, err := io.ReadFull(conn, status); err == nil && strings.HasSuffix(string(status), "200") {
			sleep(ctx, 12*time.Second)
		}
		release()
		conn.Close()
	}
}
