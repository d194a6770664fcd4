package httpjson

import (
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ContentType is the media type of JSON.
const ContentType = "application/json"

// Encode returns the JSON of a value. Encode a whole response before sending any of it,
// so that a failure is a 500 and never half a body. The fields of a map are sorted.
func Encode(value any) ([]byte, error) {
	return json.Marshal(value, jsontext.EscapeForHTML(false), json.Deterministic(true))
}

// Values of headers that many responses share. Do not modify them.
var (
	typeOfJSON = []string{ContentType}
	revalidate = []string{"private, no-cache"}
)

// Send sends a complete response.
func Send(w http.ResponseWriter, status int, contentType string, body []byte) {
	header := w.Header()
	if header["Content-Type"] = typeOfJSON; contentType != ContentType {
		header["Content-Type"] = []string{contentType}
	}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}

// Write sends a value with status 200, without an entity tag. It ignores preconditions.
func Write(w http.ResponseWriter, value any) error {
	body, err := Encode(value)
	if err != nil {
		return err
	}
	Send(w, http.StatusOK, ContentType, body)
	return nil
}

// WriteUntagged sends a resource without an entity tag in response to a read, which nobody
// may store. It evaluates preconditions.
func WriteUntagged(w http.ResponseWriter, r *http.Request, value any) error {
	w.Header().Set("Cache-Control", "private, no-store")
	notModified, err := CheckPreconditions(r, NoTag)
	switch {
	case err != nil:
		return err
	case notModified:
		w.WriteHeader(http.StatusNotModified)
		return nil
	default:
		return Write(w, value)
	}
}

// WriteResource sends the representation of a resource with its entity tag in response to
// a read. It evaluates preconditions.
func WriteResource(w http.ResponseWriter, r *http.Request, representation []byte) error {
	etag := ETag(representation)
	notModified, err := CheckPreconditions(r, etag)
	switch {
	case err != nil:
		return err
	case notModified:
		setTag(w, etag)
		w.WriteHeader(http.StatusNotModified)
	default:
		setTag(w, etag)
		Send(w, http.StatusOK, ContentType, representation)
	}
	return nil
}

// SendTagged sends a representation with its entity tag. Caches must revalidate it.
func SendTagged(w http.ResponseWriter, status int, representation []byte) {
	setTag(w, ETag(representation))
	Send(w, status, ContentType, representation)
}

func setTag(w http.ResponseWriter, etag string) {
	header := w.Header()
	header["Etag"] = []string{etag}
	header["Cache-Control"] = revalidate
}
