package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/event"
	"petstore/internal/follow"
	"petstore/internal/standardwebhooks"
)

const (
	// afterLatest and afterStart are values of --after besides ids.
	afterLatest = "latest"
	afterStart  = "start"

	// listenSecretPurpose makes the secret that signs forwarded events from the API key.
	listenSecretPurpose = "petstore listen"
)

// listenOptions are the flags of listen.
type listenOptions struct {
	after, forwardTo  string
	types             []string
	json, printSecret bool
}

func (p *program) listenCommand() *cobra.Command {
	options := listenOptions{after: afterLatest}
	command := &cobra.Command{
		Use:   "listen",
		Short: "Print the events of an account as they happen, or forward them to a URL",
		Long: `Listen follows the feed of events of the account of your API key, which needs the scope
read. Listen prints one line for each event: its time, number,
type and subject. With --json, it prints the event as JSON. It needs no database and
works with every server that you can reach.

With --forward-to, it also sends each event to a URL with POST, signed as Standard
Webhooks says, in order and one at a time. While no server responds there, it waits. An
event that gets no 2xx response is sent again after 1, 2, 4 and 8 seconds and then
skipped. The secret of the signatures belongs to the API key, so it stays the same.
Listen prints it on stderr when it starts. --print-secret prints only the secret.

Listen connects again when it loses the connection, and misses no event. SIGINT or
SIGTERM ends it. It then prints the id of the last event, for --after.`,
		Example: "  petstore listen --types order.placed,order.cancelled\n" +
			"  petstore listen --after start --json\n" +
			"  petstore listen --forward-to http://localhost:3000/hook",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.validate(cmd); err != nil {
				return err
			}
			to, err := p.target(cmd)
			if err != nil {
				return err
			}
			return refusedParameter(cmd, p.listen(cmd.Context(), options, to), "`type`", "value of --types")
		},
	}
	flags := command.Flags()
	addURLFlag(command)
	flags.StringSliceVar(&options.types, "types", nil, "only events of these types, separated by commas (default: all)")
	isPlace := func(text string) bool {
		_, isID := event.ParseID(text)
		return isID || text == afterLatest || text == afterStart
	}
	place := textRule{"must be the id of an event, such as evt_0000000000030000000004125f0c9a1e, or latest or start", isPlace}
	addTextFlag(command, &options.after, "after", place, "where to begin: after the event with this id; latest, for new events; or start, for all that the server keeps")
	flags.StringVar(&options.forwardTo, "forward-to", "", "a URL to send each event to, as a signed webhook")
	flags.BoolVar(&options.json, "json", false, "print each event as one line of JSON")
	flags.BoolVar(&options.printSecret, "print-secret", false, "print the secret that verifies forwarded events, and exit")
	completeFlag(command, "after", afterLatest, afterStart)
	completeFlag(command, "types", event.TypeNames()...)
	return command
}

// validate returns a usage error for the first invalid flag.
func (o *listenOptions) validate(cmd *cobra.Command) error {
	if o.forwardTo != "" && httpURL(o.forwardTo) == nil {
		return wrongUsage(cmd, "--forward-to must be an http or https URL, such as http://localhost:3000/hook")
	}
	for i, name := range o.types {
		if o.types[i] = strings.TrimSpace(name); o.types[i] == "" {
			return wrongUsage(cmd, "--types must list types of events, such as order.placed, separated by commas")
		}
	}
	return nil
}

// listen follows the feed of the account of a key until ctx ends.
func (p *program) listen(ctx context.Context, o listenOptions, to target) error {
	secret := standardwebhooks.DeriveSecret(to.key, listenSecretPurpose)
	if o.printSecret {
		_, err := fmt.Fprintln(p.stdout, secret.Reveal())
		return err
	}
	sender := p.newClient(to)
	feed := p.feed(sender)
	feed.Types = o.types
	switch o.after {
	case afterStart:
	case afterLatest:
		var err error
		if feed.After, err = sender.feedEnd(ctx, nil); err != nil {
			return err
		}
	default:
		feed.After = o.after
	}
	handle := func(_ context.Context, e follow.Event) error { return p.printEvent(e, o.json) }
	if o.forwardTo != "" {
		receiver := newForwarder(o.forwardTo, secret, p.stderr)
		at := httpURL(o.forwardTo)
		fmt.Fprintf(p.stderr, "forwarding to %s, signed with the secret %s\n", at.Scheme+"://"+at.Host+at.EscapedPath(), secret.Reveal())
		handle = func(ctx context.Context, e follow.Event) error {
			if err := p.printEvent(e, o.json); err != nil {
				return err
			}
			return receiver.forward(ctx, e)
		}
	}
	first := feed.After
	err := sender.follow(ctx, feed, "events", handle)
	if feed.After != "" && (err == nil || feed.After != first) {
		fmt.Fprintf(p.stderr, "stopped; to continue from here, add --after %s\n", feed.After)
	}
	return err
}

// feed returns the feed of a server, which prints when a connection begins and ends.
func (p *program) feed(of *client) *follow.Feed {
	text := fmt.Sprintf("connected: listening to %s, press Ctrl-C to stop", of.url)
	streams := p.newClient(of.target)
	streams.http = of.client(streamTimeout)
	return &follow.Feed{
		Get: streams.open,
		Connected: func() {
			fmt.Fprintln(p.stderr, text)
			text = "connected again"
		},
		Lost: func(err error, pause time.Duration) {
			fmt.Fprintf(p.stderr, "no connection: %s; connecting again in %s\n", whyNoResponse(err, streamTimeout), pause.Round(100*time.Millisecond))
		},
	}
}

// follow follows a feed until Ctrl-C ends ctx. It then returns nil. It returns an error of handle,
// such as one of stdout, as it is.
func (c *client) follow(ctx context.Context, feed *follow.Feed, of string, handle func(context.Context, follow.Event) error) error {
	var failed error
	feed.Reached = c.answered.Load()
	err := feed.Follow(ctx, func(ctx context.Context, e follow.Event) error {
		failed = handle(ctx, e)
		return failed
	})
	if failed == nil {
		failed = c.streamError(of, err)
	}
	if ctx.Err() == nil {
		return failed
	}
	return nil
}

// printEvent prints an event as one line.
func (p *program) printEvent(e follow.Event, asJSON bool) (err error) {
	if asJSON {
		_, err = fmt.Fprintf(p.stdout, "%s\n", e.JSON)
	} else {
		_, err = fmt.Fprintf(p.stdout, "%s  %d  %s  %s\n", e.Timestamp.UTC().Format(time.RFC3339Nano), e.Sequence, e.Type, e.Subject)
	}
	return err
}

// streamError returns the error of a stream as one sentence that says what to do.
func (c *client) streamError(of string, err error) error {
	failed, isStatus := errors.AsType[*follow.StatusError](err)
	switch {
	case errors.Is(err, context.Canceled), isStatus && failed.Code == "invalid_parameter": // see [refusedParameter]
		return err
	case isStatus:
		return fmt.Errorf("no %s from %s: %s", of, c.url, strings.TrimSuffix(err.Error(), "."))
	case errors.Is(err, follow.ErrGap):
		return fmt.Errorf("the feed of %s is not complete: %w; list your resources again, and listen with --after latest", c.url, err)
	case errors.Is(err, follow.ErrNotFeed):
		return fmt.Errorf("no %s from %s: %w; set PETSTORE_URL or --url to the URL of Petstore", of, c.url, err)
	default:
		return fmt.Errorf("no %s from %s: %s%s", of, c.url, whyNoResponse(err, streamTimeout), serverRemedy(err))
	}
}
