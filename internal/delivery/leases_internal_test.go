package delivery

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"petstore/internal/explore"
)

// This file has a model of the leases of a webhook, which the comment of the package explains.
// A step is a transaction, or what a process does between two transactions.
//
//   - [TestLeases] searches all interleavings of the steps.
//   - [TestLeaseModelOnDatabase] compares the transactions of the model with the real ones.
//   - [TestTransactionsDoNotOverlap] shows that a transaction is one step.

// The numbers of processes and events of the largest searches.
const maxProcesses, maxEvents = 3, 2

// firstAttempts is the number of attempts that a delivery of the model begins with, so that
// it fails after two.
const firstAttempts = maxAttempts - 2

// noUntil stands for no until_sequence.
const noUntil = -1

type leaseState uint8

const (
	leaseNone leaseState = iota
	leaseValid
	leaseExpired
)

// row is the delivery of an event.
type row struct {
	rows     uint8 // how many there are
	status   rowStatus
	due      bool
	attempts int8
}

type rowStatus uint8

const (
	rowPending rowStatus = iota
	rowDelivered
	rowFailed
)

// stored is the part of a state that the database has.
type stored struct {
	last, after, until int8
	enabled            bool
	lease              leaseState
	rows               [maxEvents]row
}

type phase uint8

const (
	phaseIdle      phase = iota
	phaseWoken           // it claims next
	phaseDraining        // it has claimed
	phaseReleasing       // it has listened to those that start it again
	phaseReleased        // its lease has ended, but it may still be renewed
)

// slot is a delivery that a process has read.
type slot struct {
	state    slotState
	attempts int8 // when it was read
	recorded bool // whether the database has the result
}

type slotState uint8

const (
	slotEmpty slotState = iota
	slotRead
	slotSent
	slotSucceeded
	slotFailed
	slotGone
)

// process is the drain of a process.
type process struct {
	phase   phase
	again   bool // its task was started again
	current bool // the number of its lease is still that of the webhook
	holds   bool // it was the last that claimed
	fresh   bool // by its own clock, its lease is valid
	stopped bool
	target  bool // it has read the URL less than a second ago
	read    bool // it has read deliveries
	rest    bool // deliveries were due when it released
	slots   [maxEvents]slot
}

// isOver is [drain.isOver].
func (p *process) isOver() bool { return p.stopped || !p.fresh }

// isBusy reports whether it has a delivery in a state, or in a later one.
func (p *process) isBusy(from slotState) bool {
	return slices.ContainsFunc(p.slots[:], func(s slot) bool { return s.state >= from })
}

// start is [tasks.start].
func (p *process) start() {
	if p.phase == phaseIdle {
		p.phase = phaseWoken
	} else {
		p.again = true
	}
}

// end ends a turn, and the task if nothing is left to do, as [Worker.drain] and [tasks.end] do.
func (p *process) end(rest bool) {
	switch again := p.again; {
	case rest:
		*p = process{phase: phaseWoken, again: again}
	case again:
		*p = process{phase: phaseWoken}
	default:
		*p = process{}
	}
}

// state is a state of the model. The last fields are only for the invariants.
type state struct {
	stored

	processes [maxProcesses]process

	owed           [maxEvents]bool // events that were emitted while the webhook was enabled
	accepted       [maxEvents]bool // events that the receiver has accepted
	isOrphan       bool            // the process that had the lease has died
	isLongDisabled bool            // for more than a second
	needsSweep     bool            // something has happened after which only a sweep finds deliveries
}

// step is a step of a process or of the world around it.
type step struct {
	what    stepKind
	process int
	event   int
	result  slotState
	isLost  bool // the connection breaks at COMMIT
}

func (t step) String() string {
	text := fmt.Sprintf("%s by %d", t.what, t.process+1)
	if t.what == stepSend || t.what == stepDrop || t.what == stepResult {
		text += fmt.Sprintf(" of event %d", t.event+1)
	}
	if t.what == stepResult {
		text += fmt.Sprintf(": %d", statuses[t.result])
	}
	if t.isLost {
		text += ", lost"
	}
	return text
}

