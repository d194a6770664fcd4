package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/pgtest"
	"petstore/internal/selfsigned"
	"petstore/internal/tools/need"
)

// internals matches words of Go, the driver and our packages that do not help a
// user.
var internals = regexp.MustCompile(`\n|\t|strconv|slog:|time:|dial |SQLSTATE \)|arg\(s\)|failed to connect|context |(^|: )(postgres|localpg|auth): |read tcp|lookup |errors?\.|%!`)

// wantSentence runs a command that must fail with exactly this message, as a usage
// error or another error.
func wantSentence(t *testing.T, environ []string, args []string, isUsage bool, want string) {
	t.Helper()
	_, _, err := execute(t, environ, args...)
	if err == nil {
		t.Errorf("petstore %q succeeds", args)
		return
	}
	if err.Error() != want {
		t.Errorf("petstore %q\n got %v\nwant %s", args, err, want)
	}
	if found := internals.FindString(err.Error()); found != "" {
		t.Errorf("petstore %q: the message contains %q: %v", args, found, err)
	}
	if _, ok := errors.AsType[*usageError](err); ok != isUsage {
		t.Errorf("petstore %q: %v: usage error is %v, want %v", args, err, ok, isUsage)
	}
}

// TestFileSentences: an error about a file keeps the sentence around it.
func TestFileSentences(t *testing.T) {
	t.Parallel()
	_, err := os.Open("/nowhere")
	for _, test := range []struct {
		err  error
		want string
	}{
		{err, "cannot open /nowhere: no such file or directory"},
		{fmt.Errorf("1 of 2 rows are imported: %w; run the same command to continue", err), "1 of 2 rows are imported: cannot open /nowhere: no such file or directory; run the same command to continue"},
	} {
		if got := plain(test.err).Error(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// TestUsageSentences checks that the error of a wrong command line says what is
// wrong and which help to read, without words of the library.
func TestUsageSentences(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"nonsense":                         `there is no command "nonsense"; see petstore --help`,
		"help nonsense":                    `there is no command "nonsense"; see petstore --help`,
		"help key nonsense":                `there is no command "key nonsense"; see petstore --help`,
		"migrate sideways":                 `migrate has no command "sideways"; see petstore migrate --help`,
		"completion csh":                   `completion has no command "csh" (did you mean zsh?); see petstore completion --help`,
		"completion bash now":              `completion bash takes no arguments, but got "now"; see petstore completion bash --help`,
		"serve now":                        `serve takes no arguments, but got "now"; see petstore serve --help`,
		"migrate up now":                   `migrate up takes no arguments, but got "now"; see petstore migrate up --help`,
		"serve --nonsense":                 "there is no flag --nonsense; see petstore serve --help",
		"serve -x":                         "there is no flag -x; see petstore serve --help",
		"sevre":                            `there is no command "sevre" (did you mean serve?); see petstore --help`,
		"key lst":                          `key has no command "lst" (did you mean list?); see petstore key --help`,
		"help migrate stats":               `there is no command "migrate stats" (did you mean status?); see petstore --help`,
		"key list --acount a":              "there is no flag --acount (did you mean --account?); see petstore key list --help",
		"api /pets --pagenate":             "there is no flag --pagenate (did you mean --paginate?); see petstore api --help",
		"api POST /pets --retries 21":      `--retries must be a whole number between 0 and 20, but is "21"; see petstore api --help`,
		"api /pets -H Idempotency\tKey:x":  `--header must be a name and a value, such as 'Prefer: wait=20', but is "Idempotency\tKey:x"; see petstore api --help`,
		"api /pets -H Prefer:a\nX:b":       `--header must be a name and a value, such as 'Prefer: wait=20', but is "Prefer:a\nX:b"; see petstore api --help`,
		"trigger order.plced":              `there is no type of events "order.plced" (did you mean order.placed?); petstore trigger lists the types; see petstore trigger --help`,
		"serve ---x":                       "---x is not a flag; see petstore serve --help",
		"openapi --format":                 "--format needs a value; see petstore openapi --help",
		"openapi --format xml":             `--format must be yaml, json, json-3.1 or postman, but is "xml"; see petstore openapi --help`,
		"seed --pets many":                 `--pets must be a whole number between 1 and 10000000, but is "many"; see petstore seed --help`,
		"seed --pets 99999999999999999999": `--pets must be a whole number between 1 and 10000000, but is "99999999999999999999"; see petstore seed --help`,
		"seed --pets 0":                    `--pets must be a whole number between 1 and 10000000, but is "0"; see petstore seed --help`,
		"dev --port 65536":                 `--port must be a whole number between 0 and 65535, but is "65536"; see petstore dev --help`,
		"dev --https=perhaps":              `--https must be true or false, but is "perhaps"; see petstore dev --help`,
		"migrate down --yes=perhaps":       `--yes must be true or false, but is "perhaps"; see petstore migrate down --help`,
		"account create":                   "account create takes the name of one account, but got 0 arguments; see petstore account create --help",
		"account delete a b":               "account delete takes the name of one account, but got 2 arguments; see petstore account delete --help",
		"account create \t":                "the name must have 1 to 100 characters, not only white space and no control characters; see petstore account create --help",
		"sandbox create":                   "--account is required: name the account of the new sandbox; see petstore sandbox create --help",

		"sandbox create --account a --sample Big":    `--sample must have 1 to 50 lowercase letters, digits and hyphens, and must not begin with a hyphen, but is "Big"; see petstore sandbox create --help`,
		"sandbox create --account a --sample []":     `--sample must have 1 to 50 lowercase letters, digits and hyphens, and must not begin with a hyphen, but is "[]"; see petstore sandbox create --help`,
		"sandbox create --account a --expires-in 8d": `--expires-in must be a duration from 1m to 7d in whole seconds, such as 24h, but is "8d"; see petstore sandbox create --help`,

		"key create":                          "--account is required: name the account of the new key; see petstore key create --help",
		"key create --account=":               "--account needs a value; see petstore key create --help",
		"key create --account=\t":             `--account must have 1 to 100 characters, not only white space and no control characters, but is "\t"; see petstore key create --help`,
		"key create --account a --scope root": `--scope must be read, write or admin, but is "root"; see petstore key create --help`,
		"key create --account a --expires-in soon": `--expires-in must be a duration such as 90d or 12h, ` +
			`at most 100 years, but is "soon"; see petstore key create --help`,
		"key create --account a --expires-in -200000d": `--expires-in must be a duration such as 90d or 12h, ` +
			`at most 100 years, but is "-200000d"; see petstore key create --help`,
		"key create --account a --expires-in=": "--expires-in needs a value; see petstore key create --help",
		"export pets name=\xff":                `a filter must be UTF-8, but is "name=\xff"; see petstore export --help`,
		"export pets status":                   `a filter must be key=value or key:=json, such as petId=1, but is "status"; see petstore export --help`,
		"export pets limit=5":                  "limit is not a filter, because export writes all pages; see petstore export --help",
		"report --fail-on ":                    "--fail-on needs a value; see petstore report --help",
		"import a --in-doubt ":                 "--in-doubt needs a value; see petstore import --help",
		"listen --types=":                      "--types needs a value; see petstore listen --help",

		"key list":                 "--account is required: name the account whose keys to list; see petstore key list --help",
		"key revoke":               "key revoke takes the id or the prefix of one API key, but got 0 arguments; see petstore key revoke --help",
		"key rotate 1 2":           "key rotate takes the id or the prefix of one API key, but got 2 arguments; see petstore key rotate --help",
		"key rotate 1 --grace x":   `--grace must be 0s to 24h in whole seconds, but is "x"; see petstore key rotate --help`,
		"key rotate 1 --grace -1s": `--grace must be 0s to 24h in whole seconds, but is "-1s"; see petstore key rotate --help`,
	} {
		wantSentence(t, nil, strings.Split(line, " "), true, want)
	}
}

// TestConfigurationSentences: an error names every invalid variable once, with its
// valid values, and has no password.
func TestConfigurationSentences(t *testing.T) {
	t.Parallel()
	const url = "DATABASE_URL=postgres://localhost/petstore"
	const another = ",postgres://petstore:hunter2@localhost/petstore"
	const notOne = "DATABASE_URL must be the URL of a PostgreSQL database, such as postgres://user:password@host:5432/petstore"
	const unescaped = "DATABASE_URL must have %2F for a / in the password, and %40 for each @ but the one before the host"
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	need.OK(t, selfsigned.Make(certFile, keyFile, time.Now()))
	const noTLS = "DATABASE_URL has settings of TLS that do not work; check sslmode, and the files of sslrootcert, sslcert and sslkey"
	const noFile = "DATABASE_URL names a file in %s that does not exist or that petstore may not read"
	const notProxy = "PETSTORE_WEBHOOK_PROXY must be the URL of an HTTP proxy, such as http://proxy.example:3128"
	const noStandby = "PETSTORE_REPLICA_URLS must list URLs of standbys, separated by white space, such as postgres://user:password@host:5432/petstore, but number 1 is not one"
	const noHeaders = " must list name=value, separated by commas, such as Authorization=Bearer%20token, with %25 for a % in a value"
	wrong := map[string]string{
		"PETSTORE_DB_MAX_CONNS=many":                 `PETSTORE_DB_MAX_CONNS must be a whole number between 2 and 10000, but is "many"`,
		"PETSTORE_STARTUP_WAIT=30":                   `PETSTORE_STARTUP_WAIT must be a duration such as 5s, at least 0s, but is "30"`,
		"PETSTORE_ENFORCE_SUNSET=perhaps":            `PETSTORE_ENFORCE_SUNSET must be true or false, but is "perhaps"`,
		"PETSTORE_LOG_LEVEL=loud":                    `PETSTORE_LOG_LEVEL must be debug, info, warn or error, but is "loud"`,
		"PETSTORE_REQUEST_TIMEOUT=6":                 `PETSTORE_REQUEST_TIMEOUT must be a duration such as 5s, above 0s and at most 10s, but is "6"`,
		"PETSTORE_REPLICA_MAX_LAG=0s":                "PETSTORE_REPLICA_MAX_LAG must be above 0s, but is 0s",
		"PETSTORE_SHUTDOWN_GRACE=-1s":                "PETSTORE_SHUTDOWN_GRACE must be above 0s, but is -1s",
		"PETSTORE_MAX_HEADER_BYTES=8191":             "PETSTORE_MAX_HEADER_BYTES must be between 8192 and 1048576, but is 8191",
		"PETSTORE_MAX_CONNECTIONS=0":                 "PETSTORE_MAX_CONNECTIONS must be between 1 and 1000000, but is 0",
		"PETSTORE_MAX_BODY_BYTES=-1":                 "PETSTORE_MAX_BODY_BYTES must be between 1 and 1048576, but is -1",
		"PETSTORE_RATE_LIMIT=-1":                     "PETSTORE_RATE_LIMIT must be between 0 and 1000000, but is -1",
		"PETSTORE_RATE_BURST=-1":                     "PETSTORE_RATE_BURST must be between 1 and 1000000, but is -1",
		"PETSTORE_ACCOUNT_RATE_LIMIT=4000001":        "PETSTORE_ACCOUNT_RATE_LIMIT must be between 0 and 4000000, but is 4000001",
		"PETSTORE_AUTH_FAILURE_LIMIT=1000001":        "PETSTORE_AUTH_FAILURE_LIMIT must be between 0 and 1000000, but is 1000001",
		"GOGC=4x":                                    `GOGC must be off or a whole number of percent, but is "4x"`,
		"PETSTORE_LOG_FORMAT=xml":                    `PETSTORE_LOG_FORMAT must be json or text, but is "xml"`,
		"PETSTORE_TRUSTED_PROXIES=::1,proxy.example": `PETSTORE_TRUSTED_PROXIES must list IP addresses and networks such as 10.0.0.0/8, but has "proxy.example"`,
		"PETSTORE_WEBHOOK_ALLOW=10.0.0.0/8,10.1.2.3/16": `PETSTORE_WEBHOOK_ALLOW must list IP addresses and networks with an optional port, ` +
			`such as 10.1.0.0/16, 10.1.2.3:8080 or [fd00::/8]:8080, but has "10.1.2.3/16"`,
		"PETSTORE_WEBHOOK_PROXY=socks5://user:hunter2@proxy.example": notProxy,
		"PETSTORE_WEBHOOK_PROXY=http://user:12#34@proxy.example":     notProxy,
		"PETSTORE_WEBHOOK_PROXY=http://user:12?34@proxy.example":     notProxy,
		"PETSTORE_SECRET_KEY=YSBrZXkgb2YgYSB2YXVsdCBpbiB0ZXN0cywgMzIgQi4=,hunter2": "PETSTORE_SECRET_KEY must list keys of 32 random bytes in base64, " +
			"as openssl rand -base64 32 makes them, but number 2 is not one",
		"OTEL_TRACES_EXPORTER=zipkin":                                     `OTEL_TRACES_EXPORTER must be otlp or none, but is "zipkin"`,
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc":                         `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL must be http/protobuf, but is "grpc"`,
		"OTEL_RESOURCE_ATTRIBUTES=service.namespace":                      "OTEL_RESOURCE_ATTRIBUTES must list name=value, separated by commas, such as service.namespace=shop",
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                                `OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, but is "grpc"`,
		"OTEL_EXPORTER_OTLP_HEADERS=Authorization: Bearer hunter2":        "OTEL_EXPORTER_OTLP_HEADERS" + noHeaders,
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS=Authorization=Bearer hunter2%": "OTEL_EXPORTER_OTLP_TRACES_HEADERS" + noHeaders,
		"PETSTORE_ADDR=8080":                                              `PETSTORE_ADDR must be host:port or :port with a port from 0 to 65535, but is "8080"`,
		"PETSTORE_ADDR=localhost:http":                                    `PETSTORE_ADDR must be host:port or :port with a port from 0 to 65535, but is "localhost:http"`,
		"PETSTORE_ADMIN_ADDR=:65536":                                      `PETSTORE_ADMIN_ADDR must be off, host:port or :port with a port from 0 to 65535, but is ":65536"`,
		"PETSTORE_URL=http://me:hunter2@localhost": "PETSTORE_URL must be the http or https URL of the API without a user, a query or a fragment, " +
			"such as https://api.example",
		"PETSTORE_BASE_URL=http://me:hunter2@localhost": "PETSTORE_BASE_URL must be http:// or https:// with a host and an optional port, and nothing else",
		"DATABASE_URL=":                    "DATABASE_URL must be set to the URL of a PostgreSQL database, such as postgres://user:password@host:5432/petstore",
		"DATABASE_URL=mysql://localhost/x": notOne,
		url + another:                      notOne,
		"DATABASE_URL=postgres://me:hunter2@localhost:notaport/petstore": notOne,
		url + "?host=/tmp" + another:                                     notOne,
		url + "&password=hunter2":                                        notOne,
		url + "?sslmode=perhaps":                                         noTLS,
		url + "?sslcert=" + certFile:                                     noTLS,
		url + "?sslmode=verify-full&sslrootcert=/nowhere/ca.pem":         fmt.Sprintf(noFile, "sslrootcert"),
		url + "?sslcert=/nowhere/cert.pem&sslkey=" + keyFile:             fmt.Sprintf(noFile, "sslcert"),
		url + "?sslkey=/nowhere/key.pem&sslcert=" + certFile:             fmt.Sprintf(noFile, "sslkey"),
		url + "?target_session_attrs=readwrite":                          "DATABASE_URL must have a target_session_attrs of any, read-write, read-only, primary, standby or prefer-standby",
		url + "?connect_timeout=2s":                                      "DATABASE_URL must have a connect_timeout in whole seconds, such as 2",
		url + "?default_query_exec_mode=execute":                         "DATABASE_URL must have a default_query_exec_mode of exec, cache_describe or cache_statement",
		"DATABASE_URL=postgres://me:12/34@localhost/petstore":            unescaped,
		"DATABASE_URL=postgres://me:12@34@localhost/petstore":            unescaped,
		"DATABASE_URL=postgres://localhost/petstore?user=me@x":           unescaped,
		"PETSTORE_DIRECT_URL=postgres://localhost/petstore" + another: "PETSTORE_DIRECT_URL must be the URL of the database of DATABASE_URL without a connection pooler, " +
			"such as postgres://user:password@host:5432/petstore",
		"PETSTORE_REPLICA_URLS=postgres://localhost/petstore" + another:                                           noStandby,
		"PETSTORE_REPLICA_URLS=host=localhost":                                                                    noStandby,
		"PETSTORE_REPLICA_URLS=postgres://localhost/petstore\n postgres://me:hunter2@localhost:notaport/petstore": strings.Replace(noStandby, "number 1", "number 2", 1),
	}
	tracing := "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector"
	one := map[string]string{} // of each variable
	for variable, want := range wrong {
		wantSentence(t, []string{url, tracing, variable}, []string{"serve"}, false, "invalid configuration: "+want)
		name, _, _ := strings.Cut(variable, "=")
		one[name] = variable
	}
	environ := append(slices.Collect(maps.Values(one)), tracing)
	_, _, err := execute(t, environ, "serve")
	rest := strings.TrimPrefix(fmt.Sprint(err), "invalid configuration: ")
	for _, variable := range one {
		before := rest
		if rest = strings.Replace(rest, wrong[variable], "", 1); rest == before {
			t.Errorf("the error about all variables does not say %s", wrong[variable])
		}
	}
	if strings.Trim(rest, "; ") != "" {
		t.Errorf("the error about all variables also says %s", rest)
	}
}

// TestDatabaseSentences: every database error says in one sentence what is wrong,
// where, and what to do. Neither the error nor the log contains the password, for which execute
// searches both.
func TestDatabaseSentences(t *testing.T) {
	t.Parallel()
	const password = "a password, & with/all:of@them?#%"
	user := url.UserPassword("petstore", password)
	theSecrets.Learn("the password, encoded", user.String()[len("petstore:"):])
	database := need.Value(url.Parse(pgtest.NewEmpty(t).URL))(t)
	address := database.Host
	if host := database.Query().Get("host"); host != "" {
		address = "the socket " + host + "/.s.PGSQL.5432"
	}
	absent, stranger := *database, *database
	absent.Path = "/is_not_there"
	query := stranger.Query()
	query.Set("user", "nobody_at_all")
	query.Set("password", password)
	stranger.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	web := pgtest.ServeTCP(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1000))
		_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
	})
	closing := pgtest.ServeTCP(t, func(net.Conn) {})
	withoutTLS := pgtest.ServeTCP(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 8))
		_, _ = conn.Write([]byte("N"))
	})
	const check = "; check that it runs there, or correct DATABASE_URL"
	refusing := rejectLogins(t, "28P01", "password authentication failed")
	server := "postgres://" + user.String() + "@"
	for address, want := range map[string]string{
		server + "localhost:1/x":                   "cannot connect to PostgreSQL at localhost:1: connection refused" + check,
		server + "127.0.0.1:1,127.0.0.1:2/x":       "cannot connect to PostgreSQL at 127.0.0.1:1 or 127.0.0.1:2: connection refused" + check,
		server + "host.invalid/x":                  `cannot connect to PostgreSQL at host.invalid:5432: the host name "host.invalid" is unknown` + check,
		server + "/x?host=/nowhere":                "cannot connect to PostgreSQL at the socket /nowhere/.s.PGSQL.5432: there is no such socket" + check,
		server + web + "/x":                        "cannot connect to PostgreSQL at " + web + ": the server there is not PostgreSQL" + check,
		server + closing + "/x":                    "cannot connect to PostgreSQL at " + closing + ": the server closes the connection" + check,
		server + withoutTLS + "/x?sslmode=require": "PostgreSQL at " + withoutTLS + " does not support TLS; turn it on there, or change sslmode in DATABASE_URL",
		server + refusing + "/x?sslmode=disable":   "",
		absent.String():                            "PostgreSQL at " + address + ` refuses the connection: database "is_not_there" does not exist; create it, or correct DATABASE_URL`,
		stranger.String():                          "",
	} {
		for _, command := range []string{"serve", "migrate up", "migrate status", "key list --account acme", "seed"} {
			t.Run(command+" "+address, func(t *testing.T) {
				t.Parallel()
				want := want
				environ := []string{"DATABASE_URL=" + address, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_STARTUP_WAIT=1ms", "PETSTORE_LOG_LEVEL=debug"}
				if want == "" { // the message of a server depends on its setup
					_, _, err := execute(t, environ, strings.Fields(command)...)
					if err == nil || !strings.Contains(err.Error(), "refuses the connection: ") || !strings.Contains(err.Error(), "; correct the user in DATABASE_URL, or ") || internals.MatchString(err.Error()) {
						t.Errorf("petstore %s: %v", command, err)
					}
					return
				}
				if command == "serve" && (strings.HasPrefix(want, "cannot connect") || strings.Contains(want, "TLS")) {
					want += " (waited 1ms, see PETSTORE_STARTUP_WAIT)"
				}
				wantSentence(t, environ, strings.Fields(command), false, want)
			})
		}
	}
}

