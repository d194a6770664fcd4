package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/term"

	"petstore/internal/postgres"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
	"petstore/internal/webhook"
)

// config is the configuration from the environment. No other code reads the
// environment.
type config struct {
	DatabaseURL    string        `env:"DATABASE_URL"`
	DirectURL      string        `env:"PETSTORE_DIRECT_URL"`   // default: DatabaseURL
	ReplicaURLs    string        `env:"PETSTORE_REPLICA_URLS"` // separated by white space
	ReplicaMaxLag  time.Duration `env:"PETSTORE_REPLICA_MAX_LAG" envDefault:"10s"`
	ServingRole    string        `env:"PETSTORE_SERVING_ROLE"`
	Addr           string        `env:"PETSTORE_ADDR" envDefault:":8080"`
	TLSCertFile    string        `env:"PETSTORE_TLS_CERT_FILE"`
	TLSKeyFile     string        `env:"PETSTORE_TLS_KEY_FILE"`
	AdminAddr      string        `env:"PETSTORE_ADMIN_ADDR" envDefault:"127.0.0.1:9090"`
	AdminHosts     []string      `env:"PETSTORE_ADMIN_HOSTS"`
	BaseURL        string        `env:"PETSTORE_BASE_URL"`
	DBMaxConns     int           `env:"PETSTORE_DB_MAX_CONNS"` // default: maxConnsPerCore per CPU
	StartupWait    time.Duration `env:"PETSTORE_STARTUP_WAIT" envDefault:"30s"`
	MaxHeaderBytes int           `env:"PETSTORE_MAX_HEADER_BYTES" envDefault:"16384"`
	MaxConnections int           `env:"PETSTORE_MAX_CONNECTIONS" envDefault:"2000"`
	MaxBodyBytes   int64         `env:"PETSTORE_MAX_BODY_BYTES" envDefault:"65536"`
	RequestTimeout time.Duration `env:"PETSTORE_REQUEST_TIMEOUT" envDefault:"6s"`
	ShutdownGrace  time.Duration `env:"PETSTORE_SHUTDOWN_GRACE" envDefault:"15s"`
	EnforceSunset  bool          `env:"PETSTORE_ENFORCE_SUNSET"`
	Worker         bool          `env:"PETSTORE_WORKER" envDefault:"true"`

	RateLimit        int      `env:"PETSTORE_RATE_LIMIT" envDefault:"600"`
	RateBurst        *int     `env:"PETSTORE_RATE_BURST"`         // default: a sixth of RateLimit
	AccountRateLimit *int     `env:"PETSTORE_ACCOUNT_RATE_LIMIT"` // default: accountKeys times RateLimit
	AuthFailureLimit int      `env:"PETSTORE_AUTH_FAILURE_LIMIT" envDefault:"20"`
	TrustedProxies   []string `env:"PETSTORE_TRUSTED_PROXIES"`

	WebhookAllow []string       `env:"PETSTORE_WEBHOOK_ALLOW"`
	WebhookProxy string         `env:"PETSTORE_WEBHOOK_PROXY"`
	SecretKeys   []string       `env:"PETSTORE_SECRET_KEY"`
	vault        *webhook.Vault // with SecretKeys
	application  string         // the application_name of connections; empty: petstore
	variable     string         // of DatabaseURL, see [config.direct]; empty: DATABASE_URL
	unknown      []string       // variables that nobody reads; see [program.unknownVariables]

	LogLevel  slog.Level `env:"PETSTORE_LOG_LEVEL" envDefault:"info"`
	LogFormat string     `env:"PETSTORE_LOG_FORMAT"`
	Tracing   tracingConfig
	// GOGC is read by the Go runtime. Serve changes its default.
	GOGC string `env:"GOGC"`
	// GOMEMLIMIT is read by the Go runtime. Serve changes its default.
	GOMEMLIMIT string `env:"GOMEMLIMIT"`
	// URL and APIKey are the address of the API and the key for clients, as in the code
	// samples; see [program.target].
	URL    string `env:"PETSTORE_URL"`
	APIKey string `env:"PETSTORE_API_KEY"`
	// PGBin is the directory of the PostgreSQL server binaries that dev starts.
	PGBin string `env:"PETSTORE_PG_BIN"`
}

