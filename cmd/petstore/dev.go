package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/localpg"
	"petstore/internal/postgres"
	"petstore/internal/sampledata"
)

const (
	devDir      = ".petstore" // in the working directory
	devAddr     = "localhost:8080"
	devDatabase = "petstore"
	devAccount  = "dev"
	devPets     = 200

	devStopTimeout = 30 * time.Second
)

func (p *program) devCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dev",
		Short: "All in one on a developer's machine: database, sample data, key and API",
		Long: `Dev runs the API with a PostgreSQL of its own, which it finds on this machine or
fetches once, on sample data, and prints an API key. The data stays in .petstore/
in the working directory; delete that folder to begin anew. Where DATABASE_URL is
set, that database is used instead.`,
		Example: "  petstore dev",
		Args:    usage(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.dev(cmd.Context()) },
	}
}

func (p *program) dev(ctx context.Context) (err error) {
	c, err := p.loadConfig(false)
	if err != nil {
		return err
	}
	if c.Addr == defaultAddr {
		c.Addr = devAddr // not open to the network
	}
	if err := makeDevDir(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.DatabaseURL == "" {
		cluster, err := p.startCluster(ctx, c)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stopCluster(ctx, cluster)) }()
		go func() {
			select {
			case <-cluster.Done():
				cancel(fmt.Errorf("PostgreSQL ended by itself: %w", cluster.Err()))
			case <-ctx.Done():
			}
		}()
		c.DatabaseURL = cluster.URL(devDatabase)
	} else {
		fmt.Fprintln(p.stdout, "Database: the one that DATABASE_URL names")
	}
	public, err := listen(ctx, c.Addr, "PETSTORE_ADDR")
	if err != nil {
		return err
	}
	defer public.Close()
	secret, err := p.prepareDevDatabase(ctx, c)
	if err != nil {
		return err
	}
	log := p.logger(c)
	admin, err := listenAdmin(ctx, c)
	if err != nil { // metrics and profiles are not what a developer came for
		log.Warn("there are no metrics and profiles", "error", err)
	}
	p.printDevWelcome(devURL(public.Addr()), secret)
	err = serve(ctx, c, log, public, admin)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// makeDevDir makes the folder of dev's data, out of git's sight.
func makeDevDir() error {
	if err := os.MkdirAll(devDir, 0o755); err != nil { //nolint:gosec // postgres runs as another user when we are root
		return err
	}
	return os.WriteFile(filepath.Join(devDir, ".gitignore"), []byte("*\n"), 0o600)
}

func (p *program) startCluster(ctx context.Context, c config) (*localpg.Cluster, error) {
	binaries, err := localpg.Find(ctx, localpg.FindOptions{Bin: c.PGBin, Progress: p.stderr})
	if err != nil {
		return nil, fmt.Errorf("%w; or run `docker compose up` instead, or set DATABASE_URL to a database that runs", err)
	}
	dir, err := filepath.Abs(filepath.Join(devDir, "postgres"))
	if err != nil {
		return nil, err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: dir})
	if inUse, ok := errors.AsType[*localpg.InUseError](err); ok {
		return nil, fmt.Errorf("another petstore dev runs in this folder (%w); stop it first", inUse)
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(p.stdout, "Database: %s, its data in %s\n", binaries, filepath.Join(devDir, "postgres"))
	return cluster, cluster.EnsureDatabase(ctx, devDatabase)
}

func stopCluster(ctx context.Context, cluster *localpg.Cluster) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), devStopTimeout)
	defer cancel()
	return cluster.Stop(ctx)
}

// prepareDevDatabase migrates, seeds an empty shop, and returns a key in force.
func (p *program) prepareDevDatabase(ctx context.Context, c config) (auth.Secret, error) {
	m, err := postgres.OpenMigrations(ctx, c.DatabaseURL)
	if err != nil {
		return auth.Secret{}, err
	}
	_, err = m.Up(ctx)
	if err := errors.Join(err, m.Close()); err != nil {
		return auth.Secret{}, err
	}
	database, err := postgres.Open(ctx, c.DatabaseURL, 1)
	if err != nil {
		return auth.Secret{}, err
	}
	defer database.Close()
	err = sampledata.Load(ctx, database.Pool(), devPets, func(int, int) {})
	if err != nil && !errors.Is(err, sampledata.ErrNotEmpty) {
		return auth.Secret{}, err
	}
	return devKey(ctx, database)
}

// devKey returns the key of the run before, or a new one when that is not in force.
func devKey(ctx context.Context, database *postgres.DB) (auth.Secret, error) {
	file := filepath.Join(devDir, "api-key")
	if kept, err := os.ReadFile(file); err == nil { //nolint:gosec // a constant path
		text := strings.TrimSpace(string(kept))
		if _, err := auth.NewVerifier(db.New(database), nil).Verify(ctx, text); err == nil {
			return auth.ParseSecret(text)
		}
	}
	secret, err := createKey(ctx, database, devAccount, auth.NewKey{Name: "dev", Scope: auth.Admin})
	if err != nil {
		return secret, err
	}
	return secret, os.WriteFile(file, []byte(secret.Reveal()+"\n"), 0o600)
}

// devURL is the address that a person would type.
func devURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		return "http://localhost:" + port
	}
	return "http://" + addr.String()
}

func (p *program) printDevWelcome(url string, secret auth.Secret) {
	fmt.Fprintf(p.stdout, `
  Petstore      %[1]s
  Reference     %[1]s/docs
  API key       %[2]s
  Description   %[1]s/openapi.yaml

  Try it:
  curl -H 'Authorization: Bearer %[2]s' '%[1]s/pets?limit=3'

  Ctrl-C stops it; the data stays in %[3]s/.

`, url, secret.Reveal(), devDir)
}
