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

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// diskFails is row 9: no acknowledged order is lost when the disk is full or fsync fails.
// Failed writes get 503, and orders succeed again soon after the disk recovers. It needs
// root and strace.
func diskFails(ctx context.Context, f *fixture) string {
	if os.Geteuid() != 0 {
		must.OK(skipError("mounting a small disk needs root"))
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		must.OK(skipError("strace is not installed"))
	}
	disk := filepath.Join(f.dir, "disk")
	must.OK(os.Mkdir(disk, 0o711))
	run.Program(ctx, "mount", "-t", "tmpfs", "-o", "size=192m,mode=0711", "petstore", disk)
	f.cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_ = exec.CommandContext(ctx, "cp", filepath.Join(disk, "pg", "postgres.log"), f.dir).Run() // fails if the server has not started
		_ = exec.CommandContext(ctx, "umount", "--lazy", disk).Run()                               // a failure only costs memory
	})
	db := f.startDatabase(ctx, filepath.Join(disk, "pg"), map[string]string{"max_wal_size": "64MB", "min_wal_size": "32MB"})
	s := f.openWith(ctx, db, db.url())
	full := s.failDisk(ctx, "disk full", func() { s.fillDisk(ctx, filepath.Join(disk, "ballast")) })
	failing := s.failDisk(ctx, "fsync failing", func() { s.failSync(ctx, strace) })
	return full + "; " + failing
}

// recoveryLimit is how long orders may fail after the disk has recovered.
const recoveryLimit = 10 * time.Second

// fillDisk fills the disk until orders fail, then makes room again.
func (s *deployment) fillDisk(ctx context.Context, file string) {
	ballast := must.Get(os.Create(file))
	defer ballast.Close()
	_, err := io.Copy(ballast, must.Get(os.Open("/dev/zero")))
	must.Hold(errors.Is(err, syscall.ENOSPC), "filling the disk: %v", err)
	must.Await(ctx, 15*time.Second, func() { must.Get(s.order(ctx, pets)).check(http.StatusServiceUnavailable) })
	sleep(ctx, time.Second)
	must.OK(errors.Join(ballast.Close(), os.Remove(file)))
}

// failSync makes every fsync of the server fail for 1.5 seconds.
func (s *deployment) failSync(ctx context.Context, strace string) {
	args := []string{"-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO"}
	for _, pid := range s.db.processes() {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	faults := exec.CommandContext(ctx, strace, args...)
	must.OK(faults.Start())
	sleep(ctx, 1500*time.Millisecond)
	_ = faults.Process.Signal(syscall.SIGINT) // fails if the server and strace have ended
	_ = faults.Wait()
}

// failDisk lets the disk fail under writers. It waits until orders succeed, restarts PostgreSQL if
// it has ended, and checks the responses to the writers.
func (s *deployment) failDisk(ctx context.Context, what string, fail func()) string {
	w := s.startWriters(ctx, 16)
	sleep(ctx, 500*time.Millisecond)
	fail()
	restarted := ""
	back := must.Await(ctx, recoveryLimit, func() {
		select {
		case <-s.db.Done():
			restarted = ", PostgreSQL restarted"
			s.db.start(ctx)
		default:
		}
		s.checkWorks(ctx)
	})
	sleep(ctx, 300*time.Millisecond)
	l := w.finish()
	must.Explain(what, func() { s.checkWriters(ctx, l) })
	must.Hold(l.count(http.StatusServiceUnavailable) > 0, "%s: %s: no order failed, so the row proves nothing", what, l.summary())
	return fmt.Sprintf("%s: %s, slowest %s, 0 lost, orders again after %s%s", what, l.summary(), round(l.slowest), round(back), restarted)
}
