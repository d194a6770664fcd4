package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// TestSecurityChecklist: docs/security.md covers all ten risks, each with tests that exist.
func TestSecurityChecklist(t *testing.T) {
	t.Parallel()
	const docs = "../../docs"
	text := need.Value(os.ReadFile(filepath.Join(docs, "security.md")))(t)
	named := regexp.MustCompile(`\[(Test\w+)\]\(([\w./]+_test\.go)\)`)
	sections := strings.Split(string(text), "\n## ")[1:]
	const ten = 10
	if len(sections) < ten {
		t.Fatalf("%d sections", len(sections))
	}
	for i, section := range sections {
		heading, _, _ := strings.Cut(section, "\n")
		if i < ten && !strings.HasPrefix(heading, "API"+strconv.Itoa(i+1)+":2023 ") {
			t.Errorf("section %d is %s", i+1, heading)
		}
		tests := named.FindAllStringSubmatch(section, -1)
		if i < ten && len(tests) == 0 || len(tests) != strings.Count(section, "[Test") {
			t.Errorf("%s names %d tests", heading, len(tests))
		}
		for _, test := range tests {
			source, err := os.ReadFile(filepath.Join(docs, test[2]))
			if err != nil {
				t.Errorf("%s: %v", heading, err)
			} else if !strings.Contains(string(source), "\nfunc "+test[1]+"(t *testing.T) {") {
				t.Errorf("%s: %s is not in %s", heading, test[1], test[2])
			}
		}
	}
}

// TestServerSendsNoRequests: the packages that handle requests use no function of the standard library
// that sends one, and no client of egress. They only talk to PostgreSQL, through pgx.
func TestServerSendsNoRequests(t *testing.T) {
	t.Parallel()
	sends := regexp.MustCompile(`^(http\.(Get|Head|Post|PostForm|NewRequest|NewRequestWithContext|Client|DefaultClient|Transport|DefaultTransport)|net\.(Dial\w*|Dialer|Lookup\w*|Resolver)|exec\.\w+|httputil\.\w+)$`)
	may := map[string]string{
		"delivery": "sends webhooks", "egress": "sends webhooks", "localpg": "downloads PostgreSQL", "pgtest": "is for tests", "postgres": "connects to the database",
		"telemetry": "exports traces", "transfer": "belongs to commands",
	}
	files := 0
	for _, directory := range append(need.Value(filepath.Glob("../*"))(t), "../../db") {
		if may[filepath.Base(directory)] != "" {
			continue
		}
		sources := need.Value(filepath.Glob(filepath.Join(directory, "*.go")))(t)
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			files++
			set := token.NewFileSet()
			file := need.Value(parser.ParseFile(set, source, nil, parser.SkipObjectResolution))(t)
			for node := range ast.Preorder(file) {
				selector, ok := node.(*ast.SelectorExpr)
				if !ok {
					continue
				}
				if selector.Sel.Name == "Client" {
					t.Errorf("%s: a client", set.Position(selector.Pos()))
				}
				if from, ok := selector.X.(*ast.Ident); ok && sends.MatchString(from.Name+"."+selector.Sel.Name) {
					t.Errorf("%s: %s.%s", set.Position(selector.Pos()), from.Name, selector.Sel.Name)
				}
			}
		}
	}
	if least := 100; files < least {
		t.Errorf("%d files were read", files)
	}
}
