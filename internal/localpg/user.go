package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
	"syscall"
)

// ServerUser returns the user that runs the server's programs, which refuse root:
// the owner of existing data, or else postgres or nobody. It returns nil for our own
// user unless we are root.
func ServerUser(data string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if info, err := os.Stat(data); err == nil {
		owner := info.Sys().(*syscall.Stat_t)
		if owner.Uid == 0 {
			return nil, fmt.Errorf("%s belongs to root, and PostgreSQL refuses to run as root; give it to another user, as in `chown -R postgres %[1]s`", data)
		}
		return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if found, err := user.Lookup(name); err == nil {
			credential := &syscall.Credential{}
			_, err := fmt.Sscan(found.Uid+" "+found.Gid, &credential.Uid, &credential.Gid)
			return credential, err
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody; add one of them")
}

// serverCommand returns a command that runs as the user, in a process group of its
// own, which Ctrl-C in the terminal does not reach. It does not inherit variables that
// configure the server or the language of its messages.
func serverCommand(ctx context.Context, as *syscall.Credential, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/" // other users may be unable to read ours
	cmd.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "PG") || strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG")
	})
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = stopTimeout // for output that a grandchild holds open
	return cmd
}
