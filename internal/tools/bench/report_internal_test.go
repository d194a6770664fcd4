package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testReport returns a report of three rounds.
func testReport() *report {
	rounds := func(p99 time.Duration, rates ...float64) (all []measurement) {
		for _, r := range rates {
			all = append(all, measurement{perSecond: r, p50: p99 / 4, p99: p99})
		}
		return all
	}
	add := func(w workload, ours, other []measurement) *result {
		return &result{workload: w, measured: pair{other, ours}}
	}
	plain := side{name: "plain"}
	return &report{
		machine: "2 CPUs", setting: "2026-11-22",
		results: []*result{
			add(workload{name: randomOrders, other: plain, atLeast: 2.5, p99AtMost: 0.6, chart: true},
				rounds(12*time.Millisecond, 9000, 10_000, 11_000), rounds(24*time.Millisecond, 3000, 4000, 5500)),
			add(workload{name: readPets, other: plain, atLeast: 1.4, chart: true},
				rounds(3*time.Millisecond, 20_000, 20_000, 20_000), rounds(3*time.Millisecond, 16_000, 16_000, 16_000)),
			add(workload{name: flashSale, other: plain, chart: true},
				rounds(4*time.Millisecond, 12_345.6, 12_345.6, 12_345.6), rounds(time.Second, 900, 900, 900)),
			add(workload{name: randomOrders, other: side{name: swaggerName}},
				rounds(time.Millisecond, 10, 10, 10), []measurement{{perSecond: 5, failed: 0.25}, {perSecond: 5, failed: 0.5}, {perSecond: 5, failed: 0.5}}),
			add(workload{name: "GET during orders", other: side{name: "idle"}, p99AtMost: 3, latencyOnly: true},
				rounds(8*time.Millisecond, 1, 1, 1), rounds(2*time.Millisecond, 1, 1, 1)),
		},
		others:   []line{hotCount{updates: 1_234_567, hot: 1_200_000}.line(), startLine([]time.Duration{3e6, 200e6, 160e6})},
		warnings: []string{"The machine is not quiet."},
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text := testReport().markdown()
	for _, want := range []string{
		"| POST /store/orders, random pets | 10,000/s, p50 3.0, p99 12.0 ms | plain | 4,000/s, p50 6.0, p99 24.0 ms | 2.50 | 2.00 to 3.00 | at least 2.50 | reached |\n",
		"| POST /store/orders, random pets: p99 | 12.0 ms | plain | 24.0 ms | 0.50 | 0.50 to 0.50 | at most 0.60 | reached |\n",
		"| GET /pets/{petId} | 20,000/s, p50 0.8, p99 3.0 ms | plain | 16,000/s, p50 0.8, p99 3.0 ms | 1.25 | 1.25 to 1.25 | at least 1.40 | MISSED |\n",
		"| POST /store/orders, one pet (flash sale) | 12,346/s, p50 1.0, p99 4.0 ms | plain | 900/s, p50 250.0, p99 1000.0 ms | 13.7 | 13.7 to 13.7 | | |\n",
		"| 5/s, 50 % errors | 2.00 |",
		"| GET during orders: p99 | 8.0 ms | idle | 2.0 ms | 4.00 | 4.00 to 4.00 | at most 3.00 | MISSED |\n",
		"| HOT updates of inventory | 0.972 | all updates | 1,234,567 | | | at least 0.95 | reached |\n",
		"| start to /readyz 200 | 160 ms | | | | 3 to 200 ms | under 150 ms | MISSED |\n",
		"\n**Warning:** The machine is not quiet.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the Markdown lacks %q", want)
		}
	}
	if strings.Contains(text, "| GET during orders | ") {
		t.Error("the table has a rate of a workload that measures only latency")
	}
	for row := range strings.Lines(text) {
		if cells := strings.Count(row, "|") - 1; strings.HasPrefix(row, "|") && cells != len(columns.cells()) {
			t.Errorf("%d cells instead of %d: %s", cells, len(columns.cells()), row)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{0: "0", 999.4: "999", 999.5: "1,000", 12_345: "12,345", 1_234_567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%v) = %q, want %q", n, got, want)
		}
	}
}

// svgElement is an element of the chart.
type svgElement struct {
	name, text string
	attributes map[string]string
}

