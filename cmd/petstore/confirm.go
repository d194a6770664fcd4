package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"petstore/internal/sleep"
)

// confirm asks a question on the terminal. It returns an error unless the reply is yes, or if there
// is no terminal. The effect says what the command does, and done is the participle of that.
func (p *program) confirm(ctx context.Context, effect, question, done string) error {
	if !isTerminal(p.stdin) {
		return errors.New(effect + "; confirm it with --yes")
	}
	fmt.Fprint(p.stderr, question, " [y/N] ")
	line, _ := sleep.Until(ctx, func() (string, error) { return bufio.NewReader(p.stdin).ReadString('\n') }) // end of input means no
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line))) {
		return errors.New("nothing was " + done + ", because the reply was not yes")
	}
	return nil
}