const (
	leastMaxConns   = 12
	maxConnsPerCore = 6
	mostMaxConns    = 10_000
	mostRateLimit   = 1_000_000
	accountKeys     = 4 // keys at their limit that the limit of an account allows by default
	burstShare      = 6 // a burst is the tokens of ten seconds by default

	// leastHeaderBytes leaves room for a URL, an API key and the headers that
	// proxies add.
	leastHeaderBytes = 8 << 10
	mostHeaderBytes  = 1 << 20
	// mostBodyBytes leaves room for many bodies at once: a body of unknown length takes as
	// much of [admission.BodyBytes] as the largest one.
	mostBodyBytes   = 1 << 20
	mostConnections = 1_000_000
)

// isSet reports whether the environment has a variable that is not empty.
func (p *program) isSet(name string) bool { return env.ToMap(p.environ)[name] != "" }

// loadConfig reads the configuration of a command other than a server. It warns of unknown
// variables.
func (p *program) loadConfig() (config, error) {
	c, err := p.loadServerConfig(false)
	p.warnOfUnknown(c)
	return c, err
}

// reportMistake notes a mistake in a variable, with whose name the text begins, if it is bad.
type reportMistake func(bad bool, format string, args ...any)

// loadServerConfig reads and validates the whole configuration. The error lists all
// invalid and unknown variables. Database says whether the command requires DATABASE_URL.
func (p *program) loadServerConfig(database bool) (config, error) {
	parsed := config{DBMaxConns: max(leastMaxConns, maxConnsPerCore*runtime.NumCPU())}
	err := env.ParseWithOptions(&parsed, env.Options{Environment: env.ToMap(p.environ)})
	unparsed := p.parseMistakes(err)
	mistakes := slices.Clone(unparsed)
	wrong := func(bad bool, format string, args ...any) {
		mistake := fmt.Sprintf(format, args...)
		name, _, _ := strings.Cut(mistake, " ")
		if bad && !slices.ContainsFunc(unparsed, func(m string) bool { return strings.HasPrefix(m, name+" ") }) {
			mistakes = append(mistakes, mistake)
		}
	}
	p.setDefaults(&parsed)
	wrong(database && parsed.DatabaseURL == "", "DATABASE_URL must be set to the URL of a PostgreSQL database, such as postgres://user:password@host:5432/petstore")
	parsed.checkURLs(wrong)
	wrong(!isHostPort(parsed.Addr), "PETSTORE_ADDR must be host:port or :port with a port from 0 to 65535, but is %q", parsed.Addr)
	wrong(parsed.AdminAddr != adminOff && !isHostPort(parsed.AdminAddr),
		"PETSTORE_ADMIN_ADDR must be off, host:port or :port with a port from 0 to 65535, but is %q", parsed.AdminAddr)
	wrong(parsed.TLSKeyFile == "" && parsed.TLSCertFile != "", "PETSTORE_TLS_KEY_FILE must be set to the file of the private key, because PETSTORE_TLS_CERT_FILE is set")
	wrong(parsed.TLSCertFile == "" && parsed.TLSKeyFile != "", "PETSTORE_TLS_CERT_FILE must be set to the file of the certificate chain, because PETSTORE_TLS_KEY_FILE is set")
	for i, name := range parsed.AdminHosts {
		parsed.AdminHosts[i] = strings.TrimSpace(name)
		wrong(!hostPattern.MatchString(parsed.AdminHosts[i]), "PETSTORE_ADMIN_HOSTS must list host names without a port, such as petstore or metrics.example, but has %q", name)
	}
	wrong(!isBaseURL(parsed.BaseURL), "PETSTORE_BASE_URL must be http:// or https:// with a host and an optional port, and nothing else")
	parsed.checkRanges(wrong)
	for i, proxy := range parsed.TrustedProxies {
		parsed.TrustedProxies[i] = strings.TrimSpace(proxy)
		wrong(!isAddress(parsed.TrustedProxies[i]), "PETSTORE_TRUSTED_PROXIES must list IP addresses and networks such as 10.0.0.0/8, but has %q", proxy)
	}
	wrong(parsed.URL != "" && !isClientURL(parsed.URL), "PETSTORE_URL %s", clientURLRule)
	parsed.checkWebhooks(wrong)
	parsed.vault, err = parseVault(parsed.SecretKeys)
	wrong(err != nil, "PETSTORE_SECRET_KEY %v", err)
	parsed.Tracing.check(wrong)
	_, err = strconv.ParseInt(parsed.GOGC, 10, 32) // Go itself takes 100 instead of an invalid value
	wrong(err != nil && parsed.GOGC != "" && parsed.GOGC != "off", "GOGC must be off or a whole number of percent, but is %q", parsed.GOGC)
	wrong(parsed.LogFormat != telemetry.JSON && parsed.LogFormat != telemetry.Text, "PETSTORE_LOG_FORMAT must be json or text, but is %q", parsed.LogFormat)
	parsed.unknown = p.unknownVariables()
	if len(mistakes) > 0 {
		for _, name := range parsed.unknown {
			mistakes = append(mistakes, "unknown variable "+name)
		}
		return config{}, fmt.Errorf("invalid configuration: %s", strings.Join(mistakes, "; "))
	}
	return parsed, nil
}

