// Package report judges a client by what it has sent to a sandbox: the record of its requests,
// the feed and the deliveries to its webhooks.
//
// Each rule is a pure function over a [Record]. A rule whose situation the record does not have
// says so, and never that the client has passed. Several clients may share a sandbox, and tests
// make mistakes on purpose. So a rule counts only what it is certain of, and a mistake that a
// test may have wanted is a warning.
package report

import (
	"fmt"
	"slices"
	"strings"
)

// Status is the verdict of a rule.
type Status string

// The verdicts, from the worst.
const (
	Failed  Status = "failed"
	Warning Status = "warning"
	Passed  Status = "passed"
	NotSeen Status = "not_seen"
)

// maxEvidence is the maximum number of ids in a result.
const maxEvidence = 10

// Result is the verdict of a rule.
type Result struct {
	Rule     string   `json:"rule"`
	Subject  string   `json:"subject"`
	Title    string   `json:"title"`
	Status   Status   `json:"status"`
	Summary  string   `json:"summary"`
	Evidence []string `json:"evidence"` // ids of requests or deliveries
	Guide    string   `json:"guide"`
}

// Report has the results of all rules.
type Report struct {
	Status     Status   `json:"status"` // the worst one
	Counts     Counts   `json:"counts"`
	Incomplete bool     `json:"incomplete"` // whether the record lacks requests
	Requests   int      `json:"requests"`
	Results    []Result `json:"results"`
}

// Counts has the number of rules with each verdict.
type Counts struct {
	Failed   int `json:"failed"`
	Warnings int `json:"warnings"`
	Passed   int `json:"passed"`
	NotSeen  int `json:"notSeen"`
}

// Of returns the count of a verdict.
func (c *Counts) Of(status Status) *int {
	switch status {
	case Failed:
		return &c.Failed
	case Warning:
		return &c.Warnings
	case Passed:
		return &c.Passed
	default:
		return &c.NotSeen
	}
}

// Rule is a rule for clients.
type Rule struct {
	ID, Subject string
	// Title says what a good client does.
	Title string
	// Guide is the page and the heading that explain the rule.
	Guide string
	// situation is the situation that the rule is about, and mistake what a bad client does in it.
	situation, mistake string
	judge              func(*Record, *finding)
}

// Rules lists all rules.
var Rules = slices.Concat(retryRules, limitRules, pageRules, conditionRules, correctnessRules, secretRules, webhookRules, streamRules)

// Judge applies all rules to a record. The guides are below a path or URL.
func Judge(r *Record, guides string) Report {
	r.prepare()
	order := make(map[string]int, len(r.all)+len(r.Deliveries))
	for _, e := range r.all {
		order[e.ID] = len(order)
	}
	for _, d := range r.Deliveries {
		order[d.ID] = len(order)
	}
	report := Report{Status: NotSeen, Incomplete: r.Incomplete, Requests: len(r.all), Results: make([]Result, 0, len(Rules))}
	for _, rule := range Rules {
		var f finding
		rule.judge(r, &f)
		for _, ids := range [][]string{f.grave, f.mild} {
			slices.SortStableFunc(ids, func(a, b string) int { return order[a] - order[b] })
		}
		result := f.result(rule)
		result.Guide = guides + rule.Guide
		report.Results = append(report.Results, result)
		*report.Counts.Of(result.Status)++
	}
	for _, status := range []Status{Failed, Warning, Passed} {
		if *report.Counts.Of(status) > 0 {
			report.Status = status
			break
		}
	}
	return report
}

// finding collects how often a client was in the situation of a rule, and what it did.
type finding struct {
	good        int
	mild, grave []string // the ids of mistakes: warnings and failures
}

func (f *finding) pass() { f.good++ }

func (f *finding) warn(id string) { f.mild = append(f.mild, id) }

func (f *finding) fail(id string) { f.grave = append(f.grave, id) }

// check passes or fails.
func (f *finding) check(ok bool, id string) {
	if ok {
		f.pass()
	} else {
		f.fail(id)
	}
}

// escalate makes warnings failures, if there are this many.
func (f *finding) escalate(number int) {
	if len(f.mild) >= number {
		f.grave, f.mild = append(f.grave, f.mild...), nil
	}
}

func (f *finding) status() Status {
	switch {
	case len(f.grave) > 0:
		return Failed
	case len(f.mild) > 0:
		return Warning
	case f.good > 0:
		return Passed
	default:
		return NotSeen
	}
}

func (f *finding) result(rule Rule) Result {
	bad := append(slices.Clone(f.grave), f.mild...)
	r := Result{
		Rule: rule.ID, Subject: rule.Subject, Title: rule.Title, Status: f.status(), Evidence: append([]string{}, bad[:min(len(bad), maxEvidence)]...),
	}
	switch r.Status {
	case NotSeen:
		r.Summary = "The record does not have this: " + rule.situation + "."
	case Passed:
		r.Summary = fmt.Sprintf("Seen %s without a mistake: %s.", times(f.good), rule.situation)
	default:
		often := times(len(bad))
		r.Summary = strings.ToUpper(often[:1]) + often[1:] + ", " + rule.mistake + "."
	}
	return r
}

func times(number int) string {
	if number == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", number)
}
