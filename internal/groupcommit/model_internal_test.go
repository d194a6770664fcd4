package groupcommit

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/explore"
	"petstore/internal/stock"
)

// This file has a model of groups, which the comment of the package explains. Three groups
// begin, in two or three processes. Meanwhile a transaction elsewhere locks something of store a,
// perhaps for ever, and a process, a connection or a transaction fails.
//
// A step is a statement, or the lock of one row. A process decides in the same step in which it
// gets the locks, and receives the result of COMMIT with it. A failure in between has the same
// effect as an earlier one, or as one that happens before the server runs COMMIT.
//
// The decisions of a group and of running writes again are no model: the search calls the real
// functions. It looks for these mistakes in every state:
//
//   - an event without the next number of its feed, in the order of the commits
//   - a write or a key with two effects; a result that differs from the effect
//   - an order of a sandbox without the next id, in the order of the commits
//   - a stock that is below 0 or not what the orders leave; a refusal of an order for which there is stock
//   - a response that does not commit with its effect
//   - a common group that waits for a lock
//   - a write that never ends, although nothing of its store is held elsewhere
//
// [TestGroups] searches all interleavings. [TestGroupModelOnDatabase] compares the steps of a
// common group with the real statements.

// The stores a and b have one pet each. Every write orders one unit of it, and emits an event.
const (
	storeA = iota
	storeB
	stores
)

// mostOrders is the number of writes of the largest model.
const mostOrders = 5

// lane is where a write waits for its group, and the kind of that group.
type lane uint8

const (
	inCommon  lane = iota // [Committer.common]
	inOwn                 // [Committer.groups]
	inWaiting             // [Committer.waiting]
	inAlone               // [Committer.alone]
	isRunning
	isDone
)

func (l lane) String() string {
	return [...]string{inCommon: "common", inOwn: "own", inWaiting: "waiting", inAlone: "alone", isRunning: "running", isDone: "done"}[l]
}

// waits reports whether the transactions of a kind wait for pets and sandboxes.
func (l lane) waits() bool { return l == inWaiting || l == inAlone }

// modelWrite is a write of a model, with the lane in which it begins.
type modelWrite struct {
	process, store int
	begins         lane
	isKeyed        bool // all of a model have the same key, of store a
	spoils         bool // it changes its pet and then fails
}

// lock is a row or an advisory lock.
type lock uint8

const (
	storeLock  lock = iota * stores // of a sandbox
	keyLock                         // of the key
	apiKeyLock                      // of the row of its API key, to which a response refers
	entryLock                       // of the row that stores its response, which has a unique index
	petLock
	feedLock
	locks
)

func (l lock) String() string {
	of := string(rune('a' + l%stores))
	return map[lock]string{storeLock: "the sandbox", keyLock: "the key", apiKeyLock: "the API key", entryLock: "the response of the key", petLock: "the pet of " + of, feedLock: "the feed of " + of}[l-l%stores]
}

// eachLock has all locks, so that a list of one needs no memory.
var eachLock = func() (all [locks]lock) {
	for l := range all {
		all[l] = lock(l)
	}
	return all
}()

func only(l lock) []lock { return eachLock[l : l+1] }

// The holders of a lock: nobody, a transaction elsewhere, or 1 + the number of a group.
const (
	nobody    = 0
	elsewhere = -1
)

// at is the next step of the transaction of a group.
type at uint8

const (
	atStore at = iota * stores // it locks the sandboxes, keys and pets in one round trip
	atKey                      // and atKeyRead
	atPet
	atDecide // the process decides and sends the second round trip
	atFeed
	atWrite
	atCommit

	atKeyRead = atKey + 1
)

// notRead is the stock of a pet that a group has not read.
const notRead = -1

// elsewhereResponse is the response of a write elsewhere.
const elsewhereResponse = 100

// modelGroup is a group and its transaction. Its number is that of its first write.
type modelGroup struct {
	snapshot

	at      at
	isLost  bool         // its process or its connection is gone
	last    [stores]int8 // the number of events when it took the numbers of its own
	written uint8        // a bit per store whose feed it has locked
}

// snapshot is a group, what it has locked and what it has read.
type snapshot struct {
	kind      lane
	writes    uint8 // a bit per write; 0: there is no such group
	isEntered bool  // it has locked the sandbox
	hasKey    bool
	response  int8         // 1 + the write whose response was stored; 0: none
	units     [stores]int8 // in stock
	newest    int8         // order of the sandbox
}

// The errors that a group can have.
var (
	errModelPoison error = &pgconn.PgError{Code: "53100"}
	errModelWait   error = &pgconn.PgError{Code: "55P03"} // lock_timeout
	errModelUnique error = &pgconn.PgError{Code: "23505"}
	errModelLost         = io.ErrUnexpectedEOF
)

