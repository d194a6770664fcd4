// Package groupcommit runs the writes of stores in groups that share a transaction.
// The cost of a small write is its round trips, its snapshot and its commit. Writes
// that arrive while another group runs share all three.
//
// A group has three steps, in two round trips:
//
//  1. Lock. One batch begins the transaction, locks the Idempotency-Keys, categories and
//     pets that the writes name, reads them, and gets ids for new rows. It skips what
//     another transaction has locked, so that a group does not wait for it.
//  2. Decide. Each write decides in Go, in the order of arrival, on the rows of its store as
//     the writes before it left them. It returns its response or its error.
//  3. Write. One batch writes what changed and the responses to store, and commits.
//
// # Why it is right
//
// A group is one transaction, and every row that a decision reads stays as it is until
// the transaction ends. The row of a pet in inventory is the lock of the pet: each
// write to the pet, its stock or its orders holds it. A statement at READ COMMITTED sees
// everything that committed before it began, so the statements after the lock read the
// current rows. So the writes of a group have the same effect as the same writes one
// after the other.
//
// Responses leave after the commit. If the commit fails, no write of the group has
// happened, unless the connection broke during the commit.
//
// # Common groups
//
// The writes of many small stores share common groups: those that change a pet or its stock,
// or place an order. One statement at the end locks the feeds of the stores
// (write_stores, migrations/00018_write_stores.sql), with SKIP LOCKED. It writes the stores
// whose feed it got. The others have no effect, and their writes join groups of their own store,
// which wait for the feed. So a store that somebody else holds delays no other one.
//
// The other writes have groups of their own store, for example those of a message or a new
// pet. So have all writes of a store that would be a burden to its neighbors ([apart]): one
// with a backlog, with a write that has failed, or whose feed was held. While several stores
// write, such groups are small, so that their responses leave CPU time to the others. On a
// sharded cluster there are no common groups, because their transactions would span nodes.
//
// # Locks
//
// Within the order of package [account], every transaction takes its locks in this one: the store
// of a sandbox, keys, categories by id, pets by account and id, feeds. A group skips the pets and
// categories that others hold, and no transaction waits for a key. So few transactions wait for
// each other: two that give categories the same name, and a group and a sweep that delete expired
// responses. PostgreSQL then ends one of them, which runs again.
//
// These are likely to wait, so they take a place of their payer ([admission.Locks]): writes that
// have left their group, and the own groups of a store whose feed was held or that had a
// failure. All places together are half of the connections for writes. So one account leaves
// connections to others, and so do many whose feeds one stuck transaction holds. While nobody
// knows that a feed is held, an own group may wait for it without a place.
//
// # Writes that leave the group
//
// A group does not decide about a write that names a row which is missing or locked by
// another transaction. Such a write joins another group, of writes that name the same pet and
// category, or in a sandbox of all such writes. That one waits for the locks, so a row that is
// missing then does not exist.
//
// A common group does not count the rows of a sandbox, which would delay the neighbors. So a new row
// of one that may be full joins a group of its own store.
//
// A write whose Idempotency-Key an earlier write of the group has used joins the next
// group, and finds the response. If another request holds the key, the write fails with
// [ErrKeyInUse].
//
// # Groups that fail
//
// If the server reports an error of a statement or of COMMIT, or a write fails after it
// changed something, the group has no effect. Each write then runs again in a transaction
// of its own. So a write that violates a constraint, needs too much memory or ends its own
// connection fails without its neighbors. A statement of several writes may take 1 s, or 3 s
// if it waits for locks. So a write that hangs delays its neighbors by that time.
//
// A write that had no neighbors does not run again if the database failed it, for example
// because its statement took too long. Nor does a write that has waited too long for the lock of
// a row. After a failure without neighbors, or of an own group, a store is apart for 10 s.
//
// If the connection breaks without an error of the server, nobody knows whether the group
// has committed. All its writes return that error, and none runs again.
//
// # Idempotency-Keys
//
// A write with a key first tries an advisory lock of the key, and a later statement
// reads the stored response. The previous holder released the lock after its commit, so
// that statement sees its response. The response of a write commits with its effect. The
// plain INSERT is a second gate: it fails if a response is stored under the key.
//
// # Sandboxes
//
// A sandbox can be reset or deleted at any time, and has at most [account.MaxRows] rows
// of a kind. So its groups first lock its store, as [account.Reset] and [account.Delete]
// do. If another transaction has locked the store or waits for it, the writes join one
// group that waits for the store.
//
// The ids of new rows of a sandbox continue the ids of its sample. So the same writes to the
// same sample get the same ids. A group reads the newest ids under the lock of the
// store, and the statement that numbers the events stores them. So a write that is refused, or a
// group that fails, takes no id. An account has more groups at a time, so its ids come from
// sequences.
package groupcommit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/coalesce"
	"petstore/internal/postgres"
)

