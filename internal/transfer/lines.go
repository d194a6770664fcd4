package transfer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"unicode/utf8"
)

// maxRow is the maximum number of bytes of a row. A body of the API has at most 64 KiB.
const maxRow = 1 << 20

// lines reads the lines of a file, which may be compressed. It checks that they are text.
type lines struct {
	file   *os.File
	in     *bufio.Reader
	number int64     // of the last line
	digest hash.Hash // of all lines; nil: nobody needs it
	rest   []byte    // of the last line, for Read
	spare  int       // the bytes that Read may return before the next call of fresh
}

// errChanged means that a file is not the one of which [Source] has the digest.
var errChanged = errors.New("the file has changed during the import")

// unchanged reads a file, and returns [errChanged] instead of the content that another program writes.
type unchanged struct {
	file *os.File
	info os.FileInfo // nil: nobody else writes it
	err  error       // bufio may forget it
}

// Read implements [io.Reader].
func (u *unchanged) Read(into []byte) (int, error) {
	n, err := u.file.Read(into)
	if u.info == nil {
		return n, err
	}
	opened, errOpened := u.file.Stat()
	named, errNamed := os.Stat(u.file.Name())
	if errOpened != nil || errNamed != nil || !isSame(u.info, opened) || !isSame(u.info, named) {
		u.err = errChanged
	}
	if u.err != nil {
		return 0, u.err
	}
	return n, err
}

// isSame reports whether a file is the same as before.
func isSame(before, now os.FileInfo) bool {
	return os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime())
}

// openLines opens a file, which must be as before unless that is nil.
func openLines(path string, before os.FileInfo) (*lines, error) {
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, err
	}
	l := &lines{file: file, in: bufio.NewReaderSize(&unchanged{file: file, info: before}, maxRow)}
	if magic, _ := l.in.Peek(2); string(magic) == "\x1f\x8b" {
		unpacked, err := gzip.NewReader(l.in)
		if err != nil {
			l.file.Close()
			return nil, l.explain(err)
		}
		l.in = bufio.NewReaderSize(unpacked, maxRow)
	}
	const byteOrderMark = "\ufeff"
	if mark, _ := l.in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = l.in.Discard(len(byteOrderMark)) // they are in the buffer
	}
	return l, nil
}

// errAt is a mistake that ends the reading of a file.
func errAt(line int64, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...))
}

// explain returns an error of a compressed file as a mistake.
func (l *lines) explain(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errAt(l.number+1, "the gzip data ends early; copy the whole file again")
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		return errAt(l.number+1, "the gzip data is damaged; copy the file again")
	default:
		return err
	}
}

// next returns the next line with its end. The next call invalidates it.
func (l *lines) next() ([]byte, error) {
	text, err := l.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, errAt(l.number+1, "the line has more than %d bytes; is it text with one row in each line?", maxRow)
	case errors.Is(err, io.EOF) && len(text) > 0:
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		l.number += int64(min(len(text), 1)) // a part of the next line
		return nil, l.explain(err)
	}
	l.number++
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")), bytes.IndexByte(text, 0) >= 0:
		return nil, errAt(l.number, "there is a NUL byte, or the text is UTF-16; save the file as UTF-8")
	case !utf8.Valid(text):
		return nil, errAt(l.number, "the text is not UTF-8; save the file as UTF-8")
	}
	if l.digest != nil {
		l.digest.Write(text)
	}
	return text, nil
}

// fresh begins a row for Read.
func (l *lines) fresh() { l.spare = maxRow }

// Read implements [io.Reader]. It returns an error if a row is too long.
func (l *lines) Read(into []byte) (n int, err error) {
	if len(l.rest) == 0 {
		if l.rest, err = l.next(); err != nil {
			return 0, err
		}
	}
	n = copy(into, l.rest)
	l.rest = l.rest[n:]
	if l.spare -= n; l.spare < 0 {
		return 0, errAt(l.number, "the row has more than %d bytes; is a quote missing?", maxRow)
	}
	return n, nil
}
