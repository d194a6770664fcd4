package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// didYouMean returns a hint at the names that are similar to a word, or "".
func didYouMean(word string, names []string) string {
	most := 2 // as cobra allows for commands
	if len(word) < 5 {
		most = 1
	}
	var similar []string
	for _, name := range names {
		lower := strings.ToLower(name)
		if distance(strings.ToLower(word), lower) <= most || len(word) > 2 && strings.HasPrefix(lower, strings.ToLower(word)) {
			similar = append(similar, name)
		}
	}
	if len(similar) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", orList(similar))
}

// distance returns the number of insertions, deletions, replacements and swaps of neighbors
// that turn one word into another (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
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
