package main

import (
	"github.com/spf13/cobra"

	"petstore/internal/api"
	"petstore/internal/docs"
)

func (p *program) openAPICommand() *cobra.Command {
	format := "yaml"
	command := &cobra.Command{
		Use:   "openapi",
		Short: "Print the OpenAPI spec of the API",
		Long: `Openapi prints the spec: in OpenAPI 3.0.3 as YAML or JSON, or in OpenAPI 3.1 as JSON.
Only OpenAPI 3.1 has the webhooks, with a schema for the events of each type. The format
postman is a collection of requests for Postman, and for other programs that import it.`,
		Example: "  petstore openapi --format json > openapi.json\n  petstore openapi --format json-3.1 > openapi-3.1.json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			c, err := p.loadConfig()
			if err != nil {
				return err
			}
			spec, err := api.SpecFor(c.BaseURL)
			if err != nil {
				return err
			}
			text := spec.YAML
			switch format {
			case "json":
				text = spec.JSON
			case "json-3.1":
				text, err = spec.JSON31()
			case "postman":
				text, err = docs.Collection(spec.JSON)
			}
			if err != nil {
				return err
			}
			_, err = p.stdout.Write(text)
			return err
		},
	}
	addChoiceFlag(command, &format, "format", "yaml, json, json-3.1 or postman", "yaml", "json", "json-3.1", "postman")
	return command
}
