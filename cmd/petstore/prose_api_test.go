package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestSpecProse checks the descriptions, summaries and example messages of
// openapi.yaml against badProse and maxWords.
func TestSpecProse(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "internal/api/openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var spec any
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	eachProse(spec, func(prose string) { seen[prose] = true })
	if len(seen) < 200 {
		t.Errorf("openapi.yaml has only %d texts, want at least 200", len(seen))
	}
	for prose := range seen {
		for _, mistake := range proseMistakes(prose) {
			t.Errorf("openapi.yaml: %s", mistake)
		}
	}
}

// eachProse calls visit with every description, summary and message of a YAML value.
func eachProse(value any, visit func(string)) {
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			eachProse(item, visit)
		}
	case map[string]any:
		for name, field := range value {
			text, ok := field.(string)
			switch {
			case !ok:
				eachProse(field, visit)
			case name == "description" || name == "summary" || name == "message":
				visit(text)
			}
		}
	}
}

// TestMessagesProse checks the error messages and remedies in the Go files of the
// API against badProse and maxWords.
func TestMessagesProse(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(repository, "internal/api/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	general, err := filepath.Glob(filepath.Join(repository, "internal/httpjson/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, general...)
	messages := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			message, err := strconv.Unquote(literal.Value)
			if err != nil || !strings.HasSuffix(message, ".") || !strings.Contains(message, " ") {
				return true
			}
			messages++
			for _, mistake := range proseMistakes(message) {
				t.Errorf("%s: %s", filepath.Base(name), mistake)
			}
			return true
		})
	}
	if messages < 100 {
		t.Errorf("found only %d messages, want at least 100", messages)
	}
}
