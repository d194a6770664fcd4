package main

import (
	"strings"
	"testing"
	"time"

	"petstore/internal/report"
	"petstore/internal/tools/need"
)

// TestReport prints the report on a sandbox in all forms. The exit code depends on --fail-on.
func TestReport(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, "shop")
	own, parent, base := s.environ, s.parent(), s.url()
	began := time.Now()
	must(t, own, "report", "--fail-on", "warning")
	if took := time.Since(began); took < recordDelay {
		t.Errorf("report waits %s for the record, want %s", took, recordDelay)
	}
	must(t, own, "api", "/pets?limit=1")
	must(t, own, "api", "/pets/1") // is deprecated
	var r report.Report
	need.Within(t, patience, "the report has both requests", func() bool {
		r = fromJSON[report.Report](t, must(t, own, "report", "--json"))
		return r.Requests >= 2
	})
	if r.Status != report.Warning || len(r.Results) != len(report.Rules) || !strings.HasPrefix(r.Results[0].Guide, base+"/docs/") {
		t.Errorf("the report is %+v", r)
	}
	const line = "WARNING not_deprecated: Use no deprecated operation\n  Once, the client used a deprecated operation.\n  req_"
	for _, environ := range [][]string{own, parent} {
		if text := must(t, environ, "report", "--sandbox", s.id, "--fail-on", "failed"); !strings.HasPrefix(text, line) || !strings.Contains(text, "passed: ") {
			t.Errorf("report prints\n%s\nwant %s… and passed:", text, line)
		}
	}
	if text := must(t, own, "report", "--markdown"); !strings.HasPrefix(text, "# Report on a client: WARNING\n") || !strings.Contains(text, "]("+base+"/docs/requests#deprecation) |") {
		t.Errorf("report --markdown prints\n%s", text)
	}
	wantSentence(t, own, []string{"report", "--fail-on", "warning"}, false, "the report has too many mistakes: failed: 0, warnings: 1")
	wantRefusal(t, parent, "not_a_sandbox", "report")
	for _, args := range [][]string{{"--fail-on", "passed"}, {"--json", "--markdown"}, {"--sandbox", "acc_1"}, {"more"}} {
		wantRefusal(t, own, "", append([]string{"report"}, args...)...)
	}
}