// TestDirectSentences: an error of the database of PETSTORE_DIRECT_URL, and the log before it,
// name that variable.
func TestDirectSentences(t *testing.T) {
	t.Parallel()
	environ := []string{
		"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_DIRECT_URL=postgres://localhost:1/x",
		"PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=off", "PETSTORE_STARTUP_WAIT=1ms",
	}
	const want = "cannot connect to PostgreSQL at localhost:1: connection refused; check that it runs there, or correct PETSTORE_DIRECT_URL"
	const waited = " (waited 1ms, see PETSTORE_STARTUP_WAIT)"
	for command, more := range map[string]string{"serve": waited, "worker": waited, "migrate up": "", "seed": ""} {
		wantSentence(t, environ, strings.Fields(command), false, want+more)
	}
	p := begin(t, pgtest.Dir(t), append(environ, "PETSTORE_STARTUP_WAIT=10m"), "worker")
	need.Contains(t, "the log of worker", p.expect("waiting for the database"), want)
}

// TestPoolerSentences: serve ends at once with a sentence if a connection pooler refuses the
// login, and waits while the pooler cannot reach the server. PgBouncer sends these messages,
// all with the same SQLSTATE.
func TestPoolerSentences(t *testing.T) {
	t.Parallel()
	const (
		password = "; correct the user in DATABASE_URL, or the password there or in PGPASSWORD"
		user     = "; correct the user in DATABASE_URL, or allow it in pg_hba.conf"
		database = "; create it, or correct DATABASE_URL"
		mode     = "; set pool_mode = transaction in the connection pooler"
		waits    = " (waited 1ms, see PETSTORE_STARTUP_WAIT)"
	)
	for message, want := range map[string]string{
		"password authentication failed":                            password,
		"SASL authentication failed":                                password,
		`password authentication failed for user "shop"`:            password,
		"no such user: shop":                                        password,
		"empty password returned by client":                         password,
		"server login failed: wrong password type":                  password,
		"server login failed: FATAL password authentication failed": password,
		`role "shop" is not permitted to log in`:                    user,
		`role "shop" does not exist`:                                database,
		`database "shop" does not exist`:                            database,
		"no such database: shop":                                    database,
		"server login has been failing, cached error: password authentication failed for user \"shop\" (server_login_retry)": password,

		"transaction blocks not allowed in statement pooling mode": mode,

		"server login has been failing, try again later (server_login_retry)":              waits,
		"server login has been failing, cached error: connect failed (server_login_retry)": waits,
		"server login failed: FATAL the database system is starting up":                    waits,
		"pgbouncer cannot connect to server":                                               waits,
		`too many connections for role "shop"`:                                             waits,
		"query_wait_timeout":                                                               waits,
	} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			address, wait := rejectLogins(t, "08P01", message), "10m" // longer than a test may take
			if want == waits {
				wait = "1ms"
			}
			environ := []string{"DATABASE_URL=postgres://shop:secret@" + address + "/shop?sslmode=disable", "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_STARTUP_WAIT=" + wait}
			wantSentence(t, environ, []string{"serve"}, false, "PostgreSQL at "+address+" refuses the connection: "+message+want)
		})
	}
}

