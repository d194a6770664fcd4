// Package casefold computes the key by which names are compared: case-insensitive,
// and independent of the locale of the database.
//
// The key is stored in its own column with COLLATE "C", so that Postgres compares
// bytes. Category names are unique by key, and prefix filters and sort=name use it
// (guide Lists).
package casefold

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// MaxName is the maximum length of a name in code points. The schema Name in openapi.yaml and the
// CHECKs of pets and categories have it too.
const MaxName = 200

// Beyond is greater than the key of every valid name.
//
// The highest code point, U+10FFFF, folds and normalizes to itself, and a name can
// contain it at most 200 times.
var Beyond = strings.Repeat("\U0010FFFF", MaxName+1)

// Key returns the key of a name or of a prefix of a name: Unicode default case
// folding between two NFC normalizations, because folding can denormalize a string
// (Unicode 3.13, D146,
// https://www.unicode.org/versions/latest/core-spec/chapter-3/).
func Key(name string) string {
	// A Caser is not safe for concurrent use.
	folded := cases.Fold().String(norm.NFC.String(name))
	return norm.NFC.String(strings.Map(foldCherokee, folded))
}

// foldCherokee maps a lower-case Cherokee letter to its upper-case letter, which is
// its case folding (https://www.unicode.org/Public/UCD/latest/ucd/CaseFolding.txt).
// [cases.Fold] swaps the case of these letters instead, so that the letters of a
// pair would get different keys. Other runes are unchanged.
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

// Range returns the bounds, from inclusive and until exclusive, of the keys that
// begin with the key of prefix. An empty prefix matches every key.
func Range(prefix string) (from, until string) {
	from = Key(prefix)
	return from, successor(from)
}

// successor returns the smallest string greater than every string that begins with
// s: s up to its last code point below U+10FFFF, which is incremented.
func successor(s string) string {
	runes := []rune(s)
	for i := len(runes) - 1; i >= 0; i-- {
		switch r := runes[i]; {
		case r == '\U0010FFFF':
			continue
		case r == '\uD7FF': // the surrogates that follow are not valid in UTF-8
			runes[i] = '\uE000'
		default:
			runes[i]++
		}
		return string(runes[:i+1])
	}
	return Beyond
}