// stepKind is the kind of a step.
type stepKind string

const (
	stepEmit     stepKind = "emit"
	stepDisable  stepKind = "disable"
	stepEnable   stepKind = "enable"
	stepSecond   stepKind = "a few seconds pass"
	stepLease    stepKind = "15 seconds pass"
	stepCrash    stepKind = "crash"
	stepDispatch stepKind = "dispatch"
	stepSweep    stepKind = "sweep"
	stepClaim    stepKind = "claim"
	stepLeave    stepKind = "leave an expired lease"
	stepRenew    stepKind = "renew"
	stepTarget   stepKind = "read target"
	stepRead     stepKind = "read deliveries"
	stepSend     stepKind = "send"
	stepDrop     stepKind = "drop"
	stepResult   stepKind = "result"
	stepRecord   stepKind = "record"
	stepStop     stepKind = "stop"
	stepListen   stepKind = "listen"
	stepRelease  stepKind = "release"
	stepForget   stepKind = "forget"
	stepFinish   stepKind = "all others freeze, and the rest is done"
)

// The mistakes that can be planted in the model.
const (
	claimsValidLease     = "a claim takes a valid lease"
	claimsNoExpired      = "a claim does not take an expired lease"
	claimsSameNumber     = "a claim does not change the number of the lease"
	claimsDisabled       = "a claim takes a disabled webhook"
	renewsAnyNumber      = "a renewal does not compare the number of the lease"
	renewsReleased       = "a renewal revives a released lease"
	recordsAnyNumber     = "a process records without its lease"
	recordsTwice         = "a process records without comparing the attempts"
	releasesAnyNumber    = "a release does not compare the number of the lease"
	looksBeforeRelease   = "a release looks for deliveries before it ends the lease"
	looksNot             = "a release does not look for deliveries"
	listensLate          = "a task forgets that it was started again while it looked"
	sendsAfterLease      = "a process sends after 15 seconds without a renewal"
	measuresFromResponse = "a process measures the lease from the response of the claim"
	readsAnyTarget       = "a process sends to a disabled webhook"
	dispatchesUnlocked   = "two processes dispatch an event at the same time"
	movesFirst           = "the dispatcher moves in a transaction before the insert"
	wakesNobody          = "the dispatcher does not wake the drain"
	disablesWithoutEnd   = "a disabled webhook gets no deliveries of earlier events"
	forgetsRetries       = "a failed attempt is the last one"
)

// model is a number of processes and events, perhaps with a mistake.
type model struct {
	processes, events int
	isSound           bool // the webhook accepts everything, and nobody disables it
	mistake           string
}

// free reports whether a process can claim the webhook.
func (m model) free(s *stored) bool {
	return (s.enabled || m.mistake == claimsDisabled) &&
		(s.lease == leaseNone || s.lease == leaseExpired && m.mistake != claimsNoExpired || m.mistake == claimsValidLease)
}

func (s *stored) hasDue() bool {
	return slices.ContainsFunc(s.rows[:], func(r row) bool { return r.rows > 0 && r.status == rowPending && r.due })
}

// end returns the number of the last event that the webhook gets.
func (s *stored) end() int8 {
	if s.enabled {
		return s.last
	}
	return min(s.last, s.until)
}

func (m model) disable(s *state) {
	s.enabled, s.until, s.isLongDisabled = false, s.last, false
	if m.mistake == disablesWithoutEnd {
		s.until = s.after
	}
}