// modelState is a state of the model. The last fields are only for the checks.
type modelState struct {
	// The database
	locks    [locks]int8
	stock    [stores]int8
	last     [stores]int8 // number of events
	newest   int8         // order of the sandbox
	response int8         // 1 + the write whose response is stored; 0: none; elsewhereResponse: another one
	// The processes, and the transaction elsewhere
	lanes     [mostOrders]lane
	groups    [mostOrders]modelGroup
	elsewhere uint8
	isCrashed bool

	effects [mostOrders]int8
	keyed   int8         // effects of writes with the key
	want    [stores]int8 // stock
	kept    int8         // orders since a reset has deleted all
	ids     int8         // the id of the newest order of the sandbox
}

// The progress of the transaction elsewhere.
const (
	elsewhereBegins uint8 = iota
	elsewhereHolds
	elsewhereDeleted // a reset has deleted the orders
	elsewhereEnded
)

// groupModel is three groups and a transaction elsewhere that holds something of store a,
// perhaps with a mistake.
type groupModel struct {
	name      string
	writes    []modelWrite
	stock     [stores]int8
	isSandbox bool // store a
	holds     lock
	mistake   string

	mistakes []string // that the search finds

	decided map[snapshot]*decision
	ofStore [stores]uint8 // the writes of each store, a bit per write
	keyed   uint8         // the writes with the key
}

// groupModels are small enough to look at all their states.
var groupModels = []groupModel{
	{name: "two common groups and an own one", stock: [stores]int8{2, 1}, writes: []modelWrite{
		{process: 0, store: storeA},
		{process: 0, store: storeB},
		{process: 1, store: storeA},
		{process: 1, store: storeB},
		{process: 2, store: storeA, begins: inOwn},
	}, mistakes: []string{
		feedsWait, petsWait, petsUnlocked, writesWithoutFeed, writesHeldFeed, reportsHeldFeed, numbersEarly, numbersPerGroup, unlocksEarly,
		runsLostAgain, reportsFailed,
	}},
	{name: "a common group, an own one and a transaction that waits", stock: [stores]int8{2, 1}, writes: []modelWrite{
		{process: 0, store: storeA},
		{process: 0, store: storeA},
		{process: 0, store: storeB},
		{process: 0, store: storeA, begins: inOwn},
		{process: 1, store: storeA, begins: inWaiting},
	}, mistakes: []string{refusesHeldFeed, locksFeedFirst}},
	{name: "a key", stock: [stores]int8{3, 2}, writes: []modelWrite{
		{process: 0, store: storeA, isKeyed: true},
		{process: 0, store: storeB},
		{process: 1, store: storeA, isKeyed: true},
		{process: 2, store: storeA, isKeyed: true, begins: inOwn},
	}, mistakes: []string{keysUnlocked, keysReadEarly, storesResponsesLate, rotationsLock}},
	{name: "twins", stock: [stores]int8{3, 1}, writes: []modelWrite{
		{process: 0, store: storeA, isKeyed: true},
		{process: 0, store: storeA, isKeyed: true},
		{process: 0, store: storeB},
		{process: 1, store: storeA, isKeyed: true, begins: inOwn},
		{process: 2, store: storeB},
	}, mistakes: []string{decidesTwins}},
	{name: "a sandbox", isSandbox: true, stock: [stores]int8{2, 2}, writes: []modelWrite{
		{process: 0, store: storeA},
		{process: 0, store: storeB},
		{process: 1, store: storeA},
		{process: 1, store: storeB},
		{process: 2, store: storeA, begins: inOwn},
	}, mistakes: []string{sandboxesWait, sandboxesUnlocked, idsReadEarly, idsForgotten}},
	{name: "a write that spoils its group", stock: [stores]int8{2, 2}, writes: []modelWrite{
		{process: 0, store: storeA},
		{process: 0, store: storeA, spoils: true},
		{process: 0, store: storeB},
		{process: 1, store: storeA},
		{process: 2, store: storeA, begins: inOwn},
	}, mistakes: []string{writesSpoiled}},
}

// elsewheres returns a model with everything that a transaction elsewhere can hold.
func (m *groupModel) elsewheres() (all []groupModel) {
	for _, l := range []lock{petLock, feedLock, keyLock, storeLock} {
		if (l != keyLock || m.writes[0].isKeyed) && (l != storeLock || m.isSandbox) {
			all = append(all, *m)
			all[len(all)-1].holds = l
		}
	}
	return all
}

