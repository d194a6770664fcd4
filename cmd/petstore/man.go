package main

import (
	"cmp"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the manual pages of a release. Users get them with the archive, so the
// command is hidden.
func (p *program) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write the manual pages to a directory",
		Long:    "Man writes a manual page for each command to a directory that exists. SOURCE_DATE_EPOCH sets their date.",
		Example: "  petstore man /usr/local/share/man/man1",
		Args:    oneArgument("a directory"),
		Hidden:  true,

		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.Root().DisableAutoGenTag = true // it names the library
			addEnvironment(cmd.Root())
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "1", Source: "Petstore", Manual: "Petstore"}, args[0])
		},
	}
}

// addEnvironment gives the pages of a command and its subcommands a section with the variables that they read.
func addEnvironment(cmd *cobra.Command) {
	if variables := environmentOf(cmd); variables != "" {
		cmd.Long = cmp.Or(cmd.Long, cmd.Short) + "\n\n# ENVIRONMENT\n" + variables
	}
	for _, one := range cmd.Commands() {
		addEnvironment(one)
	}
}
