package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/standardwebhooks"
)

const (
	deliveriesMeasured = 24_000 // in each measurement of the rate
	hangingDeliveries  = 10_000
	eventInterval      = 20 * time.Millisecond // between two orders whose delay is measured
	// connectionsOfWebhook is the maximum number of requests to a webhook at a time.
	connectionsOfWebhook = 4
	allowLoopback        = "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8"
)

// webhookBench measures deliveries to a local sink.
type webhookBench struct {
	*generator
	dir, database string
	sink          *sink
	conn          *pgx.Conn
	program       *process
	owner, other  int64 // accounts
	*report
}

// measureWebhooks measures the rate and the delay of webhooks, and what they cost orders.
func measureWebhooks(ctx context.Context, o options, out io.Writer) (err error) {
	dir, removeDir, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeDir()) }()
	b := &webhookBench{dir: dir}
	if b.report, err = newReport(ctx, o); err != nil {
		return err
	}
	cluster, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	if err := errors.Join(cluster.EnsureDatabase(ctx, petstoreDatabase), buildPrograms(ctx, dir)); err != nil {
		return err
	}
	b.machine += ", PostgreSQL " + binaries.Version
	fmt.Fprintf(out, "%s\n%s\n", b.machine, b.setting)
	b.database = cluster.URL(petstoreDatabase)
	keys, _, err := prepareDatabase(ctx, b.database, o.pets)
	if err != nil {
		return err
	}
	if b.generator, err = newGenerator(dir, keys, o.pets, hotPet, o.duration); err != nil {
		return err
	}
	if b.conn, err = pgx.Connect(ctx, b.database); err != nil {
		return err
	}
	defer b.conn.Close(context.WithoutCancel(ctx))
	if err := b.conn.QueryRow(ctx, "SELECT min(id), max(id) FROM accounts").Scan(&b.owner, &b.other); err != nil {
		return err
	}
	if b.sink, err = newSink(ctx); err != nil {
		return err
	}
	defer b.sink.close()
	if err := b.measureAll(ctx, o.rounds); err != nil {
		return err
	}
	b.print(out)
	return nil
}

// measureAll adds the lines of the table.
func (b *webhookBench) measureAll(ctx context.Context, rounds int) error {
	return errors.Join(
		b.withServe(ctx, "true", func() error {
			return errors.Join(b.compareRates(ctx, rounds, 1), b.compareRates(ctx, rounds, 4),
				b.measureDelay(ctx, "same process", "p99 at most 1 s", time.Second), b.compareOrders(ctx, rounds), b.measureBesideHanging(ctx))
		}),
		b.withServe(ctx, "false", func() error {
			stop, err := b.startWorker()
			if err != nil {
				return err
			}
			defer stop()
			return b.measureDelay(ctx, "another process", "p99 at most 1 s", time.Second)
		}))
}

// withServe runs an action while serve runs, with a worker or without.
func (b *webhookBench) withServe(ctx context.Context, worker string, action func() error) (err error) {
	b.program, _, err = startPetstore(ctx, filepath.Join(b.dir, "petstore"), filepath.Join(b.dir, "petstore.log"), b.database, allowLoopback, "PETSTORE_WORKER="+worker)
	if err != nil {
		return err
	}
	defer b.program.stop()
	return action()
}

// startWorker starts petstore worker.
func (b *webhookBench) startWorker() (stop func(), err error) {
	cmd := exec.Command(filepath.Join(b.dir, "petstore"), "worker") //nolint:noctx // stop ends it
	cmd.Env = append(os.Environ(), allowLoopback, "DATABASE_URL="+b.database, "PETSTORE_ADMIN_ADDR=127.0.0.1:0")
	return (&process{cmd: cmd}).stop, cmd.Start()
}

// compareRates compares the deliveries of stored events to webhooks with a bare client that
// posts the same signed bodies over as many connections.
func (b *webhookBench) compareRates(ctx context.Context, rounds, hooks int) error {
	var measured pair
	for range rounds {
		bare, err := b.postBare(ctx, connectionsOfWebhook*hooks)
		if err != nil {
			return err
		}
		ours, err := b.deliver(ctx, hooks)
		if err != nil {
			return err
		}
		measured[0], measured[1] = append(measured[0], bare), append(measured[1], ours)
	}
	const least = 2000
	row := (&result{workload{name: fmt.Sprintf("deliveries to %d webhooks", hooks), other: side{name: "bare client"}}, measured}).rateLine()
	row.target, row.verdict = fmt.Sprintf("at least %s/s", thousands(least)), verdict(medianOf(measured[1], rate) >= least)
	b.add(row)
	return nil
}