// The mistakes that can be planted in the model.
const (
	feedsWait           = "a common group waits for the feeds"
	petsWait            = "a common group waits for the pets"
	sandboxesWait       = "a common group waits for the sandboxes"
	keysUnlocked        = "the keys are not locked"
	keysReadEarly       = "the response of a key is read before its lock, and replaced"
	petsUnlocked        = "the pets are read without a lock"
	sandboxesUnlocked   = "the sandboxes are not locked"
	idsReadEarly        = "the newest id of a sandbox is read before its lock"
	idsForgotten        = "the newest id of a sandbox is not stored"
	writesWithoutFeed   = "a store whose feed is held is written, without its events"
	writesHeldFeed      = "a store whose feed is held is written, with its events"
	reportsHeldFeed     = "a store whose feed is held is reported as written"
	refusesHeldFeed     = "a refusal by a store whose feed is held is returned"
	numbersEarly        = "the numbers of the events are taken before the lock"
	numbersPerGroup     = "the events are numbered per group"
	unlocksEarly        = "the feeds are unlocked before the commit"
	writesSpoiled       = "a spoiled group is written"
	runsLostAgain       = "a group that may have committed runs again"
	reportsFailed       = "a group that the server has rolled back is reported as written"
	decidesTwins        = "a twin is decided again"
	storesResponsesLate = "the response of a key is stored after the commit"
	locksFeedFirst      = "a transaction that waits locks the feed before the pet"
	// A unique constraint of the secret would do that (migrations/00002_create_api_keys.sql).
	// Each group would then wait until groupTimeout.
	rotationsLock = "a rotation of the API key holds its row against responses"
)

// modelStep is a step of a process, of a transaction, or of the world around them.
type modelStep struct {
	what   stepKind
	number int8 // of a group, or a process
	at     at
	kind   lane
	writes uint8
}

type stepKind uint8

const (
	stepStart stepKind = iota
	stepRun
	stepFail
	stepBreak
	stepCrash
	stepRollback
	stepElsewhere
	stepNothing
)

func (t modelStep) String() string {
	group := fmt.Sprint("group ", t.number+1)
	switch t.what {
	case stepStart:
		group += fmt.Sprintf(" (%s:", t.kind)
		for w := range mostOrders {
			if t.writes&(1<<w) != 0 {
				group += fmt.Sprint(" write ", w+1)
			}
		}
		if group += ")"; t.kind.waits() {
			return group + " begins"
		}
	case stepRun:
	case stepFail:
		return "the server fails " + group
	case stepBreak:
		return group + " loses its connection"
	case stepCrash:
		return fmt.Sprintf("process %d crashes", t.number+1)
	case stepRollback:
		return "the server rolls back " + group
	case stepElsewhere:
		return "the transaction elsewhere goes on"
	case stepNothing:
		return "nothing more happens"
	}
	return group + map[at]string{
		atStore: " tries the sandbox", atKey: " tries the key", atKeyRead: " reads the response", atPet: " locks the pet of a", atPet + storeB: " locks the pet of b",
		atFeed: " locks the feed of a", atFeed + storeB: " locks the feed of b", atWrite: " writes", atCommit: " commits",
	}[t.at]
}

// write returns a write of the model. Its response has its number.
func (m *groupModel) write(w int) *Write {
	made := emits(order(1, 1))
	if m.writes[w].isKeyed {
		made = under("key", made)
	}
	decide := made.Decide
	made.Decide = func(s *State) (Response, error) {
		if m.writes[w].spoils {
			pet, _ := s.Pets.Get(1)
			pet.Stock.Quantity--
			s.Pets.Set(pet)
			return Response{}, errors.ErrUnsupported
		}
		response, err := decide(s)
		response.Body = []byte{byte(w + 1)}
		return response, err
	}
	return made
}

// decision is the outcomes and the changes of a group.
type decision struct {
	outcomes  [mostOrders]outcome
	isSpoiled bool // without an effect
	rows      db.StoresWriteParams
	changed   uint8 // a bit per store
	orders    []int // the writes that have made the orders
}

func (g *modelGroup) has(w int) bool { return g.writes&(1<<w) != 0 }

// writesOf returns the writes of a group.
func (m *groupModel) writesOf(g *modelGroup) (writes []int) {
	for w := range m.writes {
		if g.has(w) {
			writes = append(writes, w)
		}
	}
	return writes
}

