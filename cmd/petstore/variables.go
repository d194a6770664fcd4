package main

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
)

// variables returns the names of all variables of [config], in order. Do not modify them.
var variables = sync.OnceValue(func() (names []string) {
	eachVariable(reflect.ValueOf(config{}), func(field reflect.StructField, _ reflect.Value) {
		names = append(names, field.Tag.Get("env"))
	})
	return names
})

// eachVariable calls a function for each variable of a [config].
func eachVariable(of reflect.Value, do func(reflect.StructField, reflect.Value)) {
	for _, field := range reflect.VisibleFields(of.Type()) {
		value := of.FieldByIndex(field.Index)
		switch {
		case field.Tag.Get("env") != "":
			do(field, value)
		case value.Kind() == reflect.Struct:
			eachVariable(value, do)
		}
	}
}

// foreignVariables matches variables that begin with PETSTORE_ and that other programs read:
// the tests, the scripts of CI, and the compose files.
var foreignVariables = regexp.MustCompile(`^PETSTORE_(TEST_\w+|IMAGE|PORT|HTTPS_PORT|TLS_DIR|HOST|UPSTREAM|PG_NEW|CITUS_URL|SQLC_DATABASE_URL|PHP_CLIENT|WEBHOOK_LIBRARIES)$`)

// serviceLinks matches the variables that Kubernetes and Docker add for a service whose name
// begins with petstore (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
var serviceLinks = regexp.MustCompile(`^PETSTORE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// unknownVariables returns the variables that begin with PETSTORE_ and that nobody reads, sorted.
// Each has a hint at the variable that the operator may have meant.
func (p *program) unknownVariables() []string {
	known := variables()
	var unknown []string
	for _, variable := range p.environ {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "PETSTORE_") && !slices.Contains(known, name) && !foreignVariables.MatchString(name) && !serviceLinks.MatchString(name) {
			unknown = append(unknown, name+didYouMean(name, known))
		}
	}
	slices.Sort(unknown)
	return slices.Compact(unknown)
}

// unknownWarning is the message about [program.unknownVariables].
const unknownWarning = "this version of petstore ignores unknown variables; correct or remove them"

// warnOfUnknown prints a warning about unknown variables, unless there are none. Servers log
// it instead, in the format of their log.
func (p *program) warnOfUnknown(c config) {
	if len(c.unknown) > 0 {
		fmt.Fprintf(p.stderr, "petstore: warning: %s: %s\n", unknownWarning, strings.Join(c.unknown, ", "))
	}
}

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
