package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/pressly/goose/v3"
)

// SQLSTATE codes of refused connections, and of a pooler that does not keep prepared statements.
const (
	invalidAuthorization = "28000"
	invalidPassword      = "28P01"
	invalidCatalogName   = "3D000"
	invalidTransaction   = "25000"
	tooManyConnections   = "53300"
	invalidStatementName = "26000"
	duplicateStatement   = "42P05"
)

// remedies are the actions that fix an SQLSTATE.
var remedies = map[string]string{
	invalidAuthorization:  "correct the user in DATABASE_URL, or allow it in pg_hba.conf",
	invalidPassword:       "correct the user in DATABASE_URL, or the password there or in PGPASSWORD",
	invalidCatalogName:    "create it, or correct DATABASE_URL",
	invalidTransaction:    "set pool_mode = transaction in the connection pooler",
	tooManyConnections:    "close other connections, or raise max_connections or the limit of the role",
	cannotConnectNow:      "try again in a moment",
	insufficientPrivilege: "connect as the owner of the schema, or let it run `petstore migrate up` with PETSTORE_SERVING_ROLE set to this role",
	lockNotAvailable:      "try again when the transactions that hold the lock have ended",
	invalidStatementName:  errPrepared.Error(),
	duplicateStatement:    errPrepared.Error(),
}

// Explain returns one sentence for the operator: why the database cannot be reached
// or refuses a statement, and what to do. It contains no password and no text of
// the driver. It is empty if err has another cause.
func Explain(err error) string {
	if of, ok := errors.AsType[*variableError](err); ok {
		return of.name(Explain(of.error))
	}
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return explainConnect(connect)
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return "DATABASE_URL is not the URL of a PostgreSQL database"
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		subject := "PostgreSQL reports"
		if partial, ok := errors.AsType[*goose.PartialError](err); ok && partial.Failed != nil {
			subject = "the migration " + path.Base(partial.Failed.Source.Path) + " failed"
		}
		return withRemedy(fmt.Sprintf("%s: %s (SQLSTATE %s)", subject, refused.Message, refused.Code), cmp.Or(refusal(refused), refused.Code))
	}
	_, acquiring := errors.AsType[*acquireError](err)
	_, network := errors.AsType[*net.OpError](err)
	switch {
	case pgconn.Timeout(err), acquiring && errors.Is(err, context.DeadlineExceeded):
		return "PostgreSQL did not respond in time; check that it runs where DATABASE_URL says"
	case acquiring, network, errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, pgconn.ErrConnClosed):
		return "the connection to PostgreSQL was lost; try again when it runs"
	}
	return ""
}

// variableError is an error of the database whose URL is in a variable other than DATABASE_URL.
type variableError struct {
	error

	variable string
}

// OfVariable returns an error of which [Explain] and Error name the variable of the URL, instead of
// DATABASE_URL. It returns nil for nil.
func OfVariable(variable string, err error) error {
	if err == nil {
		return nil
	}
	return &variableError{err, variable}
}

func (e *variableError) name(text string) string {
	return strings.ReplaceAll(text, "DATABASE_URL", e.variable)
}
func (e *variableError) Error() string { return e.name(e.error.Error()) }
func (e *variableError) Unwrap() error { return e.error }

