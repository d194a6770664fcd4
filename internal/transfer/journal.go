package transfer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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
//	>LINE          the row is on its way
//	LINE ID HASH   the server has accepted the row
//	LINE -         the server has refused the row
//	LINE settled   the stock of a pet of an archive is final
//
// A line without a second line about it is in doubt: nobody knows whether the server has it.
type journal struct {
	header

	path    string
	changed time.Time // before this import

	mu      sync.Mutex
	file    *os.File
	rows    []accepted     // by line, of an earlier import
	begun   map[int64]bool // in doubt
	settled map[int64]bool
}

// accepted is a row that the server has accepted. The zero value is one that it has not.
type accepted struct {
	id   int64 // skippedID: unknown
	hash uint64
}

// skippedID is the id of a row that was in doubt and skipped.
const skippedID = -1

type header struct {
	Digest  string  `json:"digest"`
	Account Account `json:"account"`
	// Salt makes the idempotency keys of an import that is repeated on purpose differ.
	Salt string `json:"salt,omitempty"`
}

// openJournal reads a journal, or creates it if there is none for this store. isNew forgets the old one.
func openJournal(path string, h header, isNew bool) (*journal, error) {
	j := &journal{header: h, path: path, begun: map[int64]bool{}, settled: map[int64]bool{}}
	if !isNew {
		if err := j.read(); err == nil && j.Account.ID == h.Account.ID && j.Account.CreatedAt.Equal(h.Account.CreatedAt) {
			j.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0) //nolint:gosec // the user names the file
			return j, err
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	*j = journal{header: h, path: path}
	return j, j.create(path)
}

// create writes the header of a new journal.
func (j *journal) create(path string) (err error) {
	if j.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o600); err != nil { //nolint:gosec // the user names the file
		return err
	}
	text, err := json.Marshal(j.header)
	if err == nil {
		_, err = j.file.Write(append(text, '\n'))
	}
	return err
}

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
	j.changed = info.ModTime()
	in, size := bufio.NewReader(file), int64(0)
	for first := true; ; first = false {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // maybe after a part of a line
			return file.Truncate(size)
		}
		if err != nil {
			return err
		}
		size += int64(len(text))
		text = bytes.TrimSuffix(text, []byte("\n"))
		if first {
			err = json.Unmarshal(text, &j.header)
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
	if rest, isBegun := strings.CutPrefix(text, ">"); isBegun {
		line, err := strconv.ParseInt(rest, 10, 64)
		j.begun[line] = true
		return err
	}
	first, rest, _ := strings.Cut(text, " ")
	line, err := strconv.ParseInt(first, 10, 64)
	delete(j.begun, line)
	switch rest {
	case "-":
	case "settled":
		j.settled[line] = true
	default:
		id, hash, _ := strings.Cut(rest, " ")
		var row accepted
		var failed [2]error
		row.id, failed[0] = strconv.ParseInt(id, 10, 64)
		row.hash, failed[1] = strconv.ParseUint(hash, 16, 64)
		if err = errors.Join(err, failed[0], failed[1]); err == nil && line > 0 {
			j.rows = append(j.rows, make([]accepted, max(line+1-int64(len(j.rows)), 0))...)
			j.rows[line] = row
		}
	}
	return err
}

// adopt makes the journal of an earlier version of a file the one of the present version. A row that was
// imported has the same content, maybe in another line.
func (j *journal) adopt(digest string, each func(func(*row) error) error) error {
	ids := map[uint64][]int64{} // by hash
	for _, row := range j.rows {
		if row.id != 0 {
			ids[row.hash] = append(ids[row.hash], row.id)
		}
	}
	old := j.file
	defer old.Close()
	j.Digest, j.rows, j.settled = digest, nil, map[int64]bool{}
	if err := j.create(j.path + ".new"); err != nil {
		return err
	}
	err := each(func(r *row) error {
		hash := r.hash()
		same := ids[hash]
		if len(same) == 0 {
			return nil
		}
		ids[hash] = same[1:]
		text := formatDone(r.line, same[0], hash)
		return errors.Join(j.readLine(strings.TrimSpace(string(text))), j.write(text))
	})
	if err != nil {
		return err
	}
	return os.Rename(j.path+".new", j.path)
}

// known returns the id that a row got in an earlier import, or 0.
func (j *journal) known(line int64) int64 {
	if line < int64(len(j.rows)) {
		return j.rows[line].id
	}
	return 0
}

// write adds a line with one system call, so that a kill leaves it whole.
func (j *journal) write(text []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err := j.file.Write(text)
	return err
}

func (j *journal) begin(line int64) error {
	return j.write(append(strconv.AppendInt([]byte{'>'}, line, 10), '\n'))
}

func (j *journal) done(line, id int64, hash uint64) error {
	return j.write(formatDone(line, id, hash))
}

func formatDone(line, id int64, hash uint64) []byte {
	return fmt.Appendf(nil, "%d %d %016x\n", line, id, hash)
}

func (j *journal) failed(line int64) error { return j.write(fmt.Appendf(nil, "%d -\n", line)) }

func (j *journal) settle(line int64) error { return j.write(fmt.Appendf(nil, "%d settled\n", line)) }
