package report_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"petstore/internal/faults"
	"petstore/internal/report"
	"petstore/internal/tools/need"
)

// TestGuide: the guide has each rule with its link, and each exercise.
func TestGuide(t *testing.T) {
	t.Parallel()
	page := need.Value(os.ReadFile("../docs/pages/report.md"))(t)
	var described, rules, explained, exercises []string
	for _, row := range regexp.MustCompile("(?m)^\\| \\[`(\\w+)`\\]\\((\\w+).md#(\\w+)\\) \\| [^|]+\\. \\| `(?:failed|warning)`.* \\|$").FindAllStringSubmatch(string(page), -1) {
		described = append(described, fmt.Sprintf("%s %s#%s", row[1], row[2], row[3]))
	}
	for _, rule := range report.Rules {
		rules = append(rules, rule.ID+" "+rule.Guide)
	}
	need.Same(t, rules, described, "rules (want: code, got: guide, whole rows)")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (.*) \\|$").FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, row[1]+" "+row[2])
	}
	for _, one := range faults.Exercises {
		exercises = append(exercises, one.Name+" "+one.Text)
	}
	need.Same(t, exercises, explained[:min(len(explained), len(exercises))], "exercises (want: code, got: guide)")
	if count := fmt.Sprintf("each of %d rules", len(report.Rules)); !strings.Contains(strings.ReplaceAll(string(page), "\n", " "), count) {
		t.Errorf("the guide does not say %q", count)
	}
}
