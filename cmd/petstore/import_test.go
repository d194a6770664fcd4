package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
	"petstore/internal/transfer"
)

// store is the store of a sandbox, a client of it, and a folder with files to import.
type store struct {
	t       *testing.T
	environ []string
	dir     string
	id      string // of the sandbox
}

// newStore makes a sandbox of the account of the test, with an empty store.
func newStore(t *testing.T) *store {
	t.Helper()
	return newSandbox(t, "empty")
}

// newSandbox makes a sandbox of the account of the test on the shared server.
func newSandbox(t *testing.T, sample string) *store {
	t.Helper()
	environ, base, _ := serveAccount(t)
	return newSandboxOf(t, environ, base, accountOf(t), sample)
}

// newSandboxOf makes a sandbox of an account on any server.
func newSandboxOf(t *testing.T, environ []string, base, account, sample string) *store {
	t.Helper()
	made := fromJSON[api.SandboxWithKey](t, must(t, environ, "sandbox", "create", "--account", account, "--sample", sample, "--json"))
	return &store{t, clientOf(base, made.APIKey.Secret), t.TempDir(), made.ID}
}

// parent returns the environment of a client of the account of a sandbox, with the scope admin.
func (s *store) parent() []string {
	s.t.Helper()
	_, environ, base := sharedServer(s.t)
	return clientOf(base, strings.TrimSpace(must(s.t, environ, "key", "create", "--account", accountOf(s.t), "--scope", "admin")))
}

func (s *store) url() string { return strings.TrimPrefix(s.environ[0], "PETSTORE_URL=") }

func (s *store) key() string { return strings.TrimPrefix(s.environ[1], "PETSTORE_API_KEY=") }

func (s *store) file(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	writeFile(s.t, path, text)
	return path
}

// load imports a file of which all rows must be accepted.
func (s *store) load(path string, args ...string) transfer.Summary {
	s.t.Helper()
	return fromJSON[transfer.Summary](s.t, must(s.t, s.environ, append([]string{"import", path, "--json"}, args...)...))
}

// fails imports a file, and fails the test unless the output has all texts. It returns the output.
func (s *store) fails(args []string, want ...string) string {
	s.t.Helper()
	_, out, err := executeIn(s.t, s.dir, s.environ, "", append([]string{"import"}, args...)...)
	if err == nil {
		s.t.Errorf("import %q did not fail", args)
		return out
	}
	out += err.Error()
	need.Contains(s.t, fmt.Sprintf("the output of import %q", args), out, want...)
	return out
}

func (s *store) rows(args ...string) []map[string]any {
	s.t.Helper()
	var rows []map[string]any
	for line := range strings.Lines(must(s.t, s.environ, append([]string{"export"}, args...)...)) {
		var row map[string]any
		need.OK(s.t, json.Unmarshal([]byte(line), &row))
		rows = append(rows, row)
	}
	return rows
}

