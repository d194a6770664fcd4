package namekey_test

import (
	"strings"
	"testing"

	"petstore/internal/namekey"
)

func TestOf(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, a, b string }{
		{"case", "Rex", "rEX"},
		{"sharp s", "Groß", "GROSS"},
		{"composed and decomposed", "Zo\u00eb", "Zoe\u0308"},
		{"final sigma", "ΟΔΟΣ", "οδος"},
		{"dotted capital I", "\u0130", "i\u0307"},
		{"fold then compose", "\u0390", "\u03b9\u0308\u0301"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if a, b := namekey.Of(tt.a), namekey.Of(tt.b); a != b {
				t.Errorf("Of(%q) = %q, Of(%q) = %q; want the same", tt.a, a, tt.b, b)
			}
		})
	}
	if namekey.Of("Rex") == namekey.Of("Rey") {
		t.Error("two different names have one key")
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
		from, until := namekey.Range(tt.prefix)
		key := namekey.Of(tt.key)
		if got := from <= key && key < until; got != tt.want {
			t.Errorf("Range(%q) = %q, %q; holds %q: %v, want %v", tt.prefix, from, until, key, got, tt.want)
		}
	}
}
