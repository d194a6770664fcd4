package main

import (
	"context"
	"errors"
	"fmt"

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

// hotCount counts the updates of inventory, and how many of them were HOT.
type hotCount struct{ updates, hot int64 }

// hotUpdates counts the updates since [resetUpdateCounts].
func hotUpdates(ctx context.Context, databaseURL string) (c hotCount, err error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return c, err
	}
	err = conn.QueryRow(ctx, "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'inventory'::regclass").Scan(&c.updates, &c.hot)
	return c, errors.Join(err, conn.Close(ctx))
}

func (c hotCount) line() line {
	share := float64(c.hot) / float64(c.updates)
	return line{
		name: "HOT updates of inventory", ours: fmt.Sprintf("%.3f", share),
		other: "all updates", theirs: thousands(float64(c.updates)),
		target: fmt.Sprintf("at least %.2f", leastHOT), verdict: verdict(share >= leastHOT),
	}
}