func (s *store) names() string {
	var names []string
	for _, pet := range s.rows("pets") {
		names = append(names, pet["name"].(string)) //nolint:forcetypeassert // a Pet
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// brokenFile is a file, and the message about its mistake.
type brokenFile struct{ what, text, mistake string }

// refusedFiles returns files with a mistake for which import sends no row.
//
// It is a function because every process of the program under test is this binary: a variable
// with megabytes of text would take most of the CPU time of its start.
func refusedFiles() []brokenFile {
	return []brokenFile{
		{"no header", "a,1001\nb,1001\n", `line 1: there is no column "a" in pets; the columns are category, id, name, categoryId, status`},
		{"unknown column", "name,categoryID\na,1001\n", `line 1: there is no column "categoryID"`},
		{"duplicate column", "name,categoryId,name\na,1001,b\n", `line 1: the column "name" is there twice`},
		{"missing column", "categoryId,status\n1,sold\n", `line 1: the column "name" is missing`},
		{"unnamed column", "name,,categoryId\na,,1001\n", `line 1: there is no column ""`},
		{"semicolons", "name;categoryId\na;1\n", "line 1: cells must be separated by commas"},
		{"tabs", "name\tcategoryId\na\t1\n", "line 1: cells must be separated by commas"},
		{"CR line ends", "name,categoryId\ra,1001\rb,1001\r", "line 1: lines must end with LF or CRLF"},
		{"UTF-16 LE", "\xff\xfen\x00a\x00m\x00e\x00\n\x00", "line 1: there is a NUL byte, or the text is UTF-16"},
		{"UTF-16 BE", "\xfe\xff\x00n\x00a\x00m\x00e\x00\n", "line 1: there is a NUL byte, or the text is UTF-16"},
		{"UTF-16 without a mark", "n\x00a\x00m\x00e\x00\n\x00", "line 1: there is a NUL byte"},
		{"Latin-1", "name,categoryId\na,1001\nb\xe4r,1001\n", "line 3: the text is not UTF-8"},
		{"half a character", "name,categoryId\na,1001\nb\xc3,1001\n", "line 3: the text is not UTF-8"},
		{"NUL", "name,categoryId\na,1001\nb\x00,1001\n", "line 3: there is a NUL byte"},
		{"open quote", "name,categoryId\na,1001\n\"b,1001\nc,1001\n", "line 3: a quote is missing"},
		{"quote within a cell", "name,categoryId\na,1001\nb\"b,1001\n", "line 3: a quote is missing"},
		{"text after a quote", "name,categoryId\na,1001\n\"b\"b,1001\n", "line 3: a quote is missing"},
		{"huge cell", "name,categoryId\na,1001\n" + strings.Repeat("b", 1<<20) + ",1001\n", "line 3: the line has more than 1048576 bytes"},
		{"huge cell of many lines", "name,categoryId\na,1001\n\"" + strings.Repeat("bbbbbbb\n", 1<<17) + "\",1001\n", "the row has more than 1048576 bytes"},
		{"JSON array", "[\n{\"name\":\"a\",\"categoryId\":1001}\n]", "line 1: the file is a JSON array"},
		{"truncated gzip", packed("name,categoryId\na,1001\nb,1001\n", -12), "line 4: the gzip data ends early"},
		{"truncated large gzip", packed("name,categoryId\na,1001\n"+strings.Repeat("b,1001\n", 1<<16), -100), "the gzip data ends early"},
		{"damaged gzip", packed("name,categoryId\na,1001\nb,1001\n", 0), "the gzip data is damaged"},
	}
}

// brokenRows are files of which import sends the other rows. The corrected file leads to the pets a, b
// and c.
func brokenRows() []brokenFile {
	return []brokenFile{
		{"ragged row", "name,categoryId\na,1001\nb\nc,1001\n", "pets:3: The row has 1 cells, but the header has 2."},
		{"long row", "name,categoryId\na,1001\nb,1001,x\nc,1001\n", "pets:3: The row has 3 cells"},
		{"exponent", "name,categoryId\na,1001\nb,1e0\nc,1001\n", "pets:3: `categoryId` must be an integer without a decimal point or exponent."},
		{"space before a number", "name,categoryId\na,1001\nb, 1\nc,1001\n", "pets:3: `categoryId` must be an integer"},
		{"number out of range", "name,categoryId\na,1001\nb,99999999999999999999\nc,1001\n", "pets:3: `categoryId` must be an integer between"},
		{"empty cell", "name,categoryId\na,1001\nb,\nc,1001\n", "pets:3: `categoryId` is required."},
		{"unknown category", "name,categoryId\na,1001\nb,9\nc,1001\n", "pets:3: "},
		{"wrong status", "name,categoryId,status\na,1001,\nb,1001,new\nc,1001,sold\n", "pets:3: `status` must be one of"},
		{"blank name", "name,categoryId\na,1001\n\" \",1001\nc,1001\n", "pets:3: `name` must contain a character"},
		{"mixed line ends", "name,categoryId\r\na,1001\nb,x\r\nc,1001\n", "pets:3: `categoryId` must be an integer"},
		{"quoted line ends before", "name,categoryId\n\"a\",1001\n\"b\nb\",1001\nc,1001\n", "pets:3: `name` must not contain control characters."},
		{"JSON that is broken", "{\"name\":\"a\",\"categoryId\":1001}\n{\"name\":\"b\",\n{\"name\":\"c\",\"categoryId\":1001}\n", "pets:2: The line is not a JSON object: unexpected EOF"},
		{"JSON that is not an object", "{\"name\":\"a\",\"categoryId\":1001}\n7\n{\"name\":\"c\",\"categoryId\":1001}\n", "pets:2: The line is not a JSON object: it is not an object."},
		{"two objects", "{\"name\":\"a\",\"categoryId\":1001}\n{} {}\n{\"name\":\"c\",\"categoryId\":1001}\n", "pets:2: The line is not a JSON object: the line continues"},
		{"duplicate field", "{\"name\":\"a\",\"categoryId\":1001}\n{\"name\":\"b\",\"name\":\"b\",\"categoryId\":1001}\n{\"name\":\"c\",\"categoryId\":1001}\n", "pets:2: The line is not a JSON object: duplicate "},
		{"unknown field", "{\"name\":\"a\",\"categoryId\":1001}\n{\"name\":\"b\",\"categoryID\":1}\n{\"name\":\"c\",\"categoryId\":1001}\n", "pets:2: `categoryID` is not a field"},
		{"JSON exponent", "{\"name\":\"a\",\"categoryId\":1001}\n{\"name\":\"b\",\"categoryId\":1e0}\n{\"name\":\"c\",\"categoryId\":1001}\n", "pets:2: `categoryId` must be an integer without"},
	}
}

// packed returns text as gzip without its last bytes, or with a wrong checksum.
func packed(text string, cut int) string {
	whole := []byte(packedWhole(text))
	if cut == 0 {
		whole[len(whole)-5]++
	}
	return string(whole[:len(whole)+cut])
}

// TestBrokenFiles: import names the line of a mistake, and sends nothing. After all of them, it imports
// the corrected file.
func TestBrokenFiles(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
	for _, test := range refusedFiles() {
		t.Run(test.what, func(t *testing.T) {
			s := &store{t, s.environ, s.dir, s.id}
			s.fails([]string{s.file("pets", test.text)}, test.mistake)
		})
	}
	for _, name := range []string{"pets.csv", "PETS.CSV.gz"} { // CSV without rows has a header
		s.fails([]string{s.file(name, "\n\n"), "--resource", "pets"}, "line 1: the file is empty")
	}
	s.fails([]string{s.dir, "--resource", "pets"}, "cannot read "+s.dir+": is a directory")
	if got := s.names(); got != "" {
		t.Errorf("there are the pets %q", got)
	}
	if got := s.load(s.file("pets", "name,categoryId\na,1001\n")); got.Imported != 1 {
		t.Errorf("after the correction: %+v", got)
	}
}

// TestBrokenRows: import sends the rows without a mistake, and after the correction the other one.
func TestBrokenRows(t *testing.T) {
	t.Parallel()
	for _, test := range brokenRows() {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
			path := s.file("pets", test.text)
			s.fails([]string{path}, test.mistake)
			if before := s.names(); before != "a c" {
				t.Errorf("after the mistake, there are the pets %q", before)
			}
			corrected := "name,categoryId,status\na,1001,\nb,1001,\nc,1001,\n"
			switch {
			case strings.HasPrefix(test.text, "{"):
				corrected = "{\"name\":\"a\",\"categoryId\":1001}\n{\"name\":\"b\",\"categoryId\":1001}\n{\"name\":\"c\",\"categoryId\":1001}\n"
			case test.what == "wrong status":
				corrected = "name,categoryId,status\na,1001,\nb,1001,\nc,1001,sold\n"
			}
			s.file("pets", corrected)
			if summary := s.load(path); s.names() != "a b c" || summary.Imported+summary.Before != 3 {
				t.Errorf("after the correction, there are the pets %q: %+v", s.names(), summary)
			}
		})
	}
}

