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
	"strconv"
	"strings"
	"syscall"
)

// account is the user that the server's programs run as, since they refuse
// root. The nil account is our own user.
type account struct {
	name     string
	uid, gid uint32
}

// accountNames are tried in this order.
var accountNames = []string{"postgres", "nobody"}

// serverAccount is nil unless we are root. The owner of data that is there
// keeps it: to the server anybody else is a stranger.
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
		default:
			return &account{name: "uid " + strconv.Itoa(int(owner.Uid)), uid: owner.Uid, gid: owner.Gid}, nil
		}
	}
	if uid != 0 {
		return nil, nil
	}
	for _, name := range accountNames {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("localpg: user %s: %w", name, err)
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("localpg: PostgreSQL refuses to run as root, and there is no user %s", strings.Join(accountNames, " or "))
}

// suffix names the account in a sentence.
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

// canEnter reports whether the account can get into a directory, through all
// those above it. A directory that belongs to it counts as closed if it is
// closed to the others, which errs on the safe side.
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

// command is a program of the server's, run as the account and in a process
// group of its own, which the terminal's Ctrl-C does not reach. It gets the
// signal when this process dies, where the system can do that.
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
	cmd.WaitDelay = immediateTimeout // for output that a grandchild holds open
	return cmd
}

// environment is ours without what would change the server or the language of
// its messages, which we read.
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
