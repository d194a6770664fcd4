package transfer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Request is a request to the API.
type Request struct {
	Method, Path string
	Body         []byte    // nil: none
	Key          string    // Idempotency-Key; "": none
	Until        time.Time // of the wall clock, after which the request must not be sent; zero: none
}

// Sender sends a request until the response is not temporary. The error says that there is none, or
// that it does not tell the result of an earlier attempt.
type Sender func(context.Context, Request) (status int, body []byte, err error)

// WasReset reports whether the store was reset after an event, and returns the end of its feed. With "", it only
// returns that.
type WasReset func(ctx context.Context, after string) (end string, is bool, err error)

// Import imports a file into the store of an account.
type Import struct {
	Source           *Source
	Send             Sender
	WasReset         WasReset
	Account          Account
	Dir              string // of the journal of stdin
	Connections      int
	CreateCategories bool
	// Again imports the file once more, although a journal says that it was imported.
	Again bool
	// InDoubt is "send" or "skip" for rows of which nobody knows whether the server has them. With "",
	// these rows are an error.
	InDoubt string
	// Failed gets the mistakes of a row. Calls do not overlap.
	Failed func(RowErrors)
	// Progress gets the summary after each row that has ended. Calls do not overlap; nil: nobody needs it.
	Progress func(Summary)
}

// Summary counts the rows of a file.
type Summary struct {
	File     string `json:"file"`
	Rows     int64  `json:"rows"`
	Imported int64  `json:"imported"` // by this import
	Before   int64  `json:"importedBefore"`
	Failed   int64  `json:"failed"`
}

// grace is the time for the responses to requests in progress after an import is interrupted.
const grace = 10 * time.Second

// run is an import in progress.
type run struct {
	*Import

	journal *journal
	stop    context.CancelCauseFunc // ends the import with an error
	final   bool                    // whether the stock of an archive becomes final

	reporting sync.Mutex
	summary   Summary

	mu         sync.Mutex
	mapped     map[*Resource]map[int64]int64 // new ids by the ids of an archive
	categories map[string]int64              // by the key of the name; 0: there is none
	refused    map[int64]bool                // lines of an inventory
	lacking    []int64                       // lines of rows in doubt whose category is missing
}

// Run imports the rows that are not imported yet. The error is nil if rows have failed, and ctx.Err if
// ctx has ended. After each error but [ChoiceError], another Run continues. If the file has changed,
// it needs a new [Source].
func (i *Import) Run(ctx context.Context) (Summary, error) {
	r := &run{Import: i, mapped: map[*Resource]map[int64]int64{categories: {}, pets: {}}, categories: map[string]int64{}, refused: map[int64]bool{}}
	r.summary = Summary{File: i.Source.Name, Rows: i.Source.Rows}
	if err := r.open(ctx); err != nil {
		return r.summary, err
	}
	defer r.journal.file.Close()
	err := r.pass(ctx)
	if err == nil && len(i.Source.units) > 0 {
		r.final = true
		err = r.pass(ctx)
	}
	return r.summary, err
}

// open opens the journal and decides about the rows in doubt.
func (r *run) open(ctx context.Context) error {
	name := r.Source.Name
	if r.Source.IsCopy() {
		name = filepath.Join(r.Dir, "stdin."+r.Source.digest[:12])
	}
	h := header{Digest: r.Source.digest}
	if r.Again {
		h.Salt = rand.Text()
	}
	wasReset := func(after string) (end string, is bool, err error) {
		if end, is, err = r.WasReset(ctx, after); is && !r.Again {
			err = &ChoiceError{fmt.Sprintf("the store was reset, or restored from a backup, since the import of %s; if its rows are not in the store, add --again", r.Source.Name)}
		}
		return end, is, err
	}
	var err error
	if r.journal, err = openJournal(name, r.Account, h, r.Again, wasReset); err != nil {
		return err
	}
	j := r.journal
	switch {
	case j.Digest == h.Digest:
		if err = r.decide(ctx); err == nil {
			err = r.restock(ctx, false)
		}
		return err
	case len(j.begun) > 0:
		return &ChoiceError{fmt.Sprintf("%s has changed since its import was interrupted, when %s; undo the changes, import the file, then change and import it again", r.Source.Name, onTheirWay(slices.Sorted(maps.Keys(j.begun))))}
	default:
		return j.adopt(ctx, r.Source, func() error { return r.restock(ctx, true) })
	}
}

