package docs_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/docs/docstest"
	"petstore/internal/tools/need"
)

var update = flag.Bool("update", false, "write the samples of openapi.yaml")

const specFile = "../api/openapi.yaml"

// runModules runs a module that imports the modules of the pages, and decodes its output.
func runModules(t *testing.T, source string, into any) {
	t.Helper()
	files := map[string][]byte{}
	for name, file := range newFiles(t) {
		if !isPage(name) {
			files[path.Base(name)] = file.Plain().Text
		}
	}
	docstest.RunModules(t, files, source, nil, into)
}

// firstSamples prints the samples that the pages show first.
const firstSamples = `
import { readFileSync } from "node:fs";
import { languages, sample } from "./languages.js";
import { build, initial } from "./request.js";

const { operations } = JSON.parse(readFileSync(new URL("reference.json", import.meta.url)));
const all = {};
for (const [id, operation] of Object.entries(operations)) {
	const request = build(operation, initial(operation));
	all[id] = Object.fromEntries(languages.map((language) => [language, sample(language, request)]));
}
console.log(JSON.stringify(all));
`

// shown is the samples that the pages show first, by operation and language. Two tests read them.
var shown struct {
	once    sync.Once
	samples map[string]map[string]string
}

func samplesOf(t *testing.T) map[string]map[string]string {
	t.Helper()
	shown.once.Do(func() { runModules(t, firstSamples, &shown.samples) })
	if shown.samples == nil {
		t.Fatal("another test could not make the samples")
	}
	return shown.samples
}

// TestFirstSamples: x-codeSamples in the spec has what the pages show before a reader changes
// a value. "go test ./internal/docs -run TestFirstSamples -update" writes it.
func TestFirstSamples(t *testing.T) {
	t.Parallel()
	first := samplesOf(t)
	if *update {
		rewriteSamples(t, first)
		return // this process read the spec before
	}
	known := map[string]bool{}
	for _, operation := range operations(t) {
		known[operation.OperationID] = true
		langs := []string{}
		for _, s := range operation.Samples {
			langs = append(langs, s.Lang)
			shown := first[operation.OperationID][s.Lang]
			need.Same(t, shown, s.Source, "%s in %s (want: page, got: x-codeSamples)", operation.OperationID, s.Lang)
		}
		need.Same(t, []string{"cURL", "JavaScript", "Python"}, langs, "%s: languages; run go test ./internal/docs -run TestFirstSamples -update", operation.OperationID)
	}
	if len(known) != len(first) {
		t.Errorf("the pages have samples of %d operations, the spec of %d", len(first), len(known))
	}
}

// TestGoSamples: the samples in Go compile, and gofmt would not change them.
func TestGoSamples(t *testing.T) {
	t.Parallel()
	first := samplesOf(t)
	files := token.NewFileSet()
	check := types.Config{GoVersion: "go1.26", Importer: importer.ForCompiler(files, "gc", nil)} // reads each package once
	for id, samples := range first {
		source := []byte(samples["Go"] + "\n")
		if formatted, err := format.Source(source); err != nil || !bytes.Equal(formatted, source) {
			t.Errorf("gofmt changes the sample of %s: %v\n%s", id, err, cmp.Diff(string(source), string(formatted)))
		}
		file, err := parser.ParseFile(files, id+".go", source, parser.SkipObjectResolution)
		if err == nil {
			_, err = check.Check("main", files, []*ast.File{file}, nil)
		}
		if err != nil {
			t.Errorf("the sample of %s does not compile: %v\n%s", id, err, source)
		}
	}
}

// TestSleep: a pause leaves no listener on the signal that can end it.
func TestSleep(t *testing.T) {
	t.Parallel()
	var listeners []int
	runModules(t, `
import { getEventListeners } from "node:events";
import { sleep } from "./console-api.js";

const listeners = [];
const ending = new AbortController();
const count = () => listeners.push(getEventListeners(ending.signal, "abort").length);
await sleep(1, ending.signal);
count();
const long = sleep(1_000_000, ending.signal);
count();
ending.abort();
await long;
count();
console.log(JSON.stringify(listeners));
`, &listeners)
	need.Same(t, []int{0, 1, 0}, listeners, "listeners after a pause, during one and after its end")
}

// TestBlankHeader: the sample for curl sends a header without a value.
func TestBlankHeader(t *testing.T) {
	t.Parallel()
	var got http.Header
	server := need.Server(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	var command string
	runModules(t, `
import { sample } from "./languages.js";

const headers = [["Empty", ""], ["Blank", " \t"], ["Full", "it's a value"]];
console.log(JSON.stringify(sample("cURL", { method: "GET", path: "/", query: [], headers }, { url: "`+server.URL+`" })));
`, &command)
	if output, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v %s", command, err, output)
	}
	for name, want := range map[string]string{"Empty": "", "Blank": "", "Full": "it's a value"} {
		need.Same(t, []string{want}, got[name], "%s: the header %s (want: form, got: request)", command, name)
	}
}

