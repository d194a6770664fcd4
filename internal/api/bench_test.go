package api_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"petstore/internal/api"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
)

// BenchmarkRequest measures a request through the server to the database and back,
// without the network between client and server.
func BenchmarkRequest(b *testing.B) {
	p := start(b).with(func(options *api.Options) {
		options.Log, _ = telemetry.NewLogger(io.Discard, slog.LevelInfo, telemetry.JSON) // the line is part of the work
	})
	petID := p.newPet("Rex", 1_000_000_000)
	for i := range 60 {
		p.newPet(fmt.Sprint("Pet ", i), 0)
	}
	for _, request := range []struct {
		name, method, target, body string
		want                       int
	}{
		{"a pet", "GET", fmt.Sprintf("/pets/%d", petID), "", 200},
		{"a batch of one", "GET", fmt.Sprintf("/pets?id=%d", petID), "", 200},
		{"a page of 50", "GET", "/pets?limit=50", "", 200},
		{"an order", "POST", "/store/orders", fmt.Sprintf(`{"petId":%d}`, petID), 201},
		{"no key", "GET", "/store/inventory/summary", "", 401},
		{"no route", "GET", "/nowhere", "", 404},
		{"health", "GET", "/livez", "", 200},
	} {
		b.Run(request.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := need.Value(http.NewRequestWithContext(b.Context(), request.method, request.target, strings.NewReader(request.body)))(b)
				if request.want != 401 {
					r.Header.Set("Authorization", "Bearer "+p.key)
				}
				if request.body != "" {
					r.Header.Set("Content-Type", "application/json")
				}
				w := discard{header: http.Header{}}
				p.server.ServeHTTP(&w, r)
				if w.status != request.want {
					b.Fatalf("%d, want %d", w.status, request.want)
				}
			}
		})
	}
}

// discard is a ResponseWriter that keeps nothing but the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
