package pgtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The keeper of a run is a process that owns its server. It is the test binary
// of the first package that wanted a server, started again; unlike that one it
// lives until the run has ended, in whatever way.

const (
	// keeperEnv makes a process that imports this package a keeper; it holds
	// the run as JSON.
	keeperEnv = "PETSTORE_PGTEST_KEEPER"
	// readyLine follows the lines for people once the answer is written.
	readyLine = "."

	watchInterval = 250 * time.Millisecond
)

// Why a keeper ends.
var (
	errRunEnded    = errors.New("the run has ended")
	errServerEnded = errors.New("the server has ended")
)

func init() { //nolint:gochecknoinits // the tests' main is not ours to write
	encoded, ok := os.LookupEnv(keeperEnv)
	if !ok {
		return
	}
	os.Unsetenv(keeperEnv)
	if err := keep(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// keep finds a server, answers, and ends the server after the run.
func keep(encoded string) error {
	var r run
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return err
	}
	lines := os.NewFile(3, "lines")
	lock, err := lockFile(filepath.Join(r.Dir, keeperLock), false)
	if err != nil {
		return err
	}
	defer lock.Close()
	// a keeper that was killed may have left one
	if err := os.Remove(filepath.Join(r.Dir, answerFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		r.Owner.wait(ctx)
		end(errRunEnded)
	}()

	abandoned := abandonedRuns(r)
	kept, findErr := findServer(ctx, r, abandoned, lines)
	for _, dir := range abandoned {
		os.RemoveAll(dir) // or the next run does
	}
	if findErr == nil {
		defer kept.end()
		go func() {
			select {
			case <-kept.ended:
				end(errServerEnded)
			case <-ctx.Done():
			}
		}()
		fmt.Fprintln(lines, kept.Description)
	}
	if err := writeAnswer(r, kept.server, findErr); err != nil {
		return err
	}
	fmt.Fprintln(lines, readyLine)
	lines.Close()

	<-ctx.Done()
	os.Remove(filepath.Join(r.Dir, answerFile))
	kept.end()
	if !r.Owner.running() {
		return os.RemoveAll(r.Dir)
	}
	// the run goes on: its next test starts another keeper
	return context.Cause(ctx)
}

// wait returns when the process has ended, which nothing announces to one that
// is not its parent.
func (p process) wait(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for p.running() {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// abandonedRuns are directories of runs that have ended and whose keepers were
// killed.
func abandonedRuns(current run) []string {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), runDirPrefix()+"*"))
	if err != nil {
		return nil
	}
	var abandoned []string
	for _, dir := range dirs {
		var owner process
		pid := strings.TrimPrefix(filepath.Base(dir), runDirPrefix())
		if _, err := fmt.Sscanf(pid, "%d-%s", &owner.PID, &owner.Start); err != nil || dir == current.Dir || owner.running() {
			continue
		}
		lock, err := lockFile(filepath.Join(dir, keeperLock), false)
		if err != nil {
			continue // its keeper is ending
		}
		lock.Close()
		abandoned = append(abandoned, dir)
	}
	return abandoned
}

func writeAnswer(r run, found server, findErr error) error {
	a := answer{Server: found, Keeper: os.Getpid()}
	if findErr != nil {
		a.Error = findErr.Error()
	}
	content, err := json.Marshal(a)
	if err != nil {
		return err
	}
	file := filepath.Join(r.Dir, answerFile)
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// keptServer is a server with the way to end it.
type keptServer struct {
	server
	ended <-chan struct{} // closed when it ends by itself; nil when nobody can tell
	stop  func()
}

func (k keptServer) end() {
	if k.stop != nil {
		k.stop()
	}
}

// findServer takes the first way that leads to a server, see the package
// comment. Lines for people go to lines.
func findServer(ctx context.Context, r run, abandoned []string, lines io.Writer) (keptServer, error) {
	if url := os.Getenv("PETSTORE_TEST_DATABASE_URL"); url != "" {
		kept, err := useForeign(ctx, r, url)
		if err != nil {
			return keptServer{}, fmt.Errorf("PETSTORE_TEST_DATABASE_URL: %w", err)
		}
		return kept, nil
	}
	kept, containerErr := startContainer(ctx, r, abandoned, lines)
	if containerErr == nil {
		return kept, nil
	}
	kept, err := startPrivate(ctx, r, lines)
	if err == nil {
		return kept, nil
	}
	return keptServer{}, fmt.Errorf(`there is no PostgreSQL to test on; one of these helps:
- start Docker (%w)
- give the machine a server (%w)
- set PETSTORE_TEST_DATABASE_URL to a postgres:// URL whose user may create databases and roles`, containerErr, err)
}
