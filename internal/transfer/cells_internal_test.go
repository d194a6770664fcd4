package transfer

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"

	"petstore/internal/casefold"
	"petstore/internal/tools/need"
)

// FuzzCells: a text survives a cell, which is never a formula and never empty. No formula begins within
// it, also if a spreadsheet separates cells by semicolons or tabs.
func FuzzCells(f *testing.F) {
	for _, text := range []string{"", "=1", "'", "''=", "'Tis", "＝1", "\r\n", "a", "a;=1", "a;'=1", "a;'", "a;\"\"+1", "\t=1", "\n;\r\n-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return
		}
		quoted := need.Value(json.Marshal(text))(t)
		cell := formatCell(quoted)
		var got string
		// encoding/csv reads CR LF as LF, and so CR CR LF as CR LF.
		if err := json.Unmarshal(categories.parseCell("description", strings.ReplaceAll(cell, "\r\r\n", "\r\n")), &got); err != nil || got != text {
			t.Errorf("%q becomes the cell %q and then %q, %v", text, cell, got, err)
		}
		if cell == "" || strings.IndexAny(cell, formulaStarts) == 0 {
			t.Errorf("%q has the cell %q", text, cell)
		}
		for _, part := range strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(";\t\r\n", r) }) {
			if strings.IndexAny(strings.TrimLeft(part, `"`), formulaStarts) == 0 && !strings.HasPrefix(cell, part) {
				t.Errorf("%q has the cell %q with the part %q", text, cell, part)
			}
		}
	})
}

// TestLongCell: the time for a cell grows with its length only.
func TestLongCell(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("'", 1<<20)
	cell := formatCell(json.RawMessage(`"` + text + `"`))
	if got := categories.parseCell("description", cell); cell != "'"+text || string(got) != `"`+text+`"` {
		t.Errorf("the cell has %d characters, and then the value %d", len(cell), len(got))
	}
}

// TestLimits compares the limits of a dry run with the spec.
func TestLimits(t *testing.T) {
	t.Parallel()
	document := need.Value(openapi3.NewLoader().LoadFromFile("../api/openapi.yaml"))(t)
	schema := func(name string) *openapi3.Schema { return document.Components.Schemas[name].Value }
	quantity := func(name string) int { return int(*schema(name).Properties["quantity"].Value.Max) }
	for what, pair := range map[string][2]int{
		"name": {casefold.MaxName, int(*schema("Name").MaxLength)}, "description": {maxDescription, int(*schema("CategoryDescription").MaxLength)},
		"quantity of an order": {maxOrderUnits, quantity("Order")},
		"stock":                {maxQuantity, quantity("InventoryUpdate")},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: the limit is %d, and %d in the spec", what, pair[0], pair[1])
		}
	}
}
