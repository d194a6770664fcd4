package pgtest

var MigrationsHash = migrationsHash
