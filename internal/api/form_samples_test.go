package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hostileText has the characters that end a text or begin something else in a shell, JavaScript,
// Python, Go, JSON, HTML or a URL. Some of them are invisible.
const hostileText = "</script>'\"`\\ $HOME $(id) ${url} {key} %s %41 \\n \\u0041 ''' \"\"\" #!&;|<>*?[a] !! =\n\r\n\t\u0085\u00a0\u2028\u2029\ufeff\u200d é 🐶"

// hostileKey has all visible ASCII characters except letters.
const hostileKey = "!\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`{|}~"

// sampleRequests prints the samples of requests that a reader could enter in a form.
const sampleRequests = `
import { readFileSync } from "node:fs";
import { languages, sample } from "./languages.js";
import { build, initial } from "./request.js";

const { operations } = JSON.parse(readFileSync(new URL("reference.json", import.meta.url)));
const all = JSON.parse(readFileSync(0)).map(({ operation, parameters, body }) => {
	const values = initial(operations[operation]);
	Object.assign(values.parameters, parameters);
	if (body !== undefined) values.body = body;
	const request = build(operations[operation], values);
	return Object.fromEntries(languages.map((language) => [language, sample(language, request)]));
});
console.log(JSON.stringify(all));
`

// sampleRequest has the values of a form: the texts of parameters, and the text of the body.
type sampleRequest struct {
	Operation  string              `json:"operation"`
	Parameters map[string][]string `json:"parameters,omitempty"`
	Body       string              `json:"body,omitempty"`
}

// samplesOf returns the samples of each request in all languages, as the page makes them.
func (p *petstore) samplesOf(requests []sampleRequest) []map[string]string {
	p.t.Helper()
	folder := "/" + regexp.MustCompile(`docs/assets/\w+/`).FindString(string(p.get("/docs").want(200).body))
	dir := p.t.TempDir()
	save := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, name := range []string{"languages.js", "request.js", "json.js", "reference.json"} {
		save(name, string(p.get(folder+name).want(200).body))
	}
	save("package.json", `{"type": "module"}`)
	save("run.js", sampleRequests)
	input, err := json.Marshal(requests)
	if err != nil {
		p.t.Fatal(err)
	}
	command := exec.CommandContext(p.t.Context(), "node", filepath.Join(dir, "run.js"))
	command.Stdin, command.Stderr = strings.NewReader(string(input)), os.Stderr
	output, err := command.Output()
	if err != nil {
		p.t.Fatal(err)
	}
	var all []map[string]string
	if err := json.Unmarshal(output, &all); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// buildGo compiles programs into one, because linking takes most of the CPU time. Its argument is
// the number of the program to run.
func buildGo(t *testing.T, sources []string) (program string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"go.mod": "module samples\n\ngo 1.26.0\n"}
	var imports, mains strings.Builder
	for i, source := range sources {
		name := fmt.Sprint("s", i)
		renamed := strings.NewReplacer("package main\n", "package "+name+"\n", "\nfunc main() {\n", "\nfunc Main() {\n").Replace(source)
		files[filepath.Join(name, "sample.go")] = renamed
		fmt.Fprintf(&imports, "import %q\n", "samples/"+name)
		fmt.Fprintf(&mains, "\t\t%q: %s.Main,\n", strconv.Itoa(i), name)
	}
	files["main.go"] = "package main\n\nimport \"os\"\n" + imports.String() +
		"\nfunc main() {\n\tmap[string]func(){\n" + mains.String() + "\t}[os.Args[1]]()\n}\n"
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", "samples")
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return filepath.Join(dir, "samples")
}

// runCLI runs commands of a shell that finds the program petstore in a folder.
func runCLI(t *testing.T, folder, source, url, key string) (output string, err error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-c", source)
	command.Env = append(sampleEnviron(), "PATH="+folder+":"+os.Getenv("PATH"), "PETSTORE_URL="+url, "PETSTORE_API_KEY="+key)
	text, err := command.CombinedOutput()
	return string(text), err
}

