package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/delivery"
	"petstore/internal/localpg"
	"petstore/internal/postgres"
	"petstore/internal/seed"
	"petstore/internal/selfsigned"
	"petstore/internal/sleep"
)

const (
	devAddr     = "localhost:8080"
	devDatabase = "petstore"
	devAccount  = "demo"

	// endTime is the longest time between the last connection to a server that ends, and its end.
	endTime = 10 * time.Second
)

func (p *program) devCommand() *cobra.Command {
	var port int
	var https bool
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run the API for development with a database, sample data and a key",
		Long: `Dev runs the API with its own PostgreSQL, which it finds on this machine or
downloads once. It creates the account "demo" with sample data and prints an API key
of it. The data is kept in .petstore/ in the working directory; delete that folder to
start again. If DATABASE_URL is set, dev uses that database instead.

While dev runs, other commands in that folder and below it use its server, key and
database, unless variables or flags name others.`,
		Example: "  petstore dev --port 8081",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outliveReaders()
			c, err := p.loadServerConfig(false)
			if err != nil {
				return err
			}
			if !p.isSet("PETSTORE_ADDR") {
				c.Addr = devAddr // only local connections
			}
			if cmd.Flags().Changed("port") {
				host, _, _ := net.SplitHostPort(c.Addr) // loadConfig has validated it
				c.Addr = net.JoinHostPort(host, strconv.Itoa(port))
			}
			c.WebhookAllow = append(c.WebhookAllow, loopback...)
			return p.dev(cmd.Context(), c, https)
		},
	}
	flags := command.Flags()
	addNumberFlag(command, &port, "port", numberRange{0, math.MaxUint16}, "the port to listen on, instead of the port of PETSTORE_ADDR or 8080; 0 selects a free port")
	flags.BoolVar(&https, "https", false, "serve HTTPS with a self-signed certificate for localhost, which other commands here trust")
	return command
}

// dev runs the API with everything that it needs. If https is true and the configuration has no
// certificate, it makes one.
func (p *program) dev(ctx context.Context, c config, https bool) (err error) {
	if err := makeDevDir(); err != nil {
		return err
	}
	lock, err := lockDevDir()
	if err != nil {
		return err
	}
	defer lock.Close()
	c, cert, err := certifyDev(c, https)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	own := c.DatabaseURL == ""
	if own {
		cluster, failed := p.startCluster(ctx, c)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(whyEnded(ctx, err), cluster.Stop(context.WithoutCancel(ctx))) }()
		go func() {
			select {
			case <-cluster.Done():
				cancel(cluster.Err())
			case <-ctx.Done():
			}
		}()
		c.DatabaseURL, c.DirectURL, c.ReplicaURLs = cluster.URL(devDatabase), "", ""
	}
	public, err := listen(ctx, c.Addr, "PETSTORE_ADDR or --port")
	if err != nil {
		return err
	}
	defer public.Close()
	secret, err := p.prepareDevDatabase(ctx, c)
	if err != nil {
		return c.direct().named(err)
	}
	log, flush := p.logger(c)
	defer flush()
	admin, err := listenAdmin(ctx, c)
	if err != nil { // not fatal: developers rarely need metrics and profiles
		log.Warn("metrics and profiles are not available", "error", err)
	}
	server := devServer{URL: devURL(c.scheme(), public.Addr()), Address: public.Addr().String(), APIKey: secret.Reveal(), DatabaseURL: c.DatabaseURL, DirectURL: c.DirectURL, Certificate: cert}
	withdraw, err := publishDev(lock, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, withdraw()) }()
	p.printDevWelcome(server, c.TLSCertFile, own)
	return serve(ctx, c, log, public, admin)
}