// loadDatabaseConfig reads the configuration of a command that needs a database but no
// server. Without DATABASE_URL, it uses the database of the running dev.
func (p *program) loadDatabaseConfig() (config, error) {
	c, err := p.loadConfig()
	if err != nil {
		return c, err
	}
	return p.orDev(c)
}

// orDev returns the configuration with the database of the running dev, unless it has one. A
// PETSTORE_DIRECT_URL alone does not name one. With an error, the configuration is the same.
func (p *program) orDev(c config) (config, error) {
	if c.DatabaseURL != "" {
		return c, nil
	}
	dev, err := p.findDev()
	if err != nil {
		return c, fmt.Errorf("DATABASE_URL must be set to the URL of a PostgreSQL database, such as postgres://user:password@host:5432/petstore, because %w", err)
	}
	c.DatabaseURL, c.DirectURL = dev.DatabaseURL, dev.DirectURL
	return c, nil
}

// setDefaults sets the defaults that depend on other variables or on the terminal.
func (p *program) setDefaults(c *config) {
	if c.RateBurst == nil {
		c.RateBurst = new(max(1, c.RateLimit/burstShare))
	}
	if c.AccountRateLimit == nil {
		c.AccountRateLimit = new(accountKeys * min(max(c.RateLimit, 0), mostRateLimit)) // valid, whatever RateLimit is
	}
	if c.LogFormat == "" {
		c.LogFormat = telemetry.JSON
		if isTerminal(p.stderr) {
			c.LogFormat = telemetry.Text
		}
	}
}

// directURL returns the URL of the database without a connection pooler.
func (c config) directURL() string { return cmp.Or(c.DirectURL, c.DatabaseURL) }

// direct returns the configuration with that URL as DatabaseURL.
func (c config) direct() config {
	if c.DirectURL != "" {
		c.DatabaseURL, c.variable = c.DirectURL, "PETSTORE_DIRECT_URL"
	}
	return c
}

// named returns an error of the database with the variable of its URL in the sentence.
func (c config) named(err error) error {
	return postgres.OfVariable(cmp.Or(c.variable, "DATABASE_URL"), err)
}

// replicaURLs returns the URLs of the read replicas.
func (c config) replicaURLs() []string { return strings.Fields(c.ReplicaURLs) }

// keyLimit returns the limit of each API key.
func (c config) keyLimit() ratelimit.Limit {
	return ratelimit.Limit{PerMinute: c.RateLimit, Burst: *c.RateBurst}
}

