package api

import (
	"context"
	"net/url"

	"petstore/internal/httpjson"
)

// SealCursor makes the cursor of any place, so that a test need not walk there.
func SealCursor(secret []byte, account int64, path string, query url.Values, sort, key string, id int64) string {
	p := &page{account: account, sort: sort, path: path, url: &url.URL{RawQuery: query.Encode()}}
	return httpjson.SealCursor(secret, p.listID(), httpjson.Position{Key: key, ID: id})
}

// Sweep deletes the stored responses that have expired.
func (s *Server) Sweep(ctx context.Context) { s.sweep(ctx) }