func (e svgElement) number(t *testing.T, attribute string) int {
	t.Helper()
	n, err := strconv.Atoi(e.attributes[attribute])
	if err != nil {
		t.Errorf("%s of %v: %v", attribute, e, err)
	}
	return n
}

// readSVG returns the elements of the chart in order. It fails if it is not XML.
func readSVG(t *testing.T, chart []byte) (elements []*svgElement) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(string(chart)))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return elements
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := &svgElement{name: token.Name.Local, attributes: map[string]string{}}
			for _, a := range token.Attr {
				e.attributes[a.Name.Local] = a.Value
			}
			elements = append(elements, e)
		case xml.CharData:
			if len(elements) > 0 {
				elements[len(elements)-1].text += string(token)
			}
		}
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	r := testReport()
	r.results[1].name = "GET <a> & b"
	chart, err := r.chart()
	if err != nil {
		t.Fatal(err)
	}
	elements := readSVG(t, chart)
	var lengths []int
	height := 0
	texts := map[string]bool{}
	for _, e := range elements {
		class := e.attributes["class"]
		switch {
		case class == "page":
			height = e.number(t, "height")
		case e.name == "rect" && e.number(t, "width") > 12: // not in the legend
			lengths = append(lengths, e.number(t, "width"))
			if bottom := e.number(t, "y") + e.number(t, "height"); bottom > height {
				t.Errorf("a bar ends at %d, below the page of %d", bottom, height)
			}
		}
		if e.name == "title" || e.name == "desc" {
			if want := e.attributes["id"]; !strings.Contains(elements[0].attributes["aria-labelledby"], want) {
				t.Errorf("the chart is not labelled by its %s", want)
			}
		}
		texts[strings.TrimSpace(e.text)] = true
	}
	// The longest bar shows 20,000 requests per second.
	for i, perSecond := range []float64{10_000, 4000, 20_000, 16_000, 12_346, 900} {
		if want := int(barLength * perSecond / 20_000); i >= len(lengths) || lengths[i] != want {
			t.Errorf("the bars are %v long, want %d for %.0f per second", lengths, want, perSecond)
		}
	}
	for _, want := range []string{"10,000/s", "900/s", "2.50 times plain", "GET <a> & b:", chartTitle} {
		if !texts[want] {
			t.Errorf("the chart lacks the text %q", want)
		}
	}
}

// TestWriteReport writes a report into copies of the documents.
func TestWriteReport(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o700); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, name := range []string{"README.md", "docs/performance.md"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(read("../../../"+name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := testReport()
	for range 2 { // the second one replaces the first
		if err := r.write(root); err != nil {
			t.Fatal(err)
		}
	}
	page, readme := read(filepath.Join(root, "docs/performance.md")), read(filepath.Join(root, "README.md"))
	if strings.Count(page, r.markdown()) != 1 || !strings.Contains(page, reportEnds+"\n## ") {
		t.Error("docs/performance.md does not contain the result once, before its next heading")
	}
	for _, want := range []string{
		"| 20,000 reads of single pets per second, 1.25 times a plain Gin handler |", "| 12,346 orders of one pet per second (a flash sale), 13.7 times",
		"| `POST` of an order, 64 connections, same machine | 10 per second | 5 per second, 50 % errors |\n",
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md lacks %q", want)
		}
	}
	if _, err := r.replacePart("no comments"); err == nil {
		t.Error("no error without the comments around the replaced part")
	}
	if _, err := r.replaceFigures("no phrases"); err == nil {
		t.Error("no error without the phrases of the figures")
	}
}

// TestReadmeFigures checks that README.md repeats the figures of docs/performance.md.
func TestReadmeFigures(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(page), reportEnds)
	for _, f := range readmeFigures {
		found := f.pattern().FindStringSubmatch(string(readme))
		if found == nil {
			t.Errorf("README.md lacks %q", f.phrase)
			continue
		}
		if f.other == swaggerName && !strings.Contains(table, "| "+swaggerName+" | ") {
			continue // its figures are older
		}
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(f.workload+" | "+found[1]) + `/s, [^|]* \| ` + f.other + ` \|.*`).FindString(table)
		if figure := found[2]; !strings.Contains(row, "| "+figure+" |") && !strings.Contains(row, "| "+figure+"/s") {
			t.Errorf("docs/performance.md has no row of %q with %v", f.workload, found[1:])
		}
	}
}
