package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// compileFaults checks that the program compiles with each fault of the rows. Each build has
// many faults, at most one in each file, because a build of its own for each would take
// minutes. It links nothing. The error names the faults of the builds that fail.
func compileFaults(ctx context.Context, out io.Writer, chosen []row) error {
	dir, err := os.MkdirTemp("", "petstore-faulttest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var builds []map[string]fault // by file
	compiled, uncompiled := 0, 0
	for _, f := range faults {
		if !slices.ContainsFunc(chosen, func(r row) bool { return r.number == f.row }) {
			continue
		}
		if filepath.Ext(f.file) != ".go" {
			uncompiled++
			continue
		}
		compiled++
		same := func(b map[string]fault) bool { return b[f.file].before == f.before && b[f.file].after == f.after }
		if slices.ContainsFunc(builds, same) {
			continue
		}
		free := slices.IndexFunc(builds, func(b map[string]fault) bool { return b[f.file] == fault{} })
		if free < 0 {
			free = len(builds)
			builds = append(builds, map[string]fault{})
		}
		builds[free][f.file] = f
	}
	var failures []error
	for _, b := range builds {
		p := program{filepath.Join(dir, "petstore"), map[string]string{}}
		for _, f := range b {
			file, text, err := f.plant(".")
			failures = append(failures, err)
			p.replaced[file] = text
		}
		if err := p.goCommand(ctx, "list", "-export"); err != nil {
			failures = append(failures, fmt.Errorf("a fault does not compile; update it in faults.go: %w", err))
		}
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d faults compile; %d are in SQL, which only a row runs\n", compiled, uncompiled)
	return err
}
