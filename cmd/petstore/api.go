package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"petstore/internal/follow"
	"petstore/internal/sleep"
)

// methods are the methods that api knows.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}

// apiCommandOptions are the flags of api.
type apiCommandOptions struct {
	input             string
	headers           []string
	include, paginate bool
	retries           int
}

func (p *program) apiCommand() *cobra.Command {
	options := apiCommandOptions{retries: defaultRetries}
	command := &cobra.Command{
		Use:   "api [METHOD] PATH [FIELD...]",
		Short: "Send a request to the API and print the response",
		Long: `Api sends a request with your API key and prints the body of the response. The
default method is GET.

A field is key=value. A value that is a number, true, false or null has that type in
JSON, and any other value is a string. For all other JSON, write key:=json. The fields
of GET and DELETE become query parameters, and of POST, PUT and PATCH a JSON object.

A POST has a new Idempotency-Key if the operation takes one. After 408, 429, a 5xx or a
lost connection, api sends the request again if that is safe. It waits as long as the
server says in Retry-After.

A redirect or a status from 400 is an error: the body goes to stdout, its code and
message to stderr, and the exit code is 1. On a terminal, JSON is indented.`,
		Example: "  petstore api '/pets?limit=2'\n" +
			"  petstore api POST /store/orders petId=1 quantity=2\n" +
			"  petstore api GET /events --paginate type=order.placed\n" +
			"  petstore api PATCH /pets/1 --input pet.json -H 'If-Match: \"3zXkQ9ZbTt0mJ4yqv1uWdA\"'",
		RunE: func(cmd *cobra.Command, args []string) error {
			one, err := p.readCall(cmd, args, options)
			if err != nil {
				return err
			}
			to, err := p.target(cmd)
			if err != nil {
				return err
			}
			sender := p.newClient(to)
			sender.retries, sender.observes = options.retries, false
			if options.paginate {
				return p.printPages(cmd.Context(), sender, one)
			}
			return p.printReply(cmd.Context(), sender, one, options.include)
		},
	}
	flags := command.Flags()
	addURLFlag(command)
	flags.StringVar(&options.input, "input", "", "a file with the body, or - for stdin")
	flags.StringArrayVarP(&options.headers, "header", "H", nil, "a header of the request, such as 'Prefer: wait=20'; may be repeated")
	flags.BoolVarP(&options.include, "include", "i", false, "print the status and the headers of the response before the body")
	flags.BoolVar(&options.paginate, "paginate", false, "follow the links to the next pages and print one JSON array")
	addNumberFlag(command, &options.retries, "retries", numberRange{0, mostRetries}, fmt.Sprintf("how often to send the request again, at most %d times", mostRetries))
	completeFlag(command, "input")
	return command
}

// readCall reads the request from the command line.
func (p *program) readCall(cmd *cobra.Command, args []string, o apiCommandOptions) (call, error) {
	one := call{method: http.MethodGet, header: http.Header{}}
	if len(args) > 0 && slices.Contains(methods, strings.ToUpper(args[0])) {
		one.method, args = strings.ToUpper(args[0]), args[1:]
	}
	if len(args) == 0 {
		return call{}, wrongUsage(cmd, "api takes a path, such as /pets")
	}
	one.path = args[0]
	if _, err := url.ParseRequestURI(one.path); err != nil || !strings.HasPrefix(one.path, "/") {
		return call{}, wrongUsage(cmd, "%q is neither a method (%s) nor a path of the API, such as /pets?limit=2", one.path, orList(methods))
	}
	one.path = strings.NewReplacer(" ", "%20", "#", "%23").Replace(one.path) // net/http leaves spaces in the query, and drops a fragment
	var fields []field
	for _, argument := range args[1:] {
		one, err := parseField("field", argument)
		if err != nil {
			return call{}, wrongUsage(cmd, "%v", err)
		}
		fields = append(fields, one)
	}
	for _, line := range o.headers {
		name, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return call{}, wrongUsage(cmd, "--header must be a name and a value, such as 'Prefer: wait=20', but is %q", line)
		}
		one.header.Add(name, value)
	}
	switch {
	case o.paginate && one.method != http.MethodGet:
		return call{}, wrongUsage(cmd, "--paginate is for GET, not for %s", one.method)
	case o.paginate && o.include:
		return call{}, wrongUsage(cmd, "--paginate prints one array of several responses, so it has no --include")
	case o.input != "" && !hasBody(one.method):
		return call{}, wrongUsage(cmd, "--input needs a method with a body: POST, PUT or PATCH")
	case o.input != "" && len(fields) > 0:
		return call{}, wrongUsage(cmd, "--input is the whole body, so there are no fields")
	}
	if err := one.addFields(fields); err != nil {
		return call{}, wrongUsage(cmd, "%v", err)
	}
	if o.input == "" {
		return one, nil
	}
	var err error
	one.body, err = sleep.Until(cmd.Context(), func() ([]byte, error) {
		if o.input == "-" {
			return io.ReadAll(p.stdin)
		}
		return os.ReadFile(o.input) // may be a pipe too
	})
	return one, err
}

