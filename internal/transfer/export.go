package transfer

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/event"
)

// ErrReset means that a sample or a backup has replaced everything in the store.
var ErrReset = errors.New("the store was reset; export it again")

// Writer writes rows. Call Flush at the end.
type Writer struct {
	out      *bufio.Writer
	csv      *csv.Writer // nil: NDJSON
	hasKinds bool
}

// NewWriter returns a writer of NDJSON, in which each row has its kind if hasKinds is true, or of CSV.
func NewWriter(out io.Writer, asCSV, hasKinds bool) *Writer {
	w := &Writer{out: bufio.NewWriter(out), hasKinds: hasKinds}
	if asCSV {
		w.csv = csv.NewWriter(w.out)
	}
	return w
}

// Header writes the header of CSV.
func (w *Writer) Header(r *Resource) error {
	if w.csv == nil {
		return nil
	}
	names := make([]string, len(r.columns))
	for i, c := range r.columns {
		names[i] = c.name
	}
	return w.csv.Write(names)
}

// Write writes a resource, which is JSON.
func (w *Writer) Write(r *Resource, value []byte) error {
	if w.csv != nil {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(value, &fields); err != nil {
			return err
		}
		cells := make([]string, len(r.columns))
		for i, c := range r.columns {
			cells[i] = formatCell(fields[c.name])
		}
		return w.csv.Write(cells)
	}
	text := jsontext.Value(value)
	if err := text.Compact(); err != nil {
		return err
	}
	if w.hasKinds {
		text = append([]byte(`{"kind":"`+r.Kind+`",`), text[1:]...)
	}
	_, err := w.out.Write(append(text, '\n'))
	return err
}

// WriteChanges writes the resources that an event has changed. A deleted one has the field deleted.
func (w *Writer) WriteChanges(resources []*Resource, kind string, text []byte) error {
	if kind == string(event.StoreReset) {
		return ErrReset
	}
	var changed struct{ Data map[string]json.RawMessage }
	if err := json.Unmarshal(text, &changed); err != nil {
		return err
	}
	for _, r := range resources {
		value := changed.Data[r.Kind]
		if value == nil {
			continue
		}
		switch event.Type(kind) {
		case event.PetDeleted, event.CategoryDeleted:
			value = markDeleted(value)
		case event.OrderCancelled:
			if r == orders {
				value = markDeleted(value)
			}
		default:
		}
		if err := w.Write(r, value); err != nil {
			return err
		}
	}
	return w.Flush()
}

// markDeleted adds the field deleted to an object that has fields.
func markDeleted(value []byte) []byte {
	return []byte(strings.TrimSuffix(string(value), "}") + `,"deleted":true}`)
}

// Flush writes the rows that are buffered.
func (w *Writer) Flush() error {
	if w.csv != nil {
		w.csv.Flush()
		if err := w.csv.Error(); err != nil {
			return err
		}
	}
	return w.out.Flush()
}
