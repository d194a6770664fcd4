package api_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"petstore/internal/docs/docstest"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

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
		need.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	command := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", "samples")
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return filepath.Join(dir, "samples")
}

// TestHostileSamples: the samples send exactly the values of the form, whatever these contain. Package
// main tests the samples of "petstore api".
func TestHostileSamples(t *testing.T) {
	t.Parallel()
	needSampleTools(t)
	messages, name := docstest.HostileMessages, docstest.HostileName
	all := docstest.Requests(t, start(t).url, docstest.HostileForms(t))
	in := startInterpreters(t)
	for _, lang := range []string{"cURL", "JavaScript", "Python", "Go"} {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			sources := mapped(all, func(one docstest.Request) string { return one.Samples[lang] })
			run := func(i int) (string, error) { return sample{Lang: lang, Source: sources[i]}.run(t, in, p.url, p.key) }
			if lang == "Go" {
				program := buildGo(t, sources)
				run = func(i int) (string, error) {
					command := exec.CommandContext(t.Context(), program, strconv.Itoa(i))
					command.Env = append(sampleEnviron(), "PETSTORE_URL="+p.url, "PETSTORE_API_KEY="+p.key)
					text, err := command.CombinedOutput()
					return string(text), err
				}
			}
			for i := range messages {
				if output, err := run(i); err != nil {
					t.Fatalf("%v\n%s\n%s", err, sources[i], output)
				}
			}
			got := mapped(decode[[]message](p.readingPrimary().get("/messages?limit=200").want(200)), messageText)
			want := slices.Sorted(slices.Values(messages))
			slices.Sort(got)
			need.Same(t, want, got, "messages (want: form, got: server)")
			keys := pgtest.List[string](t, p.db, "SELECT key FROM idempotency_keys WHERE account_id = $1", p.accountID())
			need.Same(t, 1, len(selected(keys, func(key string) bool { return key == docstest.HostileKey+"0" })),
				"idempotency keys")

			id := strconv.FormatInt(p.newCategory(name), 10)
			if output, err := run(len(messages)); err != nil || !strings.Contains(output, id) {
				t.Errorf("the search for a name prints %s, want the category %s (%v)", output, id, err)
			}

			refusal := map[bool]string{true: "HTTP Error 400", false: "invalid_json"}[lang == "Python"]
			for i := len(messages) + 1; i < len(all); i++ {
				if output, err := run(i); err == nil || !strings.Contains(output+err.Error(), refusal) {
					t.Errorf("an invalid body: %s, %v\n%s", output, err, sources[i])
				}
			}
		})
	}
}