// TestCorrectOneRow: a row that cannot be read, and that nobody has corrected, is reported again. It does
// not take the place of a row that was imported. A program that corrects a row may write the texts of others
// with other escapes.
func TestCorrectOneRow(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, test := range []struct{ name, text, old, corrected, mistake string }{
		{
			"store.ndjson", `{"kind":"category","id":1,"name":"Dogs"}` + "\n" + `{"kind":"dog"}` + "\n" + `{"kind":`,
			`{"kind":"dog"}`, `{"kind":"category","id":2,"name":"Cats"}`, "store.ndjson:3: The line is not a JSON object",
		},
		{"pets.csv", "name,categoryId,status\nRex,1001\nRex,1001,\nTom,x,\n", "Tom,x,", "Tom,1001,", "pets.csv:2: The row has 2 cells, but the header has 3."},
		{
			"pets.ndjson", `{"name":"K\u00e4the \/ \u003c3","categoryId":1001}` + "\n{\n{}", `{"name":"K\u00e4the \/ \u003c3","categoryId":1001}` + "\n{\n{}",
			`{"categoryId":1001,"name":"Käthe / <3"}` + "\n{\n" + `{"name":"Zoe","categoryId":1001}`, "pets.ndjson:2: The line is not a JSON object",
		},
	} {
		path := s.file(test.name, test.text)
		s.fails([]string{path}, test.mistake, "rows that were not imported: 2")
		s.file(test.name, strings.Replace(test.text, test.old, test.corrected, 1))
		s.fails([]string{path}, test.mistake, "rows that were not imported: 1")
	}
	if got := s.names(); got != "Käthe / <3 Rex Tom Zoe" {
		t.Errorf("there are the pets %q", got)
	}
}

// TestImportOfStdin: only the same input continues an import of stdin, as its errors say.
func TestImportOfStdin(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for text, test := range map[string]struct {
		of   *store
		want string
	}{
		"name\nDogs\n\" \"\n": {s, "rows that were not imported: 1; correct them and import only these, because other input from stdin or a pipe is a new import"},
		"name\nCats\n":        {s.withKey("read"), "; run the same command again on the same input with a key of the same account and the scope write"},
	} {
		_, _, err := executeIn(t, s.dir, test.of.environ, text, "import", "-", "--resource", "categories")
		if err == nil || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("with the input %q: %v, want %s", text, err, test.want)
		}
	}
}

