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

// noTag stands for the tag of a resource that has none. Only "*" matches it.
const noTag = ""

// preconditions evaluates If-Match and then If-None-Match (RFC 9110, section 13.2.2)
// against the tag of a resource that exists. It reports whether the response to a read
// is 304; the error is [errPreconditionFailed]. The conditions on dates and ranges do
// not apply: no resource has a modification date, and the server ignores Range.
func preconditions(r *http.Request, etag string) (unmodified bool, err error) {
	if fields := r.Header.Values("If-Match"); len(fields) > 0 && !parseTags(fields).matchesStrongly(etag) {
		return false, errPreconditionFailed
	}
	fields := r.Header.Values("If-None-Match")
	switch {
	case len(fields) == 0 || !parseTags(fields).matchesWeakly(etag):
		return false, nil
	case isRead(r):
		return true, nil
	default:
		return false, errPreconditionFailed
	}
}

// isConditional reports whether a request has a precondition.
func isConditional(r *http.Request) bool {
	return len(r.Header.Values("If-Match")) > 0 || len(r.Header.Values("If-None-Match")) > 0
}

func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// untagged evaluates the preconditions of a write to a resource without a tag.
func checkUntagged(r *http.Request) error {
	_, err := preconditions(r, noTag)
	return err
}

// updateIfMatch runs a write, a single statement. If the request has preconditions, lock
// reads and locks what the write changes, and the write follows in the same
// transaction if they hold for what is there. The error is that of lock or write,
// or [errPreconditionFailed].
func updateIfMatch[Result any](s *Server, c *gin.Context,
	lock func(context.Context, *db.Queries) (present any, err error),
	write func(context.Context, *db.Queries) (Result, error),
) (Result, error) {
	ctx := c.Request.Context()
	if !isConditional(c.Request) {
		return postgres.Retry(ctx, write, s.writes)
	}
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
		if _, err := preconditions(c.Request, etagOf(representation)); err != nil {
			return result, err
		}
		return write(ctx, queries)
	})
}

// writeResource sends the representation of one resource with its tag. A read
// evaluates its preconditions here; a write did so under its lock.
func writeResource(c *gin.Context, value any) error {
	representation, err := encode(value)
	if err != nil {
		return err
	}
	etag := etagOf(representation)
	if !isRead(c.Request) {
		sendTagged(c, http.StatusOK, etag, representation)
		return nil
	}
	unmodified, err := preconditions(c.Request, etag)
	switch {
	case err != nil:
		return err
	case unmodified:
		setTag(c, etag)
		sendNotModified(c)
	default:
		sendTagged(c, http.StatusOK, etag, representation)
	}
	return nil
}

func sendTagged(c *gin.Context, status int, etag string, representation []byte) {
	setTag(c, etag)
	send(c, status, asJSON, representation)
}

func setTag(c *gin.Context, etag string) {
	header := c.Writer.Header()
	header["Etag"] = []string{etag}
	header["Cache-Control"] = revalidated
}

func sendNotModified(c *gin.Context) {
	c.Status(http.StatusNotModified)
	c.Writer.WriteHeaderNow()
}
