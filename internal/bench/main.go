// Bench measures Petstore against what limits it and against what people would
// write instead, all on one machine in one run, and prints the ratios. See
// docs/performance.md for how to read them.
//
//	go run ./internal/bench [-pets 200000] [-rounds 3] [-seconds 3]
//
// It runs from the project's root and needs wrk, and pgbench beside the
// PostgreSQL server's programs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	maxConns = 8 // of the plain server, which is slower with more; petstore has its default
	hotPet   = 1
	starts   = 5
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	pets := flag.Int("pets", 200_000, "how many pets and orders there are")
	rounds := flag.Int("rounds", 3, "how often each thing is measured; the medians count")
	seconds := flag.Int("seconds", 3, "for how long")
	only := flag.String("only", "", "measure only the work whose name contains this")
	flag.Parse()
	err := run(ctx, *pets, *rounds, time.Duration(*seconds)*time.Second, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pets, rounds int, duration time.Duration, only string) (err error) {
	began := time.Now()
	if _, err := exec.LookPath("wrk"); err != nil {
		return errors.New("wrk is missing; install it with `apt-get install wrk` (Debian, Ubuntu) or `brew install wrk` (macOS)")
	}
	dir, err := os.MkdirTemp("", "petstore-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	cluster, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	if err := cluster.EnsureDatabase(ctx, "petstore"); err != nil {
		return err
	}
	b := &bench{dir: dir, database: cluster.URL("petstore"), pgbench: filepath.Join(binaries.Dir, "pgbench")}
	fmt.Printf("%s, %s, %d CPUs, %d pets, %d orders, %d rounds of %s\n", binaries, runtime.Version(), runtime.NumCPU(), pets, pets, rounds, duration)
	keys, err := fill(ctx, b.database, pets)
	if err != nil {
		return err
	}
	if b.generator, err = newGenerator(dir, keys, pets, hotPet, duration); err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	defer b.stop()
	if err := b.compare(ctx, os.Stdout, rounds, only); err != nil {
		return err
	}
	fmt.Printf("%.0f s in all\n", time.Since(began).Seconds())
	return nil
}

// bench is all that runs.
type bench struct {
	dir, database, pgbench string
	*generator
	petstore, plain *process
	constantURL     string
	stopConstant    func()
	startTimes      []time.Duration
	deepPath        string // page 2,000 of the available pets by name
	orderScript     string
}

func (b *bench) start(ctx context.Context) error {
	if err := build(ctx, b.dir); err != nil {
		return err
	}
	for i := range starts {
		p, took, err := startPetstore(ctx, b.dir, b.database)
		if err != nil {
			return err
		}
		b.petstore, b.startTimes = p, append(b.startTimes, took)
		if i < starts-1 {
			p.stop()
		}
	}
	var err error
	if b.plain, err = startPlain(ctx, b.dir, b.database, maxConns); err != nil {
		return err
	}
	if b.constantURL, b.stopConstant, err = startConstant(ctx); err != nil {
		return err
	}
	if b.deepPath, err = b.walk(ctx, firstPath, min(2000, b.pets/50)); err != nil {
		return err
	}
	queries, err := os.ReadFile("queries/orders.sql")
	if err != nil {
		return err
	}
	statement, err := orderStatement(queries)
	if err != nil {
		return err
	}
	b.orderScript = filepath.Join(b.dir, "order.pgbench")
	return os.WriteFile(b.orderScript, []byte(statement), 0o600)
}

func (b *bench) stop() {
	if b.petstore != nil {
		b.petstore.stop()
	}
	if b.plain != nil {
		b.plain.stop()
	}
	if b.stopConstant != nil {
		b.stopConstant()
	}
}

// walk follows the links of a list to its given page and returns that one's path.
func (b *bench) walk(ctx context.Context, path string, page int) (string, error) {
	for number := 1; number < page; number++ {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.petstore.url+path, nil)
		if err != nil {
			return "", err
		}
		request.Header.Set("Authorization", "Bearer "+b.keys[0])
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		var pets []json.RawMessage
		err = json.NewDecoder(response.Body).Decode(&pets)
		_, _ = io.Copy(io.Discard, response.Body) // so that the connection is used again
		response.Body.Close()
		if err != nil {
			return "", err
		}
		link, _, found := strings.Cut(response.Header.Get("Link"), `>; rel="next"`)
		if !found {
			return "", fmt.Errorf("%s ends at page %d", path, number)
		}
		path = strings.TrimPrefix(link, "<")
	}
	return path, nil
}