// steps returns the steps that may be possible.
func (m model) steps() (steps []step) {
	for _, what := range []stepKind{stepEmit, stepDisable, stepEnable, stepSecond, stepLease} {
		steps = append(steps, step{what: what})
	}
	for p := range m.processes {
		for _, what := range []stepKind{stepCrash, stepDispatch, stepSweep, stepClaim, stepLeave, stepRenew, stepTarget, stepRead, stepRecord, stepStop, stepListen, stepRelease, stepForget} {
			steps = append(steps, step{what: what, process: p})
		}
		for _, what := range []stepKind{stepDispatch, stepClaim, stepRecord, stepRelease} {
			steps = append(steps, step{what: what, process: p, isLost: true})
		}
		for e := range m.events {
			steps = append(steps, step{what: stepSend, process: p, event: e}, step{what: stepDrop, process: p, event: e})
			for result := slotSucceeded; result <= slotGone; result++ {
				steps = append(steps, step{what: stepResult, process: p, event: e, result: result})
			}
		}
	}
	return steps
}

// take takes a step, if it is possible. It returns what is wrong with the step.
func (m model) take(s *state, t step) (isPossible bool, wrong string) {
	p := &s.processes[t.process]
	switch t.what {
	case stepEmit:
		if int(s.last) == m.events {
			return false, ""
		}
		s.last++
		s.owed[s.last-1] = s.enabled
	case stepDisable:
		if !s.enabled || m.isSound {
			return false, ""
		}
		m.disable(s)
	case stepEnable:
		if s.enabled {
			return false, ""
		}
		if s.after >= s.until {
			s.after = s.last
		}
		s.enabled, s.until, s.needsSweep, s.isLongDisabled = true, noUntil, true, false
	case stepSecond, stepLease:
		m.pass(s, t.what == stepLease)
	case stepCrash:
		s.isOrphan = s.isOrphan || p.phase >= phaseDraining && p.holds && s.lease != leaseNone
		if *p != (process{}) {
			*p, s.needsSweep = process{}, true
		}
	case stepDispatch:
		return m.dispatch(s, p, t.isLost)
	case stepSweep:
		if p.phase != phaseIdle || !s.hasDue() || !m.free(&s.stored) { // a task that runs would only run once more
			return false, ""
		}
		p.start()
	case stepClaim:
		return m.claim(s, p, t.isLost)
	case stepLeave: // as the database has not responded for long
		if p.phase != phaseWoken || s.lease != leaseExpired {
			return false, ""
		}
		p.end(false)
	case stepRenew:
		if p.phase < phaseDraining {
			return false, ""
		}
		if (p.current || m.mistake == renewsAnyNumber) && (s.lease != leaseNone || m.mistake == renewsReleased) {
			s.lease, p.fresh = leaseValid, true
		}
	case stepTarget:
		if p.phase != phaseDraining || p.target || p.stopped {
			return false, ""
		}
		p.fresh = p.fresh || m.mistake == measuresFromResponse && !p.read
		p.target = p.current && (s.enabled || m.mistake == readsAnyTarget)
		p.stopped = !p.target
	case stepRead:
		if p.phase != phaseDraining || p.isOver() || !p.target {
			return false, ""
		}
		p.read = true
		for e, r := range s.rows {
			if r.rows > 0 && r.status == rowPending && r.due && p.slots[e].state == slotEmpty {
				p.slots[e] = slot{state: slotRead, attempts: r.attempts}
			}
		}
	case stepSend:
		if p.slots[t.event].state != slotRead || p.stopped || !p.fresh && m.mistake != sendsAfterLease || !p.target {
			return false, ""
		}
		p.slots[t.event].state = slotSent
		if !p.holds {
			return true, "a request begins without the lease"
		}
		if s.isLongDisabled {
			return true, "a request to a disabled webhook begins"
		}
	case stepDrop: // a delivery that was not sent, or a request that was cut off
		if state := p.slots[t.event].state; (state != slotRead && state != slotSent) || !p.isOver() {
			return false, ""
		}
		p.slots[t.event] = slot{}
	case stepResult:
		if p.slots[t.event].state != slotSent || m.isSound && t.result != slotSucceeded {
			return false, ""
		}
		p.slots[t.event].state = t.result
		s.accepted[t.event] = s.accepted[t.event] || t.result == slotSucceeded
	case stepRecord:
		return m.record(s, p, t.isLost)
	case stepStop: // as the process ends, or gives its place to another webhook
		if p.phase != phaseDraining {
			return false, ""
		}
		p.stopped = true
	case stepListen:
		if p.phase != phaseDraining || p.isBusy(slotRead) || !p.read && !p.isOver() {
			return false, ""
		}
		p.phase, p.again, p.rest = phaseReleasing, false, m.mistake == looksBeforeRelease && s.enabled && s.hasDue()
	case stepRelease:
		return m.release(s, p, t.isLost)
	case stepForget:
		if p.phase != phaseReleased {
			return false, ""
		}
		p.again = p.again && m.mistake != listensLate
		p.end(p.rest)
	case stepFinish: // [model.finish]
	}
	return true, ""
}