// TestSilentDatabase: a server that accepts connections and sends nothing.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	silent := pgtest.ServeTCP(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	environ := []string{"DATABASE_URL=postgres://" + silent + "/x?sslmode=disable&connect_timeout=1"}
	for _, command := range []string{"migrate up", "key list --account acme"} {
		wantSentence(t, environ, strings.Fields(command), false,
			"cannot connect to PostgreSQL at "+silent+": the server does not respond; check that it runs there, or correct DATABASE_URL")
	}
}

// TestSilentFirstHost: commands work if the first host of DATABASE_URL does not respond.
func TestSilentFirstHost(t *testing.T) {
	t.Parallel()
	silent := pgtest.ServeTCP(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	database := pgtest.New(t)
	second := func(address string) string {
		t.Helper()
		parsed := need.Value(url.Parse(address))(t)
		query := parsed.Query()
		for name, hosts := range map[string][2]string{"host": {"127.0.0.1", parsed.Hostname()}, "port": {silent[len("127.0.0.1:"):], parsed.Port()}} {
			query.Set(name, hosts[0]+","+cmp.Or(query.Get(name), hosts[1]))
		}
		query.Set("connect_timeout", "2")
		parsed.Host, parsed.RawQuery = "", query.Encode()
		return "DATABASE_URL=" + parsed.String()
	}
	must(t, []string{second(database.URL)}, "key", "create", "--account", "acme")
	begin(t, pgtest.Dir(t), []string{second(database.OwnerURL), "PETSTORE_ADDR=127.0.0.1:0"}, "dev").expect("listening")
}

// TestListenSentences: an address that is not available.
func TestListenSentences(t *testing.T) {
	t.Parallel()
	taken := pgtest.ServeTCP(t, func(net.Conn) {})
	environ := "DATABASE_URL=" + pgtest.New(t).URL
	for address, why := range map[string]string{
		taken:             "another program listens there",
		"host.invalid:80": `the host name "host.invalid" is unknown`,
		"192.0.2.1:80":    "this machine does not have that address",
	} {
		wantSentence(t, []string{environ, "PETSTORE_ADDR=" + address}, []string{"serve"}, false,
			fmt.Sprintf("cannot listen on %s: %s; set PETSTORE_ADDR to another address", address, why))
		wantSentence(t, []string{environ, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=" + address}, []string{"serve"}, false,
			fmt.Sprintf("cannot listen on %s: %s; set PETSTORE_ADMIN_ADDR to another address", address, why))
	}
}

// TestHealthcheckSentences: no server, another server, or a server that is not
// ready.
func TestHealthcheckSentences(t *testing.T) {
	t.Parallel()
	closing := pgtest.ServeTCP(t, func(net.Conn) {})
	mail := pgtest.ServeTCP(t, func(conn net.Conn) { _, _ = conn.Write([]byte("220 mail.example ESMTP\r\n")) })
	busy := pgtest.ServeTCP(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1000))
		_, _ = conn.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	})
	const remedy = "; start one with `petstore serve`, or set PETSTORE_ADDR to where it listens"
	for address, want := range map[string]string{
		"127.0.0.1:1":    "no server responds at http://127.0.0.1:1/readyz: connection refused" + remedy,
		"host.invalid:1": `no server responds at http://host.invalid:1/readyz: the host name "host.invalid" is unknown` + remedy,
		mail:             "no server responds at http://" + mail + "/readyz: the program that listens there does not speak HTTP" + remedy,
		busy:             "the server at http://" + busy + "/readyz is not ready: it responds with 503 Service Unavailable; read its log",
	} {
		wantSentence(t, []string{"PETSTORE_ADDR=" + address}, []string{"healthcheck"}, false, want)
	}
	// Depending on the kernel, the client sees an end or a reset.
	if _, _, err := execute(t, []string{"PETSTORE_ADDR=" + closing}, "healthcheck"); err == nil || internals.MatchString(err.Error()) {
		t.Errorf("healthcheck of a server that closes the connection: %v", err)
	}
	proxy := need.Server(t, func(http.ResponseWriter, *http.Request) {})
	p := begin(t, emptyDir, []string{"HTTP_PROXY=" + proxy.URL, "PETSTORE_ADDR=host.invalid:1"}, "healthcheck")
	p.exits(1)
	need.Contains(t, "healthcheck beside a proxy", p.stderr.String(), "is unknown")
}

