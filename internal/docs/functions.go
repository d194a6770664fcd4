package docs

import (
	"bytes"
	"fmt"
	"html/template"
	"regexp"
	"slices"
	"strconv"
	"strings"
	texttemplate "text/template"
	"time"
)

// functions are the functions of the templates. Some depend on the page.
func (p *page) functions() template.FuncMap {
	markdown := func(source string) template.HTML {
		html, _ := toHTML(source, p.Root(), "")
		return html
	}
	return template.FuncMap{
		"markdown": markdown,
		"inline": func(source string) template.HTML {
			return template.HTML(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(markdown(source))), "<p>"), "</p>")) //nolint:gosec // our own texts
		},
		"fieldText": func(text string) template.HTML { return markdown(withoutTable(text)) },
		"forms":     func() bool { return p.template != "all" },
		"class":     statusClass,
		"lower":     strings.ToLower,
		"errorLink": p.errorLink,
		"modelLink": p.modelLink,
		"stability": p.stability,
		"badge": func(label string) template.HTML {
			if label == "" || p.Tag != nil && p.Tag.Stability() == label {
				return "" // the title has the badge
			}
			return p.stability(label)
		},
	}
}

var tableRow = regexp.MustCompile(`(?m)^\|.*\n?`)

// withoutTable replaces the table of codes in the text of a field by a link to the page that
// explains each code.
func withoutTable(text string) string {
	if short := tableRow.ReplaceAllString(text, ""); short != text {
		return strings.TrimSpace(short) + " [All codes](docs/errors)"
	}
	return text
}

// stability returns a badge with a link to its meaning.
func (p *page) stability(label string) template.HTML {
	label = template.HTMLEscapeString(label)
	return template.HTML(` <a class="badge badge-` + label + `" href="` + p.Root() + `docs/requests#stability">` + label + "</a>") //nolint:gosec // escaped
}

// modelLink returns the URL of a model, on this page if it has the model.
func (p *page) modelLink(name string) string {
	here := p.template == "models" || p.template == "all" ||
		p.Tag != nil && slices.ContainsFunc(p.Tag.Models, func(m Model) bool { return m.Name == name })
	if here {
		return "#model-" + name
	}
	return p.Root() + "docs/reference/models#model-" + name
}

// errorLink returns the URL of an error on its page.
func (p *page) errorLink(status, code string) string {
	id := code
	for _, problem := range p.Site.Problems {
		if problem.Code == code && strconv.Itoa(problem.Status) == status {
			id = problem.id
		}
	}
	return p.Root() + "docs/errors#" + id
}

// Warning says that a deprecated operation ends, and what replaces it.
func (o *Operation) Warning() (string, error) {
	day, err := time.Parse(time.DateOnly, o.Sunset)
	return fmt.Sprintf("**This operation is deprecated and will be sunset on %s.** Use `GET %s` instead.", day.Format("2 January 2006"), o.Successor), err
}

// statusClass returns the class of a status, such as 4xx.
func statusClass(status any) string {
	if number, isNumber := status.(int); isNumber {
		status = strconv.Itoa(number)
	}
	return fmt.Sprint(status)[:1] + "xx"
}

// text returns the page as Markdown.
func (p *page) text() []byte { return p.execute(p.template + ".md") }

func (p *page) execute(name string) []byte {
	functions := texttemplate.FuncMap{
		"text":     func(source string) string { return specLinks(source, p.Root()) },
		"sentence": func(text string) string { return title(text) + "." },
		"modelLink": func(name string) string {
			return strings.Replace(p.modelLink(name), "models#", "models.md#", 1)
		},
		"toMarkdown": func(path string) string { return strings.TrimPrefix(path, "docs/") + ".md" },
	}
	read := texttemplate.Must(texttemplate.New("").Funcs(functions).ParseFS(templateFiles, "templates/*.md"))
	var text bytes.Buffer
	if err := read.ExecuteTemplate(&text, name, p); err != nil {
		panic(err)
	}
	return append(bytes.TrimSpace(text.Bytes()), '\n')
}

var specLink = regexp.MustCompile(`\]\((docs/[\w/-]+)`)

// specLinks makes the links of a description lead to Markdown, and joins its lines.
func specLinks(source, root string) string {
	source = specLink.ReplaceAllString(strings.TrimSpace(source), "]("+root+"$1.md")
	if strings.Contains(source, "\n\n") || strings.Contains(source, "\n*") || strings.Contains(source, "\n|") {
		return source
	}
	return strings.ReplaceAll(source, "\n", " ")
}