// cliFolder has the program of [buildCLI], if a test called it.
var cliFolder string

// buildCLI builds petstore once for all tests. TestMain deletes it.
var buildCLI = sync.OnceValue(func() (err error) {
	if cliFolder, err = os.MkdirTemp("", "petstore-cli-"); err != nil {
		return err
	}
	if output, err := exec.CommandContext(context.Background(), "go", "build", "-ldflags=-s -w", "-o", cliFolder, "petstore/cmd/petstore").CombinedOutput(); err != nil { // the context of a test could end before
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
})

// needCLI returns the folder of the program petstore.
func needCLI(t *testing.T) (folder string) {
	t.Helper()
	if err := buildCLI(); err != nil {
		t.Fatal(err)
	}
	return cliFolder
}

// TestHostileSamples: the samples send exactly the values of the form, whatever these contain.
func TestHostileSamples(t *testing.T) {
	t.Parallel()
	needSampleTools(t)
	messages := []string{hostileText, "true", "12", "1e5", "@/etc/passwd", "--fail", "a=b", "x:=1", "$", "'", "{}", `\`}
	var requests []sampleRequest
	for i, message := range messages {
		body, err := json.Marshal(map[string]string{"message": message})
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, sampleRequest{"queueMessage", map[string][]string{"header.Idempotency-Key": {hostileKey + strconv.Itoa(i)}}, string(body)})
	}
	name := strings.NewReplacer("\n", "", "\r", "", "\t", "", "\u0085", "").Replace(hostileText) // names have no control characters
	search := sampleRequest{"listCategories", map[string][]string{"query.name": {name}}, ""}
	wrong := sampleRequest{"queueMessage", nil, `{"message": '` + hostileText}
	all := start(t).samplesOf(append(requests, search, wrong))

	in, cli := startInterpreters(t), needCLI(t)
	for _, lang := range []string{"cURL", "JavaScript", "Python", "Go", "CLI"} {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			var sources []string
			for _, one := range all {
				sources = append(sources, one[lang])
			}
			run := func(i int) (string, error) { return sample{Lang: lang, Source: sources[i]}.run(t, in, p.url, p.key) }
			switch lang {
			case "Go":
				program := buildGo(t, sources)
				run = func(i int) (string, error) { return runCLI(t, "", fmt.Sprintf("%s %d", program, i), p.url, p.key) }
			case "CLI":
				run = func(i int) (string, error) { return runCLI(t, cli, sources[i], p.url, p.key) }
			}
			for i := range messages {
				if output, err := run(i); err != nil {
					t.Fatalf("%v\n%s\n%s", err, sources[i], output)
				}
			}
			var got []string
			for _, m := range decode[[]struct{ Message string }](p.get("/messages?limit=200").want(200)) {
				got = append(got, m.Message)
			}
			want := slices.Sorted(slices.Values(messages))
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("messages (-form +server):\n%s", diff)
			}
			var keys int
			if err := p.db.QueryRow(t.Context(), "SELECT count(*) FROM idempotency_keys WHERE account_id = $1 AND key = $2", p.accountID(), hostileKey+"0").Scan(&keys); err != nil || keys != 1 {
				t.Errorf("%d idempotency keys, %v", keys, err)
			}

			id := strconv.FormatInt(p.newCategory(name), 10)
			if output, err := run(len(messages)); err != nil || !strings.Contains(output, id) {
				t.Errorf("the search for a name prints %s, want the category %s (%v)", output, id, err)
			}

			refusal := map[bool]string{true: "HTTP Error 400", false: "invalid_json"}[lang == "Python"]
			if output, err := run(len(messages) + 1); err == nil || !strings.Contains(output+err.Error(), refusal) {
				t.Errorf("an invalid body: %s, %v", output, err)
			}
		})
	}
}