// decide is the second step of [Committer.run].
func (m *groupModel) decide(g *modelGroup) *decision {
	if d := m.decided[g.snapshot]; d != nil {
		return d
	}
	d := &decision{}
	m.decided[g.snapshot] = d
	group := newGroup([...]groupKind{inCommon: commonGroup, inOwn: ownGroup, inWaiting: waitingGroup, inAlone: waitingGroup}[g.kind])
	var states [stores]*State // nil if no write is of the store
	var orders [stores][]int
	for _, w := range m.writesOf(g) {
		id := m.writes[w].store
		if states[id] == nil {
			states[id] = m.read(group, g, id)
		}
		if m.mistake == decidesTwins {
			for _, held := range group.keys {
				*held = heldKey{}
			}
		}
		group.ids[account.Orders] = []int64{int64(w)}
		before := len(states[id].Orders.created)
		made, spoiled := states[id].tryDecide(m.write(w))
		d.outcomes[w], d.isSpoiled = made, d.isSpoiled || spoiled != nil && m.mistake != writesSpoiled
		if len(states[id].Orders.created) > before {
			orders[id] = append(orders[id], w)
		}
	}
	for id, store := range states {
		if store != nil && store.changes() > 0 {
			d.changed |= 1 << id
			store.addTo(&d.rows)
			d.orders = append(d.orders, orders[id]...)
		}
	}
	group.addResponses(&d.rows)
	if m.mistake == numbersPerGroup {
		for i := range d.rows.LaterEvents {
			d.rows.LaterEvents[i] = int64(len(d.rows.LaterEvents) - 1 - i)
		}
	}
	return d
}

// read returns the state of a store that a group has read.
func (m *groupModel) read(group *group, g *modelGroup, id int) *State {
	s := newState(group, Store{AccountID: int64(id), Sandbox: m.isSandbox && id == storeA})
	s.entered = g.isEntered || m.mistake == sandboxesUnlocked
	s.newest[account.Orders] = int64(g.newest)
	if units := int64(g.units[id]); units != notRead {
		row := db.PetsLockRow{ID: 1, Quantity: units, Status: string(stock.Available)}
		if units == 0 {
			row.Status = string(stock.Pending)
		}
		s.usePet(row)
	}
	if id == storeA && (g.hasKey || m.mistake == keysUnlocked) {
		key := under("key", &Write{}).Key
		group.keys[key.name()] = &heldKey{}
		if g.response != 0 {
			group.useStored(db.StoreKeysGetRow{APIKeyID: key.APIKeyID, Key: key.Key, Fingerprint: key.Fingerprint, Body: []byte{byte(g.response)}})
		}
	}
	return s
}

// program returns the steps of a group, in order.
func (m *groupModel) program(kind lane) []at {
	switch {
	case m.mistake == keysReadEarly:
		return []at{atStore, atKeyRead, atKey, atPet, atPet + storeB, atDecide, atFeed, atFeed + storeB, atWrite, atCommit}
	case m.mistake == locksFeedFirst && kind.waits():
		return []at{atStore, atKey, atKeyRead, atFeed, atFeed + storeB, atPet, atPet + storeB, atDecide, atWrite, atCommit}
	}
	return []at{atStore, atKey, atKeyRead, atPet, atPet + storeB, atDecide, atFeed, atFeed + storeB, atWrite, atCommit}
}

// goOn moves a group to its next step. The process decides as soon as it has what the first
// round trip returns.
func (m *groupModel) goOn(s *modelState, n, from int) {
	g := &s.groups[n]
	for _, g.at = range m.program(g.kind)[from:] {
		if g.at == atDecide && m.mistake == numbersEarly {
			g.last = s.last
		}
		if g.at == atDecide && m.decide(g).isSpoiled {
			m.fail(s, n, errSpoiled)
			return
		}
		if m.needs(s, n) {
			return
		}
	}
}

// needs reports whether a group has to take its next step.
func (m *groupModel) needs(s *modelState, n int) bool {
	g := &s.groups[n]
	switch g.at {
	case atStore:
		return m.isSandbox && g.writes&m.ofStore[storeA] != 0 && m.mistake != sandboxesUnlocked
	case atKey:
		return g.writes&m.keyed != 0 && m.mistake != keysUnlocked
	case atKeyRead:
		return g.hasKey || g.writes&m.keyed != 0 && (m.mistake == keysUnlocked || m.mistake == keysReadEarly)
	case atPet, atPet + storeB:
		return g.writes&m.ofStore[g.at-atPet] != 0
	case atFeed, atFeed + storeB:
		if m.mistake == locksFeedFirst && g.kind.waits() {
			return g.writes&m.ofStore[g.at-atFeed] != 0
		}
		return m.decide(g).changed&(1<<(g.at-atFeed)) != 0
	case atWrite: // no other step can tell whether it has written rows that it has locked
		wanted, _ := m.wants(s, n)
		return m.mistake == unlocksEarly || slices.ContainsFunc(wanted, func(l lock) bool { return s.locks[l] != int8(n+1) })
	case atDecide, atCommit:
	}
	return g.at == atCommit
}

