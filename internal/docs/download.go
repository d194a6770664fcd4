package docs

import "net/http"

// CollectionPath is the path of the Postman collection.
const CollectionPath = HomePath + "/petstore.postman_collection.json"

// NewDownload returns a file that is made at its first use.
func NewDownload(contentType string, text func() []byte) *File {
	return newFile(text, contentType, http.Header{"Cache-Control": {"public, no-cache"}})
}