// TestInterruptedReading: signals end commands that wait for their input.
func TestInterruptedReading(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	need.OK(t, syscall.Mkfifo(filepath.Join(s.dir, "pets.csv"), 0o600))
	hangup := syscall.SIGHUP
	if signal.Ignored(hangup) { // the tests run under nohup
		hangup = syscall.SIGTERM
	}
	for _, test := range []struct {
		args   string
		signal os.Signal
	}{{"import - --resource pets", syscall.SIGINT}, {"import pets.csv --dry-run", syscall.SIGTERM}, {"api POST /pets --input -", hangup}} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			temporary := t.TempDir()
			read, write, err := os.Pipe()
			need.OK(t, err)
			defer write.Close()
			p := startWith(t, read, s.dir, append([]string{"TMPDIR=" + temporary}, s.environ...), strings.Fields(test.args)...)
			defer p.kill()
			read.Close()
			copies := func() []string { names, _ := filepath.Glob(filepath.Join(temporary, "*")); return names }
			if strings.HasSuffix(test.args, " --dry-run") { // nobody writes
				need.Within(t, patience, "import waits for the pipe", func() bool { return len(copies()) == 1 })
			} else {
				need.Value(write.Write(make([]byte, 1<<20)))(t) // more than the pipe holds
			}
			p.exits(exitFailure, test.signal)
			if line := p.expect("petstore: "); line != "petstore: interrupted" {
				t.Errorf("it printed %q", line)
			}
			if names := copies(); names != nil {
				t.Errorf("it left %q", names)
			}
		})
	}
}

// interrupter cancels a context when a command writes.
type interrupter struct{ cancel func() }

// Write implements [io.Writer].
func (i interrupter) Write(text []byte) (int, error) {
	i.cancel()
	return len(text), nil
}

