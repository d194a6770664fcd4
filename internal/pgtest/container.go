package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcpostgres "github.com/testcontainers/testcontainers-go/modules/postgres"
	"github.com/testcontainers/testcontainers-go/wait"
)

const (
	defaultImage = "postgres:17.11-alpine@sha256:b0f9560a2de083e2cc7382e75f808c7381a32852a7ec49117deedb300e552b24"

	engineTimeout   = 2 * time.Second // a socket can accept and stay mute
	pullTimeout     = 2 * time.Minute
	pullIdleTimeout = 10 * time.Second
	runTimeout      = time.Minute
)

// startContainer runs the image of PETSTORE_TEST_POSTGRES_IMAGE if a Docker engine
// responds. The engine removes the container when its server stops.
func startContainer(ctx context.Context, dir string) (*server, error) {
	host, err := engineHost(ctx)
	if err != nil {
		return nil, err
	}
	engine, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	image := cmp.Or(os.Getenv("PETSTORE_TEST_POSTGRES_IMAGE"), defaultImage)
	if err := provideImage(ctx, engine, image); err != nil {
		say(fmt.Sprintf("not in a container: %s: %v", host, err))
		return nil, fmt.Errorf("%s: %w", host, err)
	}
	name := "petstore-" + filepath.Base(dir)
	// it cannot be used any more, if there is one
	_, _ = engine.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})

	// testcontainers reads these
	loopback := strings.HasPrefix(host, "unix:") && os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") == ""
	settings := map[string]string{"DOCKER_HOST": host}
	if loopback {
		settings["TESTCONTAINERS_HOST_OVERRIDE"] = "127.0.0.1"
	}
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		settings["TESTCONTAINERS_RYUK_DISABLED"] = "true" // it would remove the container after the first process
	}
	for name, value := range settings {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	return runContainer(ctx, name, image, loopback)
}

func runContainer(ctx context.Context, name, image string, loopback bool) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	running, err := tcpostgres.Run(ctx, image,
		testcontainers.WithName(name),
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "synchronous_commit=off",
			"-c", "full_page_writes=off", "-c", "max_connections="+maxConnections),
		testcontainers.WithHostConfigModifier(func(config *container.HostConfig) {
			config.AutoRemove = true
			if loopback {
				config.PortBindings = network.PortMap{
					network.MustParsePort("5432/tcp"): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "0"}},
				}
			}
		}),
		// it starts twice, first to create the database
		testcontainers.WithWaitStrategyAndDeadline(runTimeout,
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
			wait.ForListeningPort("5432/tcp")),
	)
	var url string
	if err == nil {
		url, err = running.ConnectionString(ctx, "sslmode=disable")
	}
	if err != nil {
		return nil, errors.Join(err, testcontainers.TerminateContainer(running, testcontainers.StopTimeout(0)))
	}
	return &server{URL: url, Description: fmt.Sprintf("PostgreSQL in a container of %s (testcontainers)", image)}, nil
}

// engineHost returns the address of a Docker engine: DOCKER_HOST, or the first of
// the usual sockets that accepts a connection.
func engineHost(ctx context.Context) (string, error) {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host, nil
	}
	sockets := []string{"/var/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		sockets = append(sockets, filepath.Join(dir, "docker.sock"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		sockets = append(sockets, filepath.Join(home, ".docker/run/docker.sock"), filepath.Join(home, ".docker/desktop/docker.sock"))
	}
	dialer := net.Dialer{Timeout: engineTimeout}
	var errs []error
	for _, socket := range sockets {
		conn, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			conn.Close()
			return "unix://" + socket, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return "", errors.New("there is no socket of an engine")
	}
	return "", errors.Join(errs...)
}

// provideImage pulls the image if the engine does not have it. An engine that does
// not respond soon counts as none.
func provideImage(ctx context.Context, engine *client.Client, image string) error {
	shortCtx, cancel := context.WithTimeoutCause(ctx, engineTimeout, fmt.Errorf("no response within %v", engineTimeout))
	defer cancel()
	_, err := engine.Ping(shortCtx, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil {
		_, err = engine.ImageInspect(shortCtx, image)
	}
	if shortCtx.Err() != nil {
		return context.Cause(shortCtx)
	}
	if err == nil || !errdefs.IsNotFound(err) {
		return err
	}
	say("pulling the image " + image)
	return pull(ctx, engine, image)
}

// pull pulls an image as long as there is progress. Without a network, an engine can
// be silent for minutes.
func pull(ctx context.Context, engine *client.Client, image string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, fmt.Errorf("pulling %s: not done after %v", image, pullTimeout))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	idle := time.AfterFunc(pullIdleTimeout, func() { stop(fmt.Errorf("pulling %s: no progress for %v", image, pullIdleTimeout)) })
	defer idle.Stop()
	pulling, err := engine.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	for message, err := range pulling.JSONMessages(ctx) {
		if err == nil && message.Error != nil {
			err = message.Error
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), fmt.Errorf("pulling %s: %w", image, err))
		}
		idle.Reset(pullIdleTimeout)
	}
	return nil
}
