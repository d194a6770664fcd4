package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/internal/auth"
	"petstore/internal/docs/docstest"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// TestWebhooksPage runs the commands of the page "Receive webhooks" in one shell, one after
// the other. Package delivery runs the receivers of the page.
func TestWebhooksPage(t *testing.T) {
	t.Parallel()
	var commands []string
	for _, block := range docstest.Read(t, "../../internal/docs/pages/webhooks.md") {
		if block.Language == "sh" {
			commands = append(commands, block.Code)
		}
	}
	if len(commands) != 8 {
		t.Fatalf("the page has %d commands", len(commands))
	}
	database, _, base := sharedServer(t)
	key := unwatchedKey(t, database)
	url, requests := receive(t)
	s := startShell(t, "PETSTORE_URL="+base, "PETSTORE_API_KEY="+key)
	secret := func() string { return strings.TrimSpace(s.run(`echo "$WEBHOOK_SECRET"`)) }

	created := strings.Replace(commands[0], "https://example.com/webhooks", url, 1)
	s.want(created, "created wh_")
	first := secret()
	s.want(commands[1], `"type":"webhook.test","status":"pending"`)
	expectEvents(t, requests, []string{"webhook.test"}, first)
	s.want(commands[2], `"type":"webhook.test"`)
	s.want(commands[3], `"message":"Hello, webhook!"`)
	expectEvents(t, requests, []string{"message.queued"}, first)
	read := commands[3][strings.LastIndex(commands[3], "curl "):]
	need.Within(t, patience, "the message is delivered", func() bool { return strings.Contains(s.run(read), `"status":"delivered"`) })
	s.want(commands[4], `"status":"disabled","disabledReason":"manual"`, `"name":"Dogs `, `"status":"enabled"`)
	s.want(commands[5], `{"deliveries":2}`)
	expectEvents(t, requests, []string{"message.queued", "category.created"}, first)
	need.Within(t, patience, "the deliveries have ended", func() (released bool) { // else they use the secret for a second
		err := database.Pool.QueryRow(t.Context(), "SELECT lease_until IS NULL FROM webhooks WHERE url = $1", url).Scan(&released)
		return err == nil && released
	})
	s.want(commands[6])
	if secret() == first {
		t.Error("the rotation did not change the secret")
	}
	s.want(commands[1])
	expectEvents(t, requests, []string{"webhook.test"}, first, secret())
	s.want(commands[7], "deleted 204")
}

// expectEvents waits for events of these types, in any order. Each secret must have signed each
// request.
func expectEvents(t *testing.T, requests <-chan received, events []string, secrets ...string) {
	t.Helper()
	for deadline := time.After(patience); len(events) > 0; {
		select {
		case request := <-requests:
			for _, secret := range secrets {
				if !strings.Contains(request.header.Get("webhook-signature"), request.signature(t, secret)) {
					t.Errorf("a secret did not sign the request with the headers %v", request.header)
				}
			}
			events = slices.DeleteFunc(events, func(event string) bool {
				return strings.Contains(string(request.body), `"type":"`+event+`"`)
			})
		case <-deadline:
			t.Fatalf("the events %q have not arrived", events)
		}
	}
}

// shell is a running bash, which ends at the first command that fails.
type shell struct {
	t      *testing.T
	input  io.Writer
	output *bufio.Scanner
}

// unwatchedKey returns an API key that [watchArguments] does not know, because it is an
// argument of curl.
func unwatchedKey(t *testing.T, database *pgtest.Database) string {
	t.Helper()
	pool := need.Value(postgres.Open(t.Context(), database.URL, 2))(t)
	defer pool.Close()
	secret := need.Value(createKey(t.Context(), pool, accountOf(t), auth.NewKey{Name: "page", Scope: auth.Admin}))(t)
	return secret.Reveal()
}

func startShell(t *testing.T, environ ...string) *shell {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail")
	command.Env = append(os.Environ(), environ...)
	input := need.Value(command.StdinPipe())(t)
	output, write := io.Pipe()
	command.Stdout, command.Stderr = write, write
	need.OK(t, command.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // at the end of the test
		write.Close()
	}()
	t.Cleanup(func() {
		input.Close()
		output.Close()
		<-ended
	})
	return &shell{t, input, bufio.NewScanner(output)}
}

// run runs commands and returns what they print.
func (s *shell) run(commands string) string {
	s.t.Helper()
	const end = "-- end of the commands"
	need.Value(io.WriteString(s.input, commands+"\necho; echo '"+end+"'\n"))(s.t)
	var printed strings.Builder
	for s.output.Scan() {
		if s.output.Text() == end {
			return printed.String()
		}
		printed.WriteString(s.output.Text() + "\n")
	}
	s.t.Fatalf("the commands failed:\n%s\n%s", commands, &printed)
	return ""
}

// want runs commands, which must print these texts.
func (s *shell) want(commands string, texts ...string) {
	s.t.Helper()
	need.Contains(s.t, "the output of\n"+commands+"\n", s.run(commands), texts...)
}
