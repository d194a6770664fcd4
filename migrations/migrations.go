// Package migrations embeds the goose migrations of the database schema.
package migrations

import "embed"

// FS contains all migrations. Their names start with five-digit versions.
//
//go:embed *.sql
var FS embed.FS
