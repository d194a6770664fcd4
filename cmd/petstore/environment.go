package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// environmentKey is the annotation of a command with the variables that it reads.
const environmentKey = "environment"

// The variables that the commands read.
var (
	databaseVariables = []string{"DATABASE_URL", "PETSTORE_DB_MAX_CONNS"}
	migrateVariables  = []string{"DATABASE_URL", "PETSTORE_DIRECT_URL", "PETSTORE_SERVING_ROLE"}
	clientVariables   = []string{"PETSTORE_URL", "PETSTORE_API_KEY"}
)

// reads notes the variables that a command and its subcommands read.
func reads(cmd *cobra.Command, variables ...string) *cobra.Command {
	cmd.Annotations = map[string]string{environmentKey: strings.Join(variables, ", ")}
	return cmd
}

// serverVariables returns the variables that a server reads: all that no other command does.
func serverVariables() []string {
	others := []string{"PETSTORE_URL", "PETSTORE_API_KEY", "PETSTORE_SERVING_ROLE", "PETSTORE_PG_BIN"}
	return slices.DeleteFunc(slices.Clone(variables()), func(name string) bool { return slices.Contains(others, name) })
}

// showEnvironment makes the help of every command name the variables that it reads.
func showEnvironment(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		help(cmd, args)
		if variables := environmentOf(cmd); variables != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "\nEnvironment variables (docs/configuration.md):\n  %s\n", strings.ReplaceAll(variables, ", ", "\n  "))
		}
	})
}

// environmentOf returns the variables that a command reads, or "".
func environmentOf(cmd *cobra.Command) (variables string) {
	for one := cmd; one != nil && variables == ""; one = one.Parent() {
		variables = one.Annotations[environmentKey]
	}
	return variables
}