// pass lets time pass.
func (m model) pass(s *state, isLong bool) {
	for e := range s.rows {
		s.rows[e].due = s.rows[e].rows > 0 && s.rows[e].status == rowPending
	}
	if isLong && s.lease == leaseValid {
		s.lease = leaseExpired
	}
	for i := range s.processes {
		s.processes[i].target = false
		s.processes[i].fresh = s.processes[i].fresh && !isLong
	}
	s.isLongDisabled, s.needsSweep = !s.enabled, true
}

// dispatch is [Worker.dispatchTurn].
func (m model) dispatch(s *state, p *process, isLost bool) (isPossible bool, wrong string) {
	end, begin := s.end(), s.after
	if m.mistake == dispatchesUnlocked && begin > 0 {
		begin-- // it has read the position before another process moved it
	}
	if begin >= end {
		return false, ""
	}
	for e := begin; e < end && (m.mistake != movesFirst || !isLost); e++ {
		if s.rows[e].rows++; s.rows[e].rows == 1 {
			s.rows[e] = row{rows: 1, due: true, attempts: firstAttempts}
		}
	}
	s.after = end
	switch {
	case isLost: // the next sweep starts the drain
		s.needsSweep = true
	case s.enabled && m.free(&s.stored) && m.mistake != wakesNobody:
		p.start()
	}
	return true, ""
}

// claim is [drain.claim].
func (m model) claim(s *state, p *process, isLost bool) (isPossible bool, wrong string) {
	if p.phase != phaseWoken {
		return false, ""
	}
	if !m.free(&s.stored) {
		p.end(false)
		return !isLost, ""
	}
	if !s.enabled {
		wrong = "a process claims a disabled webhook"
	}
	for i := range s.processes {
		s.processes[i].holds = false
		s.processes[i].current = s.processes[i].current && m.mistake == claimsSameNumber
	}
	s.lease, s.isOrphan = leaseValid, isLost
	if isLost { // the sweep starts the next drain
		p.end(false)
		s.needsSweep = true
		return true, wrong
	}
	*p = process{phase: phaseDraining, again: p.again, current: true, holds: true, fresh: true}
	return true, wrong
}

// record is [drain.record].
func (m model) record(s *state, p *process, isLost bool) (isPossible bool, wrong string) {
	if !p.isBusy(slotSucceeded) {
		return false, ""
	}
	if !p.current && m.mistake != recordsAnyNumber {
		p.stopped = true
	}
	isGone := false
	for e := range p.slots {
		one, to := &p.slots[e], &s.rows[e]
		if one.state < slotSucceeded {
			continue
		}
		if (p.current || m.mistake == recordsAnyNumber) && to.status == rowPending && (to.attempts == one.attempts || m.mistake == recordsTwice) {
			switch {
			case !p.holds:
				wrong = "a process records without the lease"
			case one.recorded:
				wrong = "a process records a result twice"
			}
			isGone = isGone || one.state == slotGone
			*to = m.recorded(*to, *one)
			if one.recorded = true; one.state == slotFailed && to.status == rowFailed && to.attempts < maxAttempts {
				wrong = "a delivery fails before its last attempt"
			}
		}
		if !isLost || !p.current {
			*one = slot{}
		}
	}
	switch {
	case p.stopped && !p.current: // it has recorded nothing
	case !s.enabled:
		p.stopped = true
	case isGone:
		p.stopped = true
		m.disable(s)
	}
	return true, wrong
}

