package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	pullIdleTimeout = 10 * time.Second // without network an engine can be silent for long
	runTimeout      = time.Minute
	watchEngine     = 2 * time.Second
)

// startContainer runs the image of PETSTORE_TEST_POSTGRES_IMAGE where a Docker
// engine answers. It also removes the containers that keepers of the run or of
// abandoned runs left when they were killed.
func startContainer(ctx context.Context, r run, abandoned []string, lines io.Writer) (keptServer, error) {
	host, err := engineHost(ctx)
	if err != nil {
		return keptServer{}, err
	}
	engine, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		return keptServer{}, err
	}
	defer engine.Close()
	image := cmp.Or(os.Getenv("PETSTORE_TEST_POSTGRES_IMAGE"), defaultImage)
	if err := provideImage(ctx, engine, image, lines); err != nil {
		fmt.Fprintf(lines, "not in a container: %s: %v\n", host, err)
		return keptServer{}, fmt.Errorf("%s: %w", host, err)
	}
	for _, dir := range append(abandoned, r.Dir) {
		// most were never there
		_, _ = engine.ContainerRemove(ctx, containerName(dir), client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}

	// the library reads these; this process has no other use for them
	loopback := strings.HasPrefix(host, "unix:") && os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") == ""
	settings := map[string]string{"DOCKER_HOST": host}
	if loopback {
		settings["TESTCONTAINERS_HOST_OVERRIDE"] = "127.0.0.1"
	}
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		settings["TESTCONTAINERS_RYUK_DISABLED"] = "true" // the keeper removes the container
	}
	for name, value := range settings {
		if err := os.Setenv(name, value); err != nil {
			return keptServer{}, err
		}
	}
	return runContainer(ctx, r, image, loopback)
}

func runContainer(ctx context.Context, r run, image string, loopback bool) (_ keptServer, err error) {
	runCtx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	running, err := tcpostgres.Run(runCtx, image,
		testcontainers.WithName(containerName(r.Dir)),
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "synchronous_commit=off",
			"-c", "full_page_writes=off", "-c", "max_connections="+maxConnections),
		testcontainers.WithHostConfigModifier(func(config *container.HostConfig) {
			if loopback {
				config.PortBindings = network.PortMap{
					network.MustParsePort("5432/tcp"): {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "0"}},
				}
			}
		}),
		// it starts twice: the first time to make the database
		testcontainers.WithWaitStrategyAndDeadline(runTimeout,
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
			wait.ForListeningPort("5432/tcp")),
	)
	terminate := sync.OnceFunc(func() {
		// there is nothing to save
		if err := testcontainers.TerminateContainer(running, testcontainers.StopTimeout(0)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	defer func() {
		if err != nil {
			terminate()
		}
	}()
	if err != nil {
		return keptServer{}, err
	}
	url, err := running.ConnectionString(runCtx, "sslmode=disable")
	if err != nil {
		return keptServer{}, err
	}
	found := server{URL: url, Prefix: r.prefix()}
	version, err := found.version(runCtx)
	if err != nil {
		return keptServer{}, err
	}
	found.Description = fmt.Sprintf("PostgreSQL %s in a container of %s (testcontainers)", version, image)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watch(ctx, running)
	}()
	return keptServer{server: found, ended: ended, stop: terminate}, nil
}

// containerName is the name of a run's container, which outlives a keeper that
// was killed.
func containerName(runDir string) string { return filepath.Base(runDir) }

// watch returns when the container has ended.
func watch(ctx context.Context, running testcontainers.Container) {
	ticker := time.NewTicker(watchEngine)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if state, err := running.State(ctx); err == nil && !state.Running {
				return
			}
		}
	}
}

// engineHost is the address of a Docker engine that lets us in: DOCKER_HOST, or
// the first of the usual sockets.
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
		return "", errors.New("there is no engine's socket")
	}
	return "", errors.Join(errs...)
}

// provideImage asks the engine for the image and has it pulled when it is not
// there. An engine that does not answer soon counts as none.
func provideImage(ctx context.Context, engine *client.Client, image string, lines io.Writer) error {
	answerCtx, cancel := context.WithTimeoutCause(ctx, engineTimeout, fmt.Errorf("no answer within %v", engineTimeout))
	defer cancel()
	_, err := engine.Ping(answerCtx, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil {
		_, err = engine.ImageInspect(answerCtx, image)
	}
	switch {
	case err == nil:
		return nil
	case answerCtx.Err() != nil:
		return context.Cause(answerCtx)
	case !errdefs.IsNotFound(err):
		return err
	}
	fmt.Fprintf(lines, "pulling the image %s\n", image)
	return pull(ctx, engine, image)
}

// pull pulls an image as long as there is progress.
func pull(ctx context.Context, engine *client.Client, image string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, fmt.Errorf("pulling %s: not done after %v", image, pullTimeout))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	idle := time.AfterFunc(pullIdleTimeout, func() { stop(fmt.Errorf("pulling %s: no progress for %v", image, pullIdleTimeout)) })
	defer idle.Stop()
	pulling, err := engine.ImagePull(ctx, image, client.ImagePullOptions{})
	if err == nil {
		for message, messageErr := range pulling.JSONMessages(ctx) {
			if err = messageErr; err == nil && message.Error != nil {
				err = message.Error
			}
			if err != nil {
				break
			}
			idle.Reset(pullIdleTimeout)
		}
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("pulling %s: %w", image, err)
	}
	return nil
}