// TestInterruptedDryRun: a dry run ends within a file, and does not say that an import continues.
func TestInterruptedDryRun(t *testing.T) {
	t.Parallel()
	s := &store{t: t, dir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, text := range []string{"name,category\n,Dogs\nb,Dogs\n", "name,category\na,Dogs\n\x00\n"} { // the first cancels ctx
		err := run(ctx, []string{"import", s.file("pets.csv", text), "--dry-run"}, &program{dir: emptyDir, stdout: io.Discard, stderr: interrupter{cancel}})
		if err == nil || err.Error() != "interrupted" {
			t.Errorf("with the file %q, it ends with %v", text, err)
		}
	}
}

// TestDryRun: a dry run finds the mistakes that the server finds, except the ones that depend on the
// store, and sends nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2001)
	for name, text := range map[string]string{
		"pets": `{"id":"SKU-17","name":"","categoryId":1}
			{"name":"a","categoryId":0,"status":"Sold"}
			{"name":"` + long[:201] + `","categoryId":1.0}
			{"categoryId":"1"}
			{"name":null,"categoryId":null,"extra":1}
			{"name":"a","name":"b","categoryId":1}
			{"name":"a\u0007","categoryId":1e3}
			{"name":"a","category":7}
			{"name":"a","category":""}
			{"name":"a","category":"\u0000"}
			{"name":"a","category":"` + long[:201] + `"}
			{"name":"a","category":"` + strings.Repeat("x", 30_000) + `"}
			{"id":"SKU-17","name":"","category":"b"}
			{"name":"a","category":"b","categoryId":1}
			{"name":"a","category":"b","category":"c"}
			{"name":"a"}`,
		"categories": `{"id":"SKU-17","name":"a","description":7}
			{"description":"` + long + `"}
			{"name":"a","description":"\u0000"}
			{"name":"a","description":null}`,
		"inventory": `{"petId":0,"quantity":1,"status":"lost"}
			{"id":1,"petId":0,"quantity":1}
			{"quantity":1}
			{"petId":1}
			{"petId":"","quantity":5}
			{"petId":"1","quantity":5}
			{"petId":1,"petId":2,"quantity":5}
			{"petId":1,"quantity":-1,"status":"lost"}
			{"petId":1,"quantity":1000000001}
			{"petId":1,"quantity":"1","more":1}`,
		"orders": `{"id":"SKU-17","petId":0}
			{"quantity":1}
			{"petId":1,"quantity":0}
			{"petId":1,"quantity":1000001}
			{"petId":1,"shipDate":"tomorrow"}
			{"id":"SKU-17","petId":1,"complete":"yes"}
			{"petId":1,"complete":null}
			{"petId":1,"complete":false,"complete":true}
			{"petId":1,"status":"x"}`,
		"store": `{"kind":"inventory","petId":"","quantity":5}
			{"kind":"inventory","petId":0,"quantity":0,"status":"lost"}
			{"kind":"order","kind":"pet","petId":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			path := s.file(name+".ndjson", text)
			mistakes := func(args ...string) (all []string) {
				_, _, err := executeIn(t, s.dir, s.environ, "", append([]string{"import", path, "--errors", filepath.Join(s.dir, "errors")}, args...)...)
				if err == nil {
					t.Errorf("import %q succeeds", args)
				}
				for line := range strings.Lines(readFile(t, filepath.Join(s.dir, "errors"))) {
					one := transfer.RowError{}
					if err := json.Unmarshal([]byte(line), &one); err != nil || one.File != path {
						t.Errorf("the mistake %s: %v", line, err)
					}
					all = append(all, fmt.Sprintf("%d %s %s", one.Line, one.Field, one.Code))
				}
				slices.SortFunc(all, cmp.Compare)
				return all
			}
			dry := mistakes("--dry-run")
			if entries, _ := filepath.Glob(filepath.Join(s.dir, "*.journal")); entries != nil {
				t.Errorf("a dry run writes %q", entries)
			}
			need.Same(t, mistakes(), dry, "mistakes (want: server, got: dry run)")
		})
	}
}

// TestErrorsFile: --errors replaces a report when the import begins, and never a file to import.
func TestErrorsFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	path, link := s.file("categories.csv", "name\nDogs\n"), filepath.Join(s.dir, "link")
	need.OK(t, os.Symlink(path, link))
	stdin := need.Value(os.Open(path))(t)
	defer stdin.Close()
	for _, args := range [][]string{{path, "--errors", path}, {"nowhere.csv", path, "--errors", link}, {"-", "--errors", path}} {
		err := run(t.Context(), append([]string{"import"}, args...), &program{environ: s.environ, dir: s.dir, stdin: stdin, stdout: io.Discard, stderr: io.Discard})
		if want := fmt.Sprintf("--errors must not be a file to import, but is %q; see petstore import --help", args[len(args)-1]); err == nil || err.Error() != want {
			t.Errorf("import %q: %v", args, err)
		}
	}
	old := s.file("errors.ndjson", "old")
	s.fails([]string{path, "--errors", old, "--url", "http://127.0.0.1:1"}, "connection refused")
	s.fails([]string{filepath.Join(s.dir, "nowhere.csv"), "--errors", old}, "no such file")
	if text := readFile(t, old); text != "old" {
		t.Errorf("imports that did not begin leave the report %q", text)
	}
	if got := s.load(path, "--errors", old); got.Imported != 1 {
		t.Errorf("the import: %+v", got)
	}
	if text := readFile(t, old); text != "" {
		t.Errorf("an import without mistakes leaves the report %q", text)
	}
}

// journal returns the path and the text of the journal of a file.
func (s *store) journal(path string) (name, text string) {
	s.t.Helper()
	names, _ := filepath.Glob(path + ".*.journal")
	if len(names) != 1 {
		s.t.Fatalf("the journals %q", names)
	}
	return names[0], readFile(s.t, names[0])
}

// underTest returns the same store, in whose requests the server injects faults, whatever the command.
func (s *store) underTest() *store {
	s.t.Helper()
	return s.behind(func(server http.Handler, w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Petstore-Observer")
		server.ServeHTTP(w, r)
	})
}

// behind returns the same store behind a proxy, which gets each request, and the server as a handler. If the
// server closes the connection, so does the proxy.
func (s *store) behind(proxy func(server http.Handler, w http.ResponseWriter, r *http.Request)) *store {
	s.t.Helper()
	address := need.Value(url.Parse(s.url()))(s.t)
	server := httputil.NewSingleHostReverseProxy(address)
	server.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	listening := need.Server(s.t, func(w http.ResponseWriter, r *http.Request) { proxy(server, w, r) })
	return &store{s.t, []string{"PETSTORE_URL=" + listening.URL, s.environ[1]}, s.dir, s.id}
}

// fault makes the server inject faults in the requests of a client of the store.
func (s *store) fault(rules string) {
	s.t.Helper()
	must(s.t, s.environ, "api", "PUT", "/sandboxes/current/faults", "rules:=["+rules+"]")
}

// beginLost begins an import, and returns it when the server has created a pet without a response.
func (s *store) beginLost(environ []string, args ...string) *process {
	s.t.Helper()
	s.fault(`{"operation":"createPet","effect":"close","when":"after"}`)
	p := begin(s.t, s.dir, environ, append([]string{"import", "--connections", "1"}, args...)...)
	p.expect("waiting: ")
	return p
}

// TestImportJournal: a row in doubt is sent again while the server knows its key, and else import says
// what to do.
func TestImportJournal(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	path := s.file("categories.csv", "name\na\nb\nc\n")
	s.load(path)
	journal, full := s.journal(path)
	begun := regexp.MustCompile(`(?m)^>3 \d+ (\d+)\n`)
	// forget makes line 3 one that was on its way at these ages.
	forget := func(ages ...time.Duration) {
		t.Helper()
		var lines strings.Builder
		for _, age := range ages {
			fmt.Fprintf(&lines, ">3 %d $1\n", time.Now().Add(-age).Unix())
		}
		text := regexp.MustCompile(`(?m)^3 .*\n`).ReplaceAllString(full, "")
		if text = begun.ReplaceAllString(text, lines.String()); text == full {
			t.Fatalf("the journal\n%s", full)
		}
		need.OK(t, os.WriteFile(journal, []byte(text+"4 10"), 0o600)) // a part of a line
	}
	forget(22 * time.Hour)
	if got := s.load(path); got.Imported != 1 || got.Before != 2 {
		t.Errorf("after 22 hours: %+v", got)
	}
	old := []string{"was interrupted when the rows in the lines 3 were on their way", "more than 23 hours have passed, or the clock of this machine has changed; look whether they are in the store, then add --in-doubt skip or --in-doubt send"}
	for _, ages := range [][]time.Duration{{24 * time.Hour}, {24 * time.Hour, time.Hour}, {-time.Hour}, {-time.Hour, time.Hour}} {
		forget(ages...)
		s.fails([]string{path}, old...)
		if out := s.fails([]string{path}, old...); strings.Contains(out, "to continue") {
			t.Errorf("printed %q", out)
		}
	}
	if got := s.load(path, "--in-doubt", "skip"); got.Imported != 0 || got.Before != 3 {
		t.Errorf("--in-doubt skip: %+v", got)
	}
	forget(25 * time.Hour)
	if got := s.load(path, "--in-doubt", "send"); got.Imported != 1 || got.Before != 2 {
		t.Errorf("--in-doubt send: %+v", got)
	}
	forget(time.Hour)
	if got := s.load(path, "--in-doubt", "skip"); got.Imported != 1 || got.Before != 2 {
		t.Errorf("--in-doubt skip after an hour: %+v", got)
	}
	forget(time.Hour)
	s.file("categories.csv", "name\na\nb\nc\nd\n")
	s.fails([]string{path}, "has changed since its import was interrupted, when the rows in the lines 3 were on their way; undo the changes")
	s.file("categories.csv", "name\na\nb\nc\n")
	s.load(path)
	s.file("categories.csv", "name\nd\nc\na\nb\n")
	if got := s.load(path); got.Imported != 1 || got.Before != 3 || len(s.rows("categories")) != 4 {
		t.Errorf("after a change: %+v", got)
	}
	s.fails([]string{path, "--again"}, "rows that were not imported: 4", "categories.csv:2: Another category has this name, ", "correct them and run the same command without --again, which")
	for _, text := range []string{"mine\n", "", strings.TrimSuffix(full[:strings.Index(full, "\n")+1], "\n"), full + ">3\n"} {
		writeFile(t, journal, text)
		s.fails([]string{path}, "is not a journal of an import; move it away")
		s.fails([]string{path, "--again"}, "is not a journal of an import; move it away")
	}
}

// TestImportCancels: an order that the server does not complete is canceled, so that the corrected row
// places the only one. If the server does not accept the key any more, the row is in doubt.
func TestImportCancels(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.load(s.file("categories.csv", "name\na\n"))
	category := s.rows("categories")[0]["id"]
	s.load(s.file("pets.ndjson", fmt.Sprintf(`{"name":"a","categoryId":%.0f}`, category)))
	pet := s.rows("pets")[0]["id"]
	s.load(s.file("inventory.ndjson", fmt.Sprintf(`{"petId":%.0f,"quantity":2}`, pet)))
	code := http.StatusConflict
	refused := s.behind(func(server http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"code":"no","message":"No.","status":%d}`, code)
			return
		}
		server.ServeHTTP(w, r)
	})
	path := s.file("orders.ndjson", fmt.Sprintf(`{"petId":%.0f,"quantity":2,"complete":true}`, pet))
	refused.fails([]string{path}, "orders.ndjson:1: No.")
	s.file("orders.ndjson", fmt.Sprintf(`{"petId":%.0f,"quantity":1,"complete":true}`, pet))
	s.load(path)
	if orders, stock := s.rows("orders"), s.rows("inventory"); len(orders) != 1 || stock[0]["quantity"] != 1.0 {
		t.Errorf("the orders %v, the stock %v", orders, stock)
	}
	code = http.StatusUnauthorized
	s.load(s.file("inventory.ndjson", fmt.Sprintf(`{"petId":%.0f,"quantity":9}`, pet)))
	path = s.file("orders.ndjson", fmt.Sprintf(`{"petId":%.0f,"quantity":3,"complete":true}`, pet))
	refused.fails([]string{path}, "0 of 1 rows of "+path+" are imported: the server returned 401 no: No; run the same command again with a key of the same account and the scope write")
	s.withKey("write").fails([]string{path}, "because the API key is another one")
	s.load(path)
	if orders, stock := s.rows("orders", "complete=true"), s.rows("inventory"); len(orders) != 2 || stock[0]["quantity"] != 6.0 {
		t.Errorf("after 401, the complete orders %v, the stock %v", orders, stock)
	}
}

