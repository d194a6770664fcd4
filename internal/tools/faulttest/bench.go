package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"petstore/internal/localpg"
)

const (
	pets         = 64            // in stock of every shop
	stockOfPet   = 1_000_000_000 // units, so that nobody buys out one by accident
	databaseName = "petstore"
	poolSize     = 10 // connections of a service, whatever the machine
	writers      = 8  // of them that write at once
)

// suite is what all rows share: the built program, the PostgreSQL of this
// machine, and a cluster with a shop in it that each row gets a copy of.
type suite struct {
	stdout   io.Writer
	dir      string
	binary   string
	postgres localpg.Binaries
	key      string // the API key of every copy, of scope admin
}

// newSuite builds the program from the sources in the current folder and makes
// the shop.
func newSuite(ctx context.Context, stdout io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp("", "petstore-faulttest-")
	if err != nil {
		return nil, err
	}
	s := &suite{stdout: stdout, dir: dir}
	// PostgreSQL runs as another user when we are root.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	if s.postgres, err = localpg.Find(ctx, localpg.FindOptions{Bin: os.Getenv("PETSTORE_PG_BIN")}); err != nil {
		return nil, err
	}
	if s.binary, err = build(ctx, filepath.Join(dir, "petstore")); err != nil {
		return nil, err
	}
	return s, s.furnish(ctx)
}

// close removes everything but the logs of rows that failed.
func (s *suite) close() error {
	err := errors.Join(os.RemoveAll(s.shop()), os.RemoveAll(filepath.Join(s.dir, "fault")), os.RemoveAll(filepath.Join(s.dir, "petstore")))
	_ = os.Remove(s.dir) // there are logs in it when it is not empty
	return err
}

// build compiles the program from the sources in the current folder.
func build(ctx context.Context, binary string, flags ...string) (string, error) {
	args := append([]string{"build", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/petstore")...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return binary, nil
}

// shop is the folder of the cluster that rows copy.
func (s *suite) shop() string { return filepath.Join(s.dir, "shop") }

// furnish makes a migrated database with an API key, a category and pets.
func (s *suite) furnish(ctx context.Context) (err error) {
	b := &bench{suite: s, binary: s.binary, dir: s.shop()}
	defer func() { b.close(false) }()
	db, err := b.startDatabase(ctx, "", nil)
	if err != nil {
		return err
	}
	if err := db.EnsureDatabase(ctx, databaseName); err != nil {
		return err
	}
	if _, err := b.petstore(ctx, db.url(), "migrate", "up"); err != nil {
		return err
	}
	key, err := b.petstore(ctx, db.url(), "key", "create", "--account", "faulttest", "--scope", "admin")
	if err != nil {
		return err
	}
	s.key = strings.TrimSpace(key)
	api, err := b.serve(ctx, db.url())
	if err != nil {
		return err
	}
	c := &client{base: api.url(), key: s.key}
	if _, err := c.want(ctx, 201, "POST", "/categories", `{"name": "Hedgehogs"}`); err != nil {
		return err
	}
	for pet := range pets {
		if _, err := c.want(ctx, 201, "POST", "/pets", fmt.Sprintf(`{"name": "Pet %d", "categoryId": 1}`, pet)); err != nil {
			return err
		}
		if _, err := c.want(ctx, 200, "PUT", fmt.Sprintf("/store/inventory/%d", pet+1), fmt.Sprintf(`{"quantity": %d}`, stockOfPet)); err != nil {
			return err
		}
	}
	_, err = api.terminate(ctx)
	return err
}

// bench is what one row works with. Everything that it starts ends with the row.
type bench struct {
	*suite
	binary string // the program under test
	dir    string // of the row: its clusters and logs
	ends   []func()
	judge  *judge // nil: exchanges are not judged
}

func (s *suite) bench(binary string, r row) (*bench, error) {
	dir, err := os.MkdirTemp(s.dir, fmt.Sprintf("row%02d-", r.number))
	if err != nil {
		return nil, err
	}
	return &bench{suite: s, binary: binary, dir: dir}, os.Chmod(dir, 0o711)
}

// atEnd has something done when the row ends, the latest first.
func (b *bench) atEnd(do func()) { b.ends = append(b.ends, do) }

// close ends everything, and removes the folder unless it is to be looked at.
func (b *bench) close(remove bool) {
	for _, end := range slices.Backward(b.ends) {
		end()
	}
	if remove {
		_ = os.RemoveAll(b.dir) // it lies in a temporary folder anyway
	}
}

// shop is a service at work: a database with pets in stock, the program in
// front of it, and a client with a key.
type shop struct {
	*bench
	*client
	db  *database
	api *service
}

// open starts a shop.
func (b *bench) open(ctx context.Context) (*shop, error) {
	db, err := b.startDatabase(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	return b.openOn(ctx, db)
}

// openOn starts a service on a database, and a client of it.
func (b *bench) openOn(ctx context.Context, db *database) (*shop, error) {
	api, err := b.serve(ctx, db.url())
	if err != nil {
		return nil, err
	}
	return &shop{bench: b, db: db, api: api, client: &client{base: api.url(), key: b.key, judge: b.judge}}, nil
}

// another starts a second instance of the shop's service. Some promises hold
// within one process by its own doing, and between two by the database's.
func (s *shop) another(ctx context.Context) (*client, error) {
	api, err := s.serve(ctx, s.db.url())
	if err != nil {
		return nil, err
	}
	return &client{base: api.url(), key: s.key, judge: s.client.judge}, nil
}

// notHereError says why a row cannot be run on this machine.
type notHereError string

func (e notHereError) Error() string { return string(e) }

// wait lets some time pass.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// eventually asks a question again and again until the answer is yes, and
// returns how long that took; the error is the latest answer.
func eventually(ctx context.Context, within time.Duration, ask func() error) (time.Duration, error) {
	const interval = 5 * time.Millisecond
	began := time.Now()
	for {
		err := ask()
		took := time.Since(began)
		switch {
		case err == nil:
			return took, nil
		case took > within || ctx.Err() != nil:
			return took, fmt.Errorf("not within %s: %w", within, err)
		}
		wait(ctx, interval)
	}
}
