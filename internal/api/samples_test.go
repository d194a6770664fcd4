package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/docs/docstest"
	feedevent "petstore/internal/event"
	sampledata "petstore/internal/seed" // another file declares seed
	"petstore/internal/tools/need"
)

// sample is a code sample of an operation.
type sample struct {
	method, path, operationID string

	Lang, Source string
}

// sampleTools lists the programs that run the samples of each language.
var sampleTools = []struct{ lang, program, file string }{
	{"cURL", "bash", "sample.sh"},
	{"JavaScript", "node", "sample.mjs"},
	{"Python", "python3", "sample.py"},
}

// Programs that run samples one after the other. Each line of the standard input names the file
// of a sample and has its variables. The response is a line with the output and the error.
var interpreters = map[string][]string{
	"JavaScript": {"node", "--input-type=module", "--eval", `
		import { createInterface } from "node:readline";
		import { pathToFileURL } from "node:url";
		const write = process.stdout.write.bind(process.stdout);
		for await (const line of createInterface({ input: process.stdin })) {
			const { file, variables } = JSON.parse(line);
			Object.assign(process.env, variables);
			let output = "", error = "";
			process.stdout.write = (text) => { output += text; return true; };
			try {
				await import(pathToFileURL(file));
			} catch (caught) {
				error = "error: " + caught?.stack;
			}
			write(JSON.stringify({ output, error }) + "\n");
		}`},
	"Python": {"python3", "-c", `
import contextlib, io, json, os, runpy, sys, traceback

for line in sys.stdin:
    job = json.loads(line)
    os.environ.update(job["variables"])
    output, error = io.StringIO(), ""
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_path(job["file"], run_name="__main__")
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps({"output": output.getvalue(), "error": error}), flush=True)
`},
}

// interpreter is a process of [interpreters]. The start of a process takes most of the CPU time
// of a sample.
type interpreter struct {
	mu     sync.Mutex
	input  *json.Encoder
	output *json.Decoder
	stderr bytes.Buffer
}

// startInterpreters starts a process for each language of [interpreters]. They end with the test.
func startInterpreters(t *testing.T) map[string]*interpreter {
	t.Helper()
	all := map[string]*interpreter{}
	for lang, args := range interpreters {
		i := &interpreter{}
		command := exec.CommandContext(context.WithoutCancel(t.Context()), args[0], args[1:]...)
		command.Env, command.Stderr = sampleEnviron(), &i.stderr
		stdin := need.Value(command.StdinPipe())(t)
		stdout := need.Value(command.StdoutPipe())(t)
		i.input, i.output = json.NewEncoder(stdin), json.NewDecoder(stdout)
		need.OK(t, command.Start())
		t.Cleanup(func() {
			stdin.Close()
			if err := command.Wait(); err != nil { // a sample that does not end holds it up
				t.Errorf("%s: %v\n%s", args[0], err, i.stderr.String())
			}
		})
		all[lang] = i
	}
	return all
}

func (i *interpreter) run(file string, variables map[string]string) (output string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var result struct{ Output, Error string }
	if err := i.input.Encode(map[string]any{"file": file, "variables": variables}); err != nil {
		return "", err
	}
	if err := i.output.Decode(&result); err != nil {
		return "", err
	}
	if result.Error != "" {
		err = errors.New(result.Error)
	}
	return result.Output, err
}

// sampleEnviron returns the environment of samples, which has no variables of the tests.
func sampleEnviron() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
}

func codeSamples(t *testing.T) (all []sample) {
	t.Helper()
	document := theContract().document
	for _, path := range document.Paths.InMatchingOrder() {
		operations := document.Paths.Value(path).Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			operation := operations[method]
			encoded := need.Value(json.Marshal(operation.Extensions["x-codeSamples"]))(t)
			var samples []sample
			if err := json.Unmarshal(encoded, &samples); err != nil {
				t.Fatalf("%s %s: x-codeSamples: %v", method, path, err)
			}
			for _, one := range samples {
				one.method, one.path, one.operationID = method, path, operation.OperationID
				all = append(all, one)
			}
		}
	}
	return all
}