// TestDevSentences: a folder, a database or a port that dev cannot use.
func TestDevSentences(t *testing.T) {
	t.Parallel()
	taken := pgtest.ServeTCP(t, func(net.Conn) {})
	_, port, err := net.SplitHostPort(taken)
	need.OK(t, err)
	database := "DATABASE_URL=" + pgtest.New(t).OwnerURL
	for name, test := range map[string]struct {
		prepare func(dir string) error
		environ []string
		args    []string
		want    string
	}{
		"a file instead of the folder": {
			prepare: func(dir string) error { return os.WriteFile(filepath.Join(dir, devDir), nil, 0o600) },
			want:    "cannot write .petstore: not a directory; start petstore dev in a folder that you may write to",
		},
		"a folder instead of the key": {
			prepare: func(dir string) error { return os.MkdirAll(filepath.Join(dir, devDir, "api-key"), 0o700) },
			environ: []string{database},
			want:    "cannot write .petstore/api-key: is a directory; start petstore dev in a folder that you may write to",
		},
		"a database of another version": {
			prepare: func(dir string) error {
				data := filepath.Join(dir, devDir, "postgres", "data")
				return errors.Join(os.MkdirAll(data, 0o755), os.Chown(data, notRoot(), -1), os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("9\n"), 0o600))
			},
			want: "cannot open it: set PETSTORE_PG_BIN to the folder with initdb and postgres of PostgreSQL 9, or move",
		},
		"a database without templates": {
			prepare: func(dir string) error {
				return makeCluster(t.Context(), dir, "postgres", "UPDATE pg_database SET datistemplate = false WHERE datname = 'template1'", "DROP DATABASE template1")
			},
			environ: []string{"PETSTORE_PG_BIN=" + os.Getenv("PETSTORE_PG_BIN")},
			want:    `template database "template1" does not exist`,
		},
		"a database that ends during a migration": {
			prepare: func(dir string) error {
				return makeCluster(t.Context(), dir, "template1", `CREATE FUNCTION stop() RETURNS event_trigger LANGUAGE plpgsql AS $$
					BEGIN COPY (SELECT) TO PROGRAM 'trap : TERM; cat >/dev/null; kill -INT $(head -1 postmaster.pid)'; PERFORM pg_sleep(100); END $$`,
					"CREATE EVENT TRIGGER stop ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION stop()")
			},
			environ: []string{"PETSTORE_PG_BIN=" + os.Getenv("PETSTORE_PG_BIN")},
			want:    "petstore: postgres ended by itself: exit status ",
		},
		"no server binaries": {
			environ: []string{"PETSTORE_PG_BIN=/nowhere"},
			want:    "; or run `docker compose up`, or set DATABASE_URL to a database that runs",
		},
		"no direct database": {
			environ: []string{database, "PETSTORE_DIRECT_URL=postgres://localhost:1/x"},
			want:    "connection refused; check that it runs there, or correct PETSTORE_DIRECT_URL",
		},
		"a port in use": {
			environ: []string{database, "PETSTORE_ADDR=127.0.0.1:0"},
			args:    []string{"--port", port},
			want:    "cannot listen on " + taken + ": another program listens there; set PETSTORE_ADDR or --port to another address",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := pgtest.Dir(t)
			if test.prepare != nil {
				need.OK(t, test.prepare(dir))
			}
			p := begin(t, dir, append([]string{"PETSTORE_ADDR=127.0.0.1:0"}, test.environ...), append([]string{"dev"}, test.args...)...)
			line := p.expect("petstore: ")
			if !strings.Contains(line, test.want) || internals.MatchString(line) {
				t.Errorf("got %s\nwant %s", line, test.want)
			}
			p.exits(exitFailure)
			if running, _ := filepath.Glob(filepath.Join(dir, devDir, "postgres", "data", "postmaster.pid")); len(running) > 0 {
				t.Error("PostgreSQL is still running")
			}
		})
	}
}