// accountLimit returns the limit of each account. Its burst takes as long to regain as
// the burst of a key.
func (c config) accountLimit() ratelimit.Limit {
	limit := ratelimit.Limit{PerMinute: *c.AccountRateLimit, Burst: *c.AccountRateLimit / burstShare}
	if c.RateLimit > 0 {
		limit.Burst = int(int64(*c.RateBurst) * int64(*c.AccountRateLimit) / int64(c.RateLimit))
	}
	limit.Burst = max(1, limit.Burst)
	return limit
}

// parseMistakes lists the variables that cannot be parsed, and their valid values.
func (p *program) parseMistakes(err error) []string {
	var mistakes []string
	all, _ := errors.AsType[env.AggregateError](err)
	for _, one := range all.Errors {
		mistake := one.Error()
		if parse, ok := errors.AsType[env.ParseError](one); ok {
			field, _ := reflect.TypeFor[config]().FieldByName(parse.Name)
			name := field.Tag.Get("env")
			mistake = fmt.Sprintf("%s must be %s, but is %q", name, describe(name, field.Type), env.ToMap(p.environ)[name])
		}
		mistakes = append(mistakes, mistake)
	}
	return mistakes
}

// describe describes the valid values of a variable of a type.
func describe(name string, t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error"
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 5s, " + ranges[name].text
	case t.Kind() == reflect.Bool:
		return "true or false"
	default:
		return "a whole number " + ranges[name].String()
	}
}

// numberRange is the valid values of a number.
type numberRange struct{ least, most int64 }

func (r numberRange) String() string { return fmt.Sprintf("between %d and %d", r.least, r.most) }

// ranges has the valid values of each variable that is a number or a duration.
var ranges = map[string]struct {
	numberRange

	text string // of a duration
}{
	"PETSTORE_DB_MAX_CONNS":       {numberRange{2, mostMaxConns}, ""},
	"PETSTORE_MAX_HEADER_BYTES":   {numberRange{leastHeaderBytes, mostHeaderBytes}, ""},
	"PETSTORE_MAX_CONNECTIONS":    {numberRange{1, mostConnections}, ""},
	"PETSTORE_MAX_BODY_BYTES":     {numberRange{1, mostBodyBytes}, ""},
	"PETSTORE_RATE_LIMIT":         {numberRange{0, mostRateLimit}, ""},
	"PETSTORE_RATE_BURST":         {numberRange{1, mostRateLimit}, ""},
	"PETSTORE_ACCOUNT_RATE_LIMIT": {numberRange{0, accountKeys * mostRateLimit}, ""},
	"PETSTORE_AUTH_FAILURE_LIMIT": {numberRange{0, mostRateLimit}, ""},
	"PETSTORE_REPLICA_MAX_LAG":    {numberRange{1, math.MaxInt64}, "above 0s"},
	"PETSTORE_STARTUP_WAIT":       {numberRange{0, math.MaxInt64}, "at least 0s"},
	"PETSTORE_REQUEST_TIMEOUT":    {numberRange{1, int64(maxRequestTimeout)}, fmt.Sprintf("above 0s and at most %s", maxRequestTimeout)},
	"PETSTORE_SHUTDOWN_GRACE":     {numberRange{1, math.MaxInt64}, "above 0s"},
}

// checkRanges reports the numbers and durations that are not in their ranges.
func (c config) checkRanges(wrong reportMistake) {
	eachVariable(reflect.ValueOf(c), func(field reflect.StructField, value reflect.Value) {
		name := field.Tag.Get("env")
		if allowed, is := ranges[name]; is {
			value = reflect.Indirect(value)
			wrong(value.Int() < allowed.least || value.Int() > allowed.most, "%s must be %s, but is %v", name, cmp.Or(allowed.text, allowed.String()), value)
		}
	})
}

