// Package freeport finds ports for servers that begin to listen some time later.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// The ports are below those that the system hands out.
const first, number = 30_000, 2_768

// begin is the first port, and tried the number of those that were tried.
var (
	begin = rand.Int64N(number) //nolint:gosec // any port will do
	tried atomic.Int64
)

// Addr returns an address of this machine that nothing listens on, each time another one.
func Addr(ctx context.Context) (string, error) {
	var config net.ListenConfig
	for range number {
		addr := fmt.Sprintf("127.0.0.1:%d", first+(begin+tried.Add(1))%number)
		if listener, err := config.Listen(ctx, "tcp", addr); err == nil {
			return addr, listener.Close()
		}
	}
	return "", errors.New("no port between 30000 and 32767 is free")
}
