package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"petstore/migrations"
)

// PendingMigration is a migration that [Migrations.Up] would apply.
type PendingMigration struct {
	Name          string      `json:"name"`          // of its file
	InTransaction bool        `json:"inTransaction"` // it holds its locks until its end
	SQL           string      `json:"sql"`
	Locks         []TableLock `json:"locks"`
}

// TableLock is the strongest lock that a migration takes on a table that exists before it.
// ACCESS SHARE, which every SELECT takes, is left out.
type TableLock struct {
	Table    string `json:"table"`
	Mode     string `json:"mode"`     // as in the documentation of LOCK TABLE, such as SHARE ROW EXCLUSIVE
	Blocks   string `json:"blocks"`   // which requests wait meanwhile: "nothing", "writes" or "reads and writes"
	Rewrites bool   `json:"rewrites"` // the migration writes the whole table again
}

// blocks says which requests wait for a lock. The other modes block only other migrations
// and VACUUM.
var blocks = map[string]string{
	"SHARE":               "writes",
	"SHARE ROW EXCLUSIVE": "writes",
	"EXCLUSIVE":           "writes",
	"ACCESS EXCLUSIVE":    "reads and writes",
}

// Plan returns the migrations that Up would apply, in order. It only reads the versions in the
// database: the locks were measured before (see [migrations.Locks]).
func (m *Migrations) Plan(ctx context.Context) ([]PendingMigration, error) {
	applied, err := m.applied(ctx)
	if err != nil {
		return nil, err
	}
	locks, err := readLocks(m.files)
	if err != nil {
		return nil, err
	}
	pending := []PendingMigration{}
	for _, source := range m.provider.ListSources() {
		if slices.Contains(applied, source.Version) {
			continue
		}
		name := path.Base(source.Path)
		text, err := fs.ReadFile(m.files, name)
		if err != nil {
			return nil, fmt.Errorf("postgres: %w", err)
		}
		up, inTransaction := upOf(string(text))
		pending = append(pending, PendingMigration{Name: name, InTransaction: inTransaction, SQL: up, Locks: append([]TableLock{}, locks[name]...)})
	}
	return pending, nil
}

// upOf returns the statements that apply a migration, and whether they run in a transaction.
func upOf(text string) (up string, inTransaction bool) {
	const annotation = "-- +goose "
	text, _, _ = strings.Cut(text, annotation+"Down")
	lines := slices.Collect(strings.Lines(text))
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, annotation) })
	return strings.TrimSpace(strings.Join(lines, "")), !strings.Contains(text, annotation+"NO TRANSACTION")
}

// readLocks returns the locks of each migration, by its name.
func readLocks(files fs.FS) (map[string][]TableLock, error) {
	text, err := fs.ReadFile(files, migrations.Locks)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	locks := map[string][]TableLock{}
	for line := range strings.Lines(string(text)) {
		var columns [4]string // migration, table, mode, "rewrites" or nothing
		copy(columns[:], strings.Split(strings.TrimSpace(line), "\t"))
		name, mode := columns[0], columns[2]
		lock := TableLock{Table: columns[1], Mode: mode, Blocks: blocks[mode], Rewrites: columns[3] != ""}
		if lock.Blocks == "" {
			lock.Blocks = "nothing"
		}
		locks[name] = append(locks[name], lock)
	}
	return locks, nil
}
