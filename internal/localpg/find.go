package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// minimumMajor is the oldest PostgreSQL that the schema runs on.
const minimumMajor = 15

// probeTimeout bounds a question to a program found on the way.
const probeTimeout = 10 * time.Second

// installed are the places where packages put the server, and PATH does not
// always lead.
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

// FindOptions say where [Find] looks. The zero value is the machine as it is.
type FindOptions struct {
	// Bin is the one directory to use when it is set.
	Bin string
	// Progress gets one line before a download.
	Progress io.Writer

	// Path replaces $PATH.
	Path string
	// Installed replaces the patterns of known installations.
	Installed []string
	// Cache replaces the user's cache directory for the downloaded server.
	Cache string
	// Mirror replaces Maven Central.
	Mirror string
	// Digest replaces the SHA-256, in hexadecimal digits, that the downloaded
	// archive must have.
	Digest string
}

// NotFoundError says that the machine has no server that we can run. Its
// message ends with how to install one.
type NotFoundError struct {
	// Reasons are what was found and could not be used, and why fetching failed.
	Reasons []error
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no PostgreSQL server of version %d or newer was found on this machine", minimumMajor)
	for _, reason := range e.Reasons {
		fmt.Fprintf(&b, "; %v", reason)
	}
	b.WriteString("; install one with `apt-get install postgresql` (Debian, Ubuntu), " +
		"`dnf install postgresql-server` (Fedora) or `brew install postgresql@17` (macOS)")
	return b.String()
}

func (e *NotFoundError) Unwrap() []error { return e.Reasons }

// Find returns the server's programs, those that also run as the user that
// [Start] will use. It looks in o.Bin (and, when that is set, nowhere else), on
// the PATH, where pg_config points, and at known installations, the newest
// first; failing all, it fetches them once into the user's cache, in two
// minutes at most. The error is a [*NotFoundError] when there is none.
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
		return Binaries{}, &NotFoundError{Reasons: append(reasons, err)}
	}
	return found, nil
}

// candidates are directories that may hold a server, in groups of equal rank.
func (o FindOptions) candidates(ctx context.Context, runAs *account) [][]string {
	path, patterns := o.Path, o.Installed
	if path == "" {
		path = os.Getenv("PATH")
	}
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
		dirs, err := filepath.Glob(pattern)
		if err == nil {
			known = append(known, dirs...)
		}
	}
	return append(groups, known)
}

// lookPath is the file that a program on the path really is: initdb lies
// beside that one, not beside a link to it.
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

// probe reports what is in a directory, or why it is of no use.
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

// parseVersion reads "postgres (PostgreSQL) 15.18 (Debian …)"; a version that
// is not released yet is like "19devel" or "19beta1".
func parseVersion(output string) (version string, major int, err error) {
	_, rest, ok := strings.Cut(output, "(PostgreSQL) ")
	version, _, _ = strings.Cut(rest, " ")
	digits := version
	if end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = version[:end]
	}
	major, err = strconv.Atoi(digits)
	if !ok || err != nil {
		return "", 0, fmt.Errorf("unknown version %q", output)
	}
	return version, major, nil
}

// ask runs a program that answers one line.
func ask(ctx context.Context, runAs *account, program, question string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var output strings.Builder
	cmd := runAs.command(ctx, syscall.SIGKILL, program, question)
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

// cause leaves out the path that an error of exec repeats.
func cause(err error) error {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return pathErr.Err
	}
	return err
}
