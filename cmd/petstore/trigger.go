package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/event"
	"petstore/internal/follow"
)

// triggerPatience is the maximum time until the event is in the feed.
const triggerPatience = time.Minute

func (p *program) triggerCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "trigger [EVENT_TYPE]",
		Short: "Make an event of a type happen in a sandbox",
		Long: `Trigger sends the requests that make an event of a type happen, and prints the event.
Other events may come before it: to place an order, trigger first creates a pet. Without
a type, it lists the types.

It changes the store, so the API key must be one of a sandbox or of the running dev. For
message.delivered, message.failed and webhook.disabled, the server must reach this
machine and allow webhooks to it, as dev does. These and store.reset need the scope
admin, and store.reset a key of a sandbox.`,
		Example: "  petstore trigger\n  petstore trigger order.placed --json",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return wrongUsage(cmd, "trigger takes one type of events, but got %d arguments", len(args))
			case len(args) == 1 && triggers[event.Type(args[0])] == nil:
				return wrongUsage(cmd, "there is no type of events %q%s; petstore trigger lists the types", args[0], didYouMean(args[0], event.TypeNames()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.listEventTypes(asJSON)
			}
			to, err := p.target(cmd)
			if err != nil {
				return err
			}
			outliveReaders() // else a webhook may be left
			return p.trigger(cmd.Context(), p.newClient(to), event.Type(args[0]), asJSON)
		},
	}
	for _, one := range event.Types {
		command.ValidArgs = append(command.ValidArgs, cobra.CompletionWithDesc(string(one.Type), one.Text))
	}
	addURLFlag(command)
	command.Flags().BoolVar(&asJSON, "json", false, "print the event, or the list, as JSON")
	return command
}

func (p *program) listEventTypes(asJSON bool) error {
	return printList(p, asJSON, "TYPE\tHAPPENS WHEN", event.Types, func(one event.Description) string { return string(one.Type) + "\t" + one.Text })
}

// trigger makes an event of a type happen and prints it.
func (p *program) trigger(ctx context.Context, sender *client, kind event.Type, asJSON bool) error {
	if err := sender.requireSandbox(ctx); err != nil {
		return err
	}
	feed := p.feed(sender)
	feed.Types, feed.Connected = []string{string(kind)}, nil
	feed.Lost = func(err error, _ time.Duration) {
		fmt.Fprintf(p.stderr, "no connection: %s\n", whyNoResponse(err, streamTimeout))
	}
	var err error
	if feed.After, err = sender.feedEnd(ctx, nil); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, triggerPatience)
	defer cancel()
	t := &triggering{client: sender, after: feed.After}
	triggers[kind](limited, t)
	if t.err == nil {
		t.err = p.printNext(limited, sender, feed, asJSON)
	}
	if t.err != nil && limited.Err() != nil && ctx.Err() == nil {
		reason := "is a worker running?"
		if kind == event.MessageDelivered {
			reason = "is a worker running, and do all other webhooks for messages accept them?"
		}
		t.err = fmt.Errorf("the feed has no event %s after %s; %s", kind, triggerPatience, reason)
	}
	left := t.clean(ctx)
	if left != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted; %w", left)
	}
	return errors.Join(t.err, left)
}

// printNext prints the next event of a feed.
func (p *program) printNext(ctx context.Context, sender *client, feed *follow.Feed, asJSON bool) error {
	errDone := errors.New("done")
	err := sender.follow(ctx, feed, "events", func(_ context.Context, e follow.Event) error {
		return cmp.Or(p.printEvent(e, asJSON), errDone)
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return cmp.Or(err, ctx.Err())
}

// requireSandbox returns an error unless the key is one of a sandbox or of the running dev.
func (c *client) requireSandbox(ctx context.Context) error {
	var account struct{ ID, Name string }
	if err := c.do(ctx, "GET", "/account", nil, &account); err != nil {
		return err
	}
	if account.ID == "" {
		return c.notPetstore("it has no account")
	}
	if c.isDev || strings.HasPrefix(account.ID, "sbx_") {
		return nil
	}
	return fmt.Errorf("trigger changes the store, but the API key belongs to the account %q, which is not a sandbox; create one with `petstore sandbox create` and use its key", account.Name)
}
