package postgres

import (
	"log/slog"
	"testing"
)

// TestLateTimerOfACheck: a node that has responded stays found if the timer of the check fires late.
func TestLateTimerOfACheck(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	n := &node{checking: true}
	if n.lose(log); !n.lost.Load() {
		t.Error("a check that gets no response does not lose the node")
	}
	n.find(log)
	if n.lose(log); n.lost.Load() {
		t.Error("the timer of a check loses the node after the end of the check")
	}
}
