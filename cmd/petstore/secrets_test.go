package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
	"petstore/internal/tools/secretscan"
)

// theSecrets holds the secrets of all tests so far: database passwords and printed
// keys. Every test searches the output of the program for them, except the one
// place that shows a key.
var theSecrets secretscan.Secrets

// showsKeys reports whether a command prints an API key on stdout.
func showsKeys(args []string) bool {
	command := strings.Join(args[:min(2, len(args))], " ")
	return command == "key create" || command == "key rotate" || command == "sandbox create" || command == "dev"
}

// learnEnviron adds the passwords of an environment.
func learnEnviron(environ []string) {
	for _, variable := range environ {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "PGPASSWORD", "PETSTORE_SECRET_KEY":
			theSecrets.Learn(name, value)
		case "DATABASE_URL":
			if parsed, err := pgx.ParseConfig(value); err == nil {
				theSecrets.Learn("the password of "+name, parsed.Password)
			}
		}
	}
}

// watch fails the test if a text contains a secret.
func watch(t *testing.T, what, text string) {
	t.Helper()
	if found := theSecrets.In(text); len(found) > 0 {
		t.Errorf("%s contains %q:\n%s", what, found, text)
	}
}

// watchOutput searches the output of a command. If the command prints a key on
// stdout, it learns the key.
func watchOutput(t *testing.T, args []string, stdout, stderr string) {
	t.Helper()
	what := "petstore " + strings.Join(args, " ")
	if showsKeys(args) {
		theSecrets.LearnKeys(stdout)
	} else {
		watch(t, what+": stdout", stdout)
	}
	watch(t, what+": stderr", stderr)
}

// watchArguments searches the arguments of all processes, which every user of the
// machine can read. On systems without /proc it does nothing.
func watchArguments(t *testing.T) {
	t.Helper()
	folders := need.Value(filepath.Glob("/proc/[0-9]*"))(t) // a pattern with the file would make Glob read each folder
	for _, folder := range folders {
		if arguments, err := os.ReadFile(filepath.Join(folder, "cmdline")); err == nil { // otherwise it has ended
			watch(t, "arguments of a process", strings.ReplaceAll(string(arguments), "\x00", " "))
		}
	}
}

// rejectLogins starts a server that asks for a password and rejects every one, with an
// SQLSTATE and a message. It returns the address.
func rejectLogins(t *testing.T, state, message string) string {
	t.Helper()
	refuse := func(conn net.Conn) error {
		server := pgproto3.NewBackend(conn, conn)
		if _, err := server.ReceiveStartupMessage(); err != nil {
			return err
		}
		server.Send(&pgproto3.AuthenticationCleartextPassword{})
		if err := server.Flush(); err != nil {
			return err
		}
		if _, err := server.Receive(); err != nil {
			return err
		}
		server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: state, Message: message})
		return server.Flush()
	}
	return pgtest.ServeTCP(t, func(conn net.Conn) { _ = refuse(conn) }) // a client that leaves is expected
}
