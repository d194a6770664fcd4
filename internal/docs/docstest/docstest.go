// Package docstest reads the code of the guides, for tests that run it.
package docstest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"petstore/internal/tools/need"
)

// Block is a block of code that a guide marks with "run" or "run=NAME".
type Block struct{ Language, Name, Code string }

var block = regexp.MustCompile("(?s)\n```(\\w+) run(?:=([^\\s]+))?(?: [^\n]*)?\n(.*?\n)```\n")

// maxLine is the longest line that a panel shows without scrolling.
const maxLine = 72

// Read returns the code in a file that tests run. A line that is too long fails the test.
func Read(t testing.TB, file string) []Block {
	t.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // a test names the file
	need.OK(t, err)
	var all []Block
	for _, match := range block.FindAllSubmatch(text, -1) {
		b := Block{string(match[1]), string(match[2]), string(match[3])}
		for line := range strings.Lines(b.Code) {
			if utf8.RuneCountInString(line) > maxLine+1 && b.Language != "http" {
				t.Errorf("%s: a line is longer than %d characters: %s", file, maxLine, line)
			}
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no code to run", file)
	}
	return all
}

// Programs joins the blocks of each language, in order. A block with a name is a program of its
// own under that name.
func Programs(t testing.TB, file string) map[string]string {
	t.Helper()
	programs := map[string]string{}
	for _, b := range Read(t, file) {
		name := b.Language
		if b.Name != "" {
			name = b.Name
		}
		programs[name] += b.Code
	}
	return programs
}

// Form has the values of the form of an operation: the texts of parameters, and the text of the
// body.
type Form struct {
	Operation  string              `json:"operation"`
	Parameters map[string][]string `json:"parameters,omitempty"`
	Body       string              `json:"body,omitempty"`
}

// hostileText has the characters that end a text or begin something else in a shell, JavaScript,
// Python, Go, JSON, HTML or a URL. Some of them are invisible.
const hostileText = "</script>'\"`\\ $HOME $(id) ${url} {key} %s %41 \\n \\u0041 ''' \"\"\" #!&;|<>*?[a] !! =\n\r\n\t\u0085\u00a0\u2028\u2029\ufeff\u200d é 🐶"

// HostileKey has all visible ASCII characters except letters.
const HostileKey = "!\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`{|}~"

// HostileMessages are texts that some language or program could read as something else.
var HostileMessages = []string{hostileText, "true", "12", "1e5", "@/etc/passwd", "--fail", "a=b", "x:=1", "$", "'", "{}", `\`}

// HostileName is such a text for the name of a category, which has no control characters.
var HostileName = strings.NewReplacer("\n", "", "\r", "", "\t", "", "\u0085", "").Replace(hostileText)

// HostileForms returns a form for each message, which queues it under HostileKey and a number. Three
// more follow: one searches for HostileName, one has a body that is not JSON, and one a field twice.
func HostileForms(t testing.TB) (all []Form) {
	t.Helper()
	for i, message := range HostileMessages {
		body := need.Value(json.Marshal(map[string]string{"message": message}))(t)
		escaped := strings.ReplaceAll(string(body), "/", `\/`) // an escape that only JSON and JavaScript have
		all = append(all, Form{"queueMessage", map[string][]string{"header.Idempotency-Key": {HostileKey + strconv.Itoa(i)}}, escaped})
	}
	return append(all, Form{"listCategories", map[string][]string{"query.name": {HostileName}}, ""},
		Form{"queueMessage", nil, `{"message": '` + hostileText}, Form{"queueMessage", nil, `{"message": "a", "message": "b"}`})
}

// samples prints the samples of forms that a reader could enter.
const samples = `
import { readFileSync } from "node:fs";
import { languages, sample } from "./languages.js";
import { build, initial, target } from "./request.js";

const { operations } = JSON.parse(readFileSync(new URL("reference.json", import.meta.url)));
const all = JSON.parse(readFileSync(0)).map(({ operation, parameters, body }) => {
	const values = initial(operations[operation]);
	Object.assign(values.parameters, parameters);
	if (body !== undefined) values.body = body;
	const request = build(operations[operation], values);
	const samples = languages.map((language) => [language, sample(language, request)]);
	return { ...request, target: target(request), samples: Object.fromEntries(samples) };
});
console.log(JSON.stringify(all));
`

// Request is the request of a form.
type Request struct {
	Method, Target, Type, Body string
	Headers                    [][2]string
	Samples                    map[string]string // by language
}

// NeedPrograms ends the test if a program is missing that samples need.
func NeedPrograms(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is not installed, so code samples cannot run; on Debian: apt-get install bash curl nodejs python3", program)
		}
	}
}

// Requests returns the request of each form with its samples, as the page of a server makes them.
func Requests(t testing.TB, server string, forms []Form) (all []Request) {
	t.Helper()
	NeedPrograms(t, "node")
	get := func(path string) []byte {
		request := need.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, server+path, nil))(t)
		response, err := http.DefaultClient.Do(request)
		need.OK(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, response.Status, err)
		}
		return text
	}
	folder := "/" + regexp.MustCompile(`docs/assets/\w+/`).FindString(string(get("/docs")))
	files := map[string][]byte{}
	for _, name := range []string{"languages.js", "request.js", "json.js", "reference.json"} {
		files[name] = get(folder + name)
	}
	RunModules(t, files, samples, forms, &all)
	return all
}

// RunModules runs a module that imports the modules in files, with an input in JSON. It decodes what the
// module prints.
func RunModules(t testing.TB, files map[string][]byte, source string, input, into any) {
	t.Helper()
	dir := t.TempDir()
	files["package.json"], files["run.js"] = []byte(`{"type": "module"}`), []byte(source)
	for name, text := range files {
		need.OK(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	stdin := need.Value(json.Marshal(input))(t)
	command := exec.CommandContext(t.Context(), "node", filepath.Join(dir, "run.js")) //nolint:gosec // a file of the test
	command.Stdin, command.Stderr = bytes.NewReader(stdin), os.Stderr
	output := need.Value(command.Output())(t)
	need.OK(t, json.Unmarshal(output, into))
}
