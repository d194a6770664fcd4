package main

import (
	"math"
	"testing"
	"time"
)

// TestParseCPU: the name of a process may contain spaces and parentheses.
func TestParseCPU(t *testing.T) {
	t.Parallel()
	const stat = "42 (postgres: (a) b) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99 1 2"
	for ended, want := range map[bool]time.Duration{false: 1200 * time.Millisecond, true: 1270 * time.Millisecond} {
		if got, err := parseCPU(stat, ended); err != nil || got != want {
			t.Errorf("with ended children %t: %s, %v; want %s", ended, got, err, want)
		}
	}
	if _, err := parseCPU("42 (x) S 1", false); err == nil {
		t.Error("a short line has a CPU time")
	}
}

func TestOfLinear(t *testing.T) {
	t.Parallel()
	read := func(primary, replica time.Duration) costs {
		return costs{cpu: [3]time.Duration{0, primary, replica}}
	}
	for _, test := range []struct {
		what     string
		costs    costs
		replicas int
		want     float64
	}{
		{"equal costs", read(0, 100), 4, 1},
		{"twice the costs on a replica", read(0, 200), 1, 0.75},
		{"a tenth on the primary too", read(10, 100), 2, (1 - 0.2 + 2) / 3},
	} {
		if got := ofLinear(read(100, 0), test.costs, test.replicas); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: %g, want %g", test.what, got, test.want)
		}
	}
}
