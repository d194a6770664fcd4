package main

import (
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"

	"petstore/internal/tools/need"
)

// TestSpecProse checks the descriptions, summaries and example messages of
// openapi.yaml against badProse and maxWords.
func TestSpecProse(t *testing.T) {
	t.Parallel()
	text := readFile(t, filepath.Join(repository, "internal/api/openapi.yaml"))
	var spec any
	need.OK(t, yaml.Unmarshal([]byte(text), &spec))
	seen := map[string]bool{}
	eachProse(spec, func(prose string) { seen[prose] = true })
	if len(seen) < 200 {
		t.Errorf("openapi.yaml has only %d texts, want at least 200", len(seen))
	}
	for prose := range seen {
		for _, mistake := range proseMistakes(prose, badProse, maxWords) {
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
