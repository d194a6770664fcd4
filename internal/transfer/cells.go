package transfer

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// formulaStarts are characters at which spreadsheets take a cell for a formula, also in their
// full-width forms (https://owasp.org/www-community/attacks/CSV_Injection).
const formulaStarts = "=+-@\t\r\n＝＋－＠"

// needsApostrophe reports whether a text needs an apostrophe before it as a cell. An empty text
// needs one, because an empty cell means that there is no value.
func needsApostrophe(text string) bool {
	text = strings.TrimLeft(text, "'")
	first, _ := utf8.DecodeRuneInString(text)
	return text == "" || strings.ContainsRune(formulaStarts, first)
}

// inner finds a formula within a text, and innerGuarded one after an apostrophe. If semicolons or tabs
// separate the cells for a spreadsheet, quotes after a comma protect nothing.
var (
	inner        = regexp.MustCompile(`([;\t\r\n])('*"*[=+\-@＝＋－＠])`)
	innerGuarded = regexp.MustCompile(`([;\t\r\n])'('*"*[=+\-@＝＋－＠])`)
)

// formatCell returns the cell of a JSON value. A number or a boolean is as in JSON.
func formatCell(value json.RawMessage) string {
	if len(value) == 0 || value[0] != '"' {
		return string(value)
	}
	unquoted, _ := jsontext.AppendUnquote(nil, value) // the server has sent it
	text := inner.ReplaceAllString(string(unquoted), "$1'$2")
	if needsApostrophe(text) {
		text = "'" + text
	}
	return strings.ReplaceAll(text, "\r\n", "\r\r\n") // encoding/csv reads CR LF as LF
}

// parseCell returns the JSON value of a cell that is not empty. A cell that is not a number or a
// boolean, in a column of them, becomes a string, which the server rejects. The case of true and
// false does not matter.
func (r *Resource) parseCell(column, cell string) jsontext.Value {
	if !r.isText(column) {
		value := jsontext.Value(strings.ToLower(cell)) // spreadsheets write TRUE and FALSE
		if strings.TrimSpace(cell) == cell && !strings.ContainsAny(cell[:1], `"{[`) && value.IsValid() {
			return value
		}
	} else {
		if rest, ok := strings.CutPrefix(cell, "'"); ok && needsApostrophe(rest) {
			cell = rest
		}
		cell = innerGuarded.ReplaceAllString(cell, "$1$2")
	}
	quoted, _ := jsontext.AppendQuote(nil, cell) // valid UTF-8
	return quoted
}
