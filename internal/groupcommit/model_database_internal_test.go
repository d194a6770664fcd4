package groupcommit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// groupTrial is a common group, and what it finds in the database.
type groupTrial struct {
	model    *groupModel
	held     [locks]bool // by another transaction
	units    int8        // of a, in stock
	response int8
}

func (t groupTrial) String() string {
	text := fmt.Sprintf("%s, %d units, response %d", t.model.name, t.units, t.response)
	for l, isHeld := range t.held {
		if isHeld {
			text += fmt.Sprintf(", %s is held", lock(l))
		}
	}
	return text
}

// groupSeen is the effect of a trial.
type groupSeen struct {
	Waits    bool
	Results  [mostOrders]string // of the writes of the group
	Units    [stores]int8
	Orders   [stores]int
	Events   [stores]string // their numbers
	Response int8
	Newest   int8 // order of the sandbox
}

// seen describes an outcome.
func (o outcome) seen() string { return fmt.Sprint(o.Body, o.Replayed, o.err) }

// trials returns the first group of a model with everything that it can find.
func (m *groupModel) trials() (all []groupTrial) {
	all = append(all, groupTrial{model: m, units: m.stock[storeA]}, groupTrial{model: m})
	if m.writes[0].isKeyed {
		for _, t := range all {
			t.response = elsewhereResponse
			all = append(all, t)
		}
	}
	for _, l := range []lock{storeLock, keyLock, petLock, petLock + storeB, feedLock, feedLock + storeB} {
		if l == keyLock && !m.writes[0].isKeyed || l == storeLock && !m.isSandbox {
			continue
		}
		for _, t := range all {
			t.held[l] = true
			t.held[entryLock] = t.held[keyLock] && t.response == 0
			all = append(all, t)
		}
	}
	return all
}

// predict returns what the model does.
func (m *groupModel) predict(t groupTrial) (seen groupSeen) {
	m.prepare()
	s := modelState{stock: m.stock, want: m.stock, response: t.response, lanes: m.lanes()}
	s.stock[storeA], s.want[storeA] = t.units, t.units
	for l, isHeld := range t.held {
		if isHeld {
			s.locks[l] = elsewhere
		}
	}
	m.start(&s, 0)
	var wrong string // with the last step, which commits
	for g := s.groups[0]; s.groups[0].writes != 0; g = s.groups[0] {
		if _, seen.Waits = m.waitsFor(&s, 0); seen.Waits {
			return seen
		}
		for _, w := range m.writesOf(&g) {
			seen.Results[w] = m.result(&g, m.decide(&g), w).seen()
		}
		_, wrong = m.run(&s, 0)
	}
	for id, last := range s.last {
		for number := range last {
			seen.Events[id] += fmt.Sprint(number+1, " ")
		}
		seen.Events[id] += wrong
	}
	for w, effects := range s.effects {
		if w < len(m.writes) {
			seen.Orders[m.writes[w].store] += int(effects)
		}
	}
	seen.Units, seen.Response, seen.Newest = s.stock, s.response, s.newest
	return seen
}

// accounts returns the stores of a trial. The API key of store a has the id of its account.
func (t groupTrial) accounts(number int) [stores]Store {
	first := int64(1000 + stores*number)
	return [stores]Store{{AccountID: first, Sandbox: t.model.isSandbox}, {AccountID: first + 1}}
}

// store stores what a trial begins with.
func (f *fixture) store(t groupTrial, of [stores]Store) {
	f.t.Helper()
	a := of[storeA].AccountID
	f.newStores(a, of[storeB].AccountID)
	f.exec(fmt.Sprintf(`
		UPDATE inventory SET quantity = %d WHERE account_id = %d;
		UPDATE inventory SET quantity = %d WHERE account_id = %d;
		UPDATE pets SET status = CASE %[1]d WHEN 0 THEN 'pending' ELSE status END WHERE account_id = %[2]d;
		INSERT INTO api_keys (id, account_id, name, scope, prefix, secret_sha256) VALUES (%[2]d, %[2]d, 'key', 'write', 'petstore_', sha256('%[2]d'))`,
		t.units, a, t.model.stock[storeB], of[storeB].AccountID))
	if t.response != 0 {
		f.exec(fmt.Sprintf(storeResponse, a))
	}
}

// storeResponse stores the response of a write elsewhere.
const storeResponse = "INSERT INTO idempotency_keys VALUES (%[1]d, %[1]d, 'key', repeat('f', 32)::bytea, 201, '', 'd')"