// setHooks replaces the webhooks of an account by some that get all events from now on.
func (b *webhookBench) setHooks(ctx context.Context, account int64, hooks int, url string) error {
	for _, statement := range []string{"DELETE FROM webhook_deliveries WHERE account_id = $1", "DELETE FROM webhooks WHERE account_id = $1"} {
		if _, err := b.conn.Exec(ctx, statement, account); err != nil {
			return err
		}
	}
	b.sink.count.Store(0)
	_, err := b.conn.Exec(ctx, `
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence)
		SELECT account_id, 'wh_' || md5(i || random()::text), $3, '{*}', '\x00'::bytea || $4::bytea, last_sequence
		FROM account_state, generate_series(1, $2::int) AS i
		WHERE account_id = $1`, account, hooks, url, []byte(hookKey))
	return err
}

// hookKey is the key of all webhooks.
const hookKey = "a key of at least 24 bytes"

// deliver stores events, and measures how fast they reach the sink.
func (b *webhookBench) deliver(ctx context.Context, hooks int) (m measurement, err error) {
	if err := b.setHooks(ctx, b.owner, hooks, b.sink.url); err != nil {
		return m, err
	}
	b.sink.first.Store(0)
	if _, err := b.conn.Exec(ctx, addEvents, b.owner, deliveriesMeasured/hooks); err != nil {
		return m, err
	}
	if err := await(ctx, "the deliveries", func() (bool, error) { return b.sink.count.Load() >= deliveriesMeasured, nil }); err != nil {
		return m, err
	}
	took := time.Since(time.Unix(0, b.sink.first.Load()))
	return measurement{perSecond: deliveriesMeasured / took.Seconds()}, b.awaitEnd(ctx)
}

// addEvents adds events to the feed of an account.
const addEvents = `
	WITH moved AS (
		UPDATE account_state
		SET last_sequence = last_sequence + $2::bigint, last_nonce = 1, last_event_at = statement_timestamp()
		WHERE account_id = $1
		RETURNING account_id, last_sequence - $2::bigint AS before
	)
	INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
	SELECT account_id, before + i, statement_timestamp(), 1, 'pet.updated', '/pets/' || i,
	       json_build_object('pet', json_build_object('id', i, 'name', 'Bella the Brave', 'categoryId', 1, 'status', 'available'))
	FROM moved, generate_series(1, $2::bigint) AS i`

