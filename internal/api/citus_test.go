//go:build citus

package api_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/pgtest"
)

// TestShardMovesUnderLoad moves each shard to the other worker while 16 clients of 8 accounts write and
// read. Writes wait while Citus switches a shard over. If that takes more than a second, some requests
// get 503, and succeed when they are sent again. Nothing that was acknowledged is lost.
func TestShardMovesUnderLoad(t *testing.T) {
	t.Parallel()
	const clients, accounts, moves = 16, 8, 4
	p := startAlone(t)
	tenants := make([]tenant, accounts)
	for i := range tenants {
		tenants[i] = p.tenant(fmt.Sprint("moved-", i))
	}
	load := &moveLoad{placed: map[int64][]int64{}}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() { load.run(ctx, t, tenants[i%accounts], i) })
	}
	took := moveShards(t, p, moves)
	stop()
	group.Wait()
	t.Logf("%d operations during %d moves of %s in all, %d requests got 503",
		load.operations.Load(), moves, took.Round(time.Millisecond), load.refused.Load())
	if most := load.operations.Load() / 100; load.refused.Load() > most {
		t.Errorf("%d requests got 503, want at most %d", load.refused.Load(), most)
	}
	for _, tenant := range tenants {
		stored := pgtest.List[int64](t, p.db, "SELECT id FROM orders WHERE account_id = $1", tenant.account)
		for _, id := range load.placed[tenant.account] {
			if !slices.Contains(stored, id) {
				t.Errorf("order %d of account %d is lost", id, tenant.account)
			}
		}
	}
	if load.operations.Load() < 100 {
		t.Errorf("only %d operations ran during the moves", load.operations.Load())
	}
}

// moveLoad is the load during moves of shards.
type moveLoad struct {
	operations, refused atomic.Int64

	mu     sync.Mutex
	placed map[int64][]int64 // acknowledged orders by account
}

// run restocks, orders and reads until ctx ends.
func (l *moveLoad) run(ctx context.Context, t *testing.T, client tenant, number int) {
	t.Helper()
	for n := 0; ctx.Err() == nil; n++ {
		if err := l.once(client, fmt.Sprintf("%d-%d", number, n)); err != nil {
			t.Error(err)
			return
		}
	}
}

// once places an order, and reads it and a list.
func (l *moveLoad) once(client tenant, key string) error {
	pet := client.ids["petId"]
	for _, request := range []struct {
		method, target string
		body           any
		header         []string
		status         int
	}{
		{"PUT", "/store/inventory/" + pet, object{"quantity": 100}, nil, 200},
		{"POST", "/store/orders", object{"petId": number(client.ids, "petId")}, []string{"Idempotency-Key", key}, 201},
		{"GET", "/pets?limit=5", nil, nil, 200},
	} {
		resp, err := client.try(request.method, request.target, request.body, request.header...)
		for err == nil && resp.status == http.StatusServiceUnavailable {
			l.refused.Add(1)
			resp, err = client.try(request.method, request.target, request.body, request.header...)
		}
		if err != nil {
			return err
		}
		if resp.status != request.status {
			return fmt.Errorf("%s %s: %d %s", request.method, request.target, resp.status, resp.body)
		}
		l.operations.Add(1)
		if request.method == "POST" {
			placed := decode[order](resp)
			l.mu.Lock()
			l.placed[client.account] = append(l.placed[client.account], placed.ID)
			l.mu.Unlock()
		}
	}
	return nil
}

// moveShards moves shards of stores to the other worker, one after the other, and returns
// how long that took.
func moveShards(t *testing.T, p *petstore, moves int) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	for n := range moves {
		var shard int64
		var from, to string
		var fromPort, toPort int32
		err := p.db.QueryRow(ctx, `
			SELECT shard.shardid, shard.nodename, shard.nodeport, other.nodename, other.nodeport
			FROM citus_shards AS shard
			JOIN pg_dist_node AS other ON other.groupid <> 0 AND (other.nodename, other.nodeport) <> (shard.nodename, shard.nodeport)
			WHERE shard.table_name = 'pets'::regclass
			ORDER BY shard.shardid
			OFFSET $1
			LIMIT 1`, n).Scan(&shard, &from, &fromPort, &to, &toPort)
		if err == nil { // with the shards of the other tables
			_, err = p.db.Exec(ctx, "SELECT citus_move_shard_placement($1, $2, $3, $4, $5, shard_transfer_mode => 'force_logical')", shard, from, fromPort, to, toPort)
		}
		if err != nil {
			t.Errorf("move %d: %v", n, err)
		}
	}
	return time.Since(began)
}
