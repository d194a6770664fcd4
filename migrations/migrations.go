// Package migrations embeds the goose migrations that define the tables.
package migrations

import "embed"

// FS holds every migration, in the order of their five-digit versions.
//
//go:embed *.sql
var FS embed.FS
