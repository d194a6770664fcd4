package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/sleep"
)

const (
	// pollInterval is the time between two looks at the positions of the servers.
	pollInterval = 100 * time.Millisecond
	// replicaPatience is the time after which a replica counts as silent, and the maximum
	// time that a read waits for a connection to it. A read waits for a replica that falls
	// silent no longer than pollInterval and this time.
	replicaPatience = 200 * time.Millisecond
	// reconnectInterval is the minimum time between two connections for polls.
	reconnectInterval = time.Second
	// primaryPollTimeout is longer, because the poll waits for a connection of the pool.
	primaryPollTimeout = 2 * time.Second
)

// catchUp are the pauses before a read asks a replica again that has not replayed enough:
// 50 ms in all.
var catchUp = [...]time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond, 20 * time.Millisecond}

// catchUpLag is the lag of a replica that is not expected to catch up within that time.
const catchUpLag = 50 * time.Millisecond

// ReadReason says why a server served a read.
type ReadReason string

// The reasons. Only the first is of a replica, all others are of the primary.
const (
	ReadFresh     ReadReason = "fresh"      // the replica includes what the read must see
	ReadByDefault ReadReason = "default"    // the client did not allow a replica
	ReadBehind    ReadReason = "behind"     // no replica has replayed enough in time
	ReadTimeline  ReadReason = "timeline"   // the position is unknown or on another timeline
	ReadNoReplica ReadReason = "no_replica" // no replica is in rotation
	ReadFailed    ReadReason = "failed"     // the replica failed
)

// ReadReasons lists all reasons.
func ReadReasons() []ReadReason {
	return []ReadReason{ReadFresh, ReadByDefault, ReadBehind, ReadTimeline, ReadNoReplica, ReadFailed}
}

// Replicas are the read replicas of a primary. See [Replicas.Read].
//
// A replica is in rotation while it is a standby of the primary on the same timeline,
// responds in time, and lags little. It leaves the rotation and returns by itself.
type Replicas struct {
	primary  *DB
	fallback *DB // for reads that a replica could have served
	all      []*replica
	maxLag   time.Duration
	patience time.Duration
	log      *slog.Logger
	history  history
	next     atomic.Uint32
	reads    map[ReadReason]*atomic.Uint64
}

// replica is one server.
type replica struct {
	name  string // for people: its address
	db    *DB
	state atomic.Pointer[replicaState]

	// For polls only.
	conn      *pgx.Conn // nil while there is none
	connectAt time.Time // not before
	failure   error     // of the last poll, if it failed
}

// replicaState is the result of the last poll.
type replicaState struct {
	// problem says why the replica is not in rotation. It is empty if it is.
	problem  string
	position Position
	lag      time.Duration // negative: unknown
	silent   bool          // whether it did not respond
	// alive ends when the replica is found silent.
	alive context.Context
	end   context.CancelFunc
}

func (s *replicaState) inRotation() bool { return s.problem == "" }

// OpenReplicas creates the pools of replicas. It connects only to the primary. The error
// is about an invalid URL, or says that the primary is a Citus coordinator.
func OpenReplicas(ctx context.Context, primary *DB, urls []string, options ReplicaOptions) (*Replicas, error) {
	sharded, err := primary.IsSharded(ctx)
	if err != nil {
		return nil, err
	}
	if sharded {
		return nil, errors.New("PETSTORE_REPLICA_URLS does not work with Citus, because each node has its own WAL; remove the variable")
	}
	r := &Replicas{primary: primary, fallback: primary.Falling(), maxLag: options.MaxLag, patience: cmp.Or(options.Patience, replicaPatience), log: options.Log, reads: map[ReadReason]*atomic.Uint64{}}
	for _, reason := range ReadReasons() {
		r.reads[reason] = new(atomic.Uint64)
	}
	for i, url := range urls {
		pool, err := Open(ctx, url, options.MaxConns, options.Tracers...)
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("the URL number %d of PETSTORE_REPLICA_URLS is invalid; correct it", i+1)
		}
		_, name := pgconn.NetworkAddress(pool.outside.Host, pool.outside.Port)
		one := &replica{name: name, db: pool}
		one.state.Store(&replicaState{problem: "it was not polled yet", lag: -1})
		r.all = append(r.all, one)
	}
	primary.ReportPositions()
	return r, nil
}

// ReplicaOptions are the settings of [OpenReplicas].
type ReplicaOptions struct {
	MaxConns int           // for each replica
	MaxLag   time.Duration // of a replica in rotation
	Patience time.Duration // until a replica counts as silent; 0: 200 ms
	Log      *slog.Logger
	Tracers  []pgx.QueryTracer
}

// Close closes the pools of the replicas, unless r is nil.
func (r *Replicas) Close() {
	if r == nil {
		return
	}
	for _, one := range r.all {
		one.db.Close()
	}
}

