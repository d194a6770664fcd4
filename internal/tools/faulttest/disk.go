package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// diskFails is row 9: no acknowledged order is lost when the disk is full or fsync fails.
// Failed writes get 503, and orders succeed again soon after the disk recovers. It needs
// root and strace.
func diskFails(ctx context.Context, f *fixture) (string, error) {
	if os.Geteuid() != 0 {
		return "", skipError("mounting a small disk needs root")
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		return "", skipError("strace is not installed")
	}
	disk := filepath.Join(f.dir, "disk")
	if err := os.Mkdir(disk, 0o711); err != nil {
		return "", err
	}
	if err := command(ctx, "mount", "-t", "tmpfs", "-o", "size=192m,mode=0711", "petstore", disk); err != nil {
		return "", err
	}
	f.cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_ = command(ctx, "cp", filepath.Join(disk, "pg", "postgres.log"), f.dir) // fails if the server has not started
		_ = command(ctx, "umount", "--lazy", disk)                               // a failure only costs memory
	})
	db, err := f.startDatabase(ctx, filepath.Join(disk, "pg"), map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB"})
	if err != nil {
		return "", err
	}
	s, err := f.openWith(ctx, db, db.url())
	if err != nil {
		return "", err
	}
	full, err := s.diskFull(ctx, disk)
	if err != nil {
		return "", fmt.Errorf("disk full: %w", err)
	}
	unsynced, err := s.fsyncFails(ctx, strace)
	if err != nil {
		return "", fmt.Errorf("fsync fails: %w", err)
	}
	return full + "; " + unsynced, nil
}

// recoveryLimit is how long orders may fail after the disk has recovered.
const recoveryLimit = 10 * time.Second

// diskFull fills the disk under writers until orders fail, then makes room again.
func (s *deployment) diskFull(ctx context.Context, disk string) (string, error) {
	w := s.startWriters(ctx, 16)
	sleep(ctx, 500*time.Millisecond)
	ballast := filepath.Join(disk, "ballast")
	if err := fillDisk(ballast); err != nil {
		return "", err
	}
	if _, err := eventually(ctx, 15*time.Second, func() error {
		resp, err := s.order(ctx, pets)
		if err == nil && resp.status == http.StatusCreated {
			err = errors.New("orders still succeed")
		} else if err == nil && resp.status == http.StatusServiceUnavailable {
			return nil
		}
		return err
	}); err != nil {
		return "", err
	}
	sleep(ctx, time.Second)
	if err := os.Remove(ballast); err != nil {
		return "", err
	}
	return s.awaitRecovery(ctx, w, "disk full")
}

// fsyncFails makes every fsync of the server fail under writers for 1.5 seconds.
func (s *deployment) fsyncFails(ctx context.Context, strace string) (string, error) {
	w := s.startWriters(ctx, 16)
	sleep(ctx, 500*time.Millisecond)
	processes, err := s.db.processes()
	if err != nil {
		return "", err
	}
	args := []string{"-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO"}
	for _, pid := range processes {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	faults := exec.CommandContext(ctx, strace, args...)
	if err := faults.Start(); err != nil {
		return "", err
	}
	sleep(ctx, 1500*time.Millisecond)
	_ = faults.Process.Signal(syscall.SIGINT) // fails if the server and strace have ended
	_ = faults.Wait()
	return s.awaitRecovery(ctx, w, "fsync failing")
}

// awaitRecovery waits until orders succeed, restarts PostgreSQL if it has ended, and checks
// the responses to the writers.
func (s *deployment) awaitRecovery(ctx context.Context, w *load, what string) (string, error) {
	restarted := ""
	back, err := eventually(ctx, recoveryLimit, func() error {
		select {
		case <-s.db.Done():
			restarted = ", PostgreSQL restarted"
			if err := s.db.start(ctx); err != nil {
				return err
			}
		default:
		}
		return s.checkWorks(ctx)
	})
	if err != nil {
		return "", err
	}
	sleep(ctx, 300*time.Millisecond)
	l := w.finish()
	if _, err := s.checkWriters(ctx, l, ""); err != nil {
		return "", err
	}
	if l.statuses[http.StatusServiceUnavailable] == 0 {
		return "", fmt.Errorf("%s: no order failed, so the row proves nothing", l.summary())
	}
	return fmt.Sprintf("%s: %s, slowest %s, 0 lost, orders again after %s%s", what, l.summary(), round(l.slowest), round(back), restarted), nil
}

// fillDisk writes a file until the disk is full.
func fillDisk(file string) error {
	ballast, err := os.Create(file)
	if err != nil {
		return err
	}
	defer ballast.Close()
	_, err = io.Copy(ballast, zeros{})
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling the disk: %w", err)
	}
	return nil
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