// wants returns the locks that the next step of a group takes, and whether it waits for them.
func (m *groupModel) wants(s *modelState, n int) (wanted []lock, waits bool) {
	g := &s.groups[n]
	isCommon := g.kind == inCommon
	switch g.at {
	case atStore:
		return only(storeLock), g.kind.waits() || isCommon && m.mistake == sandboxesWait
	case atKey:
		return only(keyLock), false
	case atPet, atPet + storeB:
		return only(petLock + lock(g.at-atPet)), g.kind.waits() || isCommon && m.mistake == petsWait
	case atFeed, atFeed + storeB:
		return only(feedLock + lock(g.at-atFeed)), !isCommon || m.mistake == feedsWait
	case atWrite: // usually it has locked all rows
		d := m.decide(g)
		for id := range lock(stores) {
			if m.effective(g, d)&(1<<id) == 0 {
				continue
			}
			wanted = append(wanted, petLock+id)
			if m.mistake != writesWithoutFeed || g.written&(1<<id) != 0 {
				wanted = append(wanted, feedLock+id)
			}
			if id == storeA && len(d.rows.Keys) > 0 {
				wanted = append(wanted, entryLock, apiKeyLock)
			}
		}
		return wanted, true
	case atKeyRead, atDecide, atCommit:
	}
	return nil, false
}

// waitsFor returns a lock for which a group waits.
func (m *groupModel) waitsFor(s *modelState, n int) (wanted lock, waits bool) {
	all, waits := m.wants(s, n)
	if waits {
		for _, l := range all {
			if s.locks[l] != nobody && s.locks[l] != int8(n+1) {
				return l, true
			}
		}
	}
	return 0, false
}

// effective returns the stores that a group writes.
func (m *groupModel) effective(g *modelGroup, d *decision) uint8 {
	if m.mistake == writesHeldFeed || m.mistake == writesWithoutFeed {
		return d.changed
	}
	return d.changed & g.written
}

// run takes the next step of a group. It returns what is wrong with the step.
func (m *groupModel) run(s *modelState, n int) (isPossible bool, wrong string) {
	g := &s.groups[n]
	if _, waits := m.waitsFor(s, n); waits || g.writes == 0 || g.isLost && g.at < atDecide {
		return false, "" // if a group is lost in its first round trip, the server gets no second one
	}
	wanted, _ := m.wants(s, n)
	for _, l := range wanted {
		if s.locks[l] == nobody {
			s.locks[l] = int8(n + 1)
		}
	}
	switch g.at {
	case atStore:
		if g.isEntered = s.locks[storeLock] == int8(n+1); g.isEntered && m.mistake != idsReadEarly {
			g.newest = s.newest
		}
	case atKey:
		g.hasKey = s.locks[keyLock] == int8(n+1)
	case atKeyRead:
		g.response = s.response
	case atPet, atPet + storeB:
		if id := g.at - atPet; s.locks[wanted[0]] == int8(n+1) || m.mistake == petsUnlocked {
			g.units[id] = s.stock[id]
		}
		if m.mistake == petsUnlocked && s.locks[wanted[0]] == int8(n+1) {
			s.locks[wanted[0]] = nobody
		}
	case atFeed, atFeed + storeB:
		if id := g.at - atFeed; s.locks[wanted[0]] == int8(n+1) {
			g.written |= 1 << id
			if m.mistake != numbersEarly {
				g.last[id] = s.last[id]
			}
		}
	case atWrite:
		if slices.Contains(wanted, entryLock) && s.response != 0 && m.mistake != keysReadEarly {
			m.fail(s, n, errModelUnique)
			return true, ""
		}
		for id := range lock(stores) {
			if m.mistake == unlocksEarly && s.locks[feedLock+id] == int8(n+1) {
				s.locks[feedLock+id] = nobody
			}
		}
	case atCommit:
		return true, m.commit(s, n)
	case atDecide: // goOn has decided
	}
	m.goOn(s, n, slices.Index(m.program(g.kind), g.at)+1)
	return true, ""
}

// end ends a transaction and its group.
func (s *modelState) end(n int) {
	for l, held := range s.locks {
		if held == int8(n+1) {
			s.locks[l] = nobody
		}
	}
	s.groups[n] = modelGroup{}
}

// fail rolls back a transaction with an error.
func (m *groupModel) fail(s *modelState, n int, err error) (wrong string) {
	g := s.groups[n]
	s.end(n)
	switch {
	case g.isLost:
	case m.mistake == reportsFailed && g.at == atCommit:
		return m.receive(s, &g)
	default:
		m.giveUp(s, &g, err)
	}
	return ""
}

