package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// badGoProse lists patterns that only Go files are checked against, in addition to
// badProse: Markdown may start a list item or a table cell with "what".
var badGoProse = []badPattern{
	{regexp.MustCompile(`(?i)^(what|who|whoever)\b[^?]*$`), "the subject first"},
	{regexp.MustCompile(`^\S+ (is|are) (what|who|whatever|whoever)\b`), "a noun: x is the …"},
	{regexp.MustCompile(`(?i)\b(what|who|which|that) (is|are|was|were) no\b`), "is not, or does not have"},
	{regexp.MustCompile(`(?i)\b(names|knows|takes|counts|holds|waits|minds|asks|needs) (not|none|nobody)\b`), "does not, or no"},
	{regexp.MustCompile(`(?i)\b(hears?|heard|tells?|told) (of|nothing|nobody|it)\b`), "receives, says, or the actor and a plain verb"},
	{regexp.MustCompile(`(?i)\b(by itself alone|who(so)?sever|of ours|beside that)\b`), "alone, our, next to"},
}

// TestGoProse checks the Go files against badProse and badGoProse: comments, names of
// tests, and all literals of several words. Comments and literals that are sentences are also
// checked against maxWords.
func TestGoProse(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	checked := 0
	for _, name := range goFiles(t) {
		file := need.Value(parser.ParseFile(files, filepath.Join(repository, name), nil, parser.ParseComments))(t)
		checked++
		for _, text := range goTexts(file) {
			for _, mistake := range text.mistakes() {
				t.Errorf("%s:%d: %s", name, files.Position(text.pos).Line, mistake)
			}
		}
	}
	if checked < 50 {
		t.Errorf("checked only %d Go files, want at least 50", checked)
	}
}

func TestGoProseMistakes(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		"// Take returns a token, or false if there is none.\nfunc Take() {}":   0,
		"// What is it?\nfunc f() {}":                                           0,
		"// f does it:\n//\n//\tanswer(x)\nfunc f() {}":                         0,
		"//nolint:answer // a directive\nfunc f() {}":                           0,
		"// f calls `answer`.\nfunc f() {}":                                     0,
		"// f answers a request.\nfunc f() {}":                                  1,
		"// member is a field.\nvar member int":                                 1,
		"// rest is what is left.\nvar rest int":                                1,
		"// TestX: what a client sees.\nfunc f() {}":                            1,
		"// f takes none.\nfunc f() {}":                                         1,
		"// What is wrong is told.\nfunc f() {}":                                3,
		"// f sees section 3 of the contract.\nfunc f() {}":                     1,
		"func f() { _ = 1 } // which is none":                                   1,
		"func TestEveryAnswer() {}":                                             1,
		"func f() { errors.New(`it was told no`) }":                             1,
		"func f() { fmt.Errorf(`answered %w`, err) }":                           1,
		"func f() { log.Warn(`no answer`, `answer`, 1) }":                       1,
		"func f() { t.Errorf(`the member ` + `x is wrong`) }":                   1,
		"func f() { fmt.Println(`an answer`) }":                                 1,
		"func f() { db.Query(`SELECT 'MEMBER' FROM x`) }":                       0,
		"var x = `A \"member\" is here.`":                                       1,
		"var x = `Do " + strings.Repeat("it and ", 13) + "it.`":                 1,
		"// f does " + strings.Repeat("it and ", 11) + "it.\nfunc f() {}":       0,
		"// f does " + strings.Repeat("it\n// and ", 11) + "it too.\nvar x int": 1,
	} {
		file := need.Value(parser.ParseFile(token.NewFileSet(), "", "package p\n\n"+source, parser.ParseComments))(t)
		var mistakes []string
		for _, text := range goTexts(file) {
			mistakes = append(mistakes, text.mistakes()...)
		}
		if len(mistakes) != want {
			t.Errorf("%q: got %d mistakes, want %d: %q", source, len(mistakes), want, mistakes)
		}
	}
}