const (
	// maxWrites is the maximum number of writes of a group.
	maxWrites = 100
	// smallID is an id up to which a group cannot fill a sandbox. Such a sandbox is not counted.
	smallID = account.MaxRows - maxWrites
	// maxWritesBeside is the maximum number of writes of a group of one store while other stores
	// write too. When a group ends, the requests of all its writes go on at once, and keep the
	// CPU from others.
	maxWritesBeside = 20
	// spareGroups is the number of common groups that may start beside one that has taken
	// longer than 250 ms. Over all accounts, as many groups may start beside a group of their
	// account.
	spareGroups = 2
)

var (
	// ErrKeyInUse means that another request with the same Idempotency-Key is running.
	ErrKeyInUse = errors.New("groupcommit: the Idempotency-Key is in use")
	// ErrKeyReused means that the Idempotency-Key belongs to a different request.
	ErrKeyReused = errors.New("groupcommit: the Idempotency-Key was used for another request")
)

// errAlone means that a group had no effect, and that its writes may run again alone.
var errAlone = errors.New("groupcommit: the group has failed")

// The reasons for which a group does not decide about a write.
var (
	errNotLocked = errors.New("groupcommit: a row of the write is missing or locked")
	errTwin      = errors.New("groupcommit: an earlier write of the group has the Idempotency-Key")
	errSpoiled   = errors.New("groupcommit: a write of the group changed the state and failed")
	errUncounted = errors.New("groupcommit: a sandbox that gets a row may be full")
	errFeedHeld  = errors.New("groupcommit: another transaction holds the feed of the store")
)

// Store is the store of an account.
type Store struct {
	AccountID int64
	Sandbox   bool
	Payer     int64 // the account that owns the sandbox, or the account itself
}

// Write is a change of a store. Pet, Order and Category are the rows that Decide reads
// and may change; 0 means none. They may not exist.
type Write struct {
	Pet   int64 // with its stock
	Order int64 // of Pet
	// Category stays until the commit. Only a write that runs alone may change it.
	Category int64
	// Creates is the kind of the one row that Decide may create.
	Creates account.Kind
	// Alone makes the write run in a transaction of its own. A write that changes or
	// creates a category must, because names are unique and it may wait for another one. A
	// write that deletes its pet must, because other writes of a group may refer to it.
	Alone bool
	// Key is the Idempotency-Key; nil: none.
	Key *Key
	// Decide decides on the state and changes it. If it returns an error, it must not have
	// changed anything. It may run more than once, and after Do has returned.
	Decide func(*State) (Response, error)
}

// Key is the Idempotency-Key of a request.
type Key struct {
	APIKeyID    int64
	Key         string
	Fingerprint []byte // distinguishes requests with the same key; 32 bytes
}

// Response is the response to a write, in the form in which it is stored.
type Response struct {
	Status   int // 200 to 299
	Location string
	Body     []byte
}

// Result is the response to a write, and whether it was stored before.
type Result struct {
	Response

	Replayed bool
	// Position is the position of the database after the commit, if the pool reports positions.
	Position postgres.Position
}

// outcome is the decision about a write.
type outcome struct {
	Result

	err error
}

// Committer runs writes. It is safe for concurrent use.
type Committer struct {
	db      *postgres.DB
	locks   *admission.Pool // of transactions that wait for locks of rows, by payer
	common  *coalesce.Coalescer[struct{}, storeWrite, outcome]
	groups  *coalesce.Coalescer[Store, storeWrite, outcome]
	waiting *coalesce.Coalescer[lockedRows, storeWrite, outcome] // groups that wait for locks
	apart   *apart
}

// lockedRows are the rows for whose locks the writes of a waiting group wait: their pet and their
// category. In a sandbox they wait for the store.
type lockedRows struct {
	store         Store
	pet, category int64
}

// rows returns the rows for whose locks a write waits together with others.
func (w storeWrite) rows() lockedRows {
	if w.Sandbox {
		return lockedRows{store: w.Store}
	}
	return lockedRows{w.Store, w.Pet, w.Category}
}

