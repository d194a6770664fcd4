package transfer

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"petstore/internal/api"
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
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		cell := formatCell(quoted)
		var got string
		// encoding/csv reads CR LF as LF, and so CR CR LF as CR LF.
		if err := json.Unmarshal(categories.parseCell("description", strings.ReplaceAll(cell, "\r\r\n", "\r\n")), &got); err != nil || got != text {
			t.Errorf("%q becomes the cell %q and then %q, %v", text, cell, got, err)
		}
		if cell == "" || strings.ContainsRune(formulaStarts, firstRune(cell)) {
			t.Errorf("%q has the cell %q", text, cell)
		}
		for _, part := range strings.FieldsFunc(cell, func(r rune) bool { return strings.ContainsRune(";\t\r\n", r) }) {
			if strings.ContainsRune(formulaStarts, firstRune(strings.TrimLeft(part, `"`))) && !strings.HasPrefix(cell, part) {
				t.Errorf("%q has the cell %q with the part %q", text, cell, part)
			}
		}
	})
}

// TestLimits compares the limits of a dry run with the spec.
func TestLimits(t *testing.T) {
	t.Parallel()
	_, text, err := api.Spec("")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		MaxLength, Maximum int
		Properties         map[string]struct{ Maximum int }
	}
	var spec struct {
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	all := spec.Components.Schemas
	for what, pair := range map[string][2]int{
		"name": {maxName, all["Name"].MaxLength}, "description": {maxDescription, all["CategoryDescription"].MaxLength},
		"quantity of an order": {maxOrderUnits, all["Order"].Properties["quantity"].Maximum},
		"stock":                {maxQuantity, all["InventoryUpdate"].Properties["quantity"].Maximum},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: the limit is %d, and %d in the spec", what, pair[0], pair[1])
		}
	}
}