// take locks what another transaction holds.
func (t groupTrial) take(ctx context.Context, tx pgx.Tx, of [stores]Store) error {
	for l, isHeld := range t.held {
		if !isHeld {
			continue
		}
		sql := map[lock]string{
			storeLock: "SELECT pg_advisory_xact_lock(hashtextextended('store', %d))",
			keyLock:   "SELECT pg_advisory_xact_lock(hashtextextended('idempotency key', %d))",
			entryLock: storeResponse,
			petLock:   "SELECT FROM inventory WHERE account_id = %d AND pet_id = 1 FOR NO KEY UPDATE",
			feedLock:  "SELECT FROM account_state WHERE account_id = %d FOR NO KEY UPDATE",
		}[lock(l-l%stores)]
		if _, err := tx.Exec(ctx, fmt.Sprintf(sql, of[l%stores].AccountID)); err != nil {
			return err
		}
	}
	return nil
}

// try runs the group of a trial, and returns its results.
func (f *fixture) try(ctx context.Context, t groupTrial, of [stores]Store) (results [mostOrders]string, err error) {
	holder, err := f.database.Pool.Begin(ctx)
	if err != nil {
		return results, err
	}
	defer func() { _ = holder.Rollback(context.WithoutCancel(ctx)) }()
	if err := t.take(ctx, holder, of); err != nil {
		return results, err
	}
	var writes []storeWrite
	for w, made := range t.model.writes {
		if made.process == 0 && made.begins == inCommon {
			write := t.model.write(w)
			if write.Key != nil {
				write.Key.APIKeyID = of[storeA].AccountID
			}
			writes = append(writes, storeWrite{of[made.store], write})
		}
	}
	decided, err := f.run(ctx, newGroup(commonGroup, writes...))
	isSpoiled := errors.Is(err, errSpoiled)
	if isSpoiled {
		err = nil
	}
	for w, o := range decided {
		if isSpoiled {
			o = outcome{err: errSpoiled}
		}
		results[w] = o.seen()
	}
	return results, err
}

// read reads what a trial has stored.
func (f *fixture) read(of [stores]Store) (seen groupSeen) {
	f.t.Helper()
	for id, store := range of {
		var events []int64
		need.OK(f.t, f.database.Pool.QueryRow(f.t.Context(), `
			SELECT quantity, (SELECT count(*) FROM orders WHERE account_id = $1), (SELECT array_agg(sequence ORDER BY sequence) FROM events WHERE account_id = $1),
				greatest($2, (SELECT ascii(convert_from(body, 'UTF8')) FROM idempotency_keys WHERE account_id = $1)),
				greatest($3, (SELECT last_order_id - 1000 FROM account_state WHERE account_id = $1))
			FROM inventory WHERE account_id = $1 AND pet_id = 1`, store.AccountID, seen.Response, seen.Newest).Scan(&seen.Units[id], &seen.Orders[id], &events, &seen.Response, &seen.Newest))
		for _, number := range events {
			seen.Events[id] += fmt.Sprint(number, " ")
		}
	}
	return seen
}

// TestGroupModelOnDatabase runs common groups with everything that another transaction can
// hold, and compares them with the model. The results differ from those of a model with a mistake.
func TestGroupModelOnDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no such groups")
	f := newFixture(t)
	var trials []groupTrial
	for _, m := range groupModels { // a copy: predict changes it, while TestGroups reads the models
		trials = append(trials, m.trials()...)
	}
	got := make([]groupSeen, len(trials))
	for i, one := range trials {
		of := one.accounts(i)
		f.store(one, of)
		results, err := f.try(t.Context(), one, of)
		if err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		got[i] = f.read(of)
		got[i].Results = results
		if want := one.model.predict(one); got[i] != want {
			t.Errorf("%s: %+v, want %+v", one, got[i], want)
		}
	}
	t.Logf("%d trials", len(trials))
	for _, mistake := range commonMistakes {
		differ := 0
		for i, one := range trials {
			m := *one.model
			if m.mistake = mistake; m.predict(one) != got[i] {
				differ++
			}
		}
		if t.Logf("%s: %d trials differ", mistake, differ); differ == 0 {
			t.Errorf("no trial shows: %s", mistake)
		}
	}
}

// commonMistakes are the mistakes of a common group alone.
var commonMistakes = []string{
	feedsWait, petsWait, sandboxesWait, keysUnlocked, petsUnlocked, sandboxesUnlocked, writesWithoutFeed, writesHeldFeed, reportsHeldFeed,
	refusesHeldFeed, numbersPerGroup, writesSpoiled, idsForgotten, decidesTwins, storesResponsesLate,
}
