// Package casefold makes the key by which names are compared: without regard
// to case, and the same on every database whatever its locale.
//
// The key is stored in its own column, COLLATE "C", so that Postgres compares
// it byte by byte. It makes category names unique, answers prefix filters and
// gives the order of sort=name (section 1 of the contract).
package casefold

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// maxNameLength is the longest name in code points (section 1 of the contract).
const maxNameLength = 200

// Beyond is greater than the key of every name that the API accepts.
//
// The last code point, U+10FFFF, folds and normalizes to itself; a name can
// hold it at most 200 times, so one more is beyond them all.
var Beyond = strings.Repeat("\U0010FFFF", maxNameLength+1)

// Key returns the key of a name, or of a prefix of one: Unicode default case
// folding between two normalizations to NFC, because folding can leave a
// string that is not normalized (Unicode 3.13, D146).
func Key(name string) string {
	// A Caser keeps state while it works, so it is not shared.
	folded := cases.Fold().String(norm.NFC.String(name))
	return norm.NFC.String(strings.Map(foldCherokee, folded))
}

// foldCherokee maps a lower-case Cherokee letter to its upper-case letter, which
// is its case folding (CaseFolding.txt of Unicode). [cases.Fold] swaps the case of
// these letters instead, so that both letters of a pair would keep different keys.
// Other runes stay as they are.
func foldCherokee(r rune) rune {
	switch {
	case r >= '\uAB70' && r <= '\uABBF':
		return r - '\uAB70' + '\u13A0'
	case r >= '\u13F8' && r <= '\u13FD':
		return r - '\u13F8' + '\u13F0'
	default:
		return r
	}
}

// Range returns the bounds, from inclusive and until exclusive, between which
// lie exactly the keys that begin with the key of prefix. For an empty prefix
// that is every key.
func Range(prefix string) (from, until string) {
	from = Key(prefix)
	return from, successor(from)
}

// successor returns the least string greater than every string that begins
// with s: its last code point that is not the highest one raised by one.
func successor(s string) string {
	runes := []rune(s)
	for i := len(runes) - 1; i >= 0; i-- {
		switch r := runes[i]; {
		case r == '\U0010FFFF':
			continue
		case r == '\uD7FF': // the surrogates that follow are no code points of UTF-8
			runes[i] = '\uE000'
		default:
			runes[i]++
		}
		return string(runes[:i+1])
	}
	return Beyond
}
