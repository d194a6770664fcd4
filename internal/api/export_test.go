package api

import (
	"context"
	"net/url"
)

// SealCursor makes the cursor of a place that a test would else have to walk to.
func SealCursor(secret []byte, account int64, path string, query url.Values, sort, key string, id int64) string {
	p := &page{account: account, sort: sort}
	return sealCursor(secret, p.listID(path, query), position{key: key, id: id})
}

// Sweep deletes the stored responses that have expired by now.
func (s *Server) Sweep(ctx context.Context) { s.sweep(ctx) }
