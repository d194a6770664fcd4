package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// compileFaults checks that the program with each fault of the rows compiles. The error lists
// the faults that do not.
func compileFaults(ctx context.Context, out io.Writer, chosen []row) error {
	c, err := newCompiler(ctx)
	if err != nil {
		return err
	}
	var failures []error
	count := 0
	for _, f := range faults {
		if ctx.Err() != nil || !slices.ContainsFunc(chosen, func(r row) bool { return r.number == f.row }) {
			continue
		}
		count++
		file, text, err := f.plant(".")
		if err != nil {
			failures = append(failures, err)
		} else if _, err := c.compile(map[string]string{file: text}); err != nil {
			failures = append(failures, fmt.Errorf("fault %q of row %d does not compile; update it in faults.go: %w", f.what, f.row, err))
		}
	}
	if err := errors.Join(append(failures, ctx.Err())...); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d faults compile\n", count)
	return err
}

// compiler checks the types of the program, which finds what does not compile. Building the
// program with every fault would take minutes.
type compiler struct {
	files    *token.FileSet
	packages []sourcePackage // of the program, each after those that it imports
	parsed   map[string]*ast.File
	checked  map[string]*types.Package // the packages without a fault
	others   types.Importer            // of the packages of other modules
}

// sourcePackage has the fields of go list.
type sourcePackage struct {
	ImportPath, Dir, Export string
	GoFiles, Deps           []string
	Module                  *struct{ Main bool }
}

// newCompiler reads and checks the program in the current folder.
func newCompiler(ctx context.Context) (*compiler, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Deps,Module", "./cmd/petstore")
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	c := &compiler{files: token.NewFileSet(), parsed: map[string]*ast.File{}}
	exports := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p sourcePackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if exports[p.ImportPath] = p.Export; p.Module != nil && p.Module.Main {
			c.packages = append(c.packages, p)
		}
	}
	c.others = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	c.checked, err = c.compile(nil)
	return c, err
}

// compile checks the packages with files that have other texts, and those that import them.
// Without texts, it checks all.
func (c *compiler) compile(texts map[string]string) (changed map[string]*types.Package, err error) {
	changed = map[string]*types.Package{}
	config := types.Config{Importer: importFunc(func(path string) (*types.Package, error) {
		for _, from := range []map[string]*types.Package{changed, c.checked} {
			if found := from[path]; found != nil {
				return found, nil
			}
		}
		return c.others.Import(path)
	})}
	for _, p := range c.packages {
		imports := slices.ContainsFunc(p.Deps, func(path string) bool { return changed[path] != nil })
		has := slices.ContainsFunc(p.GoFiles, func(file string) bool { return texts[filepath.Join(p.Dir, file)] != "" })
		if texts != nil && !imports && !has {
			continue
		}
		files, err := c.parse(p, texts)
		if err != nil {
			return nil, err
		}
		if changed[p.ImportPath], err = config.Check(p.ImportPath, c.files, files, nil); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// parse returns the files of a package.
func (c *compiler) parse(p sourcePackage, texts map[string]string) (files []*ast.File, err error) {
	for _, file := range p.GoFiles {
		name := filepath.Join(p.Dir, file)
		parsed := c.parsed[name]
		if text := texts[name]; text != "" {
			parsed, err = parser.ParseFile(c.files, name, text, parser.SkipObjectResolution)
		} else if parsed == nil {
			parsed, err = parser.ParseFile(c.files, name, nil, parser.SkipObjectResolution)
			c.parsed[name] = parsed
		}
		if err != nil {
			return nil, err
		}
		files = append(files, parsed)
	}
	return files, nil
}

// importFunc is a function that implements [types.Importer].
type importFunc func(path string) (*types.Package, error)

// Import implements [types.Importer].
func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }
