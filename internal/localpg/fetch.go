package localpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/xi2/xz"
	"golang.org/x/term"
)

// fetchVersion is the version that is downloaded to a machine without a server.
const fetchVersion = "17.5.0"

// fetchDigests are the SHA-256 of its archives in Maven Central, one for each
// platform that has one. An archive with another digest is not unpacked.
var fetchDigests = map[string]string{
	"darwin-amd64":       "fb70f783928e77c3d6ef5ca8ed644f1ac502f740fcfc032a375c8347820f2bdd",
	"darwin-arm64v8":     "e9d3398e10c2ec926395498b03e75ad1a24eeaed82895e756a7e173b202cf6de",
	"linux-amd64":        "646f3269075d1a23904127374e3cdbcef96beb32979fedee25d835877400fcbe",
	"linux-amd64-alpine": "7122386c7f7a089568f05720ada63448093d4065abbc0a89e6dc660851a53e3c",
	"linux-arm64v8":      "e02f27ff50ff2d90b6541d54f3f108505aacd84ea53c2890e976a684bfea2752",
}

const (
	mavenCentral = "https://repo1.maven.org/maven2"
	fetchTimeout = 2 * time.Minute
	maxArchive   = 256 << 20 // bytes; archives have 14 to 30 million
)

// platform is this machine's name in the archives of zonky.io.
func platform() string {
	name := runtime.GOOS + "-" + runtime.GOARCH
	if runtime.GOARCH == "arm64" {
		name += "v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil && runtime.GOOS == "linux" {
		name += "-alpine"
	}
	return name
}

// fetch returns the server in the cache, and downloads it if it is not there.
func (f finder) fetch(ctx context.Context) (_ Binaries, err error) {
	if f.cache == "" {
		if f.cache, err = CacheDir(); err != nil {
			return Binaries{}, err
		}
	}
	home := filepath.Join(f.cache, fmt.Sprintf("postgresql-%s-%s", fetchVersion, platform()))
	if _, err := os.Stat(home); errors.Is(err, os.ErrNotExist) {
		if err := f.fill(ctx, home); err != nil {
			return Binaries{}, err
		}
	}
	return probe(ctx, f.user, filepath.Join(home, "bin"))
}

// CacheDir creates and returns a directory for files that later runs use. It is in the
// user's cache, or for root in the machine's cache. Root's own is closed to the user
// that the server runs as. If that directory cannot be used, it is in the directory for
// temporary files.
func CacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		cache, err = "/var/cache", nil
	}
	if err == nil {
		dir := filepath.Join(cache, "petstore")
		if err = makeOpenDir(dir); err == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("petstore-%d", os.Geteuid()))
	if tempErr := makeOpenDir(dir); tempErr != nil {
		return "", errors.Join(err, tempErr)
	}
	return dir, nil
}

// makeOpenDir creates a directory that other users can enter, whatever the umask. Under
// root, the error may be that a parent is closed to them.
func makeOpenDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of this user", dir)
	}
	if err := os.Chmod(dir, 0o755); err != nil || os.Geteuid() != 0 {
		return err
	}
	return checkParents(dir)
}

// checkParents returns an error if other users cannot enter a directory.
func checkParents(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for parent := dir; ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("the user of the server cannot enter %s; allow it with `chmod o+x %s`", dir, parent)
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// fill downloads the server, unpacks it beside home and renames it, so that several
// processes may do it at once.
func (f finder) fill(ctx context.Context, home string) error {
	if f.digest == "" {
		return fmt.Errorf("there is no archive of PostgreSQL %s for %s", fetchVersion, platform())
	}
	archive, err := f.download(ctx)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(f.cache, "fetching-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := unpack(ctx, archive, temp); err != nil {
		return fmt.Errorf("unpack the archive: %w", err)
	}
	if err := os.Rename(temp, home); err != nil && !errors.Is(err, fs.ErrExist) { // another process was faster
		return err
	}
	return nil
}

// download returns the archive for this platform.
func (f finder) download(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done after %v", fetchTimeout))
	defer cancel()
	artifact := "embedded-postgres-binaries-" + platform()
	address := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%s-%s.jar", f.mirror, artifact, fetchVersion, artifact, fetchVersion)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s returns %s", address, response.Status)
	}
	begin := time.Now()
	screen, isFile := f.progress.(*os.File)
	body := f.watch(response, isFile && term.IsTerminal(int(screen.Fd())))
	archive, err := io.ReadAll(io.LimitReader(body, maxArchive))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", address, err)
	}
	if f.progress != nil {
		fmt.Fprintf(f.progress, "Downloaded it in %.1f s.\n", time.Since(begin).Seconds())
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(archive)); got != f.digest {
		return nil, fmt.Errorf("%s has the SHA-256 %s instead of %s, so it was not unpacked", address, got, f.digest)
	}
	return archive, nil
}

// watch returns the body of the download, and writes to progress how large it is, if the server says so.
// On a terminal, it also writes how much of it has come.
func (f finder) watch(response *http.Response, isTerminal bool) io.Reader {
	if f.progress == nil {
		return response.Body
	}
	const megabyte = 1e6
	size, of := "", ""
	if response.ContentLength >= 0 {
		of = fmt.Sprintf(" of %.1f", float64(response.ContentLength)/megabyte)
		size = fmt.Sprintf(" (%.1f MB)", float64(response.ContentLength)/megabyte)
	}
	fmt.Fprintf(f.progress, "Downloading PostgreSQL %s%s into %s, once.\n", fetchVersion, size, f.cache)
	if !isTerminal {
		return response.Body
	}
	return &counter{response.Body, func(read int64, ended bool) {
		if ended {
			fmt.Fprint(f.progress, "\r\x1b[K")
		} else {
			fmt.Fprintf(f.progress, "\r%.1f%s MB", float64(read)/megabyte, of)
		}
	}, 0}
}

// counter reports the number of bytes that were read, and the end.
type counter struct {
	io.Reader

	report func(read int64, ended bool)
	read   int64
}

func (c *counter) Read(into []byte) (int, error) {
	n, err := c.Reader.Read(into)
	c.read += int64(n)
	c.report(c.read, err != nil)
	return n, err
}

// unpack writes the files of the server below dir. They are in a tar in an xz in the
// jar. Every user may read them, whatever the umask.
func unpack(ctx context.Context, jar []byte, dir string) error {
	files, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return err
	}
	names, err := fs.Glob(files, "*.txz")
	if err != nil || len(names) == 0 {
		return errors.Join(errors.New("it contains no server"), err)
	}
	compressed, err := files.Open(names[0])
	if err != nil {
		return err
	}
	defer compressed.Close()
	plain, err := xz.NewReader(compressed, 0)
	if err != nil {
		return err
	}
	tar := exec.CommandContext(ctx, "tar", "-x", "-f", "-", "-C", dir, "--no-same-owner")
	tar.Stdin = plain
	for _, cmd := range []*exec.Cmd{tar, exec.CommandContext(ctx, "chmod", "-R", "a+rX", dir)} {
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, output)
		}
	}
	return nil
}