// run runs a sample unchanged, with the two variables that the spec names, and
// returns its output. Without an interpreter, it runs in a process of its own.
func (s sample) run(t *testing.T, in map[string]*interpreter, url, key string) (output string, err error) {
	t.Helper()
	variables := map[string]string{"PETSTORE_URL": url, "PETSTORE_API_KEY": key}
	for _, tool := range sampleTools {
		if tool.lang != s.Lang {
			continue
		}
		file := filepath.Join(t.TempDir(), tool.file)
		need.OK(t, os.WriteFile(file, []byte(s.Source), 0o600))
		if interpreter := in[s.Lang]; interpreter != nil {
			return interpreter.run(file, variables)
		}
		var stdout, stderr bytes.Buffer
		command := exec.CommandContext(t.Context(), tool.program, file)
		command.Dir, command.Env = filepath.Dir(file), sampleEnviron()
		for name, value := range variables {
			command.Env = append(command.Env, name+"="+value)
		}
		command.Stdout, command.Stderr = &stdout, &stderr
		if err := command.Run(); err != nil {
			return stdout.String(), fmt.Errorf("%s %s: %w\n%s", tool.program, tool.file, err, stderr.String())
		}
		return stdout.String(), nil
	}
	t.Fatalf("%s: no tool runs %s", s.operationID, s.Lang)
	return "", nil
}

// needSampleTools fails the test if the samples cannot run here.
func needSampleTools(t *testing.T) {
	t.Helper()
	programs := []string{"curl"}
	for _, tool := range sampleTools {
		programs = append(programs, tool.program)
	}
	docstest.NeedPrograms(t, programs...)
}

// fillShop fills the store of the account "tester" with the sample shop. [sampledata.Load] would vacuum
// the tables of all tests.
func (p *petstore) fillShop() {
	p.t.Helper()
	ctx, id := p.t.Context(), p.accountID() // before the transaction, which has a connection of the pool too
	need.OK(p.t, pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		return errors.Join(
			sampledata.Fill(ctx, db.New(tx), id, sampledata.ShopPets, nil),
			feedevent.Append(ctx, db.New(tx), id, feedevent.Reset()))
	}))
}

// succeeded counts the successful requests of an operation in the server's log.
func (p *petstore) succeeded(method, route string) int {
	p.t.Helper()
	return len(logLines(p, func(line logLine) bool {
		return line.Method == method && line.Route == route && line.Status < 300
	}))
}

// TestCodeSamplesAreReadable: a panel of the reference page shows lines of this
// length without wrapping, in windows of at least 1280 pixels. Package docs
// measures that in a browser. A line with a long id or path wraps.
func TestCodeSamplesAreReadable(t *testing.T) {
	t.Parallel()
	const limit = 58
	longID := regexp.MustCompile(`_[0-9a-f]{32}|/current/requests`)
	for _, sample := range codeSamples(t) {
		for line := range strings.Lines(sample.Source) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > limit && !longID.MatchString(line) {
				t.Errorf("%s in %s: a line is longer than %d characters: %s", sample.operationID, sample.Lang, limit, line)
			}
		}
	}
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// pathIn returns the path of the operation in a sample, with one more character, and its ids.
func (s sample) pathIn(t testing.TB) (found []string) {
	t.Helper()
	pattern := strings.NewReplacer(`\{`, "{", `\}`, "}").Replace(regexp.QuoteMeta(s.path))
	pattern = inPath.ReplaceAllString(pattern, `([^/"'?\x60\s]+)`)
	if found = regexp.MustCompile(pattern + `["'?\x60\s]`).FindStringSubmatch(s.Source); found == nil {
		t.Fatalf("%s in %s: no path %s in\n%s", s.operationID, s.Lang, s.path, s.Source)
	}
	return found
}

// ownPath returns the path of a sample with ids that exist. It creates what the sample shop
// lacks: the server chooses the ids of messages, webhooks and others.
func (s sample) ownPath(p *petstore) string {
	p.t.Helper()
	found := s.pathIn(p.t)
	path := found[0][:len(found[0])-1]
	own := map[string]string{}
	for i, name := range inPath.FindAllStringSubmatch(s.path, -1) {
		if found[i+1] == "current" {
			own[name[1]] = decode[sandbox](p.get("/sandboxes/current").want(200)).ID
		} else if id := p.ownID(s.operationID, name[1], own); id != "" {
			own[name[1]], path = id, strings.Replace(path, found[i+1], id, 1)
		}
	}
	if s.operationID == "listSamples" {
		p.saveExample()
	}
	return path
}

// withPath returns the sample with another path, and with the sandbox that it saves.
func (s sample) withPath(p *petstore, path string) sample {
	p.t.Helper()
	found := s.pathIn(p.t)[0]
	s.Source = strings.Replace(s.Source, found, path+found[len(found)-1:], 1)
	if s.operationID == "saveSample" {
		s.Source = strings.Replace(s.Source, "sbx_1042", p.newSandbox("ci", "empty").ID, 1)
	}
	return s
}