// TestImportLosesAResponse: a row whose response was lost is in doubt if the retry gets a response
// that does not tell its result.
func TestImportLosesAResponse(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
	other := s.withKey("write")
	for name, test := range map[string]struct {
		code       int
		text, want string
	}{
		"a": {http.StatusUnauthorized, `{"code":"invalid_api_key","message":"No."}`, "the server returned 401 invalid_api_key: No"},
		"b": {http.StatusForbidden, `{"code":"insufficient_scope","message":"No."}`, "the server returned 403 insufficient_scope: No"},
		"c": {http.StatusNotFound, "not found", "the server returned 404 Not Found"},
		"d": {http.StatusNotFound, `{"code":"route_not_found","message":"No."}`, "the server returned 404 route_not_found: No"},
		"e": {http.StatusOK, "<html>Log in", "the server returned 200 OK"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var posts atomic.Int64
			s, other := &store{t, s.environ, s.dir, s.id}, &store{t, other.environ, s.dir, s.id}
			lost := s.behind(func(server http.Handler, w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method != http.MethodPost:
					server.ServeHTTP(w, r)
				case posts.Add(1) == 1:
					server.ServeHTTP(httptest.NewRecorder(), r)
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(test.code)
					fmt.Fprint(w, test.text)
				}
			})
			path := s.file("pets."+name+".csv", "name,categoryId\n"+name+",1001\n")
			lost.fails([]string{path}, test.want+"; an earlier attempt had no response, so it may have taken effect; run the same command again")
			other.fails([]string{path}, "because the API key is another one")
			if got := s.load(path); got.Imported != 1 {
				t.Errorf("again: %+v", got)
			}
			if pets := must(t, s.environ, "api", "/pets", "name="+name); strings.Count(pets, `"id"`) != 1 {
				t.Errorf("there are the pets %s", pets)
			}
		})
	}
}