// commit commits a transaction, with the effect of write_stores.
func (m *groupModel) commit(s *modelState, n int) (wrong string) {
	g := s.groups[n]
	d := m.decide(&g)
	effective := m.effective(&g, d)
	is := func(account int64) bool { return effective&(1<<account) != 0 }
	for i, id := range d.rows.StockAccounts {
		if is(id) {
			s.stock[id] = int8(d.rows.Quantities[i])
		}
	}
	for i, id := range d.rows.OrderAccounts {
		if is(id) {
			w := d.orders[i]
			if s.effects[w]++; m.writes[w].isKeyed {
				s.keyed++
			}
			if m.isSandbox && id == storeA {
				if s.ids++; d.rows.OrderIds[i] != int64(s.ids) {
					wrong = fmt.Sprintf("the id of an order is wrong by %d", d.rows.OrderIds[i]-int64(s.ids))
				}
			}
			s.want[id]--
			if s.elsewhere == elsewhereDeleted && id == storeA {
				s.kept++
			}
		}
	}
	for i, id := range d.rows.AccountIds {
		if is(id) && m.mistake != idsForgotten {
			s.newest = max(s.newest, int8(d.rows.LastOrderIds[i]))
		}
	}
	for i := range d.rows.Keys {
		if is(d.rows.KeyAccounts[i]) && m.mistake != storesResponsesLate {
			s.response = int8(d.rows.Bodies[i][0])
		}
	}
	var events [stores]int64
	for _, id := range d.rows.EventAccounts {
		events[id]++
	}
	for i, id := range d.rows.EventAccounts {
		if !is(id) || m.mistake == writesWithoutFeed && g.written&(1<<id) == 0 {
			continue
		}
		s.last[id]++
		if number := int64(g.last[id]) + events[id] - d.rows.LaterEvents[i]; number != int64(s.last[id]) {
			wrong = fmt.Sprintf("the number of an event of %c is wrong by %d", 'a'+rune(id), number-int64(s.last[id]))
		}
	}
	for _, w := range m.writesOf(&g) {
		if id := m.writes[w].store; errors.Is(m.result(&g, d, w).err, stock.ErrNotAvailable) && s.want[id] > 0 {
			wrong = fmt.Sprintf("write %d is refused while %c has stock", w+1, 'a'+rune(id))
		}
	}
	s.end(n)
	if g.isLost {
		return wrong
	}
	return max(wrong, m.receive(s, &g))
}

// result returns the outcome of a write after the commit, as [Committer.run] does.
func (m *groupModel) result(g *modelGroup, d *decision, w int) outcome {
	id := m.writes[w].store
	isHeld := d.changed&(1<<id) != 0 && g.written&(1<<id) == 0 && m.mistake != reportsHeldFeed
	switch {
	case d.isSpoiled:
		return outcome{err: errSpoiled}
	case isHeld && (d.outcomes[w].err == nil || m.mistake != refusesHeldFeed):
		return outcome{err: errFeedHeld}
	}
	return d.outcomes[w]
}

// receive gives the writes of a group their outcomes. They leave the group as [Committer.Do]
// says.
func (m *groupModel) receive(s *modelState, g *modelGroup) (wrong string) {
	for _, w := range m.writesOf(g) {
		result := m.result(g, m.decide(g), w)
		switch err := result.err; {
		case errors.Is(err, errNotLocked) && !g.kind.waits():
			s.lanes[w] = inWaiting
		case errors.Is(err, errTwin):
			s.lanes[w] = m.writes[w].begins
		case errors.Is(err, errFeedHeld):
			s.lanes[w] = inOwn
		default:
			s.lanes[w] = isDone
			wrong = max(wrong, s.wrongResult(w, result))
		}
	}
	return wrong
}

// wrongResult returns what is wrong with the result that a client gets.
func (s *modelState) wrongResult(w int, result outcome) string {
	switch effects := s.effects[w]; {
	case result.Replayed && s.response != int8(result.Body[0]):
		return fmt.Sprintf("write %d gets a response that is not stored", w+1)
	case result.err == nil && !result.Replayed && effects != 1:
		return fmt.Sprintf("write %d succeeds with %d effects", w+1, effects)
	case result.err != nil && effects != 0:
		return fmt.Sprintf("write %d is refused with %d effects", w+1, effects)
	}
	return ""
}

// giveUp gives the writes of a group its error. They run again if [failure] allows that.
func (m *groupModel) giveUp(s *modelState, g *modelGroup, err error) {
	writes := m.writesOf(g)
	again := errors.Is(failure(err, len(writes), g.kind == inWaiting), errAlone)
	for _, w := range writes {
		s.lanes[w] = isDone
		if g.kind != inAlone && (again || m.mistake == runsLostAgain) {
			s.lanes[w] = inAlone
		}
	}
}

// readsEarly reports whether the groups read the newest id of the sandbox when they begin.
func (m *groupModel) readsEarly() bool {
	return m.mistake == idsReadEarly || m.mistake == sandboxesUnlocked
}

// isHere reports whether a group has a process.
func (g *modelGroup) isHere() bool { return g.writes != 0 && !g.isLost }

