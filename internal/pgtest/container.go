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
// responds, and returns the server's URL and description. The engine removes the
// container when its server stops.
func startContainer(ctx context.Context, dir string) (url, description string, err error) {
	host, err := engineHost(ctx)
	if err != nil {
		return "", "", err
	}
	engine, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		return "", "", err
	}
	defer engine.Close()
	image := cmp.Or(os.Getenv("PETSTORE_TEST_POSTGRES_IMAGE"), defaultImage)
	if err := provideImage(ctx, engine, image); err != nil {
		say(fmt.Sprintf("not in a container: %s: %v", host, err))
		return "", "", fmt.Errorf("%s: %w", host, err)
	}
	name := "petstore-" + filepath.Base(dir)
	// it cannot be used any more, if there is one
	_, _ = engine.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})

	// testcontainers reads these; its reaper would end the container with this process
	loopback := strings.HasPrefix(host, "unix:") && os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") == ""
	err = errors.Join(os.Setenv("DOCKER_HOST", host),
		os.Setenv("TESTCONTAINERS_RYUK_DISABLED", cmp.Or(os.Getenv("TESTCONTAINERS_RYUK_DISABLED"), "true")))
	if loopback {
		err = errors.Join(err, os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1"))
	}
	if err != nil {
		return "", "", err
	}
	url, err = runContainer(ctx, name, image, loopback)
	return url, fmt.Sprintf("PostgreSQL in a container of %s (testcontainers)", image), err
}

func runContainer(ctx context.Context, name, image string, loopback bool) (url string, err error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	running, err := tcpostgres.Run(ctx, image,
		testcontainers.WithName(name),
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "synchronous_commit=off",
			"-c", "full_page_writes=off", "-c", "max_connections="+maxConnections, "-c", "autovacuum=off"),
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
	if err == nil {
		url, err = running.ConnectionString(ctx, "sslmode=disable")
	}
	if err != nil {
		return "", errors.Join(err, testcontainers.TerminateContainer(running, testcontainers.StopTimeout(0)))
	}
	return url, nil
}

// engineHost returns the address of a Docker engine: DOCKER_HOST, or the first of
// the usual sockets that accepts a connection.
func engineHost(ctx context.Context) (string, error) {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host, nil
	}
	home, _ := os.UserHomeDir()
	for _, usual := range []struct{ base, socket string }{
		{"/var/run", "docker.sock"},
		{os.Getenv("XDG_RUNTIME_DIR"), "docker.sock"},
		{home, ".docker/run/docker.sock"},
		{home, ".docker/desktop/docker.sock"},
	} {
		if usual.base == "" {
			continue // otherwise relative to this package
		}
		socket := filepath.Join(usual.base, usual.socket)
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", socket); err == nil {
			conn.Close()
			return "unix://" + socket, nil
		}
	}
	return "", errors.New("no socket of an engine accepts a connection")
}

// provideImage pulls the image if the engine does not have it. An engine that does
// not respond soon counts as none. So does one that is silent during the pull, as
// without a network, or that needs too long for it.
func provideImage(ctx context.Context, engine *client.Client, image string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(engineTimeout, func() { cancel(errors.New("the engine does not respond")) })
	defer silent.Stop()
	_, err := engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil {
		_, err = engine.ImageInspect(ctx, image)
	}
	if !errdefs.IsNotFound(err) {
		return cmp.Or(context.Cause(ctx), err)
	}
	say("pulling the image " + image)
	silent.Reset(pullIdleTimeout)
	slow := time.AfterFunc(pullTimeout, func() { cancel(fmt.Errorf("pulling %s takes longer than %v", image, pullTimeout)) })
	defer slow.Stop()
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
		silent.Reset(pullIdleTimeout)
	}
	return nil
}
