package localpg_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"petstore/internal/localpg"
)

// nowhere is a mirror that refuses connections.
const nowhere = "http://127.0.0.1:1"

func TestFindOrder(t *testing.T) {
	t.Parallel()
	root := openDir(t)
	dir := func(elem ...string) string { return filepath.Join(append([]string{root}, elem...)...) }

	install(t, dir("named"), "16.1")
	install(t, dir("cellar", "bin"), "17.2 (Homebrew)")
	link(t, dir("cellar", "bin", "postgres"), dir("linked", "postgres"))
	install(t, dir("configured"), "18beta1")
	writeProgram(t, mkdir(t, dir("tools"))+"/pg_config", []byte("#!/bin/sh\necho "+dir("configured")+"\n"))
	install(t, dir("lib", "9", "bin"), "9.6.24")
	install(t, dir("lib", "15", "bin"), "15.18 (Debian 15.18-0+deb12u1)")
	install(t, dir("lib", "16", "bin"), "16.9")
	install(t, dir("lib", "17", "bin"), "17.5")
	if err := os.Remove(dir("lib", "17", "bin", "initdb")); err != nil { // a client package
		t.Fatal(err)
	}
	known := []string{dir("lib", "*", "bin")}

	for _, test := range []struct {
		name    string
		options localpg.FindOptions
		want    localpg.Binaries
	}{
		{
			"the one that is named",
			localpg.FindOptions{Bin: dir("named"), Path: dir("linked"), Installed: known},
			localpg.Binaries{Dir: dir("named"), Version: "16.1", Major: 16},
		},
		{
			"the PATH, through a link",
			localpg.FindOptions{Path: dir("tools") + ":" + dir("linked"), Installed: known},
			localpg.Binaries{Dir: dir("cellar", "bin"), Version: "17.2", Major: 17},
		},
		{
			"pg_config",
			localpg.FindOptions{Path: dir("tools"), Installed: known},
			localpg.Binaries{Dir: dir("configured"), Version: "18beta1", Major: 18},
		},
		{
			"the newest whole one that is installed",
			localpg.FindOptions{Path: dir("empty"), Installed: known},
			localpg.Binaries{Dir: dir("lib", "16", "bin"), Version: "16.9", Major: 16},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := localpg.Find(t.Context(), test.options)
			if err != nil || got != test.want {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestFindErrors(t *testing.T) {
	t.Parallel()
	root := openDir(t)
	old := filepath.Join(root, "old")
	install(t, old, "14.18")

	for _, test := range []struct {
		name    string
		options localpg.FindOptions
		want    []string
	}{
		{
			"nothing anywhere",
			localpg.FindOptions{Path: root, Installed: []string{}, Cache: filepath.Join(root, "cache"), Mirror: nowhere},
			[]string{"apt-get install", "dnf install", "brew install", "cannot connect to " + nowhere + ": connection refused;"},
		},
		{
			"too old",
			localpg.FindOptions{Path: old, Installed: []string{}, Cache: filepath.Join(root, "cache"), Mirror: nowhere},
			[]string{old + " has PostgreSQL 14.18, too old"},
		},
		{
			"named and not there",
			localpg.FindOptions{Bin: filepath.Join(root, "absent")},
			[]string{filepath.Join(root, "absent", "initdb"), "no such file"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := localpg.Find(t.Context(), test.options)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		})
	}
}

// archivedServer holds two scripts that know their version.
//
//go:embed testdata/server.txz
var archivedServer []byte

// serveArchive is a mirror in the test that has the archived server for every
// platform. It returns its address, the digest of the archive, and how often it
// was fetched.
func serveArchive(t *testing.T) (mirror, digest string, fetched *atomic.Int32) {
	t.Helper()
	var jar bytes.Buffer
	archive := zip.NewWriter(&jar)
	entry, err := archive.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entry.Write(archivedServer); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	fetched = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			http.NotFound(w, r)
			return
		}
		fetched.Add(1)
		if _, err := w.Write(jar.Bytes()); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(jar.Bytes())
	return server.URL, hex.EncodeToString(sum[:]), fetched
}

// TestFindFetches gets the archive from a mirror in the test.
func TestFindFetches(t *testing.T) {
	t.Parallel()
	mirror, digest, fetched := serveArchive(t)
	var progress bytes.Buffer
	cache := filepath.Join(openDir(t), "cache")
	options := localpg.FindOptions{Path: cache, Installed: []string{}, Cache: cache, Mirror: mirror, Digest: digest, Progress: &progress}
	for range 2 {
		found, err := localpg.Find(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if found.Version != "17.5" || !strings.HasPrefix(found.Dir, cache) {
			t.Errorf("found %v", found)
		}
	}
	if fetched.Load() != 1 || strings.Count(progress.String(), "\n") != 1 {
		t.Errorf("fetched %d times, saying %q; want once", fetched.Load(), progress.String())
	}
	left, err := os.ReadDir(cache)
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v, %v; want the server alone", left, err)
	}
}

// TestFindChecksTheDigest: an archive other than the one that the program knows
// is refused, and nothing of it is kept.
func TestFindChecksTheDigest(t *testing.T) {
	t.Parallel()
	mirror, digest, fetched := serveArchive(t)
	cache := filepath.Join(openDir(t), "cache")
	_, err := localpg.Find(t.Context(), localpg.FindOptions{Path: cache, Installed: []string{}, Cache: cache, Mirror: mirror})
	if err == nil || !strings.Contains(err.Error(), "has the SHA-256 "+digest+" instead of ") {
		t.Errorf("got %v", err)
	}
	if fetched.Load() != 1 {
		t.Errorf("fetched %d times", fetched.Load())
	}
	if left, err := os.ReadDir(cache); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cache holds %v, %v", left, err)
	}
}

// install writes programs that know their version and nothing else.
func install(t *testing.T, dir, version string) {
	t.Helper()
	mkdir(t, dir)
	for _, program := range []string{"initdb", "postgres"} {
		script := "#!/bin/sh\necho '" + program + " (PostgreSQL) " + version + "'\n"
		writeProgram(t, filepath.Join(dir, program), []byte(script))
	}
}

func link(t *testing.T, target, file string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	if err := os.Symlink(target, file); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