// crash ends a process and all its connections.
func (m *groupModel) crash(s *modelState, process int) (isPossible bool) {
	for w, of := range m.writes {
		if of.process != process {
			continue
		}
		if s.groups[w].isHere() {
			s.groups[w].isLost = true
		}
		isPossible = isPossible || s.lanes[w] != isDone
		s.lanes[w] = isDone
	}
	return isPossible
}

// start starts the group of a write that waits in a lane, with all that wait there. A lane
// has one group at a time, and spare ones if it is slow.
func (m *groupModel) start(s *modelState, first int) (started uint8) {
	kind := s.lanes[first]
	if kind >= isRunning || s.groups[first].writes != 0 {
		return 0
	}
	is := func(w int) bool {
		return m.writes[w].process == m.writes[first].process && (kind == inCommon || m.writes[w].store == m.writes[first].store)
	}
	for n := range s.groups {
		if g := &s.groups[n]; kind == inWaiting && g.isHere() && g.kind == inWaiting && is(n) {
			return 0
		}
	}
	for w := range m.writes {
		if s.lanes[w] == kind && is(w) && (kind != inAlone || w == first) {
			if w < first {
				return 0
			}
			started |= 1 << w
			s.lanes[w] = isRunning
		}
	}
	s.groups[first] = modelGroup{snapshot: snapshot{kind: kind, writes: started, units: [stores]int8{notRead, notRead}}}
	if m.readsEarly() {
		s.groups[first].newest = s.newest
	}
	m.goOn(s, first, 0)
	return started
}

// otherwise takes the next step of the transaction elsewhere, which locks the feed, pet or key
// of store a, or resets it.
func (m *groupModel) otherwise(s *modelState) (isPossible bool) {
	switch {
	case s.elsewhere == elsewhereBegins:
		if m.mistake == rotationsLock {
			m.holds = apiKeyLock
		}
		if s.locks[m.holds] != nobody || m.holds == keyLock && (s.response != 0 || s.locks[entryLock] != nobody) {
			return false
		}
		if s.locks[m.holds] = elsewhere; m.holds == keyLock {
			s.locks[entryLock] = elsewhere // it has inserted its response
		}
		s.elsewhere = elsewhereHolds
		return true
	case s.elsewhere == elsewhereEnded:
		return false
	case m.holds == storeLock && s.elsewhere == elsewhereHolds:
		s.elsewhere = elsewhereDeleted
		return true
	case m.holds == storeLock:
		if s.locks[petLock] != nobody || s.locks[feedLock] != nobody {
			return false
		}
		s.stock[storeA], s.want[storeA] = m.stock[storeA], m.stock[storeA]-s.kept
		s.last[storeA]++
		s.kept = 0
		s.newest, s.ids = s.newest-mostOrders, s.ids-mostOrders
	case m.holds == feedLock:
		s.last[storeA]++
	case m.holds == petLock && s.stock[storeA] > 0:
		s.stock[storeA]--
		s.want[storeA]--
	case m.holds == keyLock:
		s.response, s.locks[entryLock] = elsewhereResponse, nobody
	}
	s.locks[m.holds] = nobody
	s.elsewhere = elsewhereEnded
	return true
}

// next tries all steps from a state.
func (m *groupModel) next(before modelState, try func(modelStep, modelState, string)) {
	goesOn := false
	check := func(by modelStep, after *modelState, wrong string) {
		if wrong == "" {
			wrong = m.wrong(after)
		}
		m.forget(after)
		try(by, *after, wrong)
	}
	for n := range m.writes {
		after := before
		if started := m.start(&after, n); started != 0 {
			goesOn = true
			g := after.groups[n]
			if !g.kind.waits() { // nobody can tell whether it has begun before its first step
				_, _ = m.run(&after, n)
			}
			check(modelStep{what: stepStart, number: int8(n), at: g.at, kind: g.kind, writes: started}, &after, "")
		}
		g := before.groups[n]
		if g.writes == 0 {
			continue
		}
		after = before
		if isPossible, wrong := m.run(&after, n); isPossible {
			goesOn = true
			check(modelStep{what: stepRun, number: int8(n), at: g.at}, &after, wrong)
		}
		if g.isLost {
			goesOn = true
			after = before
			after.end(n)
			check(modelStep{what: stepRollback, number: int8(n)}, &after, "")
		}
	}
	m.nextFailure(before, check)
	after := before
	if m.otherwise(&after) {
		check(modelStep{what: stepElsewhere}, &after, "")
	}
	if goesOn {
		return
	}
	if unfinished := m.unfinished(&before); unfinished != "" {
		try(modelStep{what: stepNothing}, before, unfinished)
	}
}

