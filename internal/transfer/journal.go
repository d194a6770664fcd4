package transfer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// keysLast is less than the time for which the server knows an Idempotency-Key.
const keysLast = 23 * time.Hour

// Account is the account of an API key.
type Account struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"createdAt"` // two servers may have the same ids
	APIKey    struct {
		ID int64 `json:"id"`
	} `json:"apiKey"`
}

// journal is a file beside an imported file. It has the id that each row got, so that an import
// continues where it ended. The first line is a [header]. These lines follow:
//
//	>LINE UNIX KEY   the row is on its way since a time, with the id of an API key
//	LINE ID HASH     the server has accepted the row
//	LINE -           the row must be sent: the server has refused it, or its stock must be set again
//	LINE settled     the stock of a pet of an archive is final
//
// A row on its way without a later line about its end is in doubt: nobody knows whether the server has it.
type journal struct {
	header

	path  string
	keyID int64 // of the API key of this import

	mu      sync.Mutex
	file    *os.File
	failed  error           // of the first write that failed
	rows    []accepted      // by line, of an earlier import
	begun   map[int64]begun // in doubt, of an earlier import
	settled map[int64]bool
}

// begun is a row in doubt.
type begun struct {
	at    time.Time // of the first request, because the server counts from there
	keyID int64     // 0: of several API keys
}

// accepted is a row that the server has accepted. The zero value is one that it has not.
type accepted struct {
	id   int64 // may be unknownID
	hash uint64
}

// unknownID is the id of a row that was in doubt, and that the server has in some form.
const unknownID = -1

type header struct {
	Digest string `json:"digest"`
	// Salt makes the idempotency keys of an import that is repeated on purpose differ.
	Salt string `json:"salt,omitempty"`
	// End is the newest event before the import.
	End string `json:"end,omitempty"`
}

// openJournal reads the journal of a file, or creates it if there is none. isNew forgets the old one.
func openJournal(file string, of Account, h header, isNew bool, wasReset func(after string) (end string, is bool, err error)) (*journal, error) {
	path := fmt.Sprintf("%s.%s-%s.journal", file, of.ID, strconv.FormatInt(of.CreatedAt.UnixMicro(), 36))
	j := &journal{path: path, keyID: of.APIKey.ID, begun: map[int64]begun{}, settled: map[int64]bool{}}
	err := j.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	end, isReset, failed := wasReset(j.End)
	h.End = end
	switch {
	case failed != nil:
		return nil, failed
	case isNew && !isReset && len(j.begun) > 0:
		return nil, errors.New("the import before was interrupted when " + onTheirWay(slices.Sorted(maps.Keys(j.begun))))
	case err == nil && !isNew:
		j.End = end
		j.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0) //nolint:gosec // the user names the file
		return j, err
	}
	j.header, j.rows, j.begun, j.settled = h, nil, map[int64]begun{}, map[int64]bool{}
	if err := j.create(); err != nil {
		return nil, err
	}
	return j, j.replace()
}

// create begins a new journal beside the old one.
func (j *journal) create() (err error) {
	if j.file, err = os.OpenFile(j.path+".new", os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	text, err := json.Marshal(j.header)
	if err == nil {
		_, err = j.file.Write(append(text, '\n'))
	}
	return err
}

// replace replaces the old journal by the new one.
func (j *journal) replace() error { return os.Rename(j.path+".new", j.path) }

// read reads the journal. It removes a last line that was not written whole.
func (j *journal) read() error {
	file, err := os.OpenFile(j.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	in, size := bufio.NewReader(file), int64(0)
	for first := true; ; first = false {
		text, err := in.ReadBytes('\n')
		isEnd := errors.Is(err, io.EOF) // maybe after a part of a line
		switch {
		case isEnd && !first && size < info.Size():
			return file.Truncate(size)
		case isEnd && !first:
			return nil
		case err != nil && !isEnd:
			return err
		}
		size += int64(len(text))
		text = bytes.TrimSuffix(text, []byte("\n"))
		if first {
			err = errors.Join(err, json.Unmarshal(text, &j.header))
		} else {
			err = j.readLine(string(text))
		}
		if err != nil {
			return fmt.Errorf("%s is not a journal of an import; move it away", j.path)
		}
	}
}

// readLine reads a line after the header.
func (j *journal) readLine(text string) error {
	first, rest, _ := strings.Cut(strings.TrimPrefix(text, ">"), " ")
	one, two, _ := strings.Cut(rest, " ")
	var failed [2]error
	line, err := strconv.ParseInt(first, 10, 64)
	before, isRepeated := j.begun[line]
	delete(j.begun, line)
	switch {
	case strings.HasPrefix(text, ">"):
		var row begun
		var at int64
		at, failed[0] = strconv.ParseInt(one, 10, 64)
		row.keyID, failed[1] = strconv.ParseInt(two, 10, 64)
		row.at = time.Unix(at, 0)
		if isRepeated && row.keyID != before.keyID {
			row.keyID = 0
		}
		if isRepeated {
			row.at = before.at
		}
		j.begun[line] = row
		err = errors.Join(err, failed[0], failed[1])
	case rest == "-":
		if line > 0 && line < int64(len(j.rows)) {
			j.rows[line] = accepted{}
		}
		delete(j.settled, line)
	case rest == "settled":
		j.settled[line] = true
	default:
		var row accepted
		row.id, failed[0] = strconv.ParseInt(one, 10, 64)
		row.hash, failed[1] = strconv.ParseUint(two, 16, 64)
		if err = errors.Join(err, failed[0], failed[1]); err == nil && line > 0 {
			j.rows = append(j.rows, make([]accepted, max(line+1-int64(len(j.rows)), 0))...)
			j.rows[line] = row
		}
	}
	return err
}

// adopt makes the journal of an earlier version of a file the one of the present version. A row that was
// imported has the same content, maybe in another line. The journal changes after finish, or not at all.
func (j *journal) adopt(ctx context.Context, present *Source, finish func() error) error {
	ids, settled := map[uint64][]int64{}, map[uint64]bool{} // by hash
	for line, row := range j.rows {
		if row.id != 0 {
			ids[row.hash] = append(ids[row.hash], row.id)
		}
		if j.settled[int64(line)] {
			settled[row.hash] = true
		}
	}
	old := j.file
	defer old.Close()
	j.Digest, j.rows, j.settled = present.digest, nil, map[int64]bool{}
	if err := j.create(); err != nil {
		return err
	}
	err := present.each(ctx, func(r *row) error {
		if len(r.failure) > 0 { // it was not imported
			return nil
		}
		hash := r.hash()
		same := ids[hash]
		if len(same) == 0 {
			return nil
		}
		ids[hash] = same[1:]
		err := j.note(formatDone(r.line, same[0], hash))
		if settled[hash] {
			err = errors.Join(err, j.note(formatSettled(r.line)))
		}
		return err
	})
	if err == nil {
		err = finish()
	}
	if err != nil {
		return err
	}
	return j.replace()
}

// note adds a line and reads it, as if an earlier import had written it.
func (j *journal) note(text []byte) error {
	return errors.Join(j.readLine(strings.TrimSpace(string(text))), j.write(text))
}

// unrecognized returns the lines of the rows in doubt that the server may not recognize, and why. The resource
// is nil for an archive.
func (j *journal) unrecognized(of *Resource) (lines []int64, why string) {
	for line, row := range j.begun {
		age := time.Since(row.at)
		switch {
		case of == inventory: // orders may have taken units since
			why = "requests that set stock have no Idempotency-Key"
		case row.keyID != j.keyID:
			why = "the API key is another one"
		case age > keysLast, age < -time.Minute: // the clock was ahead, so the row may be older
			why = cmp.Or(why, "more than 23 hours have passed, or the clock of this machine has changed")
		default:
			continue
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines, why
}

// known returns the id that a row got in an earlier import, or 0.
func (j *journal) known(line int64) int64 {
	if line < int64(len(j.rows)) {
		return j.rows[line].id
	}
	return 0
}

// write adds a line with one system call, so that a kill leaves it whole. After an error, it only returns
// that error, because a line that was cut off must stay the last one.
func (j *journal) write(text []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		_, j.failed = j.file.Write(text)
	}
	return j.failed
}

func (j *journal) begin(line int64) error {
	return j.write(fmt.Appendf(nil, ">%d %d %d\n", line, time.Now().Unix(), j.keyID))
}

func formatDone(line, id int64, hash uint64) []byte {
	return fmt.Appendf(nil, "%d %d %016x\n", line, id, hash)
}

func formatFailed(line int64) []byte { return fmt.Appendf(nil, "%d -\n", line) }

func formatSettled(line int64) []byte { return fmt.Appendf(nil, "%d settled\n", line) }