// ownID creates what a path parameter names and returns its id, or "" if the sample shop has it.
// own has the ids of parameters before it.
func (p *petstore) ownID(operationID, parameter string, own map[string]string) string {
	p.t.Helper()
	created := func(target string, body any, status int) string {
		return fmt.Sprint(decode[struct{ ID any }](p.post(target, body).want(status)).ID)
	}
	switch parameter {
	case "categoryId":
		if operationID == "deleteCategory" { // the categories of the shop have pets
			return created("/categories", object{"name": "Reptiles"}, 201)
		}
	case "petId":
		if operationID == "deletePet" { // the pets of the shop have orders
			return created("/pets", object{"name": "Rex", "categoryId": 1}, 201)
		}
	case "orderId":
		if operationID == "cancelOrder" {
			return created("/store/orders", exampleBody("/store/orders"), 201)
		}
	case "messageId":
		return created("/messages", exampleBody("/messages"), 202)
	case "webhookId":
		return created("/webhooks", exampleBody("/webhooks"), 201)
	case "deliveryId":
		return created("/webhooks/"+own["webhookId"]+"/test", nil, 202)
	case "eventId":
		return decode[[]feedEvent](p.get("/events?limit=1").want(200))[0].ID
	case "apiKeyId":
		return created("/account/api-keys", exampleBody("/account/api-keys"), 201)
	case "requestId":
		return p.recordRequest(own["sandboxId"])
	case "sandboxId":
		if operationID != "getSandbox" { // the others need no pets
			return p.newSandbox("ci", "empty").ID
		}
		return created("/sandboxes", exampleBody("/sandboxes"), 201)
	case "name":
		p.saveExample()
	}
	return ""
}

// saveExample saves the sample of the spec.
func (p *petstore) saveExample() {
	p.t.Helper()
	p.saveSample("black-friday", p.newSandbox("ci", "empty").ID)
}

// freeName frees the name that a sample of the operation has taken.
func (p *petstore) freeName(operationID string) {
	p.t.Helper()
	switch operationID {
	case "createCategory":
		for _, c := range decode[[]category](p.readingPrimary().get("/categories?name=Reptiles").want(200)) {
			p.del(fmt.Sprintf("/categories/%d", c.ID)).want(204)
		}
	case "saveSample":
		p.del("/samples/black-friday").want(204)
	}
}

// ofStore matches the paths of the operations that the sample shop has data for.
var ofStore = regexp.MustCompile("^/(pets|categories|store|events)")

// refused are operations whose samples exit with an error if their request fails.
var refused = []string{"listPets", "placeOrder", "setInventory", "deletePet", "updateOrder", "getMessage"}

// TestCodeSamples: every sample runs on its own in the sample shop, unchanged except for ids
// that the server chooses. Its request succeeds, and returns the example of the spec.
func TestCodeSamples(t *testing.T) {
	t.Parallel()
	needSampleTools(t)
	in := startInterpreters(t)
	byOperation := map[string][]sample{}
	for _, s := range codeSamples(t) {
		byOperation[s.operationID] = append(byOperation[s.operationID], s)
	}
	for operation, samples := range byOperation {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			runSamples(t, in, samples)
		})
	}
}

// runSamples runs samples of one operation one after the other, in one shop.
func runSamples(t *testing.T, in map[string]*interpreter, samples []sample) {
	t.Helper()
	p, first := start(t), samples[0]
	if ofStore.MatchString(first.path) {
		p.fillShop()
	}
	operation := theContract().document.Paths.Value(first.path).GetOperation(first.method)
	key := p.newKey("tester", max(auth.Write, routeOf(first.method, first.path, operation).Scope))
	if target := listed[first.operationID]; target != "" {
		p.as(key).post(target, exampleBody(target))
	}
	if strings.Contains(first.Source, "/sandboxes/current") {
		key = p.as(key).newSandbox("ci", "empty").Key.Secret
	}
	path := first.ownPath(p.as(key))
	for i, s := range samples {
		if i > 0 && s.method != http.MethodGet {
			path = s.ownPath(p.as(key))
			p.freeName(s.operationID)
		}
		s = s.withPath(p.as(key), path)
		if slices.Contains(refused, s.operationID) {
			if output, err := s.run(t, in, p.url, auth.NewSecret().Reveal()); err == nil {
				t.Errorf("%s: it succeeded with a wrong key and printed %s", s.Lang, output)
			}
		}
		output, err := s.run(t, in, p.url, key)
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", s.Lang, err, s.Source, output)
		}
		if strings.TrimSpace(output) == "" {
			t.Errorf("%s: it printed nothing", s.Lang)
		}
		if s.Lang == "cURL" {
			p.wantExample(s, output)
		}
		// a client can have a long response before the server logs the request
		need.Within(t, 30*time.Second, "the sample has succeeded", func() bool { return p.succeeded(s.method, s.path) == i+1 })
	}
}
