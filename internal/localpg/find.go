package localpg

import (
	"cmp"
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

// minimumMajor is the oldest version on which the schema works.
const minimumMajor = 15

// probeTimeout limits the run of a program that prints its version.
const probeTimeout = 10 * time.Second

// installed are the directories in which packages install the server. They are not
// always on the PATH.
var installed = []string{
	"/usr/lib/postgresql/*/bin",                               // Debian
	"/opt/homebrew/opt/postgresql@*/bin",                      // Homebrew on ARM
	"/usr/local/opt/postgresql@*/bin",                         // Homebrew on Intel
	"/usr/pgsql-*/bin",                                        // the PostgreSQL project's RPMs
	"/usr/libexec/postgresql*",                                // Alpine
	"/Applications/Postgres.app/Contents/Versions/latest/bin", // macOS
}

// Binaries are the programs of one PostgreSQL server.
type Binaries struct {
	Dir     string // holds initdb and postgres
	Version string // such as "15.18"
	Major   int
}

func (b Binaries) String() string {
	return fmt.Sprintf("PostgreSQL %s from %s", b.Version, b.Dir)
}

// FindOptions tell [Find] where to look. Zero values stand for the defaults.
type FindOptions struct {
	Bin      string    // the only directory to use
	Progress io.Writer // gets one line before a download

	Path      string   // replaces $PATH
	Installed []string // replaces the patterns of known installations
	Cache     string   // replaces the directory of [CacheDir]
	Mirror    string   // replaces Maven Central
	Digest    string   // replaces the SHA-256 of the download, in hexadecimal digits
}

// notFound ends the error of [Find]. It follows the reasons why servers that were
// found cannot be used, and why the download failed.
const notFound = "install one with `apt-get install postgresql` (Debian, Ubuntu), " +
	"`dnf install postgresql-server` (Fedora) or `brew install postgresql@17` (macOS)"

// Find returns server binaries that also work as the user that [Start] will use. If
// o.Bin is set, it looks nowhere else. Else it looks on the PATH, where pg_config
// points, and at known installations, the newest first. If there are none, it
// downloads them into the cache, in at most two minutes. The error says what is wrong
// with each and how to install a server.
func Find(ctx context.Context, o FindOptions) (Binaries, error) {
	runAs, err := serverAccount("")
	if err != nil {
		return Binaries{}, err
	}
	if o.Bin != "" {
		return probe(ctx, runAs, o.Bin)
	}
	var reasons []error
	for _, group := range o.candidates(ctx, runAs) {
		var newest Binaries
		for _, dir := range group {
			found, err := probe(ctx, runAs, dir)
			if err != nil {
				reasons = append(reasons, err)
			} else if found.Major > newest.Major {
				newest = found
			}
		}
		if newest.Major > 0 {
			return newest, nil
		}
	}
	found, err := o.fetch(ctx, runAs)
	if err != nil {
		var found strings.Builder
		for _, reason := range reasons {
			fmt.Fprintf(&found, "; %v", reason)
		}
		return Binaries{}, fmt.Errorf("no PostgreSQL server of version %d or newer was found on this machine%s; downloading it: %w; %s",
			minimumMajor, found.String(), err, notFound)
	}
	return found, nil
}

// candidates returns directories that may contain a server, in groups of equal rank.
func (o FindOptions) candidates(ctx context.Context, runAs *account) [][]string {
	path, patterns := cmp.Or(o.Path, os.Getenv("PATH")), o.Installed
	if patterns == nil {
		patterns = installed
	}
	var groups [][]string
	if program := lookPath(path, "postgres"); program != "" {
		groups = append(groups, []string{filepath.Dir(program)})
	}
	if program := lookPath(path, "pg_config"); program != "" {
		if dir, err := ask(ctx, runAs, program, "--bindir"); err == nil && isExecutable(filepath.Join(dir, "postgres")) {
			groups = append(groups, []string{dir})
		}
	}
	var known []string
	for _, pattern := range patterns {
		dirs, _ := filepath.Glob(pattern) // all patterns are valid
		known = append(known, dirs...)
	}
	return append(groups, known)
}

// lookPath returns the real file of a program on the path: initdb is next to that one,
// not next to a link to it.
func lookPath(path, program string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, program)
		if !filepath.IsAbs(file) || !isExecutable(file) {
			continue
		}
		if target, err := filepath.EvalSymlinks(file); err == nil {
			return target
		}
	}
	return ""
}

func isExecutable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// probe returns the binaries in a directory, or why they cannot be used.
func probe(ctx context.Context, runAs *account, dir string) (Binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binaries{}, fmt.Errorf("localpg: %w", err)
	}
	if _, err := ask(ctx, runAs, filepath.Join(dir, "initdb"), "--version"); err != nil {
		return Binaries{}, err
	}
	output, err := ask(ctx, runAs, filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return Binaries{}, err
	}
	version, major, err := parseVersion(output)
	if err != nil {
		return Binaries{}, fmt.Errorf("%s: %w", dir, err)
	}
	if major < minimumMajor {
		return Binaries{}, fmt.Errorf("%s has PostgreSQL %s, too old", dir, version)
	}
	return Binaries{Dir: dir, Version: version, Major: major}, nil
}

// parseVersion reads "postgres (PostgreSQL) 15.18 (Debian …)". Versions that are not
// released yet look like "19devel" or "19beta1".
func parseVersion(output string) (version string, major int, err error) {
	_, rest, ok := strings.Cut(output, "(PostgreSQL) ")
	version, _, _ = strings.Cut(rest, " ")
	_, err = fmt.Sscanf(version, "%d", &major)
	if !ok || err != nil {
		return "", 0, fmt.Errorf("unknown version %q", output)
	}
	return version, major, nil
}

// ask runs a program and returns its output.
func ask(ctx context.Context, runAs *account, program, argument string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var output strings.Builder
	cmd := runAs.command(ctx, syscall.SIGKILL, program, argument)
	cmd.Stdout = &output
	ended, err := start(cmd)
	if err == nil {
		err = <-ended
	}
	if err != nil {
		return "", fmt.Errorf("%s cannot be run%s: %w", program, runAs.suffix(), cause(err))
	}
	return strings.TrimSpace(output.String()), nil
}

// cause removes the path that an error of exec repeats.
func cause(err error) error {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return pathErr.Err
	}
	return err
}
