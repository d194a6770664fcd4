package transfer_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"petstore/internal/transfer"
)

// TestInterruptedAdoption: an import of a changed file that is interrupted at once leaves the journal
// as it was.
func TestInterruptedAdoption(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "categories.csv")
	load := func(ctx context.Context, text string) error {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		source, err := transfer.Open(t.Context(), path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer source.Close()
		created := func(context.Context, transfer.Request) (int, []byte, error) {
			return http.StatusCreated, []byte(`{"id":1}`), nil
		}
		_, err = (&transfer.Import{Source: source, Send: created, Dir: dir, Connections: 1}).Run(ctx)
		return err
	}
	journal := func() string {
		names, _ := filepath.Glob(path + "*.journal") // the pattern is right
		if len(names) != 1 {
			t.Fatalf("the journals are %q", names)
		}
		text, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := load(t.Context(), "name\nDogs\n"); err != nil {
		t.Fatal(err)
	}
	before := journal()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := load(ctx, "name\nDogs\nCats\n"); !errors.Is(err, context.Canceled) || journal() != before {
		t.Errorf("the import ends with %v and this journal:\n%s", err, journal())
	}
}
