package main

import (
	"slices"
	"testing"
)

// TestFaultsCanBePlanted: the code that each fault changes is there, and every row
// has one. Whether it is noticed, make reliability-faults tells.
func TestFaultsCanBePlanted(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		if _, _, err := f.plant("../../.."); err != nil {
			t.Error(err)
		}
	}
	for _, r := range rows {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.row == r.number }) {
			t.Errorf("row %d has no fault to notice", r.number)
		}
	}
}
