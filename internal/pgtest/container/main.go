// Command container runs PostgreSQL in a container for pgtest. It writes its URL and image to
// standard output, or why it failed:
//
//	go run petstore/internal/pgtest/container HOST NAME MAX_CONNECTIONS
//
// HOST is the address of a Docker engine, and NAME the name of the container. It replaces a
// container of that name. PETSTORE_TEST_POSTGRES_IMAGE selects another image. The engine removes
// the container when its server stops.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
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

	engineTimeout   = 2 * time.Second // until its first response
	pullTimeout     = 2 * time.Minute
	pullIdleTimeout = 10 * time.Second
	runTimeout      = time.Minute
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: container HOST NAME MAX_CONNECTIONS")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1], os.Args[2], os.Args[3])
	stop()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(ctx context.Context, host, name, maxConnections string) error {
	engine, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		return err
	}
	defer engine.Close()
	image := cmp.Or(os.Getenv("PETSTORE_TEST_POSTGRES_IMAGE"), defaultImage)
	if err := provideImage(ctx, engine, image); err != nil {
		return err
	}
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
		return err
	}
	url, err := startPostgres(ctx, name, image, maxConnections, loopback)
	if err == nil {
		fmt.Println(url, image)
	}
	return err
}

func startPostgres(ctx context.Context, name, image, maxConnections string, loopback bool) (url string, err error) {
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

// provideImage pulls the image if the engine does not have it. It gives up when the engine does
// not respond, is silent during the pull, as without a network, or needs too long for it.
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
	fmt.Fprintln(os.Stderr, "pgtest: pulling the image "+image)
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