// fitsCommonGroup reports whether a write fits into a common group: it reads and changes a pet and
// its stock, and may place orders.
func (w *Write) fitsCommonGroup() bool {
	return w.Pet != 0 && w.Order == 0 && w.Category == 0 && (w.Creates == account.Orders || w.Creates == account.NoRows)
}

// New returns a Committer that writes to a database. Share the pool with everything else
// that waits for locks of accounts.
func New(database *postgres.DB, locks *admission.Pool) *Committer {
	return newWith(spareGroups, database, locks)
}

// newWith is [New] with a number of spare groups.
func newWith(spares int, database *postgres.DB, locks *admission.Pool) *Committer {
	c := &Committer{db: database.Writing(), locks: locks, apart: newApart()}
	limits := coalesce.Limits{Parallel: 1, Spare: spares, Inputs: maxWrites}
	c.common = coalesce.New(limits, func(ctx context.Context, _ struct{}, writes []storeWrite) ([]outcome, error) {
		decided, err := c.run(ctx, newGroup(commonGroup, writes...))
		return decided, failure(err, len(writes), false)
	})
	limits.InputsNow = c.writesNow
	c.groups = coalesce.New(limits, func(ctx context.Context, store Store, writes []storeWrite) ([]outcome, error) {
		decided, err := c.runOwn(ctx, store, newGroup(ownGroup, writes...))
		return decided, failure(err, len(writes), false)
	})
	limits.Spare, limits.InputsNow = 0, nil
	c.waiting = coalesce.New(limits, func(ctx context.Context, rows lockedRows, writes []storeWrite) ([]outcome, error) {
		decided, err := c.inTurn(ctx, rows.store, newGroup(waitingGroup, writes...))
		return decided, failure(err, len(writes), true)
	})
	return c
}

// Do runs a write, in a group with others. It retries a serialization failure. The error
// comes from Decide, or is [ErrKeyInUse], [ErrKeyReused], [account.ErrClosed],
// [account.ErrFull] or a database error. Pass a ctx that does not end with the client.
func (c *Committer) Do(ctx context.Context, store Store, write *Write) (Result, error) {
	w := storeWrite{store, write}
	if w.Alone {
		return c.alone(ctx, w)
	}
	isApart := c.apart.begin(w.AccountID)
	defer c.apart.end(w.AccountID)
	inCommon := w.fitsCommonGroup() && !isApart && c.hasCommonGroups(ctx)
	for {
		made, err := c.inGroup(ctx, w, inCommon)
		if errors.Is(err, errNotLocked) {
			made, err = result(c.waiting.Do(ctx, w.rows(), w))
		}
		switch {
		case errors.Is(err, errAlone):
			made, err = c.alone(ctx, w)
			if postgres.RolledBack(err) || postgres.Unavailable(err) {
				c.apart.excludeHeld(w.AccountID, failedFor)
			}
			return made, err
		case !errors.Is(err, errTwin): // else the earlier write has committed
			return made, err
		}
	}
}

// result returns the result of a write, or its error or the error of its group.
func result(decided outcome, err error) (Result, error) {
	return decided.Result, cmp.Or(err, decided.err)
}

// inGroup runs a write in a common group, or else in a group of its store.
func (c *Committer) inGroup(ctx context.Context, w storeWrite, inCommon bool) (Result, error) {
	if inCommon {
		made, err := result(c.common.Do(ctx, struct{}{}, w))
		switch {
		case errors.Is(err, errFeedHeld):
			c.apart.excludeHeld(w.AccountID, contendedFor)
		case errors.Is(err, errUncounted):
			c.apart.exclude(w.AccountID, failedFor)
		case postgres.RolledBack(err): // it had no neighbors
			c.apart.excludeHeld(w.AccountID, failedFor)
			return made, err
		default:
			return made, err
		}
	}
	return result(c.groups.Do(ctx, w.Store, w))
}

// runOwn runs a group of one store. If the feed of the store was held, the group may wait for it, so
// it needs a place.
func (c *Committer) runOwn(ctx context.Context, store Store, g *group) (decided []outcome, err error) {
	if c.apart.isHeld(store.AccountID) {
		decided, err = c.inTurn(ctx, store, g)
	} else {
		decided, err = c.run(ctx, g)
	}
	if postgres.RolledBack(err) { // perhaps it has waited for the feed, and so would the next group
		c.apart.excludeHeld(store.AccountID, failedFor)
	}
	return decided, err
}

// writesNow returns the maximum number of writes of a group of one store.
func (c *Committer) writesNow() int {
	if c.apart.stores() > 1 {
		return maxWritesBeside
	}
	return maxWrites
}