// TestCommentProse checks the comments of scripts, SQL, configuration, JavaScript and
// CSS against badProse and badGoProse, line by line.
func TestCommentProse(t *testing.T) {
	t.Parallel()
	comment := regexp.MustCompile(`(?m)(?:^|\s)(?:#|//|--|/?\*+)\s+(.*)$`)
	names := filesOf(t, func(name string) bool {
		switch filepath.Ext(name) {
		case ".yml", ".yaml", ".sql", ".js", ".css", ".sh", ".lua", ".env", ".py":
			return filepath.Base(name) != "openapi.yaml" // TestSpecProse
		case "":
			return strings.HasPrefix(name, ".ci/") || name == "Makefile" || name == "Dockerfile"
		}
		return false
	})
	for _, name := range names {
		text := readFile(t, filepath.Join(repository, name))
		for _, match := range comment.FindAllStringSubmatch(text, -1) {
			for _, mistake := range (goText{text: goCode.ReplaceAllString(describedField.ReplaceAllString(match[1], "the field"), "")}).mistakes() {
				t.Errorf("%s: %s", name, mistake)
			}
		}
	}
	if len(names) < 50 {
		t.Errorf("checked only %d files, want at least 50", len(names))
	}
}

// describedField is legitimate in comments about a field with the name description.
var describedField = regexp.MustCompile(`(?i)\bthe description\b`)

// goFiles returns the paths of the Go files to check in the repository.
func goFiles(t *testing.T) []string {
	t.Helper()
	return filesOf(t, func(name string) bool {
		return filepath.Ext(name) == ".go" && !strings.HasPrefix(filepath.Base(name), "prose_") // these contain the patterns
	})
}

// filesOf returns the paths of files in the repository, without generated code, test
// data and hidden folders other than .ci.
func filesOf(t *testing.T, wanted func(name string) bool) []string {
	t.Helper()
	var names []string
	need.OK(t, filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(repository, path)
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "db" || // generated
			entry.Name() == "testdata" || entry.Name() == "node_modules" ||
			name != "." && name != ".ci" && strings.HasPrefix(entry.Name(), ".") || name == ".ci/output"):
			return filepath.SkipDir
		case entry.Type().IsRegular() && wanted(name):
			names = append(names, name)
		}
		return nil
	}))
	return names
}

// goText is a text of a Go file.
type goText struct {
	pos   token.Pos
	text  string
	whole bool // a comment or a sentence, of which maxWords limits the length
}

// mistakes lists the mistakes of the text.
func (text goText) mistakes() []string {
	most := math.MaxInt
	if text.whole {
		most = maxWords
	}
	return proseMistakes(text.text, slices.Concat(badProse, badGoProse), most)
}

// goTexts returns the texts of a Go file that people read.
func goTexts(file *ast.File) []goText {
	var texts []goText
	for _, group := range file.Comments {
		// Text drops directives.
		if text := group.Text(); !strings.HasPrefix(group.List[0].Text, "//nolint") {
			texts = append(texts, goText{group.Pos(), goCode.ReplaceAllString(text, ""), true})
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if name := node.Name.Name; testName.MatchString(name) {
				texts = append(texts, goText{node.Name.Pos(), camelCase.ReplaceAllString(name, "$1 $2"), false})
			}
		case *ast.BasicLit:
			if text := notProse.ReplaceAllString(literal(node), ""); strings.Contains(text, " ") {
				texts = append(texts, goText{node.Pos(), text, strings.HasSuffix(text, ".")})
			}
		}
		return true
	})
	return texts
}

var (
	testName  = regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`)
	camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// literal returns the text of a string literal, or "" for other literals.
func literal(node *ast.BasicLit) string {
	if node.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(node.Value) // the parser has accepted it
	return text
}

var (
	// goCode matches code blocks of comments, and quoted texts.
	goCode = regexp.MustCompile(`(?m)^\t.*$|"[^"\n]*"`)
	// notProse matches the lines of a list in the help of a command, and the keywords of SQL in quotes.
	notProse = regexp.MustCompile(`(?m)^  .*$|'[A-Z]+'`)
)
