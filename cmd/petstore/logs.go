package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"petstore/internal/exchange"
	"petstore/internal/follow"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	sandbox           string
	filter            url.Values
	number            int
	follow, har, json bool
}

func (p *program) logsCommand() *cobra.Command {
	o := logsOptions{sandbox: currentSandbox, number: 50, filter: url.Values{}}
	var status, operation string
	command := &cobra.Command{
		Use:   "logs",
		Short: "Print the requests that a sandbox has received, or follow them",
		Long: `Logs prints the newest requests to a sandbox, the latest last: the time, status, method,
duration, path and operation, and the error code or the injected fault. "-" instead of a
status means that the client got no response. The API key needs the scope admin, and
belongs to the sandbox or to its account, which then needs --sandbox.

With --follow, logs then prints each request when it ends. It connects again when it
loses the connection, and misses no request. With --har, it prints an HTTP Archive with
all headers and bodies, which browsers open. The record has no secrets.`,
		Example: "  petstore logs --follow --status 4xx\n  petstore logs --sandbox sbx_1002 --operation placeOrder --json\n  petstore logs --har > petstore.har",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.har && (o.follow || o.json) {
				return wrongUsage(cmd, "--har prints one document, so it has no --follow and no --json")
			}
			if o.har && !cmd.Flags().Changed("limit") {
				o.number = exchange.MaxExchanges
			}
			for name, value := range map[string]string{"status": status, "operation": operation} {
				if value != "" {
					o.filter.Set(name, value)
				}
			}
			to, err := p.target(cmd)
			if err != nil {
				return err
			}
			return refusedParameter(cmd, p.logs(cmd.Context(), p.newClient(to), o), "`status`", "--status", "`operation`", "--operation")
		},
	}
	flags := command.Flags()
	addURLFlag(command)
	addSandboxFlag(command, &o.sandbox)
	flags.StringVar(&status, "status", "", "only requests with this status, such as 409, or class, such as 4xx")
	flags.StringVar(&operation, "operation", "", "only requests of this operation, such as placeOrder")
	addNumberFlag(command, &o.number, "limit", numberRange{1, exchange.MaxExchanges}, "the number of requests that logs prints first; with --har, the default is all")
	flags.BoolVarP(&o.follow, "follow", "f", false, "then print each request when it ends")
	flags.BoolVar(&o.har, "har", false, "print an HTTP Archive (HAR 1.2)")
	flags.BoolVar(&o.json, "json", false, "print each request as one line of JSON")
	completeFlag(command, "status", "2xx", "4xx", "5xx")
	return command
}

// logs prints the newest requests of a record, and follows it.
func (p *program) logs(ctx context.Context, sender *client, o logsOptions) error {
	path := "/sandboxes/" + o.sandbox + "/requests"
	if o.har {
		archive, err := sender.readArchive(ctx, path, o)
		if err != nil {
			return err
		}
		return p.printJSON(archive)
	}
	requests, err := sender.readRecord(ctx, path, o, jsonType, func(text []byte) (page []json.RawMessage, err error) {
		err = json.Unmarshal(text, &page)
		return page, err
	})
	if err != nil {
		return err
	}
	feed := p.feed(sender)
	feed.Path, feed.Filter = path, o.filter
	for _, text := range requests {
		if feed.After, err = p.printRequest(text, o.json); err != nil {
			return err
		}
	}
	if !o.follow {
		return nil
	}
	return sender.follow(ctx, feed, "requests", func(_ context.Context, e follow.Event) error {
		_, err := p.printRequest(e.JSON, o.json)
		return err
	})
}

// readRecord reads the newest requests of a record, page by page, and returns the oldest first.
func (c *client) readRecord(ctx context.Context, path string, o logsOptions, accept string, parse func([]byte) ([]json.RawMessage, error)) (all []json.RawMessage, err error) {
	const perPage = 200
	query := url.Values{"limit": {strconv.Itoa(min(o.number, perPage))}}
	maps.Copy(query, o.filter)
	one := call{method: http.MethodGet, path: path + "?" + query.Encode(), header: http.Header{"Accept": {accept}}}
	for one.path != "" && len(all) < o.number {
		got, err := c.succeed(ctx, one)
		if failed, ok := errors.AsType[*follow.StatusError](err); ok && failed.Code == "not_a_sandbox" {
			return nil, errors.New("the API key is not one of a sandbox; name a sandbox of its account with --sandbox, such as sbx_1002")
		}
		if err != nil {
			return nil, err
		}
		page, err := parse(got.text)
		if err == nil && page == nil {
			err = errors.New("it has no list of requests")
		}
		if err != nil {
			return nil, c.notPetstore(err.Error())
		}
		all = append(all, page...)
		one.path = nextPage(got.Header)
	}
	all = all[:min(len(all), o.number)]
	slices.Reverse(all)
	return all, nil
}

// httpArchive is an HTTP Archive.
type httpArchive struct {
	Log struct {
		Version string            `json:"version"`
		Creator json.RawMessage   `json:"creator"`
		Entries []json.RawMessage `json:"entries"`
	} `json:"log"`
}

// readArchive reads a record as one HTTP Archive.
func (c *client) readArchive(ctx context.Context, path string, o logsOptions) (whole httpArchive, err error) {
	entries, err := c.readRecord(ctx, path, o, "application/har+json", func(text []byte) ([]json.RawMessage, error) {
		whole = httpArchive{}
		err := json.Unmarshal(text, &whole)
		return whole.Log.Entries, err
	})
	whole.Log.Entries = append([]json.RawMessage{}, entries...)
	return whole, err
}

// loggedRequest has the fields of a RecordedRequest that a line shows.
type loggedRequest struct {
	ID                             string
	StartedAt                      time.Time
	DurationMs                     float64
	Method, Path, Query, Operation string
	Status                         int
	Code                           string
	Fault                          *struct {
		Rule   int64
		Effect string
	}
}

// printRequest prints a recorded request as one line, and returns its id.
func (p *program) printRequest(text []byte, asJSON bool) (id string, err error) {
	var r loggedRequest
	if err := json.Unmarshal(text, &r); err != nil || r.ID == "" {
		return "", errors.New("the response is not a record of Petstore")
	}
	if asJSON {
		_, err = fmt.Fprintf(p.stdout, "%s\n", text)
		return r.ID, err
	}
	target, status := r.Path, "  -"
	if r.Query != "" {
		target += "?" + r.Query
	}
	if r.Status > 0 {
		status = strconv.Itoa(r.Status)
	}
	line := fmt.Sprintf("%s  %s  %-6s %7.1f ms  %s  %s", r.StartedAt.UTC().Format("2006-01-02T15:04:05.000Z"), status, printable(r.Method), r.DurationMs, printable(target), r.Operation)
	if r.Code != "" {
		line += "  " + r.Code
	}
	if r.Fault != nil {
		line += fmt.Sprintf("  fault %d: %s", r.Fault.Rule, r.Fault.Effect)
	}
	_, err = fmt.Fprintln(p.stdout, line)
	return r.ID, err
}

// printable replaces characters that could control a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}
