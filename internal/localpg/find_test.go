package localpg_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"petstore/internal/localpg"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// nowhere is a mirror that refuses connections.
const nowhere = "http://127.0.0.1:1"

func TestFind(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	wantError := func(want ...string) {
		t.Helper()
		_, err := localpg.FindIn(t.Context(), dir, nowhere, "digest")
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("got error %v, want it to contain %q", err, text)
			}
		}
	}
	wantFound := func(folder, version string) {
		t.Helper()
		found, err := localpg.FindIn(t.Context(), dir, nowhere, "digest")
		if err != nil || found.Dir != filepath.Join(dir, folder) || found.Version != version {
			t.Errorf("got %v, %v; want version %s in %s", found, err, version, folder)
		}
	}

	wantError("apt-get install", "dnf install", "brew install", nowhere)
	install(t, filepath.Join(dir, "lib/14/bin"), "14.18")
	wantError("14/bin has PostgreSQL 14.18, too old")

	install(t, filepath.Join(dir, "lib/15/bin"), "15.18 (Debian 15.18-0+deb12u1)")
	install(t, filepath.Join(dir, "lib/16/bin"), "16.9")
	install(t, filepath.Join(dir, "lib/17/bin"), "17.5")
	need.OK(t, os.Remove(filepath.Join(dir, "lib/17/bin/initdb")))
	wantFound("lib/16/bin", "16.9")

	install(t, filepath.Join(dir, "cellar/bin"), "19beta1")
	mkdir(t, filepath.Join(dir, "path"))
	need.OK(t, os.Symlink(filepath.Join(dir, "cellar/bin/postgres"), filepath.Join(dir, "path/postgres")))
	wantFound("cellar/bin", "19beta1")

	named, err := localpg.Find(t.Context(), filepath.Join(dir, "lib/15/bin"), nil)
	if err != nil || named.Version != "15.18" || named.Major != 15 {
		t.Errorf("the named directory: got %v, %v", named, err)
	}
	if _, err := localpg.Find(t.Context(), filepath.Join(dir, "absent"), nil); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a named directory that does not exist: got %v", err)
	}
}

// archivedServer holds two scripts that know their version.
//
//go:embed testdata/server.txz
var archivedServer []byte

func TestFindDownloads(t *testing.T) {
	t.Parallel()
	var jar bytes.Buffer
	archive := zip.NewWriter(&jar)
	entry, err := archive.Create("postgres.txz")
	need.OK(t, err)
	need.Value(entry.Write(archivedServer))(t)
	need.OK(t, archive.Close())
	var fetched atomic.Int32
	mirror := need.Server(t, func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		if _, err := w.Write(jar.Bytes()); err != nil {
			t.Error(err)
		}
	})
	dir := pgtest.Dir(t)
	cache := mkdir(t, filepath.Join(dir, "cache"))
	digest := fmt.Sprintf("%x", sha256.Sum256(jar.Bytes()))
	wantCached := func(want int) {
		t.Helper()
		if left, err := os.ReadDir(cache); err != nil || len(left) != want {
			t.Errorf("the cache contains %v, %v; want %d entries", left, err, want)
		}
	}

	_, err = localpg.FindIn(t.Context(), dir, mirror.URL, strings.Repeat("0", len(digest)))
	if err == nil || !strings.Contains(err.Error(), "has the SHA-256 "+digest+" instead of 0000") {
		t.Errorf("an archive with another digest: got %v", err)
	}
	wantCached(0)
	for range 2 {
		found, err := localpg.FindIn(t.Context(), dir, mirror.URL, digest)
		if err != nil || found.Version != "17.5" || !strings.HasPrefix(found.Dir, cache) {
			t.Errorf("got %v, %v", found, err)
		}
	}
	wantCached(1)
	if fetched.Load() != 2 {
		t.Errorf("fetched %d times, want one refused and one accepted", fetched.Load())
	}
}

// install writes programs that know their version and nothing else.
func install(t *testing.T, dir, version string) {
	t.Helper()
	mkdir(t, dir)
	for _, program := range []string{"initdb", "postgres"} {
		writeProgram(t, filepath.Join(dir, program), "#!/bin/sh\necho '"+program+" (PostgreSQL) "+version+"'\n")
	}
}

func writeProgram(t *testing.T, name, script string) {
	t.Helper()
	// Another test that forks now would hold the file open for a moment, and a program
	// that is open for writing cannot be run (golang/go#22315).
	syscall.ForkLock.RLock()
	err := os.WriteFile(name, []byte(script), 0o755)
	syscall.ForkLock.RUnlock()
	need.OK(t, err)
}

// TestCacheDir uses a cache below a closed directory, which the user that runs the
// server for root cannot enter.
func TestCacheDir(t *testing.T) {
	closed, temp := t.TempDir(), pgtest.Dir(t)
	need.OK(t, os.Chmod(closed, 0o700))
	t.Setenv("XDG_CACHE_HOME", filepath.Join(closed, "cache"))
	t.Setenv("TMPDIR", temp)
	want := filepath.Join(closed, "cache", "petstore")
	if os.Geteuid() == 0 {
		want = filepath.Join(temp, "petstore-0")
	}
	if got, err := localpg.CacheDir(); err != nil || got != want {
		t.Errorf("CacheDir returns %q, %v; want %q", got, err, want)
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	need.OK(t, os.MkdirAll(dir, 0o755))
	return dir
}
