package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" // it registers on a mux, too, that nobody serves
	"time"

	"petstore/internal/telemetry"
)

const (
	adminOff = "off" // PETSTORE_ADMIN_ADDR for no admin address

	// adminWriteTimeout is longer than a CPU profile or a trace usually takes.
	adminWriteTimeout = 2 * time.Minute

	adminMaxHeaderBytes = 12 << 10
)

// listenAdmin listens on PETSTORE_ADMIN_ADDR; it returns nil where that is off.
func listenAdmin(ctx context.Context, c config) (net.Listener, error) {
	if c.AdminAddr == adminOff {
		return nil, nil
	}
	admin, err := listen(ctx, c.AdminAddr, "PETSTORE_ADMIN_ADDR")
	if err != nil {
		return nil, err
	}
	return admin, nil
}

// startAdmin answers operators on the listener, which may be nil: the metrics,
// and the profiles of net/http/pprof. Neither is on the address of the API. The
// function returned ends it at once.
func startAdmin(listener net.Listener, metrics *telemetry.Metrics, log *slog.Logger) (stop func()) {
	if listener == nil {
		return func() {}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      adminWriteTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    adminMaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	go func() { _ = server.Serve(listener) }() // ends by being closed
	return func() { _ = server.Close() }
}

// addressOf is where a listener listens, which may be nil.
func addressOf(listener net.Listener) string {
	if listener == nil {
		return adminOff
	}
	return listener.Addr().String()
}
