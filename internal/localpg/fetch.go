package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchVersion is the server that is fetched where there is none.
const fetchVersion = embeddedpostgres.V17

const fetchTimeout = 2 * time.Minute

// fetch returns the server in the cache, after filling it when it is empty.
func (o FindOptions) fetch(ctx context.Context, runAs *account) (Binaries, error) {
	cache, err := o.cacheDir(runAs)
	if err != nil {
		return Binaries{}, fmt.Errorf("fetching it: %w", err)
	}
	home := filepath.Join(cache, fmt.Sprintf("postgresql-%s-%s-%s", fetchVersion, runtime.GOOS, runtime.GOARCH))
	if isExecutable(filepath.Join(home, "bin", "postgres")) {
		return probe(ctx, runAs, filepath.Join(home, "bin"))
	}
	if o.Progress != nil {
		fmt.Fprintf(o.Progress, "Fetching PostgreSQL %s into %s, once.\n", fetchVersion, cache)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done after %v", fetchTimeout))
	defer cancel()
	if err := o.fill(ctx, cache, home); err != nil {
		return Binaries{}, fmt.Errorf("fetching it: %w", err)
	}
	return probe(ctx, runAs, filepath.Join(home, "bin"))
}

// cacheDir is the user's cache, or for root the machine's: root's own is closed
// to the user that the server runs as.
func (o FindOptions) cacheDir(runAs *account) (string, error) {
	switch {
	case o.Cache != "":
		return o.Cache, nil
	case runAs != nil:
		return "/var/cache/petstore", nil
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "petstore"), err
}

// fill unpacks the server beside home and moves it there whole, so that several
// processes may do it at once.
func (o FindOptions) fill(ctx context.Context, cache, home string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	// a strict umask must not close it to the user that the server runs as
	if err := os.Chmod(cache, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	unpacked := filepath.Join(temp, "unpacked")
	done := make(chan error, 1)
	go func() {
		err := o.unpack(temp, unpacked)
		if err == nil && ctx.Err() == nil {
			if err = os.Rename(unpacked, home); errors.Is(err, fs.ErrExist) {
				err = nil // another process was faster
			}
		}
		os.RemoveAll(temp) // before anyone looks; what is left is only space
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		// the library cannot be interrupted; what it gets is thrown away
		return context.Cause(ctx)
	}
}

// unpack fetches the archive into temp and unpacks it.
func (o FindOptions) unpack(temp, unpacked string) error {
	// The library fetches only as the first half of a start. This path ends the
	// start before the second half, which refuses root and listens on TCP:
	// os.RemoveAll, the first thing done to it, refuses a final dot.
	noData := filepath.Join(temp, "no-data") + "/."
	config := embeddedpostgres.DefaultConfig().
		Version(fetchVersion).
		Port(0).
		Logger(io.Discard).
		CachePath(filepath.Join(temp, "archive")).
		RuntimePath(filepath.Join(temp, "runtime")).
		BinariesPath(unpacked).
		DataPath(noData)
	if o.Mirror != "" {
		config = config.BinaryRepositoryURL(o.Mirror)
	}
	err := embeddedpostgres.NewDatabase(config).Start()
	if err == nil || !strings.Contains(err.Error(), noData) {
		return err
	}
	return filepath.WalkDir(unpacked, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode() | 0o444
		if mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
