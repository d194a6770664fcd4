package localpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/xi2/xz"
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
	maxArchive   = 256 << 20 // bytes; they have 14 to 30 million
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
func (o FindOptions) fetch(ctx context.Context, runAs *account) (_ Binaries, err error) {
	cache := o.Cache
	if cache == "" {
		if cache, err = CacheDir(); err != nil {
			return Binaries{}, err
		}
	}
	home := filepath.Join(cache, fmt.Sprintf("postgresql-%s-%s-%s", fetchVersion, runtime.GOOS, runtime.GOARCH))
	if !isExecutable(filepath.Join(home, "bin", "postgres")) {
		if err := o.fill(ctx, cache, home); err != nil {
			return Binaries{}, err
		}
	}
	return probe(ctx, runAs, filepath.Join(home, "bin"))
}

// CacheDir creates and returns a directory for files that later runs use: in the
// user's cache, or for root in the machine's, because root's own is closed to the
// user that the server runs as. If neither can be used, it is in the directory for
// temporary files.
func CacheDir() (string, error) {
	runAs, err := serverAccount("")
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if runAs != nil && os.Getenv("XDG_CACHE_HOME") == "" {
		cache, err = "/var/cache", nil
	}
	if err == nil {
		dir := filepath.Join(cache, "petstore")
		if err = makeOpenDir(dir, runAs); err == nil {
			return dir, nil
		}
	}
	dir := filepath.Join(os.TempDir(), "petstore-"+strconv.Itoa(os.Geteuid()))
	if tempErr := makeOpenDir(dir, runAs); tempErr != nil {
		return "", errors.Join(err, tempErr)
	}
	return dir, nil
}

// makeOpenDir makes a directory of ours that the account can enter.
func makeOpenDir(dir string, runAs *account) error {
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
	// a strict umask must not close it to the user that the server runs as
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if !runAs.canEnter(dir) {
		return fmt.Errorf("the user %s cannot enter %s", runAs.name, dir)
	}
	return nil
}

// fill downloads the server, unpacks it beside home and renames it, so that several
// processes may do it at once.
func (o FindOptions) fill(ctx context.Context, cache, home string) error {
	digest := cmp.Or(o.Digest, fetchDigests[platform()])
	if digest == "" {
		return fmt.Errorf("there is no archive of PostgreSQL %s for %s", fetchVersion, platform())
	}
	if o.Progress != nil {
		fmt.Fprintf(o.Progress, "Downloading PostgreSQL %s into %s, once.\n", fetchVersion, cache)
	}
	archive, err := o.download(ctx, digest)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	unpacked := filepath.Join(temp, "unpacked")
	if err := unpack(archive, unpacked); err != nil {
		return fmt.Errorf("unpack the archive: %w", err)
	}
	if err := os.Rename(unpacked, home); err != nil && !errors.Is(err, fs.ErrExist) { // another process was faster
		return err
	}
	return nil
}

// download returns the archive for this platform, which must have this digest.
func (o FindOptions) download(ctx context.Context, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, fetchTimeout, fmt.Errorf("not done after %v", fetchTimeout))
	defer cancel()
	mirror := cmp.Or(o.Mirror, mavenCentral)
	artifact := "embedded-postgres-binaries-" + platform()
	address := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%s-%s.jar", mirror, artifact, fetchVersion, artifact, fetchVersion)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", mirror, networkCause(ctx, err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s returns %s", address, response.Status)
	}
	archive, err := io.ReadAll(io.LimitReader(response.Body, maxArchive))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", address, networkCause(ctx, err))
	}
	sum := sha256.Sum256(archive)
	if got := hex.EncodeToString(sum[:]); got != digest {
		return nil, fmt.Errorf("%s has the SHA-256 %s instead of %s, so it was not unpacked", address, got, digest)
	}
	return archive, nil
}

// networkCause returns the cause of the context's end if it has ended, or else the
// innermost cause, without the addresses that the outer errors repeat.
func networkCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("the host name %q cannot be looked up", lookup.Name)
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}

// unpack writes the files of the server below dir. They are in a tar in an xz in the
// jar. Every user may read them.
func unpack(jar []byte, dir string) error {
	files, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return err
	}
	server := slices.IndexFunc(files.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, ".txz") })
	if server < 0 {
		return errors.New("it contains no server")
	}
	compressed, err := files.File[server].Open()
	if err != nil {
		return err
	}
	defer compressed.Close()
	plain, err := xz.NewReader(compressed, 0)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	entries := tar.NewReader(plain)
	entry, err := entries.Next()
	for err == nil {
		if err := unpackEntry(root, entry, entries); err != nil {
			return err
		}
		entry, err = entries.Next()
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	return openToAll(root)
}

// unpackEntry writes one entry of the tar. It makes directories as files need them.
func unpackEntry(root *os.Root, entry *tar.Header, content io.Reader) error {
	name := path.Clean(entry.Name)
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch entry.Typeflag {
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, entry.FileInfo().Mode().Perm()|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	case tar.TypeSymlink:
		return root.Symlink(entry.Linkname, name)
	case tar.TypeDir:
		return nil
	default:
		return fmt.Errorf("%s is neither a file, a link nor a directory", entry.Name)
	}
}

// openToAll lets every user read and run what the owner can, whatever the umask.
func openToAll(root *os.Root) error {
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return root.Chmod(name, mode)
	})
}