// Run polls the servers until ctx ends, unless r is nil.
func (r *Replicas) Run(ctx context.Context) {
	if r == nil {
		return
	}
	var polls sync.WaitGroup
	polls.Go(func() { sleep.Every(ctx, pollInterval, r.pollPrimary) })
	for _, one := range r.all {
		polls.Go(func() {
			sleep.Every(ctx, pollInterval, func(ctx context.Context) { r.poll(ctx, one) })
			r.setState(ctx, one, &replicaState{problem: "polling has ended", lag: -1, silent: true})
			one.hangUp(ctx)
		})
	}
	polls.Wait()
}

// pollPrimary adds the position of the primary to the history. If the primary only does not
// respond in time, replicas stay in rotation.
func (r *Replicas) pollPrimary(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, primaryPollTimeout)
	defer cancel()
	if position, err := scanPrimary(r.primary.QueryRow(ctx, flushedPosition)); err == nil {
		r.history.add(position, time.Now())
	}
}

// poll reads the position of a replica and decides whether it is in rotation.
func (r *Replicas) poll(ctx context.Context, one *replica) {
	last := one.state.Load()
	position, err := one.poll(ctx, r)
	if ctx.Err() != nil {
		return
	}
	next := &replicaState{position: last.position, lag: -1, alive: last.alive, end: last.end}
	if err != nil {
		next.problem, next.silent = err.Error(), errors.Is(err, errSilent)
		one.failure = err
		one.hangUp(ctx) // a new connection may lead to another server
	} else {
		next.position = position
	}
	lag, measured := r.history.lag(next.position, time.Now())
	if next.position != (Position{}) {
		next.lag = lag
	}
	latest, known := r.history.latest()
	switch {
	case next.problem != "":
	case !known:
		next.problem = "the position of the primary is unknown"
	case position.Timeline != latest.Timeline:
		next.problem = fmt.Sprintf("it is on timeline %d, and the primary on %d", position.Timeline, latest.Timeline)
	case lag > r.maxLag:
		next.problem = "it lags"
	case !measured && !last.inRotation():
		next.problem = "it lags, by a time that is not known yet"
	}
	r.setState(ctx, one, next)
}

// setState stores the state of a replica, and logs when the rotation or the problem
// changes. If the replica is silent, its reads end, and none uses its connections again: they may
// stay silent when the replica responds on new ones.
func (r *Replicas) setState(ctx context.Context, one *replica, next *replicaState) {
	last := one.state.Load()
	if next.inRotation() && (next.alive == nil || next.alive.Err() != nil) {
		next.alive, next.end = context.WithCancel(context.WithoutCancel(ctx))
	}
	one.state.Store(next)
	if next.silent {
		one.db.Pool().Reset()
		if last.end != nil {
			last.end()
		}
	}
	switch {
	case next.inRotation() && !last.inRotation():
		r.log.InfoContext(ctx, "a replica serves reads", "replica", one.name)
	case next.inRotation(), ctx.Err() != nil: // nothing has changed, or polling ends
	case last.inRotation(), next.problem != last.problem && !(next.silent && last.silent):
		r.log.WarnContext(ctx, "a replica serves no reads until it recovers", "replica", one.name, "problem", next.problem)
	}
}

// Errors of polls.
var (
	errSilent      = errors.New("it does not respond")
	errNotStandby  = errors.New("it is not a standby, or its sessions do not read committed")
	errNoTimeline  = errors.New("it receives no WAL")
	errNoPrivilege = errors.New("the role may not see its timeline; run GRANT pg_read_all_stats TO that role on the primary")
	errOtherSystem = errors.New("it is no copy of the primary")
	errOtherData   = errors.New("its URL names another database")
	errSession     = errors.New("its URL leads through a pooler that does not fit")
)

