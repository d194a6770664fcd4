package main

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestRatiosOfCPU checks that each round has its own ratio of the CPU time of a request. So
// drift of the machine between rounds does not look like a difference between the builds. A
// workload fails only if every round is above the limit.
func TestRatiosOfCPU(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		base, present           []int // microseconds of a request
		median, least, greatest float64
		verdict                 string
	}{
		{[]int{100, 200, 50}, []int{100, 200, 50}, 1, 1, 1, "ok"},
		{[]int{100, 200, 50}, []int{110, 220, 55}, 1.1, 1.1, 1.1, "MORE"},
		{[]int{100, 200, 50}, []int{110, 220, 45}, 1.1, 0.9, 1.1, "more?"},
		{[]int{100, 200, 50}, []int{90, 220, 45}, 0.9, 0.9, 1.1, "ok?"},
		{[]int{100, 100}, []int{105, 103}, 1.04, 1.03, 1.05, "ok"},
	} {
		l := &result{workload: workload{name: "GET /pets"}}
		for i := range test.base {
			for side, took := range []int{test.base[i], test.present[i]} {
				// PostgreSQL has three quarters, and the rate is the same.
				m := measurement{perSecond: 1, cpu: [2]time.Duration{time.Duration(took) * time.Microsecond, time.Duration(3*took) * time.Microsecond}}
				l.measured[side] = append(l.measured[side], m)
			}
		}
		median, least, greatest := l.measured.ratios(cpuMicroseconds)
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
		if got := cpuVerdict(l.measured, 1.05); !near(median, test.median) || !near(least, test.least) || !near(greatest, test.greatest) || got != test.verdict {
			t.Errorf("base %v, present %v: %.2f, %.2f to %.2f, %s; want %.2f, %.2f to %.2f, %s", test.base, test.present,
				median, least, greatest, got, test.median, test.least, test.greatest, test.verdict)
		}
		var out strings.Builder
		err := printCPU(&out, []*result{l}, 1.05)
		if fails := test.verdict == "MORE"; (err != nil) != fails || fails && !strings.HasSuffix(err.Error(), ": GET /pets") {
			t.Errorf("%s: the error is %v", test.verdict, err)
		}
	}
}

func TestNextPage(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"": "",
		`<http://127.0.0.1:1/pets?after=x&limit=50>; rel="next"`: "/pets?after=x&limit=50",
		`</pets?after=x>; rel="next"`:                            "/pets?after=x",
		`</docs>; rel="deprecation", </pets?a=b>; rel="next"`:    "/pets?a=b",
		`</pets>; rel="first"`:                                   "",
	} {
		if got, err := nextPage(header); got != want || err != nil {
			t.Errorf("nextPage(%q) = %q, %v; want %q", header, got, err, want)
		}
	}
}

func TestCPUTimes(t *testing.T) {
	t.Parallel()
	before, err := parseCPUTimes("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 2 3\n")
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseCPUTimes("cpu  40 0 20 120 10 0 0 10 0 0\ncpu0 1 2 3\n")
	if err != nil {
		t.Fatal(err)
	}
	if busy, stolen := after.since(before); busy != 0.5 || stolen != 0.1 {
		t.Errorf("busy %.2f, stolen %.2f; want 0.5 and 0.1", busy, stolen)
	}
	if busy, stolen := after.since(after); busy != 0 || stolen != 0 {
		t.Errorf("in no time: busy %.2f, stolen %.2f; want none", busy, stolen)
	}
	if _, err := parseCPUTimes("intr 1 2 3"); err == nil {
		t.Error("no error for a file without the times")
	}
}

func TestDisturbanceWarnings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		others, stolen []float64
		want           []string // the start of each warning
	}{
		{others: []float64{0.03, 0.01}, stolen: []float64{0.01}},
		{others: []float64{0.03, 0.5}, stolen: []float64{0.01}, want: []string{"Other programs used up to 50 %"}},
		{others: []float64{0.9, 0.1}, stolen: []float64{0, 0.2, 0.1}, want: []string{"The host ran other virtual machines in 20 %", "Other programs used up to 90 %"}},
	} {
		d := &disturbance{others: test.others, stolen: test.stolen}
		got := d.warnings()
		for i, want := range test.want {
			if len(got) != len(test.want) || !strings.HasPrefix(got[i], want) {
				t.Errorf("busy %v, stolen %v: %q, want %q", test.others, test.stolen, got, test.want)
				break
			}
		}
		if len(test.want) == 0 && len(got) > 0 {
			t.Errorf("busy %v, stolen %v: %q, want no warning", test.others, test.stolen, got)
		}
	}
	var none *disturbance // without /proc/stat
	if ran := false; none.during(t.Context(), func() error { ran = true; return nil }) != nil || !ran || none.warnings() != nil {
		t.Error("a round without /proc/stat does not run, or has warnings")
	}
}
