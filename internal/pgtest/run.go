package pgtest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// acquireTimeout is more than all ways to a server take together.
const acquireTimeout = 8 * time.Minute

const pollInterval = 100 * time.Millisecond

// run is one `go test`, by its process: packages are tested by processes of
// their own, one after the other and side by side, and all are its children. A
// test binary that something else started is a run of its own.
type run struct {
	Owner process
	// Dir is where the processes of the run meet, see keeper.
	Dir string
}

// process is one process for good: a number is used again, with another start.
type process struct {
	PID   int
	Start string // in the system's own units
}

func currentRun() run {
	owner := process{PID: os.Getppid()}
	info, ok := inspect(owner.PID)
	if !ok || info.name != "go" {
		owner.PID = os.Getpid()
		info, _ = inspect(owner.PID)
	}
	owner.Start = info.start
	name := fmt.Sprintf("%s%d-%s", runDirPrefix(), owner.PID, owner.Start)
	return run{Owner: owner, Dir: filepath.Join(os.TempDir(), name)}
}

// runDirPrefix begins the names of this user's run directories.
func runDirPrefix() string { return fmt.Sprintf("petstore-pgtest-%d-", os.Geteuid()) }

// running reports whether the process is still there.
func (p process) running() bool {
	info, ok := inspect(p.PID)
	return ok && info.start == p.Start
}

// prefix tells the databases of runs apart on a server that they share.
func (r run) prefix() string {
	hostname, _ := os.Hostname() // only makes it more different
	hash := sha256.Sum256([]byte(hostname + r.Dir))
	return "petstore_" + hex.EncodeToString(hash[:4]) + "_"
}

// Files in the directory of a run.
const (
	startLock  = "start.lock"  // held while a process looks for the keeper or starts one
	keeperLock = "keeper.lock" // held by the keeper as long as it lives
	answerFile = "server.json" // what the keeper found
	keeperLog  = "keeper.log"
)

// answer is what a keeper tells: the server, or why there is none. The reason
// is kept too, so that not every package tries again.
type answer struct {
	Server server
	Error  string
	Keeper int // process id
}

// acquire returns the server of the run: the keeper's, where one lives, or that
// of a keeper started for it.
func acquire(ctx context.Context, r run) (server, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	if err := makeRunDir(r.Dir); err != nil {
		return server{}, err
	}
	lock, err := lockFile(filepath.Join(r.Dir, startLock), true)
	if err != nil {
		return server{}, err
	}
	defer lock.Close()
	for {
		free, err := lockFile(filepath.Join(r.Dir, keeperLock), false)
		switch {
		case err == nil: // no keeper, or one that was killed
			free.Close()
			if err := startKeeper(ctx, r); err != nil {
				return server{}, err
			}
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return server{}, err
		}
		found, err := readAnswer(r.Dir)
		if !errors.Is(err, os.ErrNotExist) {
			return found, err
		}
		// the keeper is ending: its server has died
		select {
		case <-ctx.Done():
			return server{}, fmt.Errorf("waiting for another process to end its server: %w", ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

// makeRunDir makes the directory, which the server's user must be able to
// enter, and refuses one that somebody else made under this name.
func makeRunDir(dir string) error {
	const mode = 0o711
	if err := os.Mkdir(dir, mode); err == nil {
		return os.Chmod(dir, mode) // whatever the umask
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not ours: remove it", dir)
	}
	return nil
}

// lockFile locks a file until it is closed. Unless it waits, the error is
// EWOULDBLOCK when another process has the lock.
func lockFile(path string, wait bool) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return file, nil
}

func readAnswer(dir string) (server, error) {
	content, err := os.ReadFile(filepath.Join(dir, answerFile))
	if err != nil {
		return server{}, err
	}
	var a answer
	if err := json.Unmarshal(content, &a); err != nil {
		return server{}, fmt.Errorf("%s: %w", answerFile, err)
	}
	if a.Error != "" {
		return server{}, errors.New(a.Error)
	}
	return a.Server, nil
}

// startKeeper starts this test binary as the keeper of the run and returns when
// it has written its answer. The lines it says on the way are passed on.
func startKeeper(ctx context.Context, r run) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(r)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(r.Dir, keeperLog))
	if err != nil {
		return err
	}
	defer log.Close()
	lines, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lines.Close()
	cmd := exec.Command(program) //nolint:noctx // it outlives this process
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), keeperEnv+"="+string(encoded))
	// none of ours: `go test` waits until nobody has them open
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{write}
	// away from the terminal and its Ctrl-C: it ends when the run has ended
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return fmt.Errorf("starting the keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }() // or it would be a zombie while this process lives

	if deadline, ok := ctx.Deadline(); ok {
		if err := lines.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		if scanner.Text() == readyLine {
			return nil
		}
		say(scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("waiting for the keeper: %w", err)
	}
	output, _ := os.ReadFile(log.Name())
	return fmt.Errorf("the keeper of the server ended: %s", strings.TrimSpace(string(output)))
}