// nextFailure tries the failures, of which there is one at most.
func (m *groupModel) nextFailure(before modelState, check func(modelStep, *modelState, string)) {
	if before.isCrashed {
		return
	}
	before.isCrashed = true
	for n := range m.writes {
		if before.groups[n].writes == 0 {
			continue
		}
		after := before
		if !before.groups[n].isLost {
			m.giveUp(&after, &after.groups[n], errModelLost)
			after.groups[n].isLost = true
			check(modelStep{what: stepBreak, number: int8(n)}, &after, "")
		}
		after, err := before, errModelPoison
		if _, waits := m.waitsFor(&before, n); waits {
			err = errModelWait
		}
		wrong := m.fail(&after, n, err)
		check(modelStep{what: stepFail, number: int8(n)}, &after, wrong)
	}
	for process := range m.writes[len(m.writes)-1].process + 1 {
		after := before
		if m.crash(&after, process) {
			check(modelStep{what: stepCrash, number: int8(process)}, &after, "")
		}
	}
}

// wrong returns what is wrong with a state.
func (m *groupModel) wrong(s *modelState) string {
	keyed := s.keyed
	for w, effects := range s.effects {
		if effects > 1 {
			return fmt.Sprintf("write %d has %d effects", w+1, effects)
		}
		if effects == 1 && m.writes[w].isKeyed && s.response != int8(w+1) {
			return fmt.Sprintf("the response of write %d has not committed with its effect", w+1)
		}
		if g := &s.groups[w]; g.writes == 0 || g.kind != inCommon {
			continue
		}
		if wanted, waits := m.waitsFor(s, w); waits {
			return fmt.Sprintf("a common group waits for %s", wanted)
		}
	}
	if s.response == elsewhereResponse {
		keyed++
	}
	switch {
	case keyed > 1:
		return "a key has two effects"
	case s.stock != s.want:
		return fmt.Sprintf("the stock is %d, but the orders leave %d", s.stock, s.want)
	case slices.Min(s.stock[:]) < 0:
		return "the stock is below 0"
	}
	return ""
}

// forget forgets what makes no difference any more, so that there are fewer states.
func (m *groupModel) forget(s *modelState) {
	running := uint8(0) // a bit per write that is in a group
	for i := range s.groups {
		g := &s.groups[i]
		if g.writes == 0 {
			continue
		}
		running |= g.writes
		for id := range stores {
			if g.written&(1<<id) != 0 || m.mistake == numbersEarly && g.at > atDecide {
				g.last[id] -= s.last[id]
			}
		}
		if g.isEntered || m.readsEarly() {
			g.newest -= s.newest
		}
	}
	s.last = [stores]int8{}
	s.newest, s.ids = 0, s.ids-s.newest
	for w, in := range s.lanes {
		if in == isDone && running&(1<<w) == 0 {
			s.effects[w] = 0
		}
	}
}

// unfinished returns which write waits for ever, unless its store is held elsewhere.
func (m *groupModel) unfinished(s *modelState) string {
	for w, of := range m.writes {
		isHeld := of.store == storeA && (s.elsewhere == elsewhereHolds || s.elsewhere == elsewhereDeleted)
		if s.lanes[w] != isDone && !isHeld {
			return fmt.Sprintf("write %d never ends", w+1)
		}
	}
	return ""
}

// search looks at all states, until it finds a mistake.
func (m *groupModel) search() *explore.Search[modelState, modelStep] {
	m.prepare()
	return explore.All(modelState{stock: m.stock, want: m.stock, lanes: m.lanes()}, m.next)
}

// prepare prepares a model for one search.
func (m *groupModel) prepare() {
	m.decided, m.ofStore, m.keyed = map[snapshot]*decision{}, [stores]uint8{}, 0
	for w, of := range m.writes {
		m.ofStore[of.store] |= 1 << w
		if of.isKeyed {
			m.keyed |= 1 << w
		}
	}
}

// lanes returns the lanes in which the writes begin.
func (m *groupModel) lanes() (all [mostOrders]lane) {
	for w := range all {
		all[w] = isDone
		if w < len(m.writes) {
			all[w] = m.writes[w].begins
		}
	}
	return all
}

// TestGroups looks at all interleavings of three groups and a transaction elsewhere, in which a
// process, a connection or a transaction fails at any step. It finds every planted mistake.
func TestGroups(t *testing.T) {
	t.Parallel()
	for _, m := range groupModels {
		for _, m := range m.elsewheres() {
			found := m.search()
			t.Logf("%s, %s held elsewhere: %d states, %d steps", m.name, m.holds, len(found.States), found.Steps)
			if found.Mistake != "" {
				t.Error(found.Mistake)
			}
		}
		for _, mistake := range m.mistakes {
			how := ""
			for _, m := range m.elsewheres() {
				if m.mistake = mistake; how == "" {
					how = m.search().Mistake
				}
			}
			t.Logf("%s: %s", mistake, how)
			if how == "" {
				t.Errorf("the search does not find: %s", mistake)
			}
		}
	}
}
