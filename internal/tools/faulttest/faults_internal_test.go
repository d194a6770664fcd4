package main

import (
	"slices"
	"testing"

	"petstore/internal/tools/must"
)

// TestFaultsCanBePlanted checks that the code of each fault exists and that every row has a
// fault. make reliability-compile checks that the faults compile, and make reliability-faults
// that the rows detect them.
func TestFaultsCanBePlanted(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		if err := must.Attempt(func() { f.plant("../../..") }); err != nil {
			t.Error(err)
		}
	}
	for _, r := range rows {
		if !slices.ContainsFunc(faults, func(f fault) bool { return f.row == r.number }) {
			t.Errorf("row %d has no fault, want at least one in faults.go", r.number)
		}
	}
}