// postBare posts signed bodies to the sink with a net/http client.
func (b *webhookBench) postBare(ctx context.Context, connections int) (m measurement, err error) {
	secret, err := standardwebhooks.SecretFrom([]byte(hookKey))
	if err != nil {
		return m, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	body := bytes.Repeat([]byte("x"), 250) // as long as an event
	began, count := time.Now(), atomic.Int64{}
	failures := make([]error, connections)
	var group sync.WaitGroup
	for i := range connections {
		group.Go(func() {
			for time.Since(began) < b.duration && failures[i] == nil {
				failures[i] = postSigned(ctx, client, b.sink.url, body, secret)
				count.Add(1)
			}
		})
	}
	group.Wait()
	return measurement{perSecond: float64(count.Load()) / time.Since(began).Seconds()}, errors.Join(failures...)
}

func postSigned(ctx context.Context, client *http.Client, url string, body []byte, secret standardwebhooks.Secret) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	standardwebhooks.Sign(request.Header, "evt_1_00000001", time.Now(), body, secret)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// measureDelay places orders at a steady rate, and adds the line of the time from the
// commit of an event to its first request.
func (b *webhookBench) measureDelay(ctx context.Context, name, target string, limit time.Duration) error {
	if err := b.setHooks(ctx, b.owner, 1, b.sink.url); err != nil {
		return err
	}
	if err := b.placeOrders(ctx, warmUp); err != nil {
		return err
	}
	b.sink.startTiming()
	if err := b.placeOrders(ctx, 3*b.duration); err != nil {
		return err
	}
	if err := b.awaitEnd(ctx); err != nil {
		return err
	}
	delays := b.sink.stopTiming()
	p99 := delays[len(delays)*99/100]
	b.add(line{
		name:   "commit to first attempt, " + name,
		ours:   fmt.Sprintf("p50 %d, p99 %d, slowest %d ms of %d", delays[len(delays)/2].Milliseconds(), p99.Milliseconds(), delays[len(delays)-1].Milliseconds(), len(delays)),
		target: target, verdict: verdict(p99 <= limit),
	})
	return nil
}

// placeOrders places an order after each interval.
func (b *webhookBench) placeOrders(ctx context.Context, during time.Duration) error {
	for began := time.Now(); time.Since(began) < during; time.Sleep(eventInterval) {
		response, err := send(ctx, http.MethodPost, b.program.url+"/store/orders", b.keys[0], `{"petId": 1}`)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil {
			return err
		}
	}
	return nil
}

// measureBesideHanging measures the delay while many deliveries are due at a webhook of
// another account whose endpoint never responds.
func (b *webhookBench) measureBesideHanging(ctx context.Context) error {
	var config net.ListenConfig
	mute, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer mute.Close()
	if err := b.setHooks(ctx, b.other, 1, "http://"+mute.Addr().String()); err != nil {
		return err
	}
	if _, err := b.conn.Exec(ctx, addEvents, b.other, hangingDeliveries); err != nil {
		return err
	}
	if err := await(ctx, "deliveries at the webhook that hangs", func() (bool, error) {
		pending, err := b.pending(ctx, b.other)
		return pending >= hangingDeliveries, err
	}); err != nil {
		return err
	}
	return b.measureDelay(ctx, "10,000 due at a webhook that hangs", "p99 below 2 s", 2*time.Second)
}

// compareOrders compares orders whose events go to a webhook with orders without one.
func (b *webhookBench) compareOrders(ctx context.Context, rounds int) error {
	const connections = 64
	var measured pair
	for range rounds {
		for i := range measured {
			if err := b.setHooks(ctx, b.owner, i, b.sink.url); err != nil {
				return err
			}
			m, err := b.wrk(ctx, b.program.url, load{kind: "order", connections: connections})
			if err != nil {
				return err
			}
			measured[i] = append(measured[i], m)
			if err := b.awaitEnd(ctx); err != nil {
				return err
			}
		}
	}
	b.add((&result{workload{name: randomOrders + ", to a webhook", other: side{name: "no webhook"}}, measured}).rateLine())
	return nil
}

// awaitEnd waits until the webhooks of the large account have got everything.
func (b *webhookBench) awaitEnd(ctx context.Context) error {
	return await(ctx, "the end of all deliveries", func() (bool, error) {
		pending, err := b.pending(ctx, b.owner)
		var behind bool
		if err == nil {
			err = b.conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM webhooks JOIN account_state USING (account_id) WHERE account_id = $1 AND after_sequence < last_sequence)", b.owner).Scan(&behind)
		}
		return pending == 0 && !behind, err
	})
}

// pending counts the deliveries of an account that have not ended.
func (b *webhookBench) pending(ctx context.Context, account int64) (count int, err error) {
	err = b.conn.QueryRow(ctx, "SELECT count(*) FROM webhook_deliveries WHERE account_id = $1 AND status = 'pending'", account).Scan(&count)
	return count, err
}

// await waits until a condition holds.
func await(ctx context.Context, what string, holds func() (bool, error)) error {
	const limit, interval = 2 * time.Minute, 20 * time.Millisecond
	for began := time.Now(); ; time.Sleep(interval) {
		if done, err := holds(); done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil || time.Since(began) > limit {
			return errors.Join(fmt.Errorf("waiting %s for %s", limit, what), err)
		}
	}
}

// sink is an endpoint that accepts everything.
type sink struct {
	url    string
	close  func()
	count  atomic.Int64
	first  atomic.Int64 // the time of the first request, in nanoseconds
	timing atomic.Bool  // whether to read the times of events

	mu     sync.Mutex
	delays []time.Duration
}

func newSink(ctx context.Context) (*sink, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + listener.Addr().String()}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: s}
	s.close = func() { _ = server.Close() }
	go func() { _ = server.Serve(listener) }() // ends with close
	return s, nil
}

// ServeHTTP implements [http.Handler].
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.first.CompareAndSwap(0, now.UnixNano())
	s.count.Add(1)
	if s.timing.Load() {
		var event struct{ Timestamp time.Time }
		if json.Unmarshal(body, &event) == nil {
			s.mu.Lock()
			s.delays = append(s.delays, now.Sub(event.Timestamp))
			s.mu.Unlock()
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *sink) startTiming() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays = nil
	s.timing.Store(true)
}

// stopTiming returns the delays since startTiming, sorted.
func (s *sink) stopTiming() []time.Duration {
	s.timing.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.delays)
	return s.delays
}