// TestImportIsSlow: import does not send a row in doubt that the server forgets during the import, also not again.
func TestImportIsSlow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		line       int // in doubt
		fault      string
		sent       string // lines in the journal
		want, then string
	}{
		"before it":        {4, `"effect":"delay","delayMs":5000,"first":1`, `(?m)^2 \d+ `, "when the rows in the lines 4 were on their way", "more than 23 hours have passed"},
		"while it is sent": {2, `"effect":"status","status":429,"first":8`, `(?m)^>2 .*\n>2 `, "0 of 3 rows of ", "are imported: more than 23 hours have passed since a row was sent first; run the same command again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t).underTest()
			path := s.file("categories.csv", "name\na\nb\nc\n")
			s.load(path)
			journal, text := s.journal(path)
			header, _, _ := strings.Cut(text, "\n")
			key := regexp.MustCompile(`(?m)^>4 \d+ (\d+)$`).FindStringSubmatch(text)[1]
			s.fault(`{"operation":"createCategory",` + test.fault + `}`)
			text = fmt.Sprintf("%s\n>%d %d %s\n", header, test.line, time.Now().Add(5*time.Second-23*time.Hour).Unix(), key)
			writeFile(t, journal, text)
			out := s.fails([]string{path, "--connections", "1"}, test.want, test.then)
			if strings.Count(out, path) != 1 {
				t.Errorf("the sentence does not name the file once: %s", out)
			}
			if _, text = s.journal(path); !regexp.MustCompile(test.sent).MatchString(text) {
				t.Errorf("it has not sent the first row:\n%s", text)
			}
			s.fails([]string{path}, fmt.Sprintf("when the rows in the lines %d were on their way", test.line), "add --in-doubt")
		})
	}
}

// withKey returns the same store with another API key.
func (s *store) withKey(scope string) *store {
	s.t.Helper()
	key := fromJSON[api.KeyWithSecret](s.t, must(s.t, s.environ, "api", "POST", "/account/api-keys", "name=other", "scope="+scope)+"\n")
	return &store{s.t, []string{s.environ[0], "PETSTORE_API_KEY=" + key.Secret}, s.dir, s.id}
}

// TestImportWithOtherKeys: a row in doubt belongs to the API key that has sent it.
func TestImportWithOtherKeys(t *testing.T) {
	t.Parallel()
	s := newStore(t).underTest()
	other, reader := s.withKey("write"), s.withKey("read")
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
	path := s.file("pets.csv", "name,category\na,Dogs\nc,Birds\nb,Cats\n")
	s.fails([]string{path}, "rows that were not imported: 2")
	must(t, s.environ, "api", "POST", "/categories", "name=Cats")
	s.beginLost(other.environ, path).end(syscall.SIGKILL)
	s.fault("")
	journal, text := s.journal(path)
	want := func(names string) {
		t.Helper()
		if got := s.names(); got != names {
			t.Errorf("the pets are %q, want %q", got, names)
		}
	}
	refused := "the rows in the lines 4 were on their way, and now the server may not recognize them, because the API key is another one"
	restore := func() {
		writeFile(t, journal, text)
	}
	s.fails([]string{path}, refused)
	s.fails([]string{path}, refused)
	other.fails([]string{path}, "rows that were not imported: 1")
	want("a b")
	restore()
	reader.fails([]string{path, "--in-doubt", "send"}, " rows of "+path+" are imported: the server returned 403 ", "; run the same command again with a key of the same account and the scope write")
	reader.fails([]string{path}, refused)
	s.fails([]string{path}, refused)
	want("a b")
	restore()
	s.fails([]string{path, "--in-doubt", "skip"}, "rows that were not imported: 1")
	s.file("pets.csv", "name,category\nb,Cats\nc,Cats\na,Dogs\n")
	if got := s.load(path); got.Imported != 1 || got.Before != 2 {
		t.Errorf("after the correction: %+v", got)
	}
	want("a b c")
}

