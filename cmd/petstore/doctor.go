package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"petstore/db"
	"petstore/internal/delivery"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
	"petstore/internal/telemetry"
	"petstore/internal/webhook"
)

const (
	mostSkew         = time.Second
	leastDisk        = 1 << 30
	certificateAlarm = 14 * 24 * time.Hour
	replicaTime      = 5 * time.Second // until a replica must be in rotation
	partitionsAhead  = 7 * 24 * time.Hour
	webhookHosts     = 10
	webhookTime      = 2 * time.Second
)

func (p *program) doctorCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check the configuration, the database and what serve needs",
		Long: `Doctor checks the configuration and the database that serve would use, or those of the
running dev. It prints a line for each check: ok, or what is wrong and what to do. It
changes nothing, and exits with 1 if something is wrong. Run it with the environment of
serve, before you deploy and when something fails.`,
		Example: "  petstore doctor --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.doctor(cmd.Context(), asJSON)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print a JSON array of objects with check, ok and message")
	return command
}

// finding is the result of a check.
type finding struct {
	Check   string `json:"check"`
	OK      bool   `json:"ok"`
	Message string `json:"message"` // if OK is false, it says what to do
}

// doctor runs all checks. The error says how many have found a mistake.
func (p *program) doctor(ctx context.Context, asJSON bool) error {
	c, err := p.loadServerConfig(false)
	if err == nil {
		c, err = p.orDev(c)
	}
	if err != nil {
		return err
	}
	d := &diagnosis{c: c}
	if dev, err := p.findDev(); err == nil && c.DatabaseURL == dev.DatabaseURL {
		d.dev, d.isDev = dev, true
		d.c.WebhookAllow = append(d.c.WebhookAllow, loopback...)
	}
	findings := d.run(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	wrong := 0
	for _, one := range findings {
		mark := "ok   "
		if !one.OK {
			wrong++
			mark = "WRONG"
		}
		if !asJSON {
			fmt.Fprintf(p.stdout, "%s  %-13s  %s\n", mark, one.Check, one.Message)
		}
	}
	if asJSON {
		err = p.printJSON(findings)
	}
	if err == nil && wrong > 0 {
		err = fmt.Errorf("%d of %d checks found something wrong; do what their lines say", wrong, len(findings))
	}
	return err
}

// diagnosis has what the checks share.
type diagnosis struct {
	c      config
	dev    devServer // if isDev
	isDev  bool
	db     *postgres.DB
	server postgres.Server
}

// run runs the checks. Without a connection or a schema that fits, it runs none that needs one.
func (d *diagnosis) run(ctx context.Context) (findings []finding) {
	checks := []struct {
		name string
		run  func(context.Context) (string, error)
	}{
		{"variables", d.variables},
		{"certificate", d.certificate},
		{"disk", d.disk},
		{"database", d.database},
		{"clock", d.clock},
		{"connections", d.connections},
		{"standby", d.standby},
		{"pooler", d.pooler},
		{"settings", d.settings},
		{"replicas", d.replicas},
		{"schema", d.schema},
		{"role", d.role},
		{"partitions", d.partitions},
		{"webhooks", d.webhooks},
		{"secret key", d.secretKey},
	}
	defer func() {
		if d.db != nil {
			d.db.Close()
		}
	}()
	for _, check := range checks {
		message, err := check.run(ctx)
		if err != nil {
			message = plain(err).Error()
		}
		if message != "" {
			findings = append(findings, finding{check.name, err == nil, message})
		}
		if err != nil && (check.name == "database" || check.name == "schema") {
			break
		}
	}
	return findings
}

func (d *diagnosis) variables(context.Context) (string, error) {
	if len(d.c.unknown) > 0 {
		return "", fmt.Errorf("%s: %s", unknownWarning, strings.Join(d.c.unknown, ", "))
	}
	return "all are known and valid", nil
}

func (d *diagnosis) certificate(context.Context) (string, error) {
	cert, err := openCertificate(d.c)
	if cert == nil || err != nil {
		return "", err
	}
	end := cert.end()
	if time.Until(end) < certificateAlarm {
		return "", fmt.Errorf("the certificate in %s ends at %s; renew it", d.c.TLSCertFile, end.UTC().Format(time.RFC3339))
	}
	return "valid until " + end.UTC().Format(time.RFC3339), nil
}

// disk checks the disk of the data of dev.
func (d *diagnosis) disk(context.Context) (string, error) {
	if !d.isDev {
		return "", nil
	}
	folder := filepath.Join(d.dev.dir, devDir)
	var stat unix.Statfs_t
	if err := unix.Statfs(folder, &stat); err != nil {
		return "", fmt.Errorf("the disk of %s cannot be read: %w", folder, err)
	}
	return diskMessage(folder, stat.Bavail*uint64(stat.Bsize)) //nolint:gosec // positive; the type depends on the system
}

func diskMessage(folder string, free uint64) (string, error) {
	text := fmt.Sprintf("%s has %d MiB free", folder, free>>20)
	if free < leastDisk {
		return "", errors.New("the disk of " + text + "; delete something, or start dev elsewhere")
	}
	return text, nil
}

// database connects.
func (d *diagnosis) database(ctx context.Context) (string, error) {
	const connections = 2 // for Inspect
	db, err := postgres.OpenAs(ctx, "petstore doctor", d.c.DatabaseURL, connections)
	if err != nil {
		return "", err
	}
	if d.server, err = db.Inspect(ctx); err == nil && !d.server.IsSupported {
		err = fmt.Errorf("PostgreSQL %s is too old; upgrade it to 15 or later", d.server.Version)
	}
	if err == nil && !d.server.IsEncrypted && isPublic(d.server.Remote) {
		err = fmt.Errorf("the connection to %s is not encrypted; add sslmode=verify-full to DATABASE_URL", d.server.Remote)
	}
	if err == nil && d.server.IsReadOnly {
		err = errors.New("the server accepts no writes; name the primary in DATABASE_URL or add target_session_attrs=read-write, and do not set default_transaction_read_only")
	}
	if err != nil {
		db.Close()
		return "", err
	}
	d.db = db
	encrypted := "not encrypted, in a private network"
	if d.server.IsEncrypted {
		encrypted = "TLS"
	}
	return fmt.Sprintf("PostgreSQL %s, %s", d.server.Version, encrypted), nil
}

// isPublic reports whether an address is on the internet.
func isPublic(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback() && !tcp.IP.IsPrivate() && !tcp.IP.IsLinkLocalUnicast()
}

func (d *diagnosis) clock(context.Context) (string, error) {
	skew := d.server.Skew.Round(time.Millisecond)
	if skew.Abs() > mostSkew+d.server.Error {
		return "", fmt.Errorf("the clocks of this machine and the database differ by %s; run NTP on both", skew.Abs())
	}
	return "differs by " + skew.Abs().String(), nil
}

// connections checks that the server has room for one more process. Behind a pooler, only the
// connections to PETSTORE_DIRECT_URL need room.
func (d *diagnosis) connections(context.Context) (string, error) {
	needed, what, remedy := d.c.DBMaxConns+1, "", "lower PETSTORE_DB_MAX_CONNS, or use a connection pooler"
	if d.server.IsPooled {
		needed, what, remedy = 1, " around the pooler", "or give the pooler fewer"
	}
	if d.c.Worker {
		needed += delivery.Connections
	}
	text := fmt.Sprintf("%d of %d are in use; one more process needs up to %d%s", d.server.Connections, d.server.MaxConnections, needed, what)
	if d.server.Connections+needed > d.server.MaxConnections {
		return "", fmt.Errorf("%s; raise %s, %s", text, d.server.LimitedBy, remedy)
	}
	return text, nil
}

// standby checks that no commit waits for a synchronous standby that is away.
func (d *diagnosis) standby(context.Context) (string, error) {
	if d.server.Waiting > 0 {
		return "", fmt.Errorf("%d commits wait for a synchronous standby; start it, or take it out of synchronous_standby_names", d.server.Waiting)
	}
	return "", nil
}

func (d *diagnosis) pooler(ctx context.Context) (string, error) {
	if d.c.DirectURL != "" {
		if err := d.db.CheckDirect(ctx, d.c.DirectURL); err != nil {
			return "", fmt.Errorf("PETSTORE_DIRECT_URL: %w", plain(postgres.OfVariable("PETSTORE_DIRECT_URL", err)))
		}
	}
	switch {
	case !d.server.IsPooled:
		return "none", nil
	case d.c.DirectURL == "":
		return "", errors.New("DATABASE_URL leads through a connection pooler; set PETSTORE_DIRECT_URL to a URL without it, for revoked keys and migrations")
	case d.server.IsTransaction:
		return "transaction mode; PETSTORE_DIRECT_URL leads around it", nil
	}
	return "session mode, so each client keeps a connection; PETSTORE_DIRECT_URL leads around it", nil
}

func (d *diagnosis) settings(ctx context.Context) (string, error) {
	return "time limits, jit and enable_seqscan are as serve needs them", d.db.CheckSession(ctx)
}

func (d *diagnosis) schema(ctx context.Context) (string, error) {
	fit, err := d.db.SchemaFit(ctx)
	if problem := fit.Problem(); problem != "" {
		err = errors.New(problem)
	}
	return "fits this program", err
}

func (d *diagnosis) role(ctx context.Context) (string, error) {
	role, err := d.db.Role(ctx)
	switch {
	case err != nil:
		return "", err
	case role.CanChangeSchema && !d.isDev:
		return "", fmt.Errorf("the role %q can change the schema; run serve as another role (docs/deploying.md#two-roles)", role.Name)
	}
	missing, err := d.db.MissingPrivileges(ctx)
	if len(missing) > 0 {
		err = fmt.Errorf("the role %q lacks %d privileges, such as %s; run `petstore migrate up` as the owner with PETSTORE_SERVING_ROLE=%[1]s", role.Name, len(missing), missing[0])
	}
	return fmt.Sprintf("%q has the privileges of serve", role.Name), err
}

func (d *diagnosis) partitions(ctx context.Context) (string, error) {
	for _, after := range []time.Duration{0, partitionsAhead} {
		fit, err := d.db.EventsFit(ctx, after)
		if err != nil {
			return "", err
		}
		if !fit {
			return "", fmt.Errorf("the table events has no partition for %s; run SELECT maintain_events() as the owner", time.Now().Add(after).UTC().Format(time.DateOnly))
		}
	}
	overdue, err := d.db.EventsOverdue(ctx)
	if overdue {
		err = errors.New("events of more than 38 days are kept; end the sessions in pg_stat_activity that are idle in transaction, and run SELECT maintain_events() as the owner")
	}
	return "events has the partitions of this week and the next", err
}

func (d *diagnosis) replicas(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, replicaTime)
	defer cancel()
	silent := slog.New(slog.DiscardHandler)
	replicas, err := openReplicas(ctx, d.c, d.db, silent, &telemetry.Statements{Log: silent, Slow: slowStatement})
	if err != nil || replicas == nil {
		return "", err
	}
	defer replicas.Close()
	defer startBackground(ctx, closingTimeout, replicas.Run)()
	for {
		var problems, names []string
		for i, name := range replicas.Names() {
			names = append(names, name)
			if status := replicas.Status(i); !status.InRotation {
				problems = append(problems, fmt.Sprintf("%s serves no reads: %s", name, status.Problem))
			}
		}
		switch {
		case len(problems) == 0:
			return "reads are served by " + strings.Join(names, ", "), nil
		case ctx.Err() != nil:
			return "", errors.New(strings.Join(problems, "; ") + "; see docs/deploying.md#read-replicas")
		}
		sleep.For(ctx, startupInterval)
	}
}

