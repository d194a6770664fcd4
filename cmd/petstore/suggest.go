package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// didYouMean returns a hint at the names that are similar to a word, or "".
func didYouMean(word string, names []string) string {
	all := &cobra.Command{SuggestionsMinimumDistance: 2} // as cobra uses by default
	if len(word) < 5 {
		all.SuggestionsMinimumDistance = 1
	}
	for _, name := range names {
		all.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	similar := all.SuggestionsFor(word)
	if word == "" || len(similar) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", orList(similar))
}

// commandNames returns the names of the subcommands of a command.
func commandNames(cmd *cobra.Command) (names []string) {
	for _, one := range cmd.Commands() {
		if one.IsAvailableCommand() {
			names = append(names, one.Name())
		}
	}
	return names
}

// flagNames returns the flags of a command as a user types them.
func flagNames(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, "--"+flag.Name) })
	return slices.Compact(names)
}
