package main

import (
	"github.com/spf13/cobra"

	"petstore/internal/api"
)

func (p *program) openAPICommand() *cobra.Command {
	var format string
	command := &cobra.Command{
		Use:     "openapi",
		Short:   "Print the OpenAPI 3.0.3 spec of the API",
		Example: "  petstore openapi --format json > openapi.json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "yaml" && format != "json" {
				return wrongUsage(cmd, "--format must be yaml or json, but is %q", format)
			}
			c, err := p.loadConfig(false)
			if err != nil {
				return err
			}
			description, json, err := api.Spec(c.BaseURL)
			if err != nil {
				return err
			}
			if format == "json" {
				description = json
			}
			_, err = p.stdout.Write(description)
			return err
		},
	}
	command.Flags().StringVar(&format, "format", "yaml", "yaml or json")
	completeFlag(command, "format", "yaml", "json")
	return command
}
