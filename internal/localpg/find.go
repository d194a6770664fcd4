package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	minimumMajor = 15               // the oldest version on which the schema works
	probeTimeout = 10 * time.Second // for a program that prints its version
)

// Binaries are the programs of one PostgreSQL server.
type Binaries struct {
	Dir     string // holds initdb and postgres
	Version string // such as "15.18"
	Major   int
}

func (b Binaries) String() string {
	return fmt.Sprintf("PostgreSQL %s from %s", b.Version, b.Dir)
}

// finder looks for binaries. Tests have others than [Find].
type finder struct {
	path      string   // as in $PATH
	installed []string // patterns of directories
	cache     string   // for the download; "" is CacheDir
	mirror    string   // of Maven Central
	digest    string   // SHA-256 of the archive, in hexadecimal digits
	progress  io.Writer
	user      *syscall.Credential // of the server
}

// Find returns server binaries that also work as the user that [Start] will use. If
// bin is not empty, Find uses that directory. Otherwise it looks on the PATH, then for
// the newest in the directories of packages, which are not always on the PATH. If there
// are none, it downloads them into the cache, in at most two minutes, and writes a line
// to progress. The error says why each one cannot be used and how to install a server.
func Find(ctx context.Context, bin string, progress io.Writer) (Binaries, error) {
	as, err := ServerUser("")
	if err != nil {
		return Binaries{}, err
	}
	if bin != "" {
		return probe(ctx, as, bin)
	}
	f := finder{
		path: os.Getenv("PATH"),
		installed: []string{
			"/usr/lib/postgresql/*/bin",                               // Debian
			"/opt/homebrew/opt/postgresql@*/bin",                      // Homebrew on ARM
			"/usr/local/opt/postgresql@*/bin",                         // Homebrew on Intel
			"/usr/pgsql-*/bin",                                        // the PostgreSQL project's RPMs
			"/usr/libexec/postgresql*",                                // Alpine
			"/Applications/Postgres.app/Contents/Versions/latest/bin", // macOS
		},
		mirror: mavenCentral, digest: fetchDigests[platform()], progress: progress, user: as,
	}
	return f.find(ctx)
}

func (f finder) find(ctx context.Context) (Binaries, error) {
	var newest Binaries
	var reasons []error
	try := func(dir string) {
		found, err := probe(ctx, f.user, dir)
		if err != nil {
			reasons = append(reasons, err)
		} else if found.Major > newest.Major {
			newest = found
		}
	}
	for _, dir := range filepath.SplitList(f.path) {
		// initdb is next to the real file, not next to a link to it
		if program, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil && filepath.IsAbs(dir) && newest.Major == 0 {
			try(filepath.Dir(program))
		}
	}
	if newest.Major > 0 {
		return newest, nil
	}
	for _, pattern := range f.installed {
		dirs, _ := filepath.Glob(pattern) // all patterns are valid
		for _, dir := range dirs {
			try(dir)
		}
	}
	if newest.Major > 0 {
		return newest, nil
	}
	fetched, err := f.fetch(ctx)
	if err != nil {
		return Binaries{}, fmt.Errorf("no PostgreSQL server of version %d or newer was found on this machine; %w; "+
			"install one with `apt-get install postgresql` (Debian, Ubuntu), `dnf install postgresql-server` (Fedora) "+
			"or `brew install postgresql@17` (macOS)", minimumMajor, errors.Join(append(reasons, fmt.Errorf("downloading it: %w", err))...))
	}
	return fetched, nil
}

// probe returns the binaries in a directory, or why they cannot be used.
func probe(ctx context.Context, as *syscall.Credential, dir string) (Binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binaries{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var output []byte
	for _, program := range []string{"initdb", "postgres"} {
		if output, err = serverCommand(ctx, as, filepath.Join(dir, program), "--version").Output(); err != nil {
			return Binaries{}, fmt.Errorf("PostgreSQL in %s cannot be run%s: %w", dir, asUser(as), err)
		}
	}
	// "postgres (PostgreSQL) 15.18 (Debian …)", or "19beta1" before the release
	found := Binaries{Dir: dir}
	_, rest, _ := strings.Cut(string(output), "(PostgreSQL) ")
	if _, err := fmt.Sscanf(rest, "%d", &found.Major); err != nil {
		return Binaries{}, fmt.Errorf("%s has an unknown version: %q", dir, output)
	}
	found.Version = strings.Fields(rest)[0]
	if found.Major < minimumMajor {
		return Binaries{}, fmt.Errorf("%s has PostgreSQL %s, too old", dir, found.Version)
	}
	return found, nil
}

// asUser ends an error message about a program that runs as another user.
func asUser(as *syscall.Credential) string {
	if as == nil {
		return ""
	}
	return fmt.Sprintf(" as uid %d", as.Uid)
}