func (d *diagnosis) webhooks(ctx context.Context) (string, error) {
	enabled, err := d.db.EnabledWebhooks(ctx)
	text := fmt.Sprintf("%d are enabled", enabled)
	if err != nil || !d.c.Worker {
		return text, err
	}
	silent, err := d.silentWebhooks(ctx)
	if len(silent) > 0 {
		text += "; this machine does not reach " + strings.Join(silent, ", ") + ": start them, or allow connections to them"
	}
	return text, err
}

// silentWebhooks connects to the hosts of the newest webhooks, and returns those that it does not
// reach, with the reasons. If it reaches none, the network of this machine is probably wrong.
func (d *diagnosis) silentWebhooks(ctx context.Context) (silent []string, err error) {
	origins, err := d.db.WebhookOrigins(ctx, webhookHosts)
	ctx, cancel := context.WithTimeout(ctx, webhookTime)
	defer cancel()
	guard, reasons := d.c.guard(), make([]error, len(origins))
	var connecting sync.WaitGroup
	for i, origin := range origins {
		connecting.Go(func() { reasons[i] = guard.Connect(ctx, origin) })
	}
	connecting.Wait()
	for i, reason := range reasons {
		if reason != nil {
			silent = append(silent, fmt.Sprintf("%s (%s)", origins[i], strings.TrimSuffix(reason.Error(), ".")))
		}
	}
	if len(silent) > 0 && len(silent) == len(origins) {
		err = errors.New("this machine reaches no host of webhooks: " + strings.Join(silent, ", ") + "; allow connections to public addresses, or set PETSTORE_WEBHOOK_PROXY (docs/deploying.md#webhooks)")
	}
	return silent, err
}

func (d *diagnosis) secretKey(ctx context.Context) (string, error) {
	lost, err := webhook.LostSecrets(ctx, db.New(d.db), d.c.vault)
	if err != nil {
		return "", err
	}
	enabled, err := d.db.EnabledWebhooks(ctx)
	switch {
	case err != nil:
		return "", err
	case len(lost) > 0:
		return "", fmt.Errorf("number of secrets of webhooks that do not open: %d; the first: %s", len(lost), strings.TrimPrefix(lost[0].Error(), "webhook: "))
	case len(d.c.SecretKeys) > 0:
		return "set, and opens the secrets of webhooks", nil
	case enabled > 0 && !d.isDev:
		return "", errors.New("PETSTORE_SECRET_KEY is not set, so the secrets of webhooks are stored as they are; set it (docs/security.md#webhooks)")
	}
	return "", nil
}
