package httpjson

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
)

// ETag returns the strong entity tag (RFC 9110, section 8.8.3) of a representation, a
// hash of its bytes.
func ETag(representation []byte) string {
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

// maxTags is the number of bytes of If-Match or If-None-Match that the server reads.
const maxTags = 4 << 10

// parseTags reads entity tags up to the first invalid one.
func parseTags(fields []string) tagList {
	var list tagList
	rest := listOf(fields, maxTags)
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

// matchesStrongly compares as If-Match does. A weak tag never matches (RFC 9110,
// section 8.8.3.2).
func (l tagList) matchesStrongly(etag string) bool {
	return l.any || slices.Contains(l.tags, etag)
}

// matchesWeakly compares as If-None-Match does.
func (l tagList) matchesWeakly(etag string) bool {
	return l.any || slices.ContainsFunc(l.tags, func(tag string) bool { return strings.TrimPrefix(tag, "W/") == etag })
}

// NoTag is the entity tag of a resource without one. Only "*" matches it.
const NoTag = ""

// CheckPreconditions evaluates If-Match and then If-None-Match (RFC 9110, section 13.2.2)
// against the entity tag of an existing resource. It reports whether the response to a
// read is 304. The error is [ErrPreconditionFailed]. It ignores the headers about dates
// and ranges, which need a modification date or a Range header that the server supports.
func CheckPreconditions(r *http.Request, etag string) (notModified bool, err error) {
	if fields := r.Header["If-Match"]; len(fields) > 0 && !parseTags(fields).matchesStrongly(etag) {
		return false, ErrPreconditionFailed
	}
	fields := r.Header["If-None-Match"]
	switch {
	case len(fields) == 0 || !parseTags(fields).matchesWeakly(etag):
		return false, nil
	case isRead(r):
		return true, nil
	default:
		return false, ErrPreconditionFailed
	}
}

// IsConditional reports whether a request has a precondition.
func IsConditional(r *http.Request) bool {
	return len(r.Header["If-Match"]) > 0 || len(r.Header["If-None-Match"]) > 0
}

// isRead reports whether the method is GET or HEAD.
func isRead(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}
