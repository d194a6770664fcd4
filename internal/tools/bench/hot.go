package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
)

// leastHOT is the target for the share of updates of inventory that are HOT, which means
// that they write to no index.
const leastHOT = 0.95

// resetUpdateCounts resets the number of updates of inventory. It waits until no other
// session uses the database, because a session reports its counts only when it ends or
// seconds later.
func resetUpdateCounts(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	for sessions := 1; sessions > 0 && err == nil; {
		err = conn.QueryRow(ctx, `
			SELECT count(*)
			FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&sessions)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_stat_reset_single_table_counters('inventory'::regclass)")
	}
	return errors.Join(err, conn.Close(ctx))
}

// printHOT prints the share of the updates of inventory that were HOT since
// [resetUpdateCounts].
func printHOT(ctx context.Context, out io.Writer, name, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	var updates, hot int64
	err = conn.QueryRow(ctx, "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'inventory'::regclass").Scan(&updates, &hot)
	if err := errors.Join(err, conn.Close(ctx)); err != nil || updates == 0 {
		return err
	}
	fmt.Fprintf(out, "HOT updates of inventory, %s: %.3f of %d (target: at least %.2f)\n", name, float64(hot)/float64(updates), updates, leastHOT)
	return nil
}
