// Package migrations embeds the goose migrations of the database schema.
package migrations

import "embed"

// Locks is the file with the locks of each migration on tables that exist before it.
// TestMigrationLocks measures them.
const Locks = "locks.txt"

// FS contains all migrations, whose names start with five-digit versions, and [Locks].
//
//go:embed *.sql locks.txt
var FS embed.FS