// restock forgets rows of the inventory of an archive, so that they are sent again: the stock of pets that
// are new or have new orders, unless an import of the same file has set it for these orders.
func (r *run) restock(ctx context.Context, isChanged bool) error {
	if r.Source.Resource != nil || !isChanged && len(r.journal.settled) == 0 {
		return nil
	}
	isNew := map[int64]bool{} // by the ids of pets
	err := r.Source.each(ctx, func(one *row) error {
		if r.journal.known(one.line) != 0 {
			return nil
		}
		switch one.resource {
		case pets:
			isNew[one.number("id")] = true
		case orders:
			isNew[one.number("petId")] = true
		}
		return nil
	})
	if err != nil || len(isNew) == 0 {
		return err
	}
	return r.Source.each(ctx, func(one *row) error {
		isDone := one.resource == inventory && r.journal.known(one.line) != 0
		if isDone && isNew[one.number("petId")] && (isChanged || r.journal.settled[one.line]) {
			return r.journal.note(formatFailed(one.line))
		}
		return nil
	})
}

// decide skips the rows in doubt that the server may not recognize, or returns an error, if they must not be sent.
func (r *run) decide(ctx context.Context) error {
	lines, why := r.journal.unrecognized(r.Source.Resource)
	switch {
	case len(lines) == 0 || r.InDoubt == "send":
		return nil
	case r.InDoubt == "skip":
		return r.Source.each(ctx, func(one *row) error {
			if !slices.Contains(lines, one.line) {
				return nil
			}
			return r.journal.note(formatDone(one.line, unknownID, one.hash()))
		})
	default:
		return r.choice(lines, why)
	}
}

// choice returns the error for rows in doubt that import cannot send.
func (r *run) choice(lines []int64, why string) error {
	return &ChoiceError{fmt.Sprintf("the import of %s was interrupted when %s, and now the server may not recognize them, because %s; look whether they are in the store, then add --in-doubt skip or --in-doubt send", r.Source.Name, onTheirWay(lines), why)}
}

// ChoiceError says that the same import would fail again, and what to do instead.
type ChoiceError struct{ text string }

func (e *ChoiceError) Error() string { return e.text }

// onTheirWay lists lines.
func onTheirWay(lines []int64) string {
	const most = 40
	text := strings.Trim(fmt.Sprint(lines[:min(len(lines), most)]), "[]")
	if len(lines) > most {
		text += " …"
	}
	return "the rows in the lines " + text + " were on their way"
}

// turns divides the rows of a file into turns. The rows of a turn may be sent at the same time.
type turns struct {
	resource *Resource
	stocked  map[int64]bool // the pets of this turn, if the resource is inventory
}

// mostStocked bounds the memory of [turns].
const mostStocked = 10_000

// begins adds a row, and reports whether it begins a turn: the first row of a resource, and one of
// inventory for a pet that the turn already has, so that the later row counts.
func (t *turns) begins(one *row) bool {
	pet := one.number("petId")
	isFirst := one.resource != t.resource || t.stocked[pet] || len(t.stocked) == mostStocked
	if isFirst {
		t.resource = one.resource
		clear(t.stocked)
	}
	if one.resource == inventory {
		t.stocked[pet] = true
	}
	return isFirst
}

// pass sends the rows of the file that are not done, turn by turn.
func (r *run) pass(ctx context.Context) error {
	ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cut) })()
	var workers, pending sync.WaitGroup
	rows := make(chan *row)
	for range r.Connections {
		workers.Go(func() {
			for one := range rows {
				r.handle(sending, one)
				pending.Done()
			}
		})
	}
	turns := turns{stocked: map[int64]bool{}}
	err := r.Source.each(ctx, func(one *row) error {
		if turns.begins(one) {
			pending.Wait()
		}
		if context.Cause(ctx) != nil {
			return context.Cause(ctx)
		}
		one.until = time.Now().Round(0).Add(keysLast) // other clocks stand still while the machine sleeps
		var before begun
		if before, one.inDoubt = r.journal.begun[one.line]; one.inDoubt {
			if err := r.decide(ctx); err != nil { // time has passed since [run.open]
				return err
			}
			delete(r.journal.begun, one.line)
			if r.InDoubt != "send" {
				one.until = before.at.Add(keysLast)
			}
		}
		if r.isDone(one) {
			return nil
		}
		if !r.final && one.failure == nil {
			if err := r.journal.begin(one.line); err != nil {
				return err
			}
		}
		pending.Add(1)
		select {
		case rows <- one:
			return nil
		case <-ctx.Done():
			pending.Done()
			return errors.Join(context.Cause(ctx), r.unsent(one))
		}
	})
	close(rows)
	workers.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil && len(r.lacking) > 0 {
		err = r.choice(slices.Sorted(slices.Values(r.lacking)), "their category is missing")
	}
	return err
}