// TestImportAgain: an import that is repeated on purpose and interrupted continues as its message says.
func TestImportAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t).underTest()
	must(t, s.environ, "api", "POST", "/categories", "name=Dogs")
	path := s.file("pets.csv", "name,category\na,Dogs\nb,Dogs\nc,Dogs\n")
	s.load(path)
	s.beginLost(s.environ, path, "--again").end(syscall.SIGKILL)
	s.fails([]string{path, "--again"}, "was interrupted when the rows in the lines 2 ", "were on their way; run the same command without --again to continue")
	s.fault("")
	s.load(path)
	if got := s.names(); got != "a a b b c c" {
		t.Errorf("after a kill, the pets are %q", got)
	}
	s.fault(`{"operation":"createPet","effect":"delay","delayMs":2000}`)
	p := begin(t, s.dir, s.environ, "import", path, "--again", "--connections", "1")
	need.Within(t, patience, "the first pet is imported", func() bool { return strings.HasPrefix(s.names(), "a a a") })
	p.exits(exitFailure, syscall.SIGINT)
	p.expect("of 3 rows of " + path + " are imported; run the same command without --again to continue")
	s.fault("")
	s.load(path)
	if got := s.names(); got != "a a a b b b c c c" {
		t.Errorf("after Ctrl-C, the pets are %q", got)
	}
}

// TestImportAfterReset: import does not leave out rows of a store that was reset, also if the feed has lost the event
// in the journal.
func TestImportAfterReset(t *testing.T) {
	t.Parallel()
	s := newStore(t).underTest()
	categories, pets := s.file("categories.csv", "name\nDogs\n"), s.file("pets.csv", "name,category\na,Dogs\nb,Dogs\n")
	s.load(categories)
	journal, text := s.journal(categories)
	expired := regexp.MustCompile(`"end":"evt_\w+"`).ReplaceAllString(text, `"end":"evt_`+strings.Repeat("f", 32)+`"`)
	if err := os.WriteFile(journal, []byte(expired), 0o600); err != nil || expired == text {
		t.Fatalf("the journal is\n%s (error %v)", text, err)
	}
	if got := s.load(categories); got.Before != 1 {
		t.Errorf("without a reset: %+v", got)
	}
	s.beginLost(s.environ, pets).end(syscall.SIGKILL)
	s.fault("")
	journal, text = s.journal(pets)
	old := regexp.MustCompile(`(?m)^(>\d+) \d+ `).ReplaceAllString(text, "$1 1 ") // sent in 1970
	if err := os.WriteFile(journal, []byte(old), 0o600); err != nil || old == text {
		t.Fatalf("the journal is\n%s (error %v)", text, err)
	}
	must(t, s.environ, "api", "POST", "/sandboxes/current/reset")
	for _, path := range []string{categories, pets} {
		s.fails([]string{path}, "the store was reset, or restored from a backup, since the import of "+path+"; if its rows are not in the store, add --again")
		if got := s.load(path, "--again"); got.Imported != got.Rows {
			t.Errorf("after a reset: %+v", got)
		}
		if got := s.load(path); got.Before != got.Rows {
			t.Errorf("again: %+v", got)
		}
	}
	if got := s.names(); got != "a b" {
		t.Errorf("there are the pets %q", got)
	}
}

// TestImportToTwoServers: the journal of an account is not the one of an account of another server.
func TestImportToTwoServers(t *testing.T) {
	t.Parallel()
	var both []*store
	for range 2 {
		environ := []string{"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0"}
		must(t, environ, "account", "create", "acme")
		both = append(both, newSandboxOf(t, environ, begin(t, emptyDir, environ, "serve").address(), "acme", "empty"))
	}
	first, second := both[0], both[1]
	path := first.file("categories.csv", "name\na\nb\n")
	first.load(path)
	if got := second.load(path); got.Imported != 2 {
		t.Errorf("the second server: %+v", got)
	}
	journals, _ := filepath.Glob(path + ".sbx_*.journal")
	if len(journals) != 2 || strings.Split(journals[0], "-")[0] != strings.Split(journals[1], "-")[0] {
		t.Errorf("the journals %q, want two with the same account id", journals)
	}
	for _, s := range both {
		if got := s.load(path); got.Before != 2 {
			t.Errorf("again: %+v", got)
		}
	}
}