// isHostPort reports whether text is an address to listen on. The host is optional.
// Port 0 selects a free port.
func isHostPort(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// checkURLs reports the texts that are not the URL of one database.
func (c config) checkURLs(wrong reportMistake) {
	check := func(name, text, rule string) {
		mistake := urlMistake(text, rule)
		wrong(mistake != "", "%s %s", name, mistake)
	}
	check("DATABASE_URL", c.DatabaseURL, "must be the URL of a PostgreSQL database, such as postgres://user:password@host:5432/petstore")
	check("PETSTORE_DIRECT_URL", c.DirectURL, "must be the URL of the database of DATABASE_URL without a connection pooler, such as postgres://user:password@host:5432/petstore")
	for i, replica := range c.replicaURLs() {
		if !strings.HasPrefix(replica, "postgres") {
			replica = "no URL" // libpq parameters are separated by white space too
		}
		check("PETSTORE_REPLICA_URLS", replica, fmt.Sprintf("must list URLs of standbys, separated by white space, such as postgres://user:password@host:5432/petstore, but number %d is not one", i+1))
	}
}

// urlMistake says why text is not empty or the URL of one database, without a part of the text. Errors
// and config name the servers, the user and the database, which must hide neither another URL nor a
// password that is not percent-encoded.
func urlMistake(text, rule string) string {
	parsed, err := pgxpool.ParseConfig(text)
	_, parts, _ := strings.Cut(text, "://")
	switch {
	case text == "":
		return ""
	case strings.Contains(parts, "://"):
		return rule
	case strings.LastIndex(parts, "@") > strings.IndexAny(parts, "@/"):
		return "must have %2F for a / in the password, and %40 for each @ but the one before the host"
	case err == nil && strings.ContainsAny(parsed.ConnConfig.Database, ",=@"):
		return rule
	case err == nil:
		return ""
	}
	for _, one := range parameterMistakes {
		if strings.Contains(err.Error(), one.says) {
			return one.mistake
		}
	}
	return rule
}

// parameterMistakes has the mistakes in parameters of the URL of a database, by a part of the error of the
// driver. The whole error may have a password.
var parameterMistakes = []struct{ says, mistake string }{
	{"unknown target_session_attrs", "must have a target_session_attrs of any, read-write, read-only, primary, standby or prefer-standby"},
	{"invalid connect_timeout", "must have a connect_timeout in whole seconds, such as 2"},
	{"invalid default_query_exec_mode", "must have a default_query_exec_mode of exec, cache_describe or cache_statement"},
	{"unable to read CA file", "names a file in sslrootcert" + unreadable},
	{"unable to read cert", "names a file in sslcert" + unreadable},
	{"unable to read sslkey", "names a file in sslkey" + unreadable},
	{"failed to configure TLS", "has settings of TLS that do not work; check sslmode, and the files of sslrootcert, sslcert and sslkey"},
}

const unreadable = " that does not exist or that petstore may not read"

// hostPattern matches a host name without a trailing dot.
var hostPattern = regexp.MustCompile(`^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$`)

// httpURL returns the http or https URL with a host that a text is, or nil.
func httpURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil
	}
	return u
}

// isBaseURL reports whether text is a scheme and a host. A path is invalid, because
// Location headers and redirects are absolute paths.
func isBaseURL(text string) bool {
	u := httpURL(text)
	return text == "" || u != nil && text == u.Scheme+"://"+u.Host
}

// isClientURL reports whether text is the URL of an API, to which a client appends paths.
func isClientURL(text string) bool {
	u := httpURL(text)
	return u != nil && u.RawQuery == "" && !u.ForceQuery && !strings.ContainsAny(text, "@#")
}

// clientURLRule explains which URLs [isClientURL] accepts.
const clientURLRule = "must be the http or https URL of the API without a user, a query or a fragment, such as https://api.example"

// isAddress reports whether text is an IP address or a network in CIDR notation.
func isAddress(text string) bool {
	if network, err := netip.ParsePrefix(text); err == nil {
		return network == network.Masked() // reject host bits as in 10.1.2.3/8, which are probably a mistake
	}
	address, err := netip.ParseAddr(text)
	return err == nil && address.Zone() == ""
}

