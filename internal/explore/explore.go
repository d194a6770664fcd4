// Package explore visits all states of a small model. Tests use it to check all interleavings
// of a protocol.
package explore

import (
	"fmt"
	"slices"
	"strings"
)

// Search is the states that a search has visited.
type Search[State comparable, Step fmt.Stringer] struct {
	States []State
	Steps  int
	// Mistake is the first mistake, after the steps that lead to it; "" if there is none.
	Mistake string

	from []int // the state before each state
	by   []Step
}

// All visits the states that steps lead to, with the fewest steps first. It stops at the first
// mistake. The function next calls try for each step from a state, with the state after the
// step. It also passes the mistake of either, or "".
func All[State comparable, Step fmt.Stringer](first State, next func(before State, try func(by Step, after State, wrong string))) *Search[State, Step] {
	s := &Search[State, Step]{States: []State{first}, from: make([]int, 1), by: make([]Step, 1)}
	visited := map[State]bool{first: true}
	for at := 0; at < len(s.States) && s.Mistake == ""; at++ {
		next(s.States[at], func(by Step, after State, wrong string) {
			if s.Mistake != "" {
				return
			}
			if s.Steps++; wrong != "" {
				s.Mistake = s.Trace(at, by) + wrong
			} else if !visited[after] {
				visited[after] = true
				s.States, s.from, s.by = append(s.States, after), append(s.from, at), append(s.by, by)
			}
		})
	}
	return s
}

// Trace describes the steps to a state and one more.
func (s *Search[State, Step]) Trace(at int, last Step) string {
	steps := []string{last.String() + ": "}
	for ; at > 0; at = s.from[at] {
		steps = append(steps, s.by[at].String())
	}
	slices.Reverse(steps)
	return strings.Join(steps, "; ")
}