// printReply sends a call and prints the response.
func (p *program) printReply(ctx context.Context, sender *client, one call, include bool) error {
	got, err := sender.send(ctx, one)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	if include {
		fmt.Fprintf(p.stdout, "%s %s\n", got.Proto, got.Status)
		for _, name := range slices.Sorted(maps.Keys(got.Header)) {
			for _, value := range got.Header[name] {
				fmt.Fprintf(p.stdout, "%s: %s\n", name, value)
			}
		}
		fmt.Fprintln(p.stdout)
	}
	if got.text == nil {
		_, err = io.Copy(p.stdout, got.Body)
		if ctx.Err() != nil { // Ctrl-C is how a stream ends
			return nil
		}
		if _, isStdout := errors.AsType[*fs.PathError](err); err != nil && !isStdout {
			err = errors.New(whyNoResponse(err, responseTimeout))
		}
	} else {
		_, err = p.stdout.Write(p.pretty(got))
	}
	return errors.Join(err, got.err())
}

// pretty returns the body of a response as the reader of stdout wants it.
func (p *program) pretty(got *reply) []byte {
	if !isTerminal(p.stdout) || len(got.text) == 0 {
		return got.text
	}
	return append(bytes.TrimRight(p.indent(got.text, ""), "\n"), '\n')
}

// controls matches the control characters that JSON may have as they are. A terminal may obey them.
var controls = regexp.MustCompile(`[\x{7F}-\x{9F}]`)

// indent indents JSON on a terminal, below a prefix, and escapes control characters. It returns other
// texts unchanged.
func (p *program) indent(text []byte, prefix string) []byte {
	var indented bytes.Buffer
	if !isTerminal(p.stdout) || json.Indent(&indented, text, prefix, "  ") != nil {
		return text
	}
	return controls.ReplaceAllFunc(indented.Bytes(), func(one []byte) []byte {
		character, _ := utf8.DecodeRune(one)
		return fmt.Appendf(nil, `\u%04x`, character)
	})
}

// printPages sends a call and follows its links to the next pages. It prints the elements of
// all pages as one JSON array, one in each line.
func (p *program) printPages(ctx context.Context, sender *client, one call) error {
	separator := "[\n"
	err := sender.eachElement(ctx, one, func(element json.RawMessage) error {
		_, err := fmt.Fprintf(p.stdout, "%s  %s", separator, p.indent(element, "  "))
		separator = ",\n"
		return err
	})
	if err != nil {
		return err
	}
	end := "\n]\n"
	if separator == "[\n" {
		end = "[]\n"
	}
	fmt.Fprint(p.stdout, end)
	return nil
}

// eachElement sends a call and follows its links to the next pages. It calls a function with each
// element of all pages, until that returns an error. The feed of events always has a next page, and a
// page before its end may be empty. So eachElement stops where the feed ended at the start.
func (c *client) eachElement(ctx context.Context, one call, do func(json.RawMessage) error) error {
	end := ""
	if path, _, _ := strings.Cut(one.path, "?"); path == "/events" {
		var err error
		if end, err = c.feedEnd(ctx, one.header["Authorization"]); err != nil { // of the user, maybe of another account
			return err
		}
	}
	for {
		got, err := c.succeed(ctx, one)
		if err != nil {
			return err
		}
		var elements []json.RawMessage
		if err := json.Unmarshal(got.text, &elements); err != nil || elements == nil {
			return fmt.Errorf("the response of %s is not a JSON array", one.path)
		}
		for _, element := range elements {
			if err := do(element); err != nil {
				return err
			}
		}
		if one.path = nextPage(got.Header); one.path == "" || end != "" && afterOf(one.path) >= end {
			return nil
		}
	}
}

// feedEnd returns the id of the newest event. Ids are in the order of events. The keys may be nil.
func (c *client) feedEnd(ctx context.Context, keys []string) (string, error) {
	latest, err := c.succeed(ctx, call{method: http.MethodGet, path: "/events?after=latest&limit=1", header: http.Header{"Authorization": keys}})
	if err != nil {
		return "", err
	}
	end := afterOf(nextPage(latest.Header))
	if end == "" {
		return "", c.notPetstore("it has no link to the end of the feed")
	}
	return end, nil
}

// afterOf returns the event after which a page begins, or "".
func afterOf(page string) string {
	link, err := url.Parse(page)
	if err != nil {
		return ""
	}
	return link.Query().Get("after")
}

// nextPage returns the path and query of the link to the next page, or "" if there is none. It leaves
// out the host of an absolute link, so that the key does not go to another server.
func nextPage(header http.Header) string {
	if next := follow.NextLink(header); next != nil {
		return next.RequestURI()
	}
	return ""
}
