package main

import (
	"context"
	"errors"
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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/localpg"
	"petstore/internal/postgres"
	"petstore/internal/seed"
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

// startPostgres starts a cluster with fsync and synchronous_commit on, as in production.
func startPostgres(ctx context.Context, dir string) (*localpg.Cluster, localpg.Binaries, error) {
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	if err != nil {
		return nil, binaries, err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: dir, Settings: map[string]string{
		"shared_buffers": "512MB", "max_wal_size": "4GB", "max_connections": "200", "autovacuum": "off",
	}})
	return cluster, binaries, err
}

// prepareDatabase migrates a database, loads the sample data and creates keys of the large
// account, and one of each small account. Every pet is available and in stock.
func prepareDatabase(ctx context.Context, url string, pets int) (keys, small []string, err error) {
	if err := migrate(ctx, url); err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close()
	queries := db.New(pool)
	owner, err := account.Ensure(ctx, queries, benchAccount)
	if err != nil {
		return nil, nil, err
	}
	if err := seed.Load(ctx, pool, owner.ID, pets, nil); err != nil {
		return nil, nil, err
	}
	for _, statement := range []string{
		"UPDATE inventory SET quantity = " + strconv.Itoa(unitsInStock),
		"UPDATE pets SET status = 'available' WHERE status <> 'available'",
	} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return nil, nil, err
		}
	}
	for range apiKeys {
		_, secret, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: owner.ID, Name: "bench", Scope: auth.Write})
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, secret.Reveal())
	}
	if small, err = addSmallAccounts(ctx, pool); err != nil {
		return nil, nil, err
	}
	return keys, small, vacuum(ctx, url)
}

func migrate(ctx context.Context, url string) error {
	m, err := postgres.OpenMigrations(ctx, url)
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return errors.Join(err, m.Close())
}

// addSmallAccounts creates the small accounts with their stores, and returns a key of each.
func addSmallAccounts(ctx context.Context, pool *pgxpool.Pool) (keys []string, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		queries := db.New(tx)
		var ids []int64
		for i := range smallAccounts {
			owner, err := account.Ensure(ctx, queries, fmt.Sprintf("small %d", i+1))
			if err != nil {
				return err
			}
			_, secret, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: owner.ID, Name: "bench", Scope: auth.Write})
			if err != nil {
				return err
			}
			ids, keys = append(ids, owner.ID), append(keys, secret.Reveal())
		}
		stores := fmt.Sprintf("unnest($1::bigint[]) AS account, generate_series(1, %d) AS pet", smallPets)
		for _, statement := range []string{
			"INSERT INTO categories (account_id, id, name, name_key) SELECT account, 1, 'Cats', 'cats' FROM unnest($1::bigint[]) AS account",
			"INSERT INTO pets (account_id, id, category_id, name, name_key) SELECT account, pet, 1, 'Pet ' || pet, 'pet ' || pet FROM " + stores,
			"INSERT INTO inventory (account_id, pet_id, quantity) SELECT account, pet, " + strconv.Itoa(unitsInStock) + " FROM " + stores,
		} {
			if _, err := tx.Exec(ctx, statement, ids); err != nil {
				return err
			}
		}
		return nil
	})
	return keys, err
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

// startPetstore starts the program with a log file. It returns when GET /readyz returns
// 200, with the time that this took.
func startPetstore(ctx context.Context, program, logFile, databaseURL string) (*process, time.Duration, error) {
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
