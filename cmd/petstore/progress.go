package main

import "fmt"

const (
	clearLine = "\r\x1b[K"
	cutLine   = "\x1b[?7l" // a terminal cuts a line that is too long
	wrapLine  = "\x1b[?7h" // it wraps the line again
)

// status prints a text in one line of stderr if that is a terminal. An empty text clears the
// line.
func (p *program) status(text string) {
	if text != "" {
		text = cutLine + text + wrapLine
	}
	if isTerminal(p.stderr) {
		fmt.Fprint(p.stderr, clearLine, text)
	}
}

// seeding prints the number of rows, and clears the line at the end.
func (p *program) seeding(done, total int) {
	if done == total {
		p.status("")
		return
	}
	p.status(fmt.Sprintf("seeding: %d of %d rows", done, total))
}

// migrating prints the name of a migration that begins. [program.status] clears the line.
func (p *program) migrating(name string, done, total int) {
	p.status(fmt.Sprintf("migrating: %s (%d of %d)", name, done+1, total))
}