// explainConnect explains why no server of a URL accepted a connection.
func explainConnect(err *pgconn.ConnectError) string {
	var reasons []string
	refusedTLS := false
	for _, cause := range causes(err.Unwrap()) {
		if refused, ok := errors.AsType[*pgconn.PgError](cause); ok {
			sentence := fmt.Sprintf("PostgreSQL at %s refuses the connection: %s", servers(err.Config), refused.Message)
			if refusesParameter(refused) {
				return sentence + "; remove it from DATABASE_URL and set it for the role with ALTER ROLE"
			}
			return withRemedy(sentence, cmp.Or(refusal(refused), refused.Code))
		}
		if strings.Contains(cause.Error(), "server refused TLS connection") {
			refusedTLS = true // a second attempt without TLS may follow
			continue
		}
		if why := reason(cause); !slices.Contains(reasons, why) {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) == 0 && refusedTLS {
		return fmt.Sprintf("PostgreSQL at %s does not support TLS; turn it on there, or change sslmode in DATABASE_URL", servers(err.Config))
	}
	return fmt.Sprintf("cannot connect to PostgreSQL at %s: %s; check that it runs there, or correct DATABASE_URL",
		servers(err.Config), strings.Join(reasons, ", "))
}

// withRemedy appends the remedy for an SQLSTATE, if there is one.
func withRemedy(sentence, code string) string {
	if remedy := remedies[code]; remedy != "" {
		return sentence + "; " + remedy
	}
	return sentence
}

// servers lists the addresses of a URL's servers, each once.
func servers(config *pgconn.Config) string {
	var names []string
	add := func(host string, port uint16) {
		network, address := pgconn.NetworkAddress(host, port)
		if network == "unix" {
			address = "the socket " + address
		}
		if !slices.Contains(names, address) {
			names = append(names, address)
		}
	}
	add(config.Host, config.Port)
	for _, fallback := range config.Fallbacks {
		add(fallback.Host, fallback.Port)
	}
	return strings.Join(names, " or ")
}

// causes returns the innermost errors of a tree, and stops at those that [reason]
// handles.
func causes(err error) []error {
	switch err.(type) { //nolint:errorlint // causes unwraps the errors itself
	case *pgconn.PgError, *net.DNSError, *tls.CertificateVerificationError:
		return []error{err}
	}
	switch wrapper := err.(type) { //nolint:errorlint // see above
	case interface{ Unwrap() []error }:
		var all []error
		for _, one := range wrapper.Unwrap() {
			all = append(all, causes(one)...)
		}
		return all
	case interface{ Unwrap() error }:
		if inner := wrapper.Unwrap(); inner != nil {
			return causes(inner)
		}
	}
	return []error{err}
}

// reason says in a few words why a connection failed.
func reason(cause error) string {
	var netErr net.Error
	if lookup, ok := errors.AsType[*net.DNSError](cause); ok {
		if lookup.IsNotFound {
			return fmt.Sprintf("the host name %q is unknown", lookup.Name)
		}
		return fmt.Sprintf("the host name %q cannot be looked up", lookup.Name)
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](cause); ok {
		return "its TLS certificate is not valid (" + strings.TrimPrefix(certificate.Err.Error(), "x509: ") + ")"
	}
	_, tooLong := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](cause)
	switch {
	case tooLong, strings.HasPrefix(cause.Error(), "unknown message type"):
		return "the server there is not PostgreSQL"
	case errors.Is(cause, syscall.ENOENT):
		return "there is no such socket"
	case errors.Is(cause, syscall.ECONNRESET), errors.Is(cause, syscall.EPIPE), errors.Is(cause, io.EOF), errors.Is(cause, io.ErrUnexpectedEOF):
		return "the server closes the connection"
	case errors.As(cause, &netErr) && netErr.Timeout(), errors.Is(cause, context.DeadlineExceeded):
		return "the server does not respond"
	default: // such as "connection refused"
		return strings.TrimPrefix(cause.Error(), "tls: ")
	}
}

// Name returns the database, the servers, the user and the use of TLS of a URL, without its password.
// The URL must be valid for [Open].
func Name(url string) string {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		return "the database"
	}
	mode, first := "TLS with a verified certificate", config.TLSConfig
	switch {
	case slices.ContainsFunc(config.Fallbacks, func(f *pgconn.FallbackConfig) bool { return (f.TLSConfig == nil) != (first == nil) }):
		mode = "TLS if the server has it"
	case first == nil:
		mode = "no TLS"
	case first.InsecureSkipVerify && first.VerifyPeerCertificate == nil:
		mode = "TLS with any certificate"
	}
	return fmt.Sprintf("the database %s at %s (user %s, %s)", config.Database, servers(config), config.User, mode)
}
