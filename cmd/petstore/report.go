package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/report"
	"petstore/internal/sleep"
)

// recordDelay is longer than the time after which every server has a request in the record.
const recordDelay = 300 * time.Millisecond

// reportOptions are the flags of report.
type reportOptions struct {
	failOn, sandbox string
	json, markdown  bool
}

func (p *program) reportCommand() *cobra.Command {
	options := reportOptions{sandbox: currentSandbox}
	command := &cobra.Command{
		Use:   "report",
		Short: "Judge a client by what it has sent to a sandbox",
		Long: `Report prints what a client has done well and badly in a sandbox: retries, limits, pages,
conditions, webhooks and more. It judges the requests in the record of the sandbox.

Each rule has passed, failed or been a warning, or the requests did not show it. The
output names requests that show a mistake, and a guide.

With --fail-on, the exit code is 1 if a rule has failed. With --fail-on warning, it is
also 1 after a warning.`,
		Example: "  petstore report\n  petstore report --fail-on failed --markdown > report.md\n  petstore report --sandbox sbx_1002 --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.json && options.markdown {
				return wrongUsage(cmd, "--json and --markdown exclude each other")
			}
			to, err := p.target(cmd)
			if err != nil {
				return err
			}
			return p.printReport(cmd.Context(), p.newClient(to), options)
		},
	}
	flags := command.Flags()
	addURLFlag(command)
	addSandboxFlag(command, &options.sandbox)
	addChoiceFlag(command, &options.failOn, "fail-on", "exit with 1 if a rule is at least this bad: warning or failed", string(report.Warning), string(report.Failed))
	flags.BoolVar(&options.json, "json", false, "print the report as JSON")
	flags.BoolVar(&options.markdown, "markdown", false, "print the report as Markdown")
	return command
}

// printReport gets and prints a report, when the record has the last requests of the client. The error says that the client is too bad.
func (p *program) printReport(ctx context.Context, sender *client, o reportOptions) error {
	if !sleep.For(ctx, recordDelay) {
		return ctx.Err()
	}
	var r report.Report
	err := sender.do(ctx, http.MethodGet, "/sandboxes/"+o.sandbox+"/report", nil, &r)
	if err == nil && len(r.Results) == 0 {
		err = sender.notPetstore("it has no results")
	}
	if err != nil {
		return err
	}
	for i, result := range r.Results { // without a base URL, the links are paths
		if strings.HasPrefix(result.Guide, "/") {
			r.Results[i].Guide = sender.url + result.Guide
		}
	}
	switch {
	case o.json:
		err = p.printJSON(r)
	case o.markdown:
		fmt.Fprint(p.stdout, r.Markdown())
	default:
		fmt.Fprintf(p.stdout, "%s", reportText(r))
	}
	if err != nil {
		return err
	}
	failed, warnings := r.Counts.Failed, r.Counts.Warnings
	if o.failOn != "" && failed > 0 || o.failOn == string(report.Warning) && warnings > 0 {
		return fmt.Errorf("the report has too many mistakes: failed: %d, warnings: %d", failed, warnings)
	}
	return nil
}

// reportText returns a report for a terminal, with details of failures and warnings.
func reportText(r report.Report) []byte {
	var text bytes.Buffer
	for _, status := range []report.Status{report.Failed, report.Warning} {
		for _, result := range r.Results {
			if result.Status == status {
				fmt.Fprintf(&text, "%s %s: %s\n  %s\n  %s\n  %s\n\n", strings.ToUpper(string(status)), result.Rule, result.Title, result.Summary,
					strings.Join(result.Evidence, " "), result.Guide)
			}
		}
	}
	for _, status := range []report.Status{report.Passed, report.NotSeen} {
		var rules []string
		for _, result := range r.Results {
			if result.Status == status {
				rules = append(rules, result.Rule)
			}
		}
		if len(rules) > 0 {
			fmt.Fprintf(&text, "%s: %s\n\n", strings.ReplaceAll(string(status), "_", " "), strings.Join(rules, ", "))
		}
	}
	fmt.Fprintf(&text, "failed: %d, warnings: %d, passed: %d, not seen: %d, requests: %d\n",
		r.Counts.Failed, r.Counts.Warnings, r.Counts.Passed, r.Counts.NotSeen, r.Requests)
	if r.Incomplete {
		text.WriteString("The report is incomplete: the record lacks requests.\n")
	}
	return text.Bytes()
}
