package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"petstore/internal/follow"
)

// usageError is a mistake on the command line, as opposed to a failure.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// wrongUsage returns a [usageError] that refers to the help of the command.
func wrongUsage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Errorf("%s; see %s --help", fmt.Sprintf(format, args...), cmd.CommandPath())}
}

// refusedParameter makes the error of a server that has refused a parameter from the command line a
// [usageError]. The flags are pairs of a parameter, as the server quotes it, and its name for users.
func refusedParameter(cmd *cobra.Command, err error, flags ...string) error {
	failed, isStatus := errors.AsType[*follow.StatusError](err)
	if !isStatus || failed.Code != "invalid_parameter" {
		return err
	}
	return wrongUsage(cmd, "%s", strings.NewReplacer(flags...).Replace(strings.TrimSuffix(failed.Message, ".")))
}

// nameOf returns the name of a command without the program.
func nameOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// noArguments validates that a command has no arguments. For a command with
// subcommands, an argument is an unknown subcommand.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasAvailableSubCommands():
		return wrongUsage(cmd, "%s takes no arguments, but got %q", nameOf(cmd), args[0])
	}
	hint := didYouMean(args[0], commandNames(cmd))
	if cmd.HasParent() {
		return wrongUsage(cmd, "%s has no command %q%s", nameOf(cmd), args[0], hint)
	}
	return wrongUsage(cmd, "there is no command %q%s", args[0], hint)
}

// group makes a command of subcommands. Alone, it shows its help.
func group(command *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	command.Args = noArguments
	command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	command.AddCommand(subcommands...)
	return command
}

// oneArgument validates that a command has one argument, described for the error message.
func oneArgument(described string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return wrongUsage(cmd, "%s takes %s, but got %d arguments", nameOf(cmd), described, len(args))
		}
		return nil
	}
}

// wrongFlag explains which flag could not be parsed, and its valid values.
func wrongFlag(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		return wrongUsage(cmd, "there is no flag %s%s", name, didYouMean(name, flagNames(cmd)))
	}
	if lacking, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return wrongUsage(cmd, "--%s needs a value", lacking.GetFlag().Name)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		rule, isRule := errors.AsType[ruleError](err)
		if !isRule {
			rule = "must be true or false"
		}
		return wrongUsage(cmd, "--%s %s, but is %q", invalid.GetFlag().Name, rule, invalid.GetValue())
	}
	if bad, ok := errors.AsType[*pflag.InvalidSyntaxError](err); ok {
		return wrongUsage(cmd, "%s is not a flag", bad.GetSpecifiedFlag())
	}
	return wrongUsage(cmd, "%v", err)
}

// refuseEmptyFlags refuses an empty value of a flag, such as of a variable that a script has not set. It
// would mean that the flag is not there, and so that a key never expires.
func refuseEmptyFlags(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		list, isList := flag.Value.(pflag.SliceValue)
		if flag.Value.String() == "" || isList && len(list.GetSlice()) == 0 {
			err = wrongUsage(cmd, "--%s needs a value", flag.Name)
		}
	})
	return err
}

// checkedFlag is a flag whose values have a rule.
type checkedFlag[T any] struct {
	value *T     // and its default
	kind  string // such as int, for the help
	rule  string // such as "must be true or false"
	parse func(text string) (value T, isValid bool)
}

func (f *checkedFlag[T]) String() string { return fmt.Sprint(*f.value) }
func (f *checkedFlag[T]) Type() string   { return f.kind }

// Set implements [pflag.Value].
func (f *checkedFlag[T]) Set(text string) error {
	value, isValid := f.parse(text)
	if !isValid {
		return ruleError(f.rule)
	}
	*f.value = value
	return nil
}

// ruleError is the error of [checkedFlag.Set], for [wrongFlag].
type ruleError string

func (r ruleError) Error() string { return string(r) }

// textRule is a rule for texts.
type textRule struct {
	text    string // such as "must be yaml or json"
	isValid func(text string) bool
}

// addTextFlag adds a flag whose values are texts with a rule. [refuseEmptyFlags] refuses an empty one.
func addTextFlag(cmd *cobra.Command, value *string, name string, rule textRule, usage string) {
	parse := func(text string) (string, bool) { return text, text == "" || rule.isValid(text) }
	cmd.Flags().Var(&checkedFlag[string]{value, "string", rule.text, parse}, name, usage)
}

// addChoiceFlag adds a flag that has one of a few values, with their completions.
func addChoiceFlag(cmd *cobra.Command, value *string, name, usage string, choices ...string) {
	isChoice := func(text string) bool { return slices.Contains(choices, text) }
	addTextFlag(cmd, value, name, textRule{"must be " + orList(choices), isChoice}, usage)
	completeFlag(cmd, name, choices...)
}

// addNumberFlag adds a flag with a range.
func addNumberFlag(cmd *cobra.Command, value *int, name string, valid numberRange, usage string) {
	parse := func(text string) (int, bool) {
		number, err := strconv.ParseInt(text, 10, 64)
		return int(number), err == nil && number >= valid.least && number <= valid.most
	}
	cmd.Flags().Var(&checkedFlag[int]{value, "int", "must be a whole number " + valid.String(), parse}, name, usage)
}

// orList formats words as "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// completeFlag registers shell completions for the values of a flag, or for the last one of a list.
// Without values, they are files.
func completeFlag(cmd *cobra.Command, flag string, values ...cobra.Completion) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if len(values) == 0 {
		directive = cobra.ShellCompDirectiveDefault
	}
	_, isList := cmd.Flag(flag).Value.(pflag.SliceValue)
	complete := func(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if !isList {
			return values, directive
		}
		var lists []cobra.Completion
		for _, value := range values {
			lists = append(lists, begun[:strings.LastIndex(begun, ",")+1]+value)
		}
		return lists, directive | cobra.ShellCompDirectiveNoSpace
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag does not exist, or has completions already
	}
}

// addCobraCommands adds the commands help and completion of cobra, with our error messages.
func addCobraCommands(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion")
	for _, command := range root.Commands() {
		switch command.Name() {
		case "help":
			command.Use, command.Short, command.Long = "help [COMMAND]", "Show the help of a command", ""
			command.Example = "  petstore help key create"
			command.RunE = showHelp
		case "completion":
			group(command)
			command.Example = "  source <(petstore completion bash)"
			for _, shell := range command.Commands() {
				shell.Args = noArguments
			}
		}
	}
}

// showHelp shows the help of the command with a name. Cobra would accept an unknown one.
func showHelp(cmd *cobra.Command, args []string) error {
	root := cmd.Root()
	found, rest, err := root.Find(args)
	if err != nil || len(rest) > 0 {
		hint := ""
		if len(rest) > 0 {
			hint = didYouMean(rest[0], commandNames(found))
		}
		return wrongUsage(root, "there is no command %q%s", strings.Join(args, " "), hint)
	}
	found.InitDefaultHelpFlag()
	return found.Help()
}
