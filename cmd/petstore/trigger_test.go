package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"petstore/internal/event"
	"petstore/internal/report"
	"petstore/internal/tools/need"
)

// TestTrigger makes an event of every type happen in a sandbox.
func TestTrigger(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	client := s.environ
	for _, one := range event.Types {
		if triggers[one.Type] == nil {
			t.Fatalf("add %s to triggers in trigger_steps.go", one.Type)
		}
		printed := must(t, client, "trigger", string(one.Type), "--json")
		var made struct {
			Type, AccountID string
			Data            map[string]json.RawMessage
		}
		if err := json.Unmarshal([]byte(printed), &made); err != nil || made.Type != string(one.Type) || made.AccountID != s.id {
			t.Errorf("trigger %s prints %s, %v", one.Type, printed, err)
		}
		for _, field := range one.Data {
			if made.Data[field] == nil {
				t.Errorf("the event %s has no %s: %s", one.Type, field, printed)
			}
		}
	}
	wantOutput(t, client, "[]", "api", "/webhooks")

	_, _, err := execute(t, s.parent(), "trigger", "store.reset")
	if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("trigger changes the store, but the API key belongs to the account %q, which is not a sandbox", accountOf(t))) {
		t.Errorf("trigger in an account: %v", err)
	}
}

// TestObservers: no command but api meets the faults for a client under test, and a report judges none.
func TestObservers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.fault(`{"operation":"*","effect":"close","when":"before"}`)
	for _, kind := range []event.Type{event.OrderPlaced, event.MessageDelivered, event.MessageFailed, event.WebhookDisabled} {
		must(t, s.environ, "trigger", string(kind))
	}
	s.load(s.file("categories.csv", "name\nDogs\n"))
	p := begin(t, emptyDir, s.environ, "listen", "--after", "start")
	p.expect("order.placed")
	p.end(os.Interrupt)
	if len(s.rows("categories")) != 2 {
		t.Errorf("there are the categories %v", s.rows("categories"))
	}
	if r := fromJSON[report.Report](t, must(t, s.environ, "report", "--json")); r.Status != report.NotSeen || r.Requests != 0 {
		t.Errorf("the report is %+v", r)
	}
	wantSentence(t, s.environ, []string{"api", "/pets", "--retries", "0"}, false,
		"no response from "+s.url()+": the server closed the connection")
}

// TestTriggerBehindMessages: message.failed happens although more messages wait than a page has. The
// first attempt to delete the webhook has no response.
func TestTriggerBehindMessages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for range 201 {
		must(t, s.environ, "api", "POST", "/messages", "message=wait")
	}
	var deletions atomic.Int32
	lossy := s.behind(func(server http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete && deletions.Add(1) == 1 {
			server.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		server.ServeHTTP(w, r)
	})
	wantText(t, lossy.environ, `"message":"Trigger `, "trigger", "message.failed", "--json")
	if left := must(t, s.environ, "api", "/webhooks"); left != "[]" || deletions.Load() != 2 {
		t.Errorf("after %d deletions, there are the webhooks %s", deletions.Load(), left)
	}
}

// TestInterruptedTrigger: Ctrl-C ends trigger although the server does not delete the webhook.
func TestInterruptedTrigger(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newStore(t).behind(func(server http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			cancel()
			<-r.Context().Done()
			return
		}
		server.ServeHTTP(w, r)
	})
	err := run(ctx, []string{"trigger", "message.delivered"}, &program{environ: s.environ, dir: emptyDir, stdout: io.Discard, stderr: io.Discard})
	want := "interrupted; " + s.url() + " has not deleted the webhook within 5s; the webhook is left, so delete it with `petstore api DELETE /webhooks/"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("it ends with %v", err)
	}
}

// TestTriggerWithoutReader: trigger deletes its webhook also if nothing reads its output.
func TestTriggerWithoutReader(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	read, write, err := os.Pipe()
	need.OK(t, err)
	cmd := command(emptyDir, s.environ, "trigger", "message.queued")
	cmd.Stdout = write
	need.OK(t, errors.Join(read.Close(), cmd.Start(), write.Close()))
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailure {
		t.Errorf("it ends with %s", cmd.ProcessState)
	}
	need.Same(t, "[]", must(t, s.environ, "api", "/webhooks"), "the webhooks")
}

// fullDisk is a stdout to which no write succeeds.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// TestFullDisk: commands fail if they cannot print.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, environ, _ := sharedServer(t)
	for _, line := range []string{
		"trigger pet.created", "listen --after start", "api /pets", "api /pets --paginate", "export pets --csv", "report",
		"migrate up --dry-run", "migrate version", "config", "help", "key --help", "--version", "version", "completion bash",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := run(ctx, strings.Fields(line), &program{environ: append(s.environ, environ...), dir: emptyDir, stdout: fullDisk{}, stderr: io.Discard})
		cancel()
		if err == nil || err.Error() != "cannot write /dev/stdout: no space left on device" {
			t.Errorf("petstore %s on a full disk: %v", line, err)
		}
	}
}

// TestTriggerListsTypes checks that every type has a line and a text.
func TestTriggerListsTypes(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSpace(must(t, nil, "trigger")), "\n")
	objects := fromJSON[[]event.Description](t, must(t, nil, "trigger", "--json"))
	if len(lines) != len(event.Types)+1 || len(objects) != len(event.Types) || len(triggers) != len(event.Types) {
		t.Fatalf("%d lines, %d objects and %d triggers for %d types", len(lines), len(objects), len(triggers), len(event.Types))
	}
	for i, one := range event.Types {
		if fields := strings.Fields(lines[i+1]); fields[0] != string(one.Type) || len(fields) < 4 || string(objects[i].Type) != fields[0] || !strings.HasSuffix(objects[i].Text, ".") {
			t.Errorf("the type %s has the line %q and the object %v", one.Type, lines[i+1], objects[i])
		}
	}
}
