package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// awaitLogs repeats logs until it prints this number of lines, and returns them.
func awaitLogs(t *testing.T, environ []string, number int, args ...string) (lines []string) {
	t.Helper()
	need.Within(t, patience, fmt.Sprintf("logs %q prints %d lines", args, number), func() bool {
		lines = strings.Split(strings.TrimSuffix(must(t, environ, append([]string{"logs"}, args...)...), "\n"), "\n")
		if len(lines) > number {
			t.Fatalf("logs %q prints\n%s\nwant %d lines", args, strings.Join(lines, "\n"), number)
		}
		return len(lines) == number && lines[0] != ""
	})
	return lines
}

// TestLogs prints the requests of a sandbox in all forms.
func TestLogs(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, "shop")
	own, parent := s.environ, s.parent()
	wantOutput(t, own, "", "logs")
	must(t, own, "api", "/pets?limit=1")
	must(t, own, "api", "POST", "/store/orders", "petId=1")
	_, _, _ = execute(t, own, "api", "POST", "/store/orders", "petId=9999") // 422
	must(t, own, "api", "PUT", "/sandboxes/current/faults", `rules:=[{"operation":"listPets","effect":"close","when":"after"}]`)
	_, _, _ = execute(t, own, "api", "/pets", "--retries", "0")
	lines := awaitLogs(t, own, 5)
	for i, want := range []string{
		" ms  /pets?limit=1  listPets", "  201  POST   ", " ms  /store/orders  placeOrder  unknown_pet", "  200  PUT    ", "    -  GET    ",
	} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i+1, lines[i], want)
		}
	}
	if at, _, _ := strings.Cut(lines[0], "  "); !isTime(at) || !strings.HasSuffix(lines[4], "  fault 0: close") {
		t.Errorf("the lines\n%s", strings.Join(lines, "\n"))
	}
	for _, test := range []struct {
		environ []string
		args    string
		want    int
	}{
		{parent, "--sandbox " + s.id, 5}, {own, "--status 4xx", 1}, {own, "--status 201 --operation placeOrder", 1}, {own, "--operation placeOrder --json", 2}, {own, "--limit 3", 3},
	} {
		got := awaitLogs(t, test.environ, test.want, strings.Fields(test.args)...)
		if strings.Contains(test.args, "--json") && !json.Valid([]byte(got[0])) {
			t.Errorf("--json prints %s", got[0])
		}
	}
	archive := fromJSON[struct {
		Log struct {
			Version string
			Creator struct{ Name string }
			Entries []struct {
				StartedDateTime string
				Request         struct{ URL string }
			}
		}
	}](t, must(t, own, "logs", "--har"))
	if log := archive.Log; log.Version != "1.2" || log.Creator.Name != "Petstore" || len(log.Entries) != 5 || !strings.HasSuffix(log.Entries[0].Request.URL, "/pets?limit=1") {
		t.Errorf("--har prints %+v", archive)
	}
	wantSentence(t, parent, []string{"logs"}, false, "the API key is not one of a sandbox; name a sandbox of its account with --sandbox, such as sbx_1002")
	wantSentence(t, own, []string{"logs", "--status", "9xx"}, true, "--status must be a status such as `404`, or a class such as `4xx`; see petstore logs --help")
	wantSentence(t, own, []string{"export", "pets", "size=9"}, true, "`size` is not a parameter of this operation. Remove it or correct its spelling; see petstore export --help")
	wantSentence(t, own, []string{"logs", "--sandbox", "1002"}, true, `--sandbox must be current or the id of a sandbox, such as sbx_1002, but is "1002"; see petstore logs --help`)
	wantSentence(t, own, []string{"logs", "--har", "--follow"}, true, "--har prints one document, so it has no --follow and no --json; see petstore logs --help")
}

// TestLogsOfTwoServers: a stream at one server has the requests to another.
func TestLogsOfTwoServers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p := begin(t, emptyDir, s.environ, "logs", "--follow")
	p.expect("listening")
	_, environ, _ := sharedServer(t)
	must(t, clientOf(begin(t, emptyDir, environ, "serve").address(), s.key()), "api", "/categories?limit=7")
	p.expect("/categories?limit=7")
}

// TestLogsPages: logs reads as many pages as it needs.
func TestLogsPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const total = 210
	for range total {
		status(t, s.url()+"/categories?limit=1", s.key())
	}
	awaitLogs(t, s.environ, total, "--limit", "1000")
	awaitLogs(t, s.environ, 205, "--limit", "205", "--json")
}
