package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// engineTimeout bounds the wait for a Docker engine: a socket can accept and stay mute.
const engineTimeout = 2 * time.Second

// startContainer runs PostgreSQL in a container if a Docker engine responds, and returns the
// server's URL and description. The program in the directory container does it, because
// testcontainers would double the size and the start of every test that links it.
func startContainer(ctx context.Context, dir string) (url, description string, err error) {
	host, err := engineHost(ctx)
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "petstore/internal/pgtest/container", host, "petstore-"+filepath.Base(dir), maxConnections)
	cmd.Stderr = os.Stderr // it says when it pulls an image
	output, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", host, err, bytes.TrimSpace(output))
		say("not in a container: " + err.Error())
		return "", "", err
	}
	url, image, _ := strings.Cut(string(bytes.TrimSpace(output)), " ")
	return url, fmt.Sprintf("PostgreSQL in a container of %s (testcontainers)", image), nil
}

// engineHost returns the address of a Docker engine: DOCKER_HOST, or the first of the usual
// sockets. An engine at a socket must respond.
func engineHost(ctx context.Context) (string, error) {
	const unix = "unix://"
	home, _ := os.UserHomeDir()
	sockets := []string{"/var/run/docker.sock", filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "docker.sock"), filepath.Join(home, ".docker/run/docker.sock"), filepath.Join(home, ".docker/desktop/docker.sock")}
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		socket, isSocket := strings.CutPrefix(host, unix)
		if !isSocket {
			return host, nil
		}
		sockets = []string{socket}
	}
	failures := errors.New("no Docker engine responds")
	for _, socket := range sockets {
		if !filepath.IsAbs(socket) {
			continue
		}
		if err := ping(ctx, socket); err != nil {
			failures = fmt.Errorf("%w; %s%s: %w", failures, unix, socket, err)
		} else {
			return unix + socket, nil
		}
	}
	return "", failures
}

// ping asks the engine at a socket whether it is there.
func ping(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
