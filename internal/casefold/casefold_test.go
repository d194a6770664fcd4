package casefold_test

import (
	"strings"
	"testing"
	"unicode"

	"petstore/internal/casefold"
)

func TestKey(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, a, b string }{
		{"case", "Rex", "rEX"},
		{"sharp s", "Groß", "GROSS"},
		{"composed and decomposed", "Zo\u00eb", "Zoe\u0308"},
		{"final sigma", "ΟΔΟΣ", "οδος"},
		{"dotted capital I", "\u0130", "i\u0307"},
		{"fold then compose", "\u0390", "\u03b9\u0308\u0301"},
		{"Cherokee", "\u13a0\u13f5", "\uab70\u13fd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if a, b := casefold.Key(tt.a), casefold.Key(tt.b); a != b {
				t.Errorf("Key(%q) = %q, Key(%q) = %q; want the same", tt.a, a, tt.b, b)
			}
		})
	}
	if casefold.Key("Rex") == casefold.Key("Rey") {
		t.Error("two different names have the same key")
	}
}

// TestKeyOfEveryLetter: letters that differ only by case (SimpleFold of the
// standard library) have the same key, and a key is its own key.
func TestKeyOfEveryLetter(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		other := unicode.SimpleFold(r)
		if !unicode.IsLetter(r) && other == r {
			continue
		}
		key := casefold.Key(string(r))
		if casefold.Key(string(other)) != key {
			t.Errorf("%U and %U differ only by case, but have the keys %+q and %+q", r, other, key, casefold.Key(string(other)))
		}
		if again := casefold.Key(key); again != key {
			t.Errorf("the key of %U is %+q, whose key is %+q", r, key, again)
		}
	}
}

func TestRange(t *testing.T) {
	t.Parallel()
	last := "\U0010FFFF"
	tests := []struct {
		prefix, key string
		want        bool
	}{
		{"re", "Rex", true},
		{"RE", "re", true},
		{"re", "rf", false},
		{"re", "r", false},
		{"re", "re" + last + last, true},
		{"a\uD7FF", "a\uD7FFz", true},
		{"a\uD7FF", "a\uE000", false},
		{"a" + last, "a" + last + "b", true},
		{"a" + last, "b", false},
		{last, last + "x", true},
		{"", strings.Repeat(last, 200), true},
		{"%", "%x", true},
		{"%", "x", false},
		{"_", "ab", false},
	}
	for _, tt := range tests {
		from, until := casefold.Range(tt.prefix)
		key := casefold.Key(tt.key)
		if got := from <= key && key < until; got != tt.want {
			t.Errorf("Range(%q) = %q, %q; holds %q: %v, want %v", tt.prefix, from, until, key, got, tt.want)
		}
	}
}