// statuses are the HTTP statuses of results.
var statuses = map[slotState]int{slotSucceeded: http.StatusOK, slotFailed: http.StatusBadGateway, slotGone: http.StatusGone}

// recorded returns a delivery after the result of an attempt.
func (m model) recorded(r row, one slot) row {
	result := result{delivery: delivery{attempts: int(one.attempts)}, httpStatus: statuses[one.state]}
	r.attempts++
	r.due = false
	switch r.status = rowPending; {
	case result.status() == "delivered":
		r.status = rowDelivered
	case result.isFinal() || m.mistake == forgetsRetries:
		r.status = rowFailed
	}
	return r
}

// release is [drain.release].
func (m model) release(s *state, p *process, isLost bool) (isPossible bool, wrong string) {
	if p.phase != phaseReleasing {
		return false, ""
	}
	hadRest := p.rest
	p.rest = false
	if p.current || m.mistake == releasesAnyNumber {
		s.lease = leaseNone
		switch m.mistake {
		case looksNot:
		case looksBeforeRelease:
			p.rest = hadRest
		default:
			p.rest = s.enabled && s.hasDue()
		}
	}
	if !isLost {
		p.phase = phaseReleased
	}
	return true, ""
}

// forget forgets what makes no difference any more, so that there are fewer states.
func (s *state) forget() {
	for i := range s.processes {
		switch p := &s.processes[i]; {
		case p.phase >= phaseReleasing:
			p.fresh, p.stopped, p.target, p.read = false, false, false, false
		case p.stopped:
			p.fresh, p.target, p.read = false, false, false
		}
	}
	for e, r := range s.rows {
		s.owed[e] = s.owed[e] || r.rows > 0
		s.accepted[e] = s.accepted[e] || r.rows > 0 && r.status == rowFailed
	}
}

// wrong returns what is wrong with a state.
func (s *state) wrong() string {
	var fresh int
	isDraining, isStarted := false, false
	for i := range s.processes {
		p := &s.processes[i]
		isDraining = isDraining || p.current && (p.phase == phaseDraining || p.phase == phaseReleasing)
		isStarted = isStarted || p.phase == phaseWoken || p.again || p.phase == phaseReleasing || p.phase == phaseReleased && p.rest
		if p.fresh && p.phase == phaseDraining {
			fresh++
		}
	}
	for e, r := range s.rows {
		switch {
		case r.rows > 1:
			return "an event has two deliveries"
		case r.attempts > maxAttempts:
			return "a delivery has too many attempts"
		case r.rows > 0 && r.status == rowDelivered && !s.accepted[e]:
			return "a delivery counts as delivered that nobody has accepted"
		case r.rows == 0 && s.owed[e] && int8(e) < s.after:
			return "an event has no delivery"
		}
	}
	switch {
	case fresh > 1:
		return "two processes have a valid lease"
	case s.lease == leaseValid && !isDraining && !s.isOrphan:
		return "nobody has the valid lease"
	case s.enabled && s.lease == leaseNone && s.hasDue() && !isStarted && !s.needsSweep:
		return "nobody sends a delivery that is due"
	}
	return ""
}

// forgotten returns which event is not delivered when nothing more happens.
func (s *state) forgotten() string {
	for e, isOwed := range s.owed {
		if r := s.rows[e]; isOwed && (r.rows == 0 || s.enabled && r.status == rowPending) {
			return fmt.Sprintf("event %d is never delivered", e+1)
		}
	}
	return ""
}

