package report

import (
	"fmt"
	"strings"
)

// marks are the verdicts for people.
var marks = map[Status]string{Failed: "FAILED", Warning: "WARNING", Passed: "passed", NotSeen: "not seen"}

// Markdown returns the report as a page with a table for each verdict.
func (r Report) Markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "# Report on a client: %s\n\nFailed: %d. Warnings: %d. Passed: %d. Not seen: %d. Requests: %d.\n",
		marks[r.Status], r.Counts.Failed, r.Counts.Warnings, r.Counts.Passed, r.Counts.NotSeen, r.Requests)
	if r.Incomplete {
		text.WriteString("\nThe report is incomplete: the record lacks requests.\n")
	}
	for _, status := range []Status{Failed, Warning, Passed, NotSeen} {
		if *r.Counts.Of(status) == 0 {
			continue
		}
		fmt.Fprintf(&text, "\n## %s\n\n| Rule | Seen | Requests |\n|---|---|---|\n", strings.ToUpper(marks[status][:1])+strings.ToLower(marks[status][1:]))
		for _, result := range r.Results {
			if result.Status == status {
				fmt.Fprintf(&text, "| [%s](%s) | %s | %s |\n", result.Title, result.Guide, result.Summary, strings.Join(result.Evidence, " "))
			}
		}
	}
	return text.String()
}
