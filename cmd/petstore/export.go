package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"petstore/internal/follow"
	"petstore/internal/transfer"
)

// exportOptions are the arguments and flags of export.
type exportOptions struct {
	resources    []*transfer.Resource
	filters      []field
	csv, follows bool
}

func (p *program) exportCommand() *cobra.Command {
	var o exportOptions
	names := transfer.Names()
	command := &cobra.Command{
		Use:   "export [RESOURCE [FILTER...]]",
		Short: "Write the resources of a store as NDJSON or CSV",
		Long: `Export writes ` + orList(names) + ` to stdout, one JSON
object in each line. Without a resource, it writes an archive of the whole store except
the messages, in which each row has a kind. Import reads all of these files.

A filter is a query parameter of the list in the API, such as status=available. With
--csv, the first line has the names of the columns. A text that a spreadsheet would take
for a formula gets an apostrophe, which import removes.

With --follow, export then writes a row for each resource that changes. A row with
"deleted":true is the last one of a resource. A resource may come twice. The API key
needs the scope read. Other clients may change the store during an export, which then
has some of their changes.`,
		Example:   "  petstore export > store.ndjson\n  petstore export pets status=available --csv > pets.csv\n  petstore export inventory --follow",
		ValidArgs: names, // of the first argument
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.read(cmd, args); err != nil {
				return err
			}
			to, err := p.target(cmd)
			if err != nil {
				return err
			}
			return refusedParameter(cmd, p.export(cmd.Context(), p.newClient(to), o))
		},
	}
	addURLFlag(command)
	command.Flags().BoolVar(&o.csv, "csv", false, "write CSV instead of NDJSON")
	command.Flags().BoolVarP(&o.follows, "follow", "f", false, "then write each resource that changes")
	return command
}

// read reads the arguments.
func (o *exportOptions) read(cmd *cobra.Command, args []string) error {
	o.resources = transfer.Resources
	if len(args) > 0 {
		one := transfer.Find(args[0])
		if one == nil {
			names := transfer.Names()
			return wrongUsage(cmd, "there is no resource %q%s; the resources are %s", args[0], didYouMean(args[0], names), strings.Join(names, ", "))
		}
		o.resources = []*transfer.Resource{one}
		for _, argument := range args[1:] {
			filter, err := parseField("filter", argument)
			if err != nil {
				return wrongUsage(cmd, "%v", err)
			}
			if filter.name == "limit" {
				return wrongUsage(cmd, "limit is not a filter, because export writes all pages")
			}
			o.filters = append(o.filters, filter)
		}
	}
	switch {
	case o.csv && (len(args) == 0 || o.follows):
		return wrongUsage(cmd, "--csv needs a resource and has no --follow, because its rows have the same columns")
	case o.follows && len(o.filters) > 0:
		return wrongUsage(cmd, "--follow has no filters, because changes come from all of the store")
	}
	return nil
}

// export writes resources, and then their changes if that is wanted.
func (p *program) export(ctx context.Context, sender *client, o exportOptions) error {
	out := transfer.NewWriter(p.stdout, o.csv, len(o.resources) > 1)
	feed := p.feed(sender)
	if o.follows { // before the lists, so that no change is lost
		var err error
		if feed.After, err = sender.feedEnd(ctx, nil); err != nil {
			return err
		}
	}
	rows := 0
	for _, one := range o.resources {
		list := call{method: http.MethodGet, path: one.Path}
		if err := errors.Join(out.Header(one), list.addFields(append(slices.Clone(o.filters), field{"limit", "200", json.RawMessage("200")}))); err != nil {
			return err
		}
		err := sender.eachElement(ctx, list, func(element json.RawMessage) error {
			if rows++; rows%1000 == 0 && !isTerminal(p.stdout) {
				p.status(fmt.Sprintf("exporting: %d rows", rows))
			}
			return out.Write(one, element)
		})
		if err != nil {
			p.status("")
			return errors.Join(out.Flush(), err)
		}
	}
	if err := out.Flush(); err != nil || !o.follows {
		if !isTerminal(p.stdout) {
			p.status("")
		}
		return err
	}
	return sender.follow(ctx, feed, "events", func(_ context.Context, e follow.Event) error {
		return out.WriteChanges(o.resources, e.Type, e.JSON)
	})
}
