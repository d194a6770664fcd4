package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"petstore/internal/localpg"
)

const (
	devDir = ".petstore" // in the working directory of dev
	// devFile is in devDir. It has a [devServer] and a lock while dev runs.
	devFile = "dev.json"
)

// The certificate of dev --https and its key.
var (
	devCertFile = filepath.Join(devDir, "cert.pem")
	devKeyFile  = filepath.Join(devDir, "key.pem")
)

// devServer is a running dev, as other commands find it.
type devServer struct {
	URL         string `json:"url"`
	Address     string `json:"address"` // on which it listens
	APIKey      string `json:"apiKey"`
	DatabaseURL string `json:"databaseUrl"`
	DirectURL   string `json:"directUrl,omitempty"`
	Certificate string `json:"certificate,omitempty"` // in PEM; empty: without TLS
	dir         string // in which it runs
}

// serves reports whether commands with a URL, or with none, use the server.
func (d devServer) serves(url string) bool { return url == "" || strings.TrimSuffix(url, "/") == d.URL }

// makeDevDir creates the data folder of dev, ignored by git.
func makeDevDir() error {
	err := os.MkdirAll(devDir, localpg.DirMode())
	if err == nil {
		err = os.Chmod(devDir, localpg.DirMode()) // folders of older versions have wider permissions
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(devDir, ".gitignore"), []byte("*\n"), 0o600)
	}
	return notWritten(err)
}

// notWritten explains which file or folder of dev could not be written, and why.
func notWritten(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("cannot write %s: %w; start petstore dev in a folder that you may write to", failed.Path, failed.Err)
	}
	return err
}

// lockDevDir locks the folder for this process and empties its [devFile]. The kernel
// releases the lock when the process ends, however it ends. No other code of the process
// may open the file, because closing it would release the lock.
func lockDevDir() (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(devDir, devFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, notWritten(err)
	}
	lock := wholeFile
	if err := unix.FcntlFlock(file.Fd(), unix.F_SETLK, &lock); err != nil {
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			err = fmt.Errorf("another petstore dev runs in this folder (%s is locked); stop it first", file.Name())
		}
		return nil, errors.Join(err, file.Close())
	}
	return file, notWritten(file.Truncate(0))
}

// wholeFile describes an exclusive lock.
var wholeFile = unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}

// publishDev lets other commands find a server until the returned function is called.
func publishDev(file *os.File, server devServer) (withdraw func() error, err error) {
	text, err := json.Marshal(server) //nolint:gosec // only the user can read the file
	if err == nil {
		_, err = file.WriteAt(append(text, '\n'), 0)
	}
	return func() error { return file.Truncate(0) }, notWritten(err)
}

// findDev returns the dev that runs in the working directory of the program or in a folder
// above it. The folder is the first one that has a devDir, as git finds its repository. The
// error says why there is none.
func (p *program) findDev() (devServer, error) {
	start, err := filepath.Abs(p.dir)
	if err != nil {
		return devServer{}, err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(filepath.Join(dir, devDir)); err == nil && info.IsDir() {
			return readDev(dir)
		}
		if dir == filepath.Dir(dir) {
			return devServer{}, errors.New("petstore dev runs in no folder from here upwards")
		}
	}
}

// readDev returns the dev that runs in a folder.
func readDev(dir string) (devServer, error) {
	name := filepath.Join(dir, devDir, devFile)
	stopped := fmt.Errorf("petstore dev does not run in %s", dir)
	file, err := os.Open(name) //nolint:gosec // the folder belongs to the user, or readDev returns an error
	if errors.Is(err, fs.ErrNotExist) {
		return devServer{}, stopped
	}
	if err != nil { // without the path, for [plain]
		return devServer{}, fmt.Errorf("%s cannot be read: %w", name, errors.Unwrap(err))
	}
	defer file.Close()
	// Another user could send the key in the environment to a server of theirs.
	info, err := file.Stat()
	if err != nil {
		return devServer{}, err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
		return devServer{}, fmt.Errorf("%s belongs to another user", name)
	}
	lock := wholeFile
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return devServer{}, err
	}
	if lock.Type == unix.F_UNLCK {
		return devServer{}, stopped
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return devServer{}, err
	}
	var server devServer
	if err := json.Unmarshal(text, &server); err != nil {
		return devServer{}, fmt.Errorf("petstore dev in %s is starting or stopping", dir)
	}
	server.dir = dir
	return server, nil
}