// whyEnded returns the cause of ctx if PostgreSQL has ended by itself, or else the error of dev.
func whyEnded(ctx context.Context, err error) error {
	if postgres.Unavailable(err) {
		sleep.For(ctx, endTime)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// certifyDev makes a certificate if https is true and the configuration has none. It returns the
// configuration with it, and the certificate that clients must trust.
func certifyDev(c config, https bool) (with config, cert string, err error) {
	if https && c.TLSCertFile == "" {
		if err := selfsigned.Make(devCertFile, devKeyFile, time.Now()); err != nil {
			return c, "", notWritten(err)
		}
		c.TLSCertFile, c.TLSKeyFile = devCertFile, devKeyFile
	}
	cert, err = c.trusted()
	return c, cert, err
}

func (p *program) startCluster(ctx context.Context, c config) (*localpg.Cluster, error) {
	binaries, err := localpg.Find(ctx, c.PGBin, p.stderr)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s; or run `docker compose up`, or set DATABASE_URL to a database that runs", oneLine(err.Error()))
	}
	dir, err := filepath.Abs(filepath.Join(devDir, "postgres"))
	if err != nil {
		return nil, err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: dir, Settings: map[string]string{
		"max_connections": strconv.Itoa(100 + 2*(c.DBMaxConns+delivery.Connections)), // of dev, and of one more process
	}})
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if inUse, ok := errors.AsType[*localpg.InUseError](err); ok {
		return nil, fmt.Errorf("another petstore dev runs in this folder (%w); stop it first", inUse)
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL cannot run in %s: %s", filepath.Join(devDir, "postgres"), oneLine(err.Error()))
	}
	fmt.Fprintf(p.stdout, "Database: %s, its data in %s\n", binaries, filepath.Join(devDir, "postgres"))
	if err := cluster.EnsureDatabase(ctx, devDatabase); err != nil {
		return nil, errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	return cluster, nil
}

// prepareDevDatabase migrates the database, loads sample data if it is empty, and
// returns a valid key.
func (p *program) prepareDevDatabase(ctx context.Context, c config) (auth.Secret, error) {
	m, err := postgres.OpenMigrations(ctx, c.directURL())
	if err != nil {
		return auth.Secret{}, err
	}
	m.Progress = p.migrating
	_, err = m.Up(ctx)
	p.status("")
	m.Close()
	if err != nil {
		return auth.Secret{}, err
	}
	var secret auth.Secret
	err = withDatabaseOf(ctx, c.directURL(), 1, func(ctx context.Context, database *postgres.DB) (err error) {
		if err := loadSample(ctx, database, devAccount, seed.ShopPets, nil); err != nil && !errors.Is(err, seed.ErrNotEmpty) {
			return err
		}
		secret, err = devKey(ctx, database)
		return err
	})
	return secret, err
}

// devKey returns the key of the previous run if it is valid, or else a new one.
func devKey(ctx context.Context, database *postgres.DB) (auth.Secret, error) {
	file := filepath.Join(devDir, "api-key")
	if kept, err := os.ReadFile(file); err == nil { //nolint:gosec // a constant path
		text := strings.TrimSpace(string(kept))
		if _, err := auth.NewVerifier(db.New(database), nil).Verify(ctx, text, nil); err == nil {
			return auth.ParseSecret(text)
		}
	}
	secret, err := createKey(ctx, database, devAccount, auth.NewKey{Name: "dev", Scope: auth.Admin})
	if err != nil {
		return secret, err
	}
	return secret, notWritten(os.WriteFile(file, []byte(secret.Reveal()+"\n"), 0o600))
}

// scheme returns the scheme of the URLs of the server.
func (c config) scheme() string {
	if c.TLSCertFile == "" {
		return "http"
	}
	return "https"
}

// trusted returns the certificate chain of the server in PEM, or "" without TLS.
func (c config) trusted() (string, error) {
	if c.TLSCertFile == "" {
		return "", nil
	}
	text, err := readPEM("PETSTORE_TLS_CERT_FILE", c.TLSCertFile)
	return string(text), err
}

// devURL returns the URL of an address as a user would type it. A program on the other address of
// localhost, such as [::1], may have the same port, so clients connect to the address itself.
func devURL(scheme string, addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && (host == "127.0.0.1" || host == "::1" || ip.IsUnspecified()) {
		return scheme + "://localhost:" + port
	}
	return scheme + "://" + addr.String()
}

func (p *program) printDevWelcome(server devServer, certFile string, own bool) {
	database := server.DatabaseURL
	if !own {
		database = "the one that DATABASE_URL names" // which may have a password
	}
	fmt.Fprintf(p.stdout, `
  Petstore      %[1]s
  API reference %[1]s/docs
  Console       %[1]s/console
  API key       %[2]s
  Account       %[4]s
  Database      %[5]s
  OpenAPI spec  %[1]s/openapi.yaml

  Try it in another terminal in this folder:
  %[6]s api '/pets?limit=3'

  For other programs:
  export PETSTORE_URL=%[1]s PETSTORE_API_KEY=%[2]s

  Press Ctrl-C to stop. The data is kept in %[3]s/.

`, server.URL, server.APIKey, devDir, devAccount, database, programName())
	if certFile != "" {
		fmt.Fprintf(p.stdout, "  The certificate is in %s. Other commands in this folder trust it. Trust it elsewhere:\n  curl --cacert %[1]s %s/livez\n\n", certFile, server.URL)
	}
}

// programName returns the name of the program as the user has typed it.
func programName() string {
	if file, err := os.Executable(); err == nil && strings.Contains(file, "go-build") {
		return "go run ./cmd/petstore"
	}
	return "petstore"
}
