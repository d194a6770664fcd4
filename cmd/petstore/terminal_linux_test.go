package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// openTerminal opens a pseudo-terminal. The program reads from terminal what the
// test writes to keyboard.
func openTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard = need.Value(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	t.Cleanup(func() { keyboard.Close() })
	fd := int(keyboard.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	need.OK(t, errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)))
	terminal = need.Value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	return keyboard, terminal
}

// TestAsks: on a terminal, only the reply yes deletes a sandbox or an account, or reverts a migration.
func TestAsks(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	serving := []string{"PETSTORE_ADMIN_ADDR=off", "DATABASE_URL=" + database.URL}
	owner := []string{"PETSTORE_ADMIN_ADDR=off", "DATABASE_URL=" + database.OwnerURL}
	must(t, serving, "account", "create", "acme")
	for _, test := range []struct {
		environ                 []string
		command, question, list string // question is a pattern
		did                     string
	}{
		{serving, "account delete acme", `Delete the account "acme" with its store, its keys and its sandboxes`, "account list", "deleted"},
		{owner, "migrate down", "Revert 000.* in the database petstore_.*", "migrate version", "reverted"},
	} {
		question := regexp.MustCompile("^" + test.question + `\? \[y/N\] $`)
		before := must(t, test.environ, strings.Fields(test.list)...)
		for _, reply := range []string{"\n", "n\n", "what?\n", "y\n"} {
			keyboard, terminal := openTerminal(t)
			need.Value(keyboard.WriteString(reply))(t)
			var asked bytes.Buffer
			p := &program{environ: test.environ, dir: t.TempDir(), stdin: terminal, stdout: io.Discard, stderr: &asked}
			err := run(t.Context(), strings.Fields(test.command), p)
			if !question.Match(asked.Bytes()) {
				t.Errorf("%s: the prompt is %q, want %q", test.command, &asked, test.question)
			}
			after := must(t, test.environ, strings.Fields(test.list)...)
			switch {
			case reply == "y\n" && (err != nil || after == before):
				t.Errorf("%s after a yes: %v, and %s prints\n%s", test.command, err, test.list, after)
			case reply != "y\n" && (err == nil || err.Error() != "nothing was "+test.did+", because the reply was not yes" || after != before):
				t.Errorf("%s after %q: %v, and %s prints\n%s", test.command, reply, err, test.list, after)
			}
		}
	}
}

// TestSeedShowsProgress checks that seed prints its progress on a terminal, in one line
// that it clears at the end.
func TestSeedShowsProgress(t *testing.T) {
	t.Parallel()
	environ := []string{"PETSTORE_ADMIN_ADDR=off", "DATABASE_URL=" + pgtest.New(t).OwnerURL}
	screen, terminal := openTerminal(t)
	need.OK(t, run(t.Context(), []string{"seed", "--pets", "1000"}, &program{environ: environ, dir: emptyDir, stdout: io.Discard, stderr: terminal}))
	printed := readAll(t, screen, terminal)
	if !strings.HasPrefix(printed, clearLine+cutLine+"seeding: 12 of 30") || !strings.HasSuffix(printed, " rows"+wrapLine+clearLine) || strings.Contains(printed, "\n") {
		t.Errorf("seed printed %q on the terminal, want its progress in one line", printed)
	}
}

// TestImportShowsProgress checks that import prints its progress on a terminal, and clears it.
func TestImportShowsProgress(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	path := s.file("categories.csv", "name\na\n")
	s.load(path)
	s.file("categories.csv", "name\na\nb\nc\n")
	screen, terminal := openTerminal(t)
	need.OK(t, run(t.Context(), []string{"import", path, "--connections", "1"}, &program{environ: s.environ, dir: emptyDir, stdout: io.Discard, stderr: terminal}))
	printed := readAll(t, screen, terminal)
	if !strings.HasPrefix(printed, clearLine+cutLine+"importing: 2 of 3 rows, ") || !strings.HasSuffix(printed, "s left"+wrapLine+clearLine) {
		t.Errorf("import printed %q on the terminal", printed)
	}
}

// TestAPIIndents: api indents JSON on a terminal, and escapes what a terminal may obey.
func TestAPIIndents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	screen, terminal := openTerminal(t)
	need.OK(t, run(t.Context(), []string{"api", "POST", "/categories", "name=Dogs", "description=\x7f\u009b2Jé"}, &program{environ: s.environ, dir: emptyDir, stdout: terminal, stderr: io.Discard}))
	if printed := readUntil(t, screen, "}"); !strings.HasPrefix(printed, "{\r\n  \"id\": 1001,\r\n  ") || !strings.Contains(printed, `": "\u007f\u009b2Jé"`) {
		t.Errorf("api printed %q on the terminal", printed)
	}
}

// readUntil reads what a program prints on a terminal, up to a text.
func readUntil(t *testing.T, screen *os.File, end string) (printed string) {
	t.Helper()
	for !strings.Contains(printed, end) {
		text := make([]byte, 4096)
		n := need.Value(screen.Read(text))(t)
		printed += string(text[:n])
	}
	return printed
}

// readAll reads what a program that has ended has printed on a terminal.
func readAll(t *testing.T, screen, terminal *os.File) string {
	t.Helper()
	const end = "the end"
	need.Value(terminal.WriteString(end))(t)
	return strings.TrimSuffix(readUntil(t, screen, end), end)
}

// TestInterruptedSeed: seed clears its progress also if it is interrupted.
func TestInterruptedSeed(t *testing.T) {
	t.Parallel()
	environ := []string{"PETSTORE_ADMIN_ADDR=off", "DATABASE_URL=" + pgtest.New(t).OwnerURL}
	screen, terminal := openTerminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"seed", "--pets", "100000"}, &program{environ: environ, dir: emptyDir, stdout: io.Discard, stderr: terminal})
	}()
	readUntil(t, screen, "seeding: ")
	cancel()
	if err := <-ended; err == nil || err.Error() != "interrupted" {
		t.Errorf("seed ends with %v", err)
	}
	if printed := readAll(t, screen, terminal); !strings.HasSuffix(printed, clearLine) {
		t.Errorf("seed printed %q", printed)
	}
}