// TestInterruptedDev: Ctrl-C ends dev while it makes its database.
func TestInterruptedDev(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	const script = "#!/bin/sh\ncase $1 in --version) echo 'initdb (PostgreSQL) 17.5'; exit;; esac\ncd \"$2\" && mkfifo forever && read line <forever\n"
	for _, name := range []string{"initdb", "postgres"} {
		syscall.ForkLock.RLock() // a program that is open for writing, also in another process, does not run
		err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755)
		syscall.ForkLock.RUnlock()
		need.OK(t, err)
	}
	p := begin(t, dir, []string{"PETSTORE_PG_BIN=" + dir}, "dev")
	need.Within(t, patience, "initdb runs", func() bool {
		_, err := os.Stat(filepath.Join(dir, devDir, "postgres", "data.new", "forever"))
		return err == nil
	})
	p.exits(exitFailure, os.Interrupt)
	if line := p.expect("petstore: "); line != "petstore: interrupted" {
		t.Errorf("it printed %q", line)
	}
}

// makeCluster makes the cluster of dev in a folder, and runs statements in a database of it.
func makeCluster(ctx context.Context, dir, name string, statements ...string) error {
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), io.Discard)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, devDir), localpg.DirMode()); err != nil {
		return err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: filepath.Join(dir, devDir, "postgres")})
	if err != nil {
		return err
	}
	database, err := pgx.Connect(ctx, cluster.URL(name))
	if err == nil {
		for _, statement := range statements {
			_, failed := database.Exec(ctx, statement)
			err = errors.Join(err, failed)
		}
		err = errors.Join(err, database.Close(ctx))
	}
	return errors.Join(err, cluster.Stop(ctx))
}