// hasCommonGroups reports whether the database is known not to be sharded.
func (c *Committer) hasCommonGroups(ctx context.Context) bool {
	sharded, err := c.db.IsSharded(ctx)
	return err == nil && !sharded
}

// alone runs one write in a transaction that waits for locks.
func (c *Committer) alone(ctx context.Context, w storeWrite) (Result, error) {
	return postgres.Retry(ctx, c.db, func(ctx context.Context, w storeWrite) (Result, error) {
		decided, err := c.inTurn(ctx, w.Store, newGroup(waitingGroup, w))
		if err != nil {
			return Result{}, err
		}
		return decided[0].Result, decided[0].err
	}, w)
}

// inTurn runs a group of one store that may wait for locks, when the payer has a place.
func (c *Committer) inTurn(ctx context.Context, store Store, g *group) ([]outcome, error) {
	if err := c.locks.Take(ctx, store.Payer, 1); err != nil {
		return nil, err
	}
	defer c.locks.Give(store.Payer, 1)
	return c.run(ctx, g)
}

// run runs the writes of a group in one transaction, and returns what it decided about each.
func (c *Committer) run(ctx context.Context, g *group) ([]outcome, error) {
	decided := make([]outcome, len(g.writes))
	position, err := postgres.Pipe(ctx, c.db, func(ctx context.Context, p *postgres.Pipeline) error {
		if err := g.lock(ctx, p); err != nil {
			return err
		}
		for i, w := range g.writes {
			var err error
			if decided[i], err = g.states[w.AccountID].tryDecide(w.Write); err != nil {
				return err
			}
		}
		return g.write(ctx, p)
	})
	for i, w := range g.writes {
		decided[i].Position = position
		if g.states[w.AccountID].feedHeld {
			decided[i] = outcome{err: errFeedHeld}
		}
	}
	return decided, err
}

// tryDecide decides one write. The error is errSpoiled if the write has changed the state and then
// failed.
func (s *State) tryDecide(w *Write) (decided outcome, spoiled error) {
	before := s.changes()
	defer func() {
		if panicked := recover(); panicked != nil {
			decided.err = fmt.Errorf("groupcommit: panic: %v\n%s", panicked, debug.Stack())
		}
		if decided.err != nil && s.changes() != before {
			spoiled = fmt.Errorf("%w: %w", errSpoiled, decided.err)
		}
	}()
	decided.Result, decided.err = s.decide(w)
	return decided, nil
}

// decide decides one write.
func (s *State) decide(w *Write) (Result, error) {
	switch {
	case s.closed:
		return Result{}, account.ErrClosed
	case s.store.Sandbox && !s.entered:
		return Result{}, errNotLocked
	}
	if w.Key != nil {
		replay, err := s.replay(w.Key)
		if err != nil {
			return Result{}, err
		}
		if replay != nil {
			return Result{Response: *replay, Replayed: true}, nil
		}
	}
	if s.group.kind == commonGroup && w.Creates != account.NoRows && s.newest[w.Creates] > smallID {
		return Result{}, errUncounted
	}
	if !s.has(w) {
		if s.group.kind != waitingGroup {
			return Result{}, errNotLocked
		}
		s.group.confirms = s // an earlier attempt may have deleted the row, which Decide refuses
	} else if s.store.Sandbox && w.Creates != account.NoRows && s.stored[w.Creates]+s.created[w.Creates] >= account.MaxRows {
		return Result{}, account.ErrFull
	}
	response, err := w.Decide(s)
	if err == nil && w.Key != nil {
		held := s.group.keys[w.Key.name()]
		held.fingerprint, held.response, held.by = w.Key.Fingerprint, &response, s
	}
	return Result{Response: response}, err
}

// replay returns the stored response of a key; nil: there is none. The error is
// [ErrKeyReused], [ErrKeyInUse] or errTwin.
func (s *State) replay(k *Key) (*Response, error) {
	held := s.group.keys[k.name()]
	switch {
	case held == nil:
		return nil, ErrKeyInUse
	case held.expired && s.group.kind == commonGroup:
		return nil, errNotLocked // a common group does not delete the expired response
	case held.response == nil:
		return nil, nil //nolint:nilnil // documented
	case held.by != nil: // an earlier write of the group has made it
		return nil, errTwin
	case !bytes.Equal(held.fingerprint, k.Fingerprint):
		return nil, ErrKeyReused
	}
	s.group.confirms = s
	return held.response, nil
}
