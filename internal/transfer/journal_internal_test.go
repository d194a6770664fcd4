package transfer

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"petstore/internal/tools/need"
)

// TestJournalOnFullDisk: after a write that failed, maybe in the middle of a line, the journal gets no more
// lines. The next import can read it.
func TestJournalOnFullDisk(t *testing.T) {
	t.Parallel()
	disk, file, err := os.Pipe()
	need.OK(t, err)
	j := &journal{file: file}
	need.OK(t, j.write(formatFailed(2)))
	need.OK(t, file.SetWriteDeadline(time.Unix(1, 0))) // the disk is full
	if err := j.write(formatFailed(3)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the write ended with %v", err)
	}
	need.OK(t, file.SetWriteDeadline(time.Time{})) // it has space again
	if err := j.write(formatFailed(4)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the next write ended with %v", err)
	}
	need.OK(t, file.Close())
	if text := need.Value(io.ReadAll(disk))(t); string(text) != "2 -\n" {
		t.Errorf("the journal is\n%s", text)
	}
}