// isDone reports whether an earlier import has sent a row, and counts it. With the final stock, it reports
// whether nothing remains to be done, also because the pet or its stock was not imported.
func (r *run) isDone(one *row) bool {
	if r.final {
		return one.resource != inventory || r.Source.units[one.number("petId")] == 0 || r.journal.settled[one.line] || r.refused[one.line] || r.newID(pets, one.number("petId")) == 0
	}
	id := r.journal.known(one.line)
	if id != 0 {
		r.remember(one.resource, one.number("id"), id)
		r.reporting.Lock()
		r.summary.Before++
		r.reporting.Unlock()
	}
	return id != 0
}

// unsent writes down that a row that was begun was not sent. An earlier import may have sent a row in doubt.
func (r *run) unsent(one *row) error {
	if r.final || one.inDoubt {
		return nil
	}
	return r.journal.write(formatFailed(one.line))
}

// handle sends a row, and writes down the result.
func (r *run) handle(ctx context.Context, one *row) {
	var hash uint64
	var old, id int64
	var err error
	switch {
	case one.failure != nil:
		err = one.failure
	case r.final:
		if err = r.mapID(one, "petId", pets); err == nil {
			err = r.settle(ctx, one)
		}
	default:
		hash, old = one.hash(), one.number("id")
		id, err = one.resource.put(r, ctx, one)
	}
	wrong, isWrong := errors.AsType[RowErrors](err)
	_, isRefused := errors.AsType[*refusedError](err)
	switch {
	case isWrong:
		err = r.fail(one, wrong)
	case isRefused:
		err = errors.Join(err, r.unsent(one))
	case errors.Is(err, errLacking): // the others come first, so that one error lists all of them
		r.mu.Lock()
		r.lacking = append(r.lacking, one.line)
		r.mu.Unlock()
		err = nil
	case err != nil: // the row is in doubt
	case r.final:
		err = r.journal.write(formatSettled(one.line))
	default:
		r.remember(one.resource, old, id)
		count := &r.summary.Imported
		if id == unknownID {
			count = &r.summary.Before
		}
		r.reporting.Lock()
		*count++
		r.reporting.Unlock()
		err = r.journal.write(formatDone(one.line, id, hash))
	}
	switch {
	case err != nil:
		r.stop(err)
	case !r.final && r.Progress != nil:
		r.reporting.Lock()
		r.Progress(r.summary)
		r.reporting.Unlock()
	}
}

// fail reports the mistakes of a row.
func (r *run) fail(one *row, wrong RowErrors) error {
	r.reporting.Lock()
	defer r.reporting.Unlock()
	r.summary.Failed++
	if one.resource == inventory && !r.final { // the pass with the final stock reads it
		r.refused[one.line] = true
	}
	if r.Failed != nil {
		r.Failed(wrong.in(r.Source, one))
	}
	one.inDoubt = false // the server does not have it
	return r.unsent(one)
}

// key returns the Idempotency-Key of a request, from the digest of the file and the line.
func (r *run) key(of any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %v", r.journal.Digest, r.journal.Salt, of))
	return "import-" + hex.EncodeToString(sum[:16])
}

// Check reports the mistakes of the rows that the spec forbids, and sends nothing.
func (s *Source) Check(ctx context.Context, failed func(RowErrors)) (Summary, error) {
	summary := Summary{File: s.Name, Rows: s.Rows}
	err := s.each(ctx, func(one *row) error {
		s.dropIgnored(one)
		if wrong, ok := errors.AsType[RowErrors](one.validate()); ok {
			summary.Failed++
			failed(wrong.in(s, one))
		}
		return nil
	})
	return summary, s.explain(err)
}
