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

// maxTags is the number of bytes of If-Match or If-None-Match that the server reads.
const maxTags = 4 << 10

// anyTag is the value of If-Match or If-None-Match that matches every resource.
const anyTag = "*"

// parseTags reads entity tags up to the first invalid one, as sent, W/ and quotes included. Instead of
// them there may be [anyTag].
func parseTags(fields []string) (tags []string) {
	rest := listOf(fields, maxTags)
	if strings.TrimSpace(rest) == anyTag {
		return []string{anyTag}
	}
	for {
		rest = strings.TrimLeft(rest, " \t,")
		opaque := strings.TrimPrefix(rest, "W/")
		if !strings.HasPrefix(opaque, `"`) {
			return tags
		}
		end := strings.IndexByte(opaque[1:], '"')
		if end < 0 {
			return tags
		}
		length := len(rest) - len(opaque) + end + 2
		tag := rest[:length]
		rest = strings.TrimLeft(rest[length:], " \t")
		if rest != "" && rest[0] != ',' {
			return tags
		}
		tags = append(tags, tag)
	}
}

// matches compares the tags of a header as If-None-Match does or, strongly, as If-Match does: then a
// weak tag never matches (RFC 9110, section 8.8.3.2).
func matches(fields []string, etag string, strongly bool) bool {
	return slices.ContainsFunc(parseTags(fields), func(tag string) bool {
		return tag == anyTag || tag == etag || !strongly && strings.TrimPrefix(tag, "W/") == etag
	})
}

// NoTag is the entity tag of a resource without one. Only "*" matches it.
const NoTag = ""

var errNoTag = ErrPreconditionFailed.WithMessage("This path has no entity tag. Send neither If-Match nor If-None-Match.")

// CheckPreconditions evaluates If-Match and then If-None-Match (RFC 9110, section 13.2.2)
// against the entity tag of an existing resource. It reports whether the response to a
// read is 304. The error is [ErrPreconditionFailed], with another message for [NoTag]. It ignores
// the headers about dates and ranges, which need a modification date or a Range header that the
// server supports.
func CheckPreconditions(r *http.Request, etag string) (notModified bool, err error) {
	failed := ErrPreconditionFailed
	if etag == NoTag {
		failed = errNoTag
	}
	if fields := r.Header["If-Match"]; len(fields) > 0 && !matches(fields, etag, true) {
		return false, failed
	}
	switch {
	case !matches(r.Header["If-None-Match"], etag, false):
		return false, nil
	case isRead(r):
		return true, nil
	default:
		return false, failed
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
