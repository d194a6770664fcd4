package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"petstore/internal/postgres"
)

func (p *program) configCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration and where each value comes from",
		Long: `Config prints each variable with its effective value and source. Sources are:

  environment  the variable is set
  default      the variable is not set or empty
  derived      the default depends on other variables, on this machine or, for GOGC and
               GOMEMLIMIT, on the command; the value is the one for serve
  dev          the value belongs to the running petstore dev
  unknown      no program reads the variable; its value is not printed

Config prints no secret and no URL with a user: of the URL of a database, it prints the
name, the servers, the user and the use of TLS. An invalid configuration is an error.`,
		Example: "  petstore config --json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			c, err := p.loadServerConfig(false)
			if err != nil {
				return err
			}
			return printList(p, asJSON, "VARIABLE\tSOURCE\tVALUE", p.settings(c), func(one setting) string {
				return one.Name + "\t" + one.Source + "\t" + strings.Join(strings.Fields(one.Value), " ")
			})
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print a JSON array of objects with name, value and source")
	return command
}

// setting is a variable in the output of config.
type setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // without secrets
	Source string `json:"source"`
}

// settings returns all variables of a configuration with their effective values.
func (p *program) settings(c config) []setting {
	withDev, _ := p.orDev(c) // the same without a dev
	isDev := withDev.DatabaseURL != c.DatabaseURL
	c = withDev
	ofDev := map[string]bool{"DATABASE_URL": isDev, "PETSTORE_DIRECT_URL": isDev}
	if dev, err := p.findDev(); err == nil && dev.serves(c.URL) { // as [program.target]
		ofDev["PETSTORE_URL"], ofDev["PETSTORE_API_KEY"] = c.URL == "", c.APIKey == ""
		c.URL, c.APIKey = cmp.Or(c.URL, dev.URL), cmp.Or(c.APIKey, dev.APIKey)
	}
	c.URL = cmp.Or(c.URL, defaultURL)
	c.DirectURL = c.directURL()
	c.GOGC = cmp.Or(c.GOGC, strconv.Itoa(gcPercent))
	c.GOMEMLIMIT = cmp.Or(c.GOMEMLIMIT, fmt.Sprintf("%dMiB", memoryLimit>>20))
	var all []setting
	eachVariable(reflect.ValueOf(c), func(field reflect.StructField, value reflect.Value) {
		one := setting{Name: field.Tag.Get("env"), Value: textOf(value), Source: "default"}
		switch {
		case ofDev[one.Name]:
			one.Source = "dev"
		case p.isSet(one.Name):
			one.Source = "environment"
		case slices.Contains(derived, one.Name) && one.Value != "":
			one.Source = "derived"
		}
		if one.Value != "" {
			one.Value = shown(one.Name, one.Value)
		}
		all = append(all, one)
	})
	for _, name := range c.unknown {
		all = append(all, setting{Name: name, Source: "unknown"})
	}
	return all
}

// derived are the variables whose default depends on other variables, the machine or the command.
var derived = []string{"PETSTORE_URL", "PETSTORE_DIRECT_URL", "PETSTORE_DB_MAX_CONNS", "PETSTORE_RATE_BURST", "PETSTORE_ACCOUNT_RATE_LIMIT", "PETSTORE_LOG_FORMAT", "GOGC", "GOMEMLIMIT"}

// textOf returns a value as one would write it in the environment.
func textOf(value reflect.Value) string {
	switch v := reflect.Indirect(value).Interface().(type) {
	case []string:
		return strings.Join(v, ",")
	case slog.Level:
		return strings.ToLower(v.String())
	case bool:
		return strconv.FormatBool(v)
	default:
		return fmt.Sprint(v)
	}
}

// redacted replaces a secret.
const redacted = "REDACTED"

// shown returns what config prints of the value of a variable, which may have a password.
func shown(name, value string) string {
	switch name {
	case "DATABASE_URL", "PETSTORE_DIRECT_URL":
		return postgres.Name(value)
	case "PETSTORE_REPLICA_URLS":
		names := strings.Fields(value)
		for i := range names {
			names[i] = postgres.Name(names[i])
		}
		return strings.Join(names, "; ")
	case "PETSTORE_API_KEY", "PETSTORE_SECRET_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS":
		return redacted
	case "PETSTORE_WEBHOOK_PROXY", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
		if strings.ContainsAny(value, "@?#") {
			return redacted
		}
	}
	return value
}
