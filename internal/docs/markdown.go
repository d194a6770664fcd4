package docs

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/renderer/html"
	goldtext "github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Heading is a heading of a page below its title.
type Heading struct {
	ID, Text string
	Level    int
}

var converter = goldmark.New(
	goldmark.WithExtensions(extension.Table),
	goldmark.WithParserOptions(parser.WithAutoHeadingID(), parser.WithAttribute()),
	goldmark.WithRendererOptions(html.WithUnsafe(), renderer.WithNodeRenderers(util.Prioritized(blocks{}, 100))),
)

// toHTML converts Markdown. root is the relative URL of the server, and dir is the folder of
// the source, relative to root: links to other sources become links to their pages.
func toHTML(source, root, dir string) (template.HTML, []Heading) {
	text := []byte(source)
	document := converter.Parser().Parse(goldtext.NewReader(text))
	var headings []Heading
	_ = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch node := node.(type) {
		case *ast.Link:
			node.Destination = []byte(pageLink(string(node.Destination), root, dir))
		case *ast.Heading:
			id, _ := node.AttributeString("id")
			name, _ := id.([]byte)
			headings = append(headings, Heading{string(name), plainText(node, text), node.Level})
		}
		return ast.WalkContinue, nil
	})
	var out bytes.Buffer
	if err := converter.Renderer().Render(&out, text, document); err != nil {
		panic(err) // out is in memory
	}
	return template.HTML(out.String()), headings //nolint:gosec // our own texts
}

// plainText returns the words of a node, with a space between lines, cells and items.
func plainText(node ast.Node, source []byte) string {
	var text strings.Builder
	_ = ast.Walk(node, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		leaf, isText := node.(*ast.Text)
		if isText && entering {
			text.Write(leaf.Segment.Value(source))
		}
		endsLine := isText && (leaf.SoftLineBreak() || leaf.HardLineBreak())
		if !entering && (endsLine || node.Type() == ast.TypeBlock) {
			text.WriteByte(' ')
		}
		return ast.WalkContinue, nil
	})
	return strings.TrimSpace(text.String())
}

var sourceLink = regexp.MustCompile(`\.md(#|$)`)

// pageLink converts the target of a link between sources into the URL of a page.
func pageLink(target, root, dir string) string {
	if strings.Contains(target, ":") || strings.HasPrefix(target, "#") {
		return target
	}
	return strings.TrimSuffix(root+dir+strings.TrimSuffix(sourceLink.ReplaceAllString(target, "$1"), "index"), "/")
}

// blocks renders code and tables: code as figures, in tabs if several languages follow one
// another, and tables that scroll by themselves.
type blocks struct{}

// RegisterFuncs implements [renderer.NodeRenderer].
func (b blocks) RegisterFuncs(register renderer.NodeRendererFuncRegisterer) {
	register.Register(ast.KindFencedCodeBlock, b.code)
	register.Register(ast.KindHeading, b.heading)
	register.Register(extast.KindTable, b.table)
}

// languages are the names of the languages that tabs offer, by their names in Markdown.
var languages = map[string]string{"sh": "cURL", "javascript": "JavaScript", "python": "Python", "go": "Go"}

// fence is the line that begins a block of code: its language, whether a test runs it, and a
// title.
type fence struct{ Language, Run, Title string }

func parseFence(info string) fence {
	f := fence{}
	f.Language, info, _ = strings.Cut(info, " ")
	if first, rest, _ := strings.Cut(info, " "); first == "run" || strings.HasPrefix(first, "run=") {
		f.Run, info = first, rest
	}
	f.Title = info
	return f
}

// tab returns the name of the tab of a block, or "" if it does not belong in one.
func (f fence) tab() string {
	if f.Title == "CLI" {
		return f.Title
	}
	return languages[f.Language]
}

func fenceOf(node ast.Node, source []byte) (f fence, isCode bool) {
	block, isCode := node.(*ast.FencedCodeBlock)
	if !isCode || block.Info == nil {
		return f, isCode
	}
	return parseFence(string(block.Info.Segment.Value(source))), true
}

// sameTabs reports whether two neighbours are samples of the same request.
func sameTabs(a, b ast.Node, source []byte) bool {
	if a == nil || b == nil {
		return false
	}
	first, isCode := fenceOf(a, source)
	second, isAlso := fenceOf(b, source)
	return isCode && isAlso && first.tab() != "" && second.tab() != "" && first.tab() != second.tab()
}

func (blocks) code(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	block, _ := node.(*ast.FencedCodeBlock)
	f, _ := fenceOf(block, source)
	after, before := sameTabs(node.PreviousSibling(), node, source), sameTabs(node, node.NextSibling(), source)
	if before && !after {
		_, _ = w.WriteString(`<div class="tabs">`)
	}
	var code bytes.Buffer
	for i := range block.Lines().Len() {
		line := block.Lines().At(i)
		code.Write(line.Value(source))
	}
	f.write(w, after || before, strings.TrimSuffix(code.String(), "\n"))
	if after && !before {
		_, _ = w.WriteString("</div>\n")
	}
	return ast.WalkContinue, nil
}

// write writes a figure. It needs no title outside of tabs, unless the fence has one.
func (f fence) write(w util.BufWriter, inTabs bool, code string) {
	escape := template.HTMLEscapeString
	label := f.Title
	if label == "" && (inTabs || f.Language != "sh") {
		label = f.tab()
	}
	_, _ = w.WriteString(`<figure class="panel" data-language="` + escape(f.tab()) + `">`)
	if label != "" {
		_, _ = w.WriteString(`<figcaption class="panel-title">` + escape(label) + "</figcaption>")
	}
	_, _ = w.WriteString(`<pre tabindex="0" role="group" aria-label="` + escape(cmp.Or(label, "Commands")) + `"><code class="language-` + escape(f.Language) + `">` +
		escape(code) + "</code></pre></figure>\n")
}

func (blocks) heading(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	heading, _ := node.(*ast.Heading)
	attribute, _ := node.AttributeString("id")
	id, _ := attribute.([]byte)
	switch {
	case entering && heading.Level == 1:
		_, _ = w.WriteString("<h1>")
	case entering:
		_, _ = fmt.Fprintf(w, "<h%d id=\"%s\">", heading.Level, id)
	case heading.Level > 1:
		text := template.HTMLEscapeString(plainText(node, source))
		_, _ = fmt.Fprintf(w, `<a class="anchor" href="#%s" aria-label="Link to %s">#</a>`, id, text)
		fallthrough
	default:
		_, _ = fmt.Fprintf(w, "</h%d>\n", heading.Level)
	}
	return ast.WalkContinue, nil
}

func (blocks) table(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		_, _ = w.WriteString(`<div class="scrollable" tabindex="0" role="group" aria-label="Table"><table>` + "\n")
	} else {
		_, _ = w.WriteString("</tbody>\n</table></div>\n")
	}
	return ast.WalkContinue, nil
}