// notRoot returns the uid of a user who may own a database: ours, unless we are
// root.
func notRoot() int {
	const nobody = 65534
	if uid := os.Geteuid(); uid != 0 {
		return uid
	}
	return nobody
}

// TestStatementSentences: the error of a statement is PostgreSQL's message, and for
// a migration also the name of its file.
func TestStatementSentences(t *testing.T) {
	t.Parallel()
	const notOwner = "the role may not migrate the schema; run `petstore migrate` as the owner of the database"
	taken := pgtest.NewEmpty(t)
	_, stranger := taken.NewRole(t)
	wantSentence(t, []string{"DATABASE_URL=" + stranger}, []string{"migrate", "up"}, false, notOwner)
	pgtest.Exec(t, taken.Pool, "CREATE TABLE accounts ()")
	wantSentence(t, []string{"DATABASE_URL=" + taken.OwnerURL}, []string{"migrate", "up"}, false,
		`the migration 00001_create_accounts.sql failed: relation "accounts" already exists (SQLSTATE 42P07)`)
	serving := pgtest.New(t)
	lock := pgtest.Begin(t, serving.Pool)
	pgtest.Exec(t, lock, "LOCK TABLE goose_db_version")
	wantSentence(t, []string{"DATABASE_URL=" + serving.OwnerURL + "&lock_timeout=100ms"}, []string{"migrate", "down", "--yes"}, false,
		"PostgreSQL reports: canceling statement due to lock timeout (SQLSTATE 55P03); try again when the transactions that hold the lock have ended")
	pgtest.Rollback(t, lock)
	for _, command := range []string{"status", "up", "down --yes"} {
		wantSentence(t, []string{"DATABASE_URL=" + serving.DirectURL}, strings.Fields("migrate "+command), false, notOwner)
	}
	for _, command := range []string{"seed", "after-restore"} {
		wantSentence(t, []string{"DATABASE_URL=" + taken.OwnerURL}, []string{command}, false, "the database schema is behind; run `petstore migrate up`")
	}
	pgtest.Exec(t, serving.Pool, "DELETE FROM goose_db_version")
	wantSentence(t, []string{"DATABASE_URL=" + serving.OwnerURL}, []string{"migrate", "up"}, false,
		"the database has only a part of its backup; drop it, create it again, and repeat the restore (docs/backup.md)")
}
