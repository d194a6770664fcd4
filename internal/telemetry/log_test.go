package telemetry_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"

	"petstore/internal/telemetry"
)

// writes is a writer that sends each write to a channel.
type writes chan string

func (w writes) Write(lines []byte) (int, error) {
	w <- string(lines)
	return len(lines), nil
}

// TestLoggerWritesManyLinesAtATime: lines wait for others, but nobody needs to flush them.
func TestLoggerWritesManyLinesAtATime(t *testing.T) {
	t.Parallel()
	const lines = 5000
	written := make(writes, lines)
	log, flush := telemetry.NewLogger(written, slog.LevelInfo, telemetry.JSON)
	log = log.With("a", 1).WithGroup("g")
	for i := range lines {
		log.Info("line", "i", i)
	}
	flush()
	flush() // writes nothing
	count := len(written)
	if count > lines/100 {
		t.Errorf("%d lines were written %d times", lines, count)
	}
	all := ""
	for range count {
		all += <-written
	}
	if got := strings.Count(all, "\n"); got != lines || !strings.HasSuffix(all, `"msg":"line","a":1,"g":{"i":4999}}`+"\n") {
		t.Errorf("%d lines were written, want %d; the end is %q", got, lines, all[max(0, len(all)-200):])
	}

	for n := range 2 {
		log.Info("another line", slog.Int("n", n))
		if line := <-written; !strings.Contains(line, fmt.Sprintf(`"n":%d}`, n)) { // without a call of flush
			t.Errorf("the logger wrote %q, want line %d", line, n)
		}
	}
}

// TestLoggerWritesWarningsAtOnce: a warning is written before the call returns, after the
// lines before it.
func TestLoggerWritesWarningsAtOnce(t *testing.T) {
	t.Parallel()
	for _, format := range []string{telemetry.JSON, telemetry.Text} {
		written := make(writes, 10)
		log, _ := telemetry.NewLogger(written, slog.LevelInfo, format)
		log.Info("one")
		log.With("a", 1).Warn("two")
		log.Debug("hidden")
		log.Error("three")
		close(written)
		var all bytes.Buffer
		for lines := range written {
			all.WriteString(lines)
		}
		one, two, three := strings.Index(all.String(), "one"), strings.Index(all.String(), "two"), strings.Index(all.String(), "three")
		if one < 0 || two < one || three < two || strings.Contains(all.String(), "hidden") {
			t.Errorf("%s: a logger of level INFO wrote:\n%s", format, &all)
		}
	}
}

// TestLoggerWithoutReader: while nobody reads the log, it holds up nobody for long, and drops what does
// not fit. It says so to the next reader.
func TestLoggerWithoutReader(t *testing.T) {
	t.Parallel()
	const lines = 20_000
	reader, writer := io.Pipe()
	log, flush := telemetry.NewLogger(writer, slog.LevelInfo, telemetry.JSON)
	for range lines {
		log.Info("line", "text", strings.Repeat("x", 100))
		log.Warn("warning")
	}
	flush()

	input := bufio.NewScanner(reader)
	for read := 0; input.Scan(); read++ {
		var line struct {
			Msg   string
			Lines int
		}
		if err := json.Unmarshal(input.Bytes(), &line); err != nil {
			t.Fatalf("the log has the line %q: %v", input.Bytes(), err)
		}
		if line.Lines > 0 {
			if read < 5000 || read+line.Lines != 2*lines {
				t.Errorf("the log lacks %d lines after %d", line.Lines, read)
			}
			return
		}
	}
}

// fullDisk takes a number of bytes before an error, and all after that.
type fullDisk struct {
	bytes.Buffer

	room int
}

func (d *fullDisk) Write(text []byte) (int, error) {
	if room := d.room; room < len(text) {
		d.room = math.MaxInt
		d.Buffer.Write(text[:room])
		return room, io.ErrShortWrite
	}
	return d.Buffer.Write(text)
}

// TestLoggerOnFullDisk: the log says how many lines an error has cost, and the lines after it are whole.
func TestLoggerOnFullDisk(t *testing.T) {
	t.Parallel()
	disk := &fullDisk{room: 20}
	log, flush := telemetry.NewLogger(disk, slog.LevelInfo, telemetry.JSON)
	log.Warn("one")
	log.Warn("two")
	flush()
	lines := strings.Split(strings.TrimSpace(disk.String()), "\n")
	if len(lines) != 3 || !json.Valid([]byte(lines[1])) || !strings.Contains(lines[1], "two") || !strings.Contains(lines[2], `"lines":1`) {
		t.Errorf("the log has %q", lines)
	}
}
