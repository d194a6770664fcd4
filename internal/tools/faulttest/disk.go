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

// Row 9. A full disk and a disk that fails to sync lose no acknowledged order;
// what cannot be written is 503, and orders succeed again soon after the disk
// does its work. Needs root and strace.
func diskFails(ctx context.Context, b *bench) (string, error) {
	if os.Geteuid() != 0 {
		return "", notHereError("only root can mount a small disk")
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		return "", notHereError("strace is not installed")
	}
	disk := filepath.Join(b.dir, "disk")
	if err := os.Mkdir(disk, 0o711); err != nil {
		return "", err
	}
	if err := command(ctx, "mount", "-t", "tmpfs", "-o", "size=192m,mode=0711", "petstore", disk); err != nil {
		return "", err
	}
	b.atEnd(func() {
		ctx := context.WithoutCancel(ctx)
		_ = command(ctx, "cp", filepath.Join(disk, "pg", "postgres.log"), b.dir) // there is none before the server
		_ = command(ctx, "umount", "--lazy", disk)                               // at worst some memory stays in use
	})
	db, err := b.startDatabase(ctx, filepath.Join(disk, "pg"), map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB"})
	if err != nil {
		return "", err
	}
	s, err := b.openOn(ctx, db)
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

// recovery bounds how long after the disk works again orders may fail.
const recovery = 10 * time.Second

// diskFull fills the disk under writers, until orders fail, and makes room again.
func (s *shop) diskFull(ctx context.Context, disk string) (string, error) {
	w := s.startWriters(ctx, 16)
	wait(ctx, 500*time.Millisecond)
	ballast := filepath.Join(disk, "ballast")
	if err := fill(ballast); err != nil {
		return "", err
	}
	if _, err := eventually(ctx, 15*time.Second, func() error {
		a, err := s.order(ctx, pets)
		if err == nil && a.status == http.StatusCreated {
			err = errors.New("orders do not fail")
		} else if err == nil && a.status == http.StatusServiceUnavailable {
			return nil
		}
		return err
	}); err != nil {
		return "", err
	}
	wait(ctx, time.Second)
	if err := os.Remove(ballast); err != nil {
		return "", err
	}
	return s.recovered(ctx, w, "disk full")
}

// fsyncFails has every fsync of the server fail under writers, for a while.
func (s *shop) fsyncFails(ctx context.Context, strace string) (string, error) {
	w := s.startWriters(ctx, 16)
	wait(ctx, 500*time.Millisecond)
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
	wait(ctx, 1500*time.Millisecond)
	_ = faults.Process.Signal(syscall.SIGINT) // it ends by itself when the server does
	_ = faults.Wait()
	return s.recovered(ctx, w, "fsync failing")
}

// recovered has the server running, as an operator would who finds it ended, and
// judges what the writers went through.
func (s *shop) recovered(ctx context.Context, w *load, what string) (string, error) {
	restarted := ""
	back, err := eventually(ctx, recovery, func() error {
		select {
		case <-s.db.Done():
			restarted = ", PostgreSQL started again"
			if err := s.db.start(ctx); err != nil {
				return err
			}
		default:
		}
		return s.works(ctx)
	})
	if err != nil {
		return "", err
	}
	wait(ctx, 300*time.Millisecond)
	l := w.finish()
	if _, err := s.settle(ctx, l, ""); err != nil {
		return "", err
	}
	if l.statuses[http.StatusServiceUnavailable] == 0 {
		return "", fmt.Errorf("%s: no order failed, so nothing is shown", l.count())
	}
	return fmt.Sprintf("%s: %s, slowest %s, 0 lost, orders again after %s%s", what, l.count(), round(l.slowest), round(back), restarted), nil
}

// fill writes a file until the disk is full.
func fill(file string) error {
	ballast, err := os.Create(file)
	if err != nil {
		return err
	}
	defer ballast.Close()
	_, err = io.Copy(ballast, endless{})
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling the disk: %w", err)
	}
	return nil
}

// endless reads as zeros for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
