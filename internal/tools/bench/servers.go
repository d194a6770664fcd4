package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	apiKeys = 16
	// The accounts beside the large one. Each has a key and pets with ids from 1.
	smallAccounts, smallPets = 1000, 20
	unitsInStock             = 1_000_000_000 // so many that every order succeeds
	readyWithin              = 30 * time.Second
)

// petstoreEnv turns everything on, with limits that are never reached.
var petstoreEnv = []string{
	"PETSTORE_RATE_LIMIT=1000000", "PETSTORE_RATE_BURST=1000000", "PETSTORE_AUTH_FAILURE_LIMIT=1000000",
	"PETSTORE_LOG_LEVEL=info", "PETSTORE_LOG_FORMAT=json",
}

// process is a running server.
type process struct {
	cmd *exec.Cmd
	url string
}

// buildPrograms compiles Petstore and the plain server.
func buildPrograms(ctx context.Context, dir string) error {
	_, err := runProgram(ctx, "go", "build", "-o", dir+string(filepath.Separator), "./cmd/petstore", "./internal/tools/bench/plain")
	return err
}

// startPetstore starts the program with a log file and more environment variables. It
// returns when GET /readyz returns 200, with the time that this took.
func startPetstore(ctx context.Context, program, logFile, databaseURL string, environ ...string) (*process, time.Duration, error) {
	addr, err := freeAddress(ctx)
	if err != nil {
		return nil, 0, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, program, "serve")
	cmd.Env = append(append(os.Environ(), petstoreEnv...), "DATABASE_URL="+databaseURL, "PETSTORE_ADDR="+addr, "PETSTORE_ADMIN_ADDR=127.0.0.1:0")
	cmd.Env = append(cmd.Env, environ...)
	cmd.Stdout, cmd.Stderr = log, log
	return start(ctx, cmd, "http://"+addr, "/readyz")
}

func startPlain(ctx context.Context, dir, databaseURL string, maxConns int) (*process, error) {
	addr, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "plain"), addr, databaseURL, strconv.Itoa(maxConns))
	cmd.Stderr = os.Stderr
	p, _, err := start(ctx, cmd, "http://"+addr, "/pets/1")
	return p, err
}

// start starts a server and waits until GET path returns 200.
func start(ctx context.Context, cmd *exec.Cmd, url, path string) (*process, time.Duration, error) {
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	p := &process{cmd, url}
	for {
		if isOK(ctx, url+path) {
			return p, time.Since(began), nil
		}
		if time.Since(began) > readyWithin {
			p.stop()
			return nil, 0, fmt.Errorf("%s is not ready after %s", cmd.Path, readyWithin)
		}
		time.Sleep(time.Millisecond)
	}
}

func isOK(ctx context.Context, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// stop sends SIGTERM and waits for the process.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = p.cmd.Wait()
}

// memory returns the resident memory of the process in bytes: VmRSS on Linux.
func (p *process) memory() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	return kilobytes << 10, err
}

// startConstant starts a net/http server that returns constant bytes.
func startConstant(ctx context.Context) (url string, stop func(), err error) {
	body := []byte(`{"id":123456,"name":"Bella the Brave","categoryId":3,"status":"available"}`)
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body) // the client may be gone
		}),
	}
	go func() { _ = server.Serve(listener) }() // ends with Close
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// freeAddress returns a free address on loopback.
func freeAddress(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