// poll reads the position of a replica on a connection of its own, so that it does not
// wait for reads. A new connection may take longer, because the replica is not in rotation.
func (r *replica) poll(ctx context.Context, all *Replicas) (Position, error) {
	if r.conn == nil {
		if time.Now().Before(r.connectAt) {
			return Position{}, r.failure
		}
		r.connectAt = time.Now().Add(reconnectInterval)
		if err := r.connect(ctx, all.primary); err != nil {
			return Position{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, all.patience)
	defer cancel()
	position, err := scanReplica(r.conn.QueryRow(ctx, replicaPosition))
	switch {
	case err == nil, errors.Is(err, errNotStandby):
		return position, err
	case !errors.Is(err, errNoTimeline):
		return Position{}, errSilent
	}
	var may bool
	if r.conn.QueryRow(ctx, "SELECT pg_has_role('pg_read_all_stats', 'USAGE')").Scan(&may) == nil && !may {
		err = errNoPrivilege
	}
	return Position{}, err
}

// connect opens the connection for polls, after it has checked the server behind it.
func (r *replica) connect(ctx context.Context, primary *DB) error {
	config := r.db.outsideConfig()
	config.RuntimeParams["application_name"] = "petstore replica poll"
	conn, err := pgx.ConnectConfig(ctx, config) // its timeout is for each host
	if err != nil {
		return fmt.Errorf("%w: %s", errSilent, Explain(OfVariable("PETSTORE_REPLICA_URLS", err)))
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := r.check(ctx, conn, primary); err != nil {
		hangUp(ctx, conn)
		return err
	}
	r.conn = conn
	return nil
}

// check returns an error unless the server behind a connection may serve reads.
func (r *replica) check(ctx context.Context, conn *pgx.Conn, primary *DB) error {
	if originOf(conn).pooled {
		if err := r.db.CheckSession(ctx); err != nil {
			return fmt.Errorf("%w: %w", errSession, OfVariable("PETSTORE_REPLICA_URLS", err))
		}
	}
	return sameDatabase(ctx, conn, primary)
}

// sameDatabase returns an error unless the database is a copy of the one of the primary.
// Positions of other servers mean nothing. A copy has the same oid.
func sameDatabase(ctx context.Context, conn *pgx.Conn, primary *DB) error {
	const query = "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pg_control_system()"
	var wanted, found struct {
		system   int64
		database uint32
	}
	if err := primary.QueryRow(ctx, query).Scan(&wanted.system, &wanted.database); err != nil {
		return fmt.Errorf("the primary cannot be compared: %w", err)
	}
	if err := conn.QueryRow(ctx, query).Scan(&found.system, &found.database); err != nil {
		return errSilent
	}
	switch {
	case wanted.system != found.system:
		return errOtherSystem
	case wanted.database != found.database:
		return errOtherData
	}
	return nil
}

// hangUp closes the connection for polls without waiting for the server.
func (r *replica) hangUp(ctx context.Context) {
	if r.conn != nil {
		hangUp(ctx, r.conn)
		r.conn = nil
	}
}

// hangUp closes a connection without waiting for the server.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	_ = conn.Close(ctx) // the connection is no longer needed
}

// history has the positions of the primary and their times. So the lag of a replica is a
// time, without comparing the clocks of machines.
type history struct {
	mu      sync.Mutex
	samples []sample // oldest first, one for each position
}

// sample is the last time at which the primary was at a position.
type sample struct {
	position Position
	at       time.Time
}

// maxSamples limits a history. When it is full, it keeps every second sample.
const maxSamples = 4096

func (h *history) add(position Position, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.samples) - 1
	switch {
	case last < 0:
	case h.samples[last].position.Timeline != position.Timeline:
		h.samples = nil // the primary was replaced
	case h.samples[last].position == position:
		h.samples[last].at = at
		return
	}
	if len(h.samples) == maxSamples {
		for i := range maxSamples / 2 {
			h.samples[i] = h.samples[2*i]
		}
		h.samples = h.samples[:maxSamples/2]
	}
	h.samples = append(h.samples, sample{position, at})
}

// latest returns the last known position of the primary.
func (h *history) latest() (position Position, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.samples) == 0 {
		return Position{}, false
	}
	return h.samples[len(h.samples)-1].position, true
}

// lag returns the time since the primary was at a position that the given one includes. It
// is 0 if that is the latest one. If the history does not go back that far, the lag is
// only known to be longer than the history.
func (h *history) lag(position Position, now time.Time) (lag time.Duration, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, earlier := range slices.Backward(h.samples) {
		if position.Includes(earlier.position) {
			if i == len(h.samples)-1 {
				return 0, true
			}
			return now.Sub(earlier.at), true
		}
	}
	if len(h.samples) == 0 {
		return 0, false
	}
	return now.Sub(h.samples[0].at), false
}

// ReplicaStatus is the state of a replica.
type ReplicaStatus struct {
	Name       string
	InRotation bool
	Problem    string  // why it is not in rotation
	Lag        float64 // in seconds; NaN: unknown
}

// Names returns the addresses of the replicas.
func (r *Replicas) Names() []string {
	names := make([]string, len(r.all))
	for i, one := range r.all {
		names[i] = one.name
	}
	return names
}

// Status returns the state of a replica, by its index in [Replicas.Names].
func (r *Replicas) Status(i int) ReplicaStatus {
	state := r.all[i].state.Load()
	status := ReplicaStatus{Name: r.all[i].name, InRotation: state.inRotation(), Problem: state.problem, Lag: state.lag.Seconds()}
	if state.lag < 0 {
		status.Lag = math.NaN()
	}
	return status
}

// Reads returns how many reads were served for a reason.
func (r *Replicas) Reads(reason ReadReason) uint64 { return r.reads[reason].Load() }

// ServedByDefault counts a read on the primary of a client that did not allow a replica.
func (r *Replicas) ServedByDefault() { r.reads[ReadByDefault].Add(1) }