// search is a search of all states.
type search struct {
	model
	*explore.Search[state, step]
}

// search looks at all states, until it finds a mistake.
func (m model) search() search {
	steps := m.steps()
	all := search{m, explore.All(state{stored: stored{enabled: true, until: noUntil}}, func(before state, try func(step, state, string)) {
		for _, t := range steps {
			after := before
			isPossible, wrong := m.take(&after, t)
			if !isPossible {
				continue
			}
			if after.forget(); after == before && wrong == "" {
				continue
			}
			if wrong == "" {
				wrong = after.wrong()
			}
			try(t, after, wrong)
		}
	})}
	usual := m.usual()
	for p := range m.processes {
		finished := map[state]int{} // the states from which the rest is done
		for at := 0; at < len(all.States) && all.Mistake == ""; at++ {
			if wrong := m.finish(all.States[at], at+1, p, usual, finished); wrong != "" {
				all.Mistake = all.Trace(at, step{what: stepFinish, process: p}) + wrong
			}
		}
	}
	return all
}

// searched returns the searches of the models, or only of the smallest one.
var searched = sync.OnceValue(func() (all []search) {
	for _, m := range models {
		if all = append(all, m.search()); testing.Short() {
			break
		}
	}
	return all
})

// usual returns the steps of a process that does not fail, the most urgent first.
func (m model) usual() []step {
	usual := []step{{what: stepRecord}}
	for e := range m.events {
		usual = append(usual, step{what: stepResult, event: e, result: slotSucceeded}, step{what: stepSend, event: e}, step{what: stepDrop, event: e})
	}
	for _, what := range []stepKind{stepTarget, stepRead, stepListen, stepRelease, stepForget, stepClaim, stepDispatch, stepSweep, stepLease} {
		usual = append(usual, step{what: what})
	}
	return usual
}

// finish lets one process go on without failures, while all others are frozen. It ends when nothing
// more happens, or in a state that an earlier call has seen, and returns what is wrong then. The
// number of the call is above 0.
func (m model) finish(s state, number, alone int, usual []step, finished map[state]int) string {
	for {
		switch by := finished[s]; {
		case by == number:
			return "the process never stops"
		case by > 0:
			return ""
		}
		finished[s] = number
		goesOn := false
		for _, t := range usual {
			t.process = alone
			after := s
			if isPossible, _ := m.take(&after, t); !isPossible {
				continue
			}
			if after.forget(); after != s {
				s, goesOn = after, true
				break
			}
		}
		if !goesOn {
			return s.forgotten()
		}
	}
}

// models are small enough to look at all their states.
var models = []model{
	{processes: 2, events: 1},
	{processes: 2, events: 2, isSound: true},
	{processes: 3, events: 1, isSound: true},
}

// modelMistakes are the mistakes that a search finds.
var modelMistakes = []string{
	claimsValidLease, claimsNoExpired, claimsSameNumber, claimsDisabled, renewsAnyNumber, renewsReleased, recordsAnyNumber,
	recordsTwice, releasesAnyNumber, looksBeforeRelease, looksNot, listensLate, sendsAfterLease, measuresFromResponse,
	readsAnyTarget, dispatchesUnlocked, movesFirst, wakesNobody, disablesWithoutEnd, forgetsRetries,
}

// TestLeases looks at all interleavings of the steps of two and three processes. Any of them
// can die or freeze at any time, and any COMMIT can be lost. It finds every planted mistake.
func TestLeases(t *testing.T) {
	t.Parallel()
	for _, found := range searched() {
		t.Logf("%d processes, %d events: %d states, %d steps", found.processes, found.events, len(found.States), found.Steps)
		if found.Mistake != "" {
			t.Error(found.Mistake)
		}
	}
	for _, mistake := range modelMistakes {
		how := ""
		for _, m := range models {
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