// TestRecordedRequests: the command for a recorded request sends the same one.
func TestRecordedRequests(t *testing.T) {
	t.Parallel()
	type message struct {
		Method, URI string
		Header      http.Header
		Body        string
	}
	received := make(chan message, 1)
	server := need.Server(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, name := range []string{"Accept", "Authorization", "Content-Length", "User-Agent"} {
			r.Header.Del(name)
		}
		received <- message{r.Method, r.RequestURI, r.Header, string(body)}
	})
	isJSON := []string{"application/json"}
	messages := []message{
		{"POST", "/", http.Header{"Content-Type": isJSON}, `{"message": "it's é"}`},
		{"POST", "/", http.Header{}, `{"message": "x"}`},
		{"POST", "/", http.Header{"Content-Type": isJSON}, "{\"message\": \"é\"}\x00"},
		{"POST", "/", http.Header{}, "\xff\x00\xfe"},
		{"POST", "/?a=(id)&b='%60x'", http.Header{"Content-Type": isJSON, "X-Odd": {"it's $HOME"}}, "{\"message\": \"$(id) `x` \\\\\"}"},
		{"POST", "/", http.Header{"Content-Type": isJSON, "X-Odd": {""}}, "{}"},
		{"POST", "/", http.Header{"Content-Type": isJSON, "Idempotency-Key": {""}}, "{}"},
		{"GET", "/pets/..", http.Header{}, ""},
		{"GET", "/pets/.%2E", http.Header{}, ""},
		{"GET", "/pets?name=a;b", http.Header{}, ""},
	}
	recorded := []map[string]any{}
	for _, one := range messages {
		headers := []any{}
		for name, values := range one.Header {
			headers = append(headers, map[string]string{"name": name, "value": values[0]})
		}
		request := map[string]any{"headers": headers, "body": one.Body, "bodySize": len(one.Body)}
		if !utf8.ValidString(one.Body) {
			request["body"], request["bodyEncoding"] = []byte(one.Body), "base64"
		}
		recorded = append(recorded, map[string]any{"method": one.Method, "path": one.URI, "request": request})
	}
	source := need.Value(json.Marshal(recorded))(t)
	var commands []string
	runModules(t, `
import { curl } from "./console-curl.js";

console.log(JSON.stringify(`+string(source)+`.map(curl)));
`, &commands)
	for i, want := range messages {
		if strings.Contains(commands[i], "--path-as-is") != strings.Contains(want.URI, "/.") { // before version 8.13, curl keeps %2E
			t.Errorf("curl may send another path: %s", commands[i])
		}
		command := exec.CommandContext(t.Context(), "sh", "-c", commands[i])
		command.Env = append(command.Environ(), "PETSTORE_URL="+server.URL, "PETSTORE_API_KEY=key")
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s\n%v %s", commands[i], err, output)
		}
		need.Same(t, want, <-received, "%s\nsends another request (want: record, got: command)", commands[i])
	}
}

// TestEscapedFields: a text that no argument can hold stays JSON in the sample for the CLI.
func TestEscapedFields(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		`{"message": "a\u0041"}`:      `message=aA`,
		`{"message": "a\u0000"}`:      `'message:="a\u0000"'`,
		`{"message": "\ud800b"}`:      `'message:="\ud800b"'`,
		`{"message": "\ud83d\udc36"}`: `'message=🐶'`,
		`{"a\u0000": 1}`:              `'{"a\u0000": 1}'`,
	}
	source := need.Value(json.Marshal(slices.Collect(maps.Keys(bodies))))(t)
	var samples map[string]string
	runModules(t, `
import { sample } from "./languages.js";

const request = { method: "POST", path: "/messages", query: [], headers: [], type: "application/json" };
console.log(JSON.stringify(Object.fromEntries(`+string(source)+`.map((body) => [body, sample("CLI", { ...request, body })]))));
`, &samples)
	for body, want := range bodies {
		if got := samples[body]; !strings.Contains(got, " "+want) {
			t.Errorf("the sample of %s is\n%s\nwithout %s", body, got, want)
		}
	}
}

// rewriteSamples writes the samples into openapi.yaml.
func rewriteSamples(t *testing.T, first map[string]map[string]string) {
	t.Helper()
	source := need.Value(os.ReadFile(specFile))(t)
	operation := regexp.MustCompile(`(?m)^ {6}operationId: (\w+)\n(?: {6}.*\n|\n)*`)
	before := regexp.MustCompile(`(?m)^ {6}x-codeSamples:\n(?: {8}.*\n|\n)*`)
	text := operation.ReplaceAllStringFunc(string(source), func(found string) string {
		id := operation.FindStringSubmatch(found)[1]
		var out strings.Builder
		out.WriteString(before.ReplaceAllString(found, "") + "      x-codeSamples:\n")
		for _, lang := range []string{"cURL", "JavaScript", "Python"} {
			out.WriteString("        - lang: " + lang + "\n          label: " + lang + "\n          source: |-\n")
			for line := range strings.Lines(first[id][lang]) {
				out.WriteString(strings.TrimRight("            "+line, " \n") + "\n")
			}
		}
		return out.String()
	})
	need.OK(t, os.WriteFile(specFile, []byte(text), 0o600))
}
