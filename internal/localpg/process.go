package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// account is the user that runs the server's programs, which refuse root. The nil
// account is our own user.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount returns nil unless we are root. The owner of existing data keeps it.
func serverAccount(data string) (*account, error) {
	uid := os.Geteuid()
	if info, err := os.Stat(data); err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		switch {
		case int(owner.Uid) == uid && uid != 0:
			return nil, nil
		case owner.Uid == 0:
			return nil, fmt.Errorf("localpg: the database in %s belongs to root, and PostgreSQL refuses to run as root; move the directory away to begin anew", data)
		case uid != 0:
			return nil, fmt.Errorf("localpg: the database in %s belongs to uid %d and cannot be used by uid %d", data, owner.Uid, uid)
		}
		return &account{name: fmt.Sprintf("uid %d", owner.Uid), uid: owner.Uid, gid: owner.Gid}, nil
	}
	if uid != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		a := &account{name: name}
		if _, err := fmt.Sscan(found.Uid+" "+found.Gid, &a.uid, &a.gid); err != nil {
			return nil, fmt.Errorf("localpg: user %s: %w", name, err)
		}
		return a, nil
	}
	return nil, errors.New("localpg: PostgreSQL refuses to run as root, and there is no user postgres or nobody")
}

// suffix returns the end of an error message about a program of the account.
func (a *account) suffix() string {
	if a == nil {
		return ""
	}
	return " as user " + a.name
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	return nil
}

// canEnter reports whether the account can enter a directory and all its parents. A
// directory of its own counts as closed if it is closed to others.
func (a *account) canEnter(dir string) bool {
	if a == nil {
		return true
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// command returns a command that runs as the account, in a process group of its own,
// which Ctrl-C in the terminal does not reach. On Linux it gets the signal when this
// process dies.
func (a *account) command(ctx context.Context, onDeath syscall.Signal, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/" // ours may be closed to the account
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	signalOnDeath(cmd.SysProcAttr, onDeath)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = stopTimeout // for output that a grandchild holds open
	return cmd
}

// environment returns our environment without the variables that configure the server
// or the language of its messages.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "PG") || strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// start starts a command. The channel receives the error with which it ends.
func start(cmd *exec.Cmd) (<-chan error, error) {
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		// the signal on death comes when the thread that forked ends, not the
		// process (golang/go#27505): keep the thread as long as the command
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}
