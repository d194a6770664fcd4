package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/sleep"
)

// Source is a file to import.
type Source struct {
	Name     string    // for messages
	Resource *Resource // nil: an archive
	Rows     int64

	path   string
	info   os.FileInfo // nil: of a temporary copy
	isCSV  bool
	digest string
	units  map[int64]int64 // of an archive, the units of all orders by the id of the pet
	spool  string          // a temporary copy; "": none
}

// Stdin is the name of the file that is the standard input.
const Stdin = "-"

// Open reads a file once, and checks that all of it is text in rows. The resource is the one with a
// name, or if that is "", the one of the file name, such as pets.csv.gz, or the archive. Close
// removes temporary files.
func Open(ctx context.Context, name, resource string, stdin io.Reader) (*Source, error) {
	s := &Source{Name: name, path: name, units: map[int64]int64{}}
	if name == Stdin {
		s.Name = "stdin"
	}
	info, err := os.Stat(name)
	if name == Stdin || err == nil && !info.Mode().IsRegular() {
		err = s.copy(ctx, name, stdin)
	} else {
		s.info = info
	}
	if err == nil {
		err = s.survey(ctx, resource)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// IsCopy reports whether the file was read from stdin or a pipe. The journal then belongs to the content, because
// the next input may be another one.
func (s *Source) IsCopy() bool { return s.spool != "" }

// copy copies a file that can be read only once. It ends with ctx, although open and read can wait for
// another program.
func (s *Source) copy(ctx context.Context, name string, in io.Reader) error {
	spool, err := os.CreateTemp("", "petstore-import-")
	if err != nil {
		return err
	}
	s.path, s.spool = spool.Name(), spool.Name()
	_, err = sleep.Until(ctx, func() (any, error) { return nil, errors.Join(copyAll(spool, name, in), spool.Close()) })
	return err
}

// copyAll copies the file with a name, or in.
func copyAll(to io.Writer, name string, in io.Reader) error {
	if name != Stdin {
		file, err := os.Open(name) //nolint:gosec // the user names the file
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	_, err := io.Copy(struct{ io.Writer }{to}, in) // an error of a copy by the system would name the wrong file
	return err
}

// Close removes the temporary copy.
func (s *Source) Close() {
	if s.IsCopy() {
		_ = os.Remove(s.spool) // it is in a temporary folder
	}
}

// survey reads the whole file: its form, number of rows and digest, and the units that the orders of
// an archive take.
func (s *Source) survey(ctx context.Context, resource string) error {
	in, err := openLines(s.path, s.info)
	if err != nil {
		return s.explain(err)
	}
	defer in.file.Close()
	first, _ := in.in.Peek(maxRow)
	first = bytes.TrimLeft(first, " \t\r\n")
	if bytes.HasPrefix(first, []byte("[")) {
		return s.explain(errAt(1, "the file is a JSON array; write one object in each line, as jq -c '.[]' does"))
	}
	// Without rows, CSV has a header, and every other file is empty.
	isEmpty := len(first) == 0 && !strings.HasSuffix(strings.TrimSuffix(strings.ToLower(s.Name), ".gz"), ".csv")
	s.isCSV = !isEmpty && !bytes.HasPrefix(first, []byte("{"))
	if resource == "" {
		resource, _, _ = strings.Cut(filepath.Base(s.Name), ".")
	}
	line, _, _ := bytes.Cut(first, []byte("\n"))
	s.Resource = Find(resource)
	if s.Resource == nil && !isEmpty && (s.isCSV || !bytes.Contains(line, []byte(`"kind"`))) {
		return fmt.Errorf("%s does not say which resource it has; add --resource with %s, or name the file so", s.Name, strings.Join(Names(), ", "))
	}
	in.digest = sha256.New()
	last := 0
	err = s.eachIn(ctx, in, func(r *row) error {
		s.Rows++
		if s.Resource != nil || len(r.failure) > 0 {
			return nil
		}
		at := slices.Index(Resources, r.resource)
		if at < last {
			return errAt(r.line, "%s must come before %s in an archive", r.resource.Name, Resources[last].Name)
		}
		if last = at; r.resource == orders {
			s.units[r.number("petId")] += max(r.number("quantity"), 1)
		}
		return nil
	})
	s.digest = hex.EncodeToString(in.digest.Sum(nil))
	return s.explain(err)
}

// dropIgnored removes the field of a row that import ignores. In an archive, the status of inventory counts.
func (s *Source) dropIgnored(one *row) {
	switch {
	case one.failure != nil: // it may have no resource
	case one.resource.columns[0].name == "id":
		delete(one.fields, "id")
	case s.Resource != nil:
		delete(one.fields, "status")
	}
}

// explain adds the name of the file to an error.
func (s *Source) explain(err error) error {
	if errors.Is(err, errChanged) {
		err = fmt.Errorf("%w; run the same command again", err)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", s.Name, err)
	}
	return err
}

// each reads the file again, as [Source.eachIn] does. The error does not name the file.
func (s *Source) each(ctx context.Context, handle func(*row) error) error {
	in, err := openLines(s.path, s.info)
	if err != nil {
		return err
	}
	defer in.file.Close()
	return s.eachIn(ctx, in, handle)
}

// eachIn calls a function with each row of the file, until it returns an error or ctx ends.
func (s *Source) eachIn(ctx context.Context, in *lines, handle func(*row) error) error {
	do := func(r *row) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return handle(r)
	}
	if s.isCSV {
		return s.eachRecord(in, do)
	}
	for {
		text, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		r := &row{line: in.number, resource: s.Resource}
		if r.fields, err = parseRow(text); err != nil {
			r.failure = wrong("", "invalid_json", "The line is not a JSON object: %s.", strings.TrimPrefix(err.Error(), "jsontext: "))
		}
		if s.Resource == nil && r.failure == nil {
			kind, _ := jsontext.AppendUnquote(nil, r.take("kind")) // an unknown one is nil below
			if i := slices.IndexFunc(Resources, func(r *Resource) bool { return r.Kind == string(kind) }); i >= 0 {
				r.resource = Resources[i]
			} else {
				r.failure = wrong("kind", "not_in_enum", "`kind` must be category, pet, inventory or order.")
			}
		}
		if err := do(r); err != nil {
			return err
		}
	}
}

// eachRecord calls a function with each row of a CSV file.
func (s *Source) eachRecord(in *lines, do func(*row) error) error {
	records := csv.NewReader(in)
	records.ReuseRecord, records.FieldsPerRecord = true, -1
	in.fresh()
	header, err := records.Read()
	if errors.Is(err, io.EOF) {
		return errAt(1, "the file is empty; the first line must name the columns")
	}
	if err != nil {
		return explainCSV(err)
	}
	if header, err = s.checkHeader(header); err != nil {
		return err
	}
	for {
		in.fresh()
		cells, err := records.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return explainCSV(err)
		}
		line, _ := records.FieldPos(0)
		r := &row{fields: fields{}, line: int64(line), resource: s.Resource}
		if len(cells) != len(header) {
			r.failure = wrong("", "wrong_cells", "The row has %d cells, but the header has %d. Put quotes around cells with commas.", len(cells), len(header))
		}
		for i, cell := range cells[:min(len(cells), len(header))] {
			if cell != "" {
				r.fields[header[i]] = s.Resource.parseCell(header[i], cell)
			}
		}
		if err := do(r); err != nil {
			return err
		}
	}
}

// explainCSV returns an error of the syntax of CSV as a mistake in a line.
func explainCSV(err error) error {
	if syntax, ok := errors.AsType[*csv.ParseError](err); ok {
		return errAt(int64(syntax.StartLine), "a quote is missing or too many; put quotes around the whole cell, and double the quotes in it")
	}
	return err
}

// checkHeader returns the columns of a CSV file.
func (s *Source) checkHeader(cells []string) (header []string, err error) {
	known := s.Resource.importColumns()
	for _, cell := range cells {
		name := strings.TrimSpace(cell)
		switch {
		case strings.Contains(name, "\r"):
			return nil, errAt(1, "lines must end with LF or CRLF, not with CR alone")
		case len(cells) == 1 && strings.ContainsAny(name, ";\t"):
			return nil, errAt(1, "cells must be separated by commas")
		case !slices.Contains(known, name):
			return nil, errAt(1, "there is no column %q in %s; the columns are %s", name, s.Resource.Name, strings.Join(known, ", "))
		case slices.Contains(header, name):
			return nil, errAt(1, "the column %q is there twice", name)
		}
		header = append(header, name)
	}
	for _, name := range s.Resource.required {
		if !slices.Contains(header, name) {
			return nil, errAt(1, "the column %q is missing", name)
		}
	}
	return header, nil
}