// tracingConfig contains the OpenTelemetry variables that enable tracing or need a check. The
// OpenTelemetry SDK reads the others.
type tracingConfig struct {
	Disabled       string `env:"OTEL_SDK_DISABLED"`
	Exporter       string `env:"OTEL_TRACES_EXPORTER"`
	Endpoint       string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	TracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	Protocol       string `env:"OTEL_EXPORTER_OTLP_PROTOCOL"`
	TracesProtocol string `env:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"`
	Headers        string `env:"OTEL_EXPORTER_OTLP_HEADERS"`
	TracesHeaders  string `env:"OTEL_EXPORTER_OTLP_TRACES_HEADERS"`
	Attributes     string `env:"OTEL_RESOURCE_ATTRIBUTES"`
}

const (
	otlpExporter = "otlp"
	noExporter   = "none"
	otlpProtocol = "http/protobuf"
)

// on reports whether tracing is enabled. It is off unless a variable sets an
// exporter or an endpoint, although the OpenTelemetry default exporter is otlp.
func (c tracingConfig) on() bool {
	switch {
	case strings.EqualFold(c.Disabled, "true") || c.Exporter == noExporter:
		return false
	case c.Exporter == "":
		return c.Endpoint != "" || c.TracesEndpoint != ""
	default:
		return true
	}
}

// check reports the unsupported settings.
func (c tracingConfig) check(wrong reportMistake) {
	if !c.on() {
		return
	}
	for _, endpoint := range [][2]string{{"OTEL_EXPORTER_OTLP_ENDPOINT", c.Endpoint}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", c.TracesEndpoint}} {
		wrong(endpoint[1] != "" && httpURL(strings.TrimSpace(endpoint[1])) == nil, "%s must be the http or https URL of a collector, such as http://collector:4318", endpoint[0])
	}
	for _, headers := range [][2]string{{"OTEL_EXPORTER_OTLP_HEADERS", c.Headers}, {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", c.TracesHeaders}} {
		wrong(!isPairs(headers[1], isHeader), "%s must list name=value, separated by commas, such as Authorization=Bearer%%20token, with %%25 for a %% in a value", headers[0])
	}
	wrong(c.Exporter != "" && c.Exporter != otlpExporter, "OTEL_TRACES_EXPORTER must be otlp or none, but is %q", c.Exporter)
	isNamed := func(name, _ string) bool { return name != "" }
	wrong(!isPairs(c.Attributes, isNamed), "OTEL_RESOURCE_ATTRIBUTES must list name=value, separated by commas, such as service.namespace=shop")
	for _, protocol := range [][2]string{{"OTEL_EXPORTER_OTLP_PROTOCOL", c.Protocol}, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", c.TracesProtocol}} {
		// A valid protocol of traces replaces the other one.
		wrong(protocol[1] != "" && protocol[1] != otlpProtocol && c.TracesProtocol != otlpProtocol, "%s must be http/protobuf, but is %q", protocol[0], protocol[1])
	}
}

// isPairs reports whether text, a variable of OpenTelemetry, lists name=value separated by commas and
// isValid accepts each. It may be empty.
func isPairs(text string, isValid func(name, value string) bool) bool {
	if strings.TrimSpace(text) == "" {
		return true
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, found := strings.Cut(pair, "=")
		if !found || !isValid(strings.TrimSpace(name), value) {
			return false
		}
	}
	return true
}

// isHeader reports whether OpenTelemetry sends a header. It would print another one, which may have a
// token, in its own log, and leave it out.
func isHeader(name, value string) bool {
	value, err := url.PathUnescape(value)
	return err == nil && httpguts.ValidHeaderFieldName(name) && httpguts.ValidHeaderFieldValue(strings.TrimSpace(value))
}

// isTerminal reports whether a reader or a writer is a terminal.
func isTerminal(stream any) bool {
	if out, is := stream.(*output); is {
		stream = out.Writer
	}
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// logger returns the logger of a server, after it has warned of unknown variables. Call flush
// before the program ends.
func (p *program) logger(c config) (log *slog.Logger, flush func()) {
	log, flush = telemetry.NewLogger(p.stderr, c.LogLevel, c.LogFormat)
	if len(c.unknown) > 0 {
		log.Warn(unknownWarning, "variables", c.unknown)
	}
	return log, flush
}
