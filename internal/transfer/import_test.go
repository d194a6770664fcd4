package transfer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"petstore/internal/tools/need"
	"petstore/internal/transfer"
)

// TestInterruptedAdoption: an import of a changed file that is interrupted at once leaves the journal
// as it was.
func TestInterruptedAdoption(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "categories.csv")
	job := transfer.Import{Send: func(context.Context, transfer.Request) (int, []byte, error) {
		return http.StatusCreated, []byte(`{"id":1}`), nil
	}}
	need.OK(t, os.WriteFile(path, []byte("name\nDogs\n"), 0o600))
	need.Value(load(t.Context(), t, path, job))(t)
	_, before := journalOf(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	need.OK(t, os.WriteFile(path, []byte("name\nDogs\nCats\n"), 0o600))
	_, err := load(ctx, t, path, job)
	if _, journal := journalOf(t, path); !errors.Is(err, context.Canceled) || journal != before {
		t.Errorf("the import ends with %v and this journal:\n%s", err, journal)
	}
}

// TestChangeDuringImport: an import ends when another program writes its file. It has sent only rows
// of the file that it has opened, so the next import sends each of the others once.
func TestChangeDuringImport(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(path, text string) error{
		"written": func(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) },
		"replaced": func(path, text string) error {
			return errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
		},
		"same size": func(path, text string) error {
			return os.WriteFile(path, []byte(text+strings.Repeat("\n", lineSize)), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "categories.csv")
			var lines []string
			for i := range 2 << 20 / lineSize {
				lines = append(lines, fmt.Sprintf("%08d,%s\n", i, strings.Repeat("x", lineSize-10)))
			}
			const header = "name,description\n"
			past := time.Now().Add(-time.Hour)
			need.OK(t, errors.Join(os.WriteFile(path, []byte(header+strings.Join(lines, "")), 0o600), os.Chtimes(path, past, past)))
			sent := map[string]int{}
			job := transfer.Import{Send: func(_ context.Context, r transfer.Request) (int, []byte, error) {
				if len(sent) == 0 {
					if err := change(path, header+lines[0]+strings.Join(lines[2:], "")); err != nil {
						t.Error(err)
					}
				}
				var row struct{ Name string }
				if err := json.Unmarshal(r.Body, &row); err != nil {
					t.Error(err)
				}
				sent[row.Name]++
				return http.StatusCreated, []byte(`{"id":1}`), nil
			}}
			if _, err := load(t.Context(), t, path, job); err == nil || err.Error() != "the file has changed during the import" || len(sent) == len(lines) {
				t.Errorf("the import ends with %v after %d rows", err, len(sent))
			}
			if _, err := load(t.Context(), t, path, job); err != nil {
				t.Error(err)
			}
			for i := range lines {
				if name := fmt.Sprintf("%08d", i); sent[name] != 1 {
					t.Errorf("the row %s was sent %d times", name, sent[name])
				}
			}
		})
	}
}

// TestKeyInProgress: a row is in doubt if the server goes on handling the request with its key, or a proxy
// responds. The next import repeats the request.
func TestKeyInProgress(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "categories.csv")
	need.OK(t, os.WriteFile(path, []byte("name\nDogs\n"), 0o600))
	var keys []string
	respond := func(status int, body string) (transfer.Summary, error) {
		return load(t.Context(), t, path, transfer.Import{Send: func(_ context.Context, r transfer.Request) (int, []byte, error) {
			keys = append(keys, r.Key)
			return status, []byte(body), nil
		}})
	}
	for _, test := range []struct {
		status     int
		body, want string
	}{
		{http.StatusRequestTimeout, "<html>", "the server returned 408 Request Timeout"},
		{http.StatusConflict, `{"code":"idempotency_in_progress","message":"Wait."}`, "the server returned 409 idempotency_in_progress: Wait"},
		{http.StatusBadGateway, "<html>", "the server returned 502 Bad Gateway"},
	} {
		if got, err := respond(test.status, test.body); err == nil || err.Error() != test.want || got.Failed != 0 {
			t.Errorf("%+v, %v, want %s", got, err, test.want)
		}
		if _, text := journalOf(t, path); strings.Contains(text, "2 -") {
			t.Errorf("after %d, the row is not in doubt: %s", test.status, text)
		}
	}
	if got, err := respond(http.StatusCreated, `{"id":1}`); err != nil || got.Imported != 1 || len(keys) != 4 || len(slices.Compact(slices.Clone(keys))) != 1 {
		t.Errorf("again: %+v, %v, with the keys %q", got, err, keys)
	}
}

