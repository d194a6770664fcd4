package localpg

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// TestWatch shows a download on a terminal, with and without a size.
func TestWatch(t *testing.T) {
	t.Parallel()
	for length, want := range map[int64]string{
		2_000_000: "Downloading PostgreSQL " + fetchVersion + " (2.0 MB) into /cache, once.\n\r1.0 of 2.0 MB\r2.0 of 2.0 MB\r\x1b[K",
		-1:        "Downloading PostgreSQL " + fetchVersion + " into /cache, once.\n\r1.0 MB\r2.0 MB\r\x1b[K",
	} {
		var progress strings.Builder
		half := strings.Repeat("x", 1_000_000)
		body := io.MultiReader(strings.NewReader(half), strings.NewReader(half), iotest.ErrReader(io.EOF))
		response := &http.Response{ContentLength: length, Body: io.NopCloser(body)}
		reader := finder{cache: "/cache", progress: &progress}.watch(response, true)
		buffer := make([]byte, len(half))
		for err := error(nil); err == nil; {
			_, err = reader.Read(buffer)
		}
		if progress.String() != want {
			t.Errorf("with the size %d: got %q, want %q", length, progress.String(), want)
		}
	}
}
