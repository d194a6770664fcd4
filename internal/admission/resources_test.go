package admission_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"petstore/internal/admission"
	"petstore/internal/tools/need"
)

// TestResources compares the table of resources in decision 8 with the code.
func TestResources(t *testing.T) {
	t.Parallel()
	text := need.Value(os.ReadFile("../../docs/decisions/0008-limits.md"))(t)
	for _, r := range admission.Resources() {
		total, share := amount(r.Name, r.Total), amount(r.Name, r.OfOnePayer())
		if r.Total == 0 { // the server sets it
			total, share = "half of the connections for writes", "a quarter, at least 2"
		}
		wait := "none"
		if r.Wait > 0 {
			wait = strings.Replace(r.Wait.String(), "s", " s", 1)
		}
		if r.Wait == admission.Forever {
			wait = "no limit"
		}
		if line := fmt.Sprintf("| %s | %s | %s | %s |\n", r.Name, total, share, wait); !strings.Contains(string(text), line) {
			t.Errorf("decision 8 does not have the line %s", line)
		}
	}
	if lines := strings.Count(string(text), "\n| "); lines != len(admission.Resources())+1 {
		t.Errorf("the table has %d lines, want %d and a heading", lines, len(admission.Resources()))
	}
}

// amount formats an amount of a resource.
func amount(name string, n int64) string {
	const mebibyte, thousand = 1 << 20, 1000
	switch {
	case strings.HasPrefix(name, "bytes"):
		return fmt.Sprintf("%d MiB", n/mebibyte)
	case n >= thousand:
		return fmt.Sprintf("%d,%03d", n/thousand, n%thousand)
	default:
		return fmt.Sprint(n)
	}
}