// TestCategoryOfDoubt: a row in doubt whose category is missing is no mistake, because the server may have the row. If
// another category has the name now, the server says that it has the row.
func TestCategoryOfDoubt(t *testing.T) {
	t.Parallel()
	const missing = "the rows in the lines 2 3 were on their way, and now the server may not recognize them, because their category is missing; look"
	for _, test := range []struct {
		inDoubt, categories, mistake string
		want                         transfer.Summary
	}{
		{"", "[]", missing, transfer.Summary{Rows: 3, Imported: 1}},
		{"skip", "[]", "", transfer.Summary{Rows: 3, Imported: 1, Before: 2}},
		{"send", "[]", "", transfer.Summary{Rows: 3, Imported: 1, Failed: 2}},
		{"", `[{"id":2,"name":"Dogs"}]`, "", transfer.Summary{Rows: 3, Imported: 1, Before: 2}},
	} {
		path := filepath.Join(t.TempDir(), "pets.ndjson")
		need.OK(t, os.WriteFile(path, []byte("\n"+strings.Repeat(`{"name":"Rex","category":"Dogs"}`+"\n", 2)+`{"name":"Tom","categoryId":7}`), 0o600))
		respond := func(inDoubt, categories string) (transfer.Summary, error) {
			return load(t.Context(), t, path, transfer.Import{InDoubt: inDoubt, Send: func(_ context.Context, r transfer.Request) (int, []byte, error) {
				switch {
				case r.Method == http.MethodGet:
					return http.StatusOK, []byte(categories), nil
				case strings.Contains(string(r.Body), `"categoryId":2`):
					return http.StatusUnprocessableEntity, []byte(`{"code":"idempotency_key_reused","message":"No."}`), nil
				default:
					return http.StatusCreated, []byte(`{"id":1}`), nil
				}
			}})
		}
		need.Value(respond("", `[{"id":1,"name":"Dogs"}]`))(t)
		name, journal := journalOf(t, path)
		lost := regexp.MustCompile(`(?m)^(\d|>4).*\n`).ReplaceAllString(journal, "") // a kill before all responses
		need.OK(t, os.WriteFile(name, []byte(lost), 0o600))
		test.want.File = path
		got, err := respond(test.inDoubt, test.categories)
		_, isChoice := errors.AsType[*transfer.ChoiceError](err)
		if got != test.want || isChoice != (test.mistake != "") || isChoice && !strings.Contains(err.Error(), test.mistake) {
			t.Errorf("--in-doubt %q with the categories %s: %+v, %v, want %+v", test.inDoubt, test.categories, got, err, test.want)
		}
		if got, err = respond("", `[{"id":1,"name":"Dogs"}]`); err != nil || got.Imported+got.Before != 3 {
			t.Errorf("after the correction: %+v, %v", got, err)
		}
	}
}

// TestStockOfAPet: the rows of a pet in an inventory take effect in the order of the file, while other
// rows are sent at the same time.
func TestStockOfAPet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inventory.csv")
	need.OK(t, os.WriteFile(path, []byte("petId,quantity\n1,50\n2,5\n1,7\n"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var set []string
		send := func(_ context.Context, r transfer.Request) (int, []byte, error) {
			stock := r.Path + string(r.Body)
			if stock == `/store/inventory/1{"quantity":50}` {
				synctest.Wait() // the other connection has sent all that it may
			}
			mu.Lock()
			defer mu.Unlock()
			set = append(set, stock)
			return http.StatusOK, []byte("{}"), nil
		}
		got, err := load(t.Context(), t, path, transfer.Import{Send: send, Connections: 2})
		want := []string{`/store/inventory/2{"quantity":5}`, `/store/inventory/1{"quantity":50}`, `/store/inventory/1{"quantity":7}`}
		if err != nil || got.Imported != 3 || !slices.Equal(set, want) {
			t.Errorf("%+v, %v: the server got %q, want %q", got, err, set, want)
		}
	})
}

// TestStockInDoubt: import does not set stock again on its own, because others may have sold units since.
func TestStockInDoubt(t *testing.T) {
	t.Parallel()
	for choice, want := range map[string]transfer.Summary{"send": {Imported: 1}, "skip": {Before: 1}} {
		path := filepath.Join(t.TempDir(), "inventory.csv")
		need.OK(t, os.WriteFile(path, []byte("petId,quantity\n1,50\n"), 0o600))
		requests := 0
		respond := func(choice string, status int) (transfer.Summary, error) {
			return load(t.Context(), t, path, transfer.Import{InDoubt: choice, Send: func(context.Context, transfer.Request) (int, []byte, error) {
				requests++
				return status, []byte("{}"), nil
			}})
		}
		if got, err := respond("", http.StatusBadGateway); err == nil || requests != 1 {
			t.Fatalf("%+v, %v after %d requests", got, err, requests)
		}
		_, err := respond("", http.StatusOK)
		if _, isChoice := errors.AsType[*transfer.ChoiceError](err); !isChoice || !strings.Contains(err.Error(), "because requests that set stock have no Idempotency-Key; look") || requests != 1 {
			t.Errorf("the next import ends with %v after %d requests", err, requests)
		}
		want.File, want.Rows = path, 1
		if got, err := respond(choice, http.StatusOK); err != nil || got != want || requests != 1+int(got.Imported) {
			t.Errorf("--in-doubt %s: %+v, %v after %d requests, want %+v", choice, got, err, requests, want)
		}
	}
}

// load imports a file into a store that was never reset.
func load(ctx context.Context, t *testing.T, path string, job transfer.Import) (transfer.Summary, error) {
	t.Helper()
	source := need.Value(transfer.Open(t.Context(), path, "", nil))(t)
	defer source.Close()
	job.Source, job.Connections = source, max(job.Connections, 1)
	job.WasReset = func(context.Context, string) (string, bool, error) { return "", false, nil }
	return job.Run(ctx)
}

// journalOf returns the name and the text of the one journal of a file.
func journalOf(t *testing.T, path string) (name, text string) {
	t.Helper()
	names, _ := filepath.Glob(path + "*.journal") // the pattern is right
	if len(names) != 1 {
		t.Fatalf("the journals are %q", names)
	}
	return names[0], string(need.Value(os.ReadFile(names[0]))(t))
}

// lineSize is the number of bytes of a line in [TestChangeDuringImport].
const lineSize = 16 << 10
