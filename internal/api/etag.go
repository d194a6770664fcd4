package api

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/postgres"
)

// etagOf is the strong entity tag (RFC 9110, 8.8.3) of a representation: a hash
// of its bytes, so it changes exactly when they do.
func etagOf(representation []byte) string {
	sum := sha256.Sum256(representation)
	var tag [24]byte
	tag[0], tag[23] = '"', '"'
	base64.RawURLEncoding.Encode(tag[1:23], sum[:16])
	return string(tag[:])
}

// tagList is the value of If-Match or If-None-Match.
type tagList struct {
	any  bool     // "*"
	tags []string // as sent, W/ and quotes included
}

// parseTags reads entity tags up to the first thing that is none, which matches
// nothing.
func parseTags(fields []string) tagList {
	var list tagList
	rest := strings.Join(fields, ",")
	if strings.TrimSpace(rest) == "*" {
		return tagList{any: true}
	}
	for {
		rest = strings.TrimLeft(rest, " \t,")
		opaque := strings.TrimPrefix(rest, "W/")
		if !strings.HasPrefix(opaque, `"`) {
			return list
		}
		end := strings.IndexByte(opaque[1:], '"')
		if end < 0 {
			return list
		}
		length := len(rest) - len(opaque) + end + 2
		tag := rest[:length]
		rest = strings.TrimLeft(rest[length:], " \t")
		if rest != "" && rest[0] != ',' {
			return list
		}
		list.tags = append(list.tags, tag)
	}
}

// matchesStrongly compares as If-Match does: weak tags are never equal (RFC 9110, 8.8.3.2).
func (l tagList) matchesStrongly(etag string) bool {
	return l.any || slices.Contains(l.tags, etag)
}

// matchesWeakly compares as If-None-Match does.
func (l tagList) matchesWeakly(etag string) bool {
	return l.any || slices.ContainsFunc(l.tags, func(tag string) bool { return strings.TrimPrefix(tag, "W/") == etag })
}

// change runs a write, a single statement. Where the client sent If-Match, lock
// reads and locks what the write changes, and the write follows in the same
// transaction if the client's tag is that of what is there. The error is that of
// lock or write, or [errPreconditionFailed].
func change[Result any](s *Server, c *gin.Context,
	lock func(context.Context, *db.Queries) (present any, err error),
	write func(context.Context, *db.Queries) (Result, error),
) (Result, error) {
	ctx := c.Request.Context()
	fields := c.Request.Header.Values("If-Match")
	if len(fields) == 0 {
		return postgres.Retry(ctx, write, s.writes)
	}
	wanted := parseTags(fields)
	return postgres.Transact(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (result Result, err error) {
		queries := db.New(tx)
		present, err := lock(ctx, queries)
		if err != nil {
			return result, err
		}
		representation, err := encode(present)
		if err != nil {
			return result, err
		}
		if !wanted.matchesStrongly(etagOf(representation)) {
			return result, errPreconditionFailed
		}
		return write(ctx, queries)
	})
}

// answerResource sends the representation of one resource with its tag, or, on
// GET, nothing when the client has it already.
func answerResource(c *gin.Context, value any) error {
	representation, err := encode(value)
	if err != nil {
		return err
	}
	sendResource(c, http.StatusOK, representation)
	return nil
}

func sendResource(c *gin.Context, status int, representation []byte) {
	etag := etagOf(representation)
	header := c.Writer.Header()
	header["Etag"] = []string{etag}
	header["Cache-Control"] = revalidated
	if hasAlready(c.Request, etag) {
		answerNotModified(c)
		return
	}
	send(c, status, asJSON, representation)
}

// hasAlready reports whether a request is to read what the client has already,
// by its If-None-Match.
func hasAlready(r *http.Request, etag string) bool {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	return reads && parseTags(r.Header.Values("If-None-Match")).matchesWeakly(etag)
}

func answerNotModified(c *gin.Context) {
	c.Status(http.StatusNotModified)
	c.Writer.WriteHeaderNow()
}
