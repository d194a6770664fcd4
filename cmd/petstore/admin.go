package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" // it registers on a mux, too, that nobody serves
	"net/netip"
	"net/url"
	"slices"
	"strings"
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

// startAdmin serves operators on the listener, which may be nil: the metrics,
// and the profiles of net/http/pprof. Neither is on the address of the API. Hosts
// are the names by which the address may be called (see [onlyHosts]). The function
// returned ends it at once.
func startAdmin(listener net.Listener, hosts []string, metrics *telemetry.Metrics, log *slog.Logger) (stop func()) {
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
		Handler:           onlyHosts(hosts, mux),
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

// onlyHosts passes on the requests whose Host is an IP address, localhost or one
// of these names, whatever the port, and refuses all others with 421. A page
// that a browser shows can have its own name resolve to this address (DNS
// rebinding) and would then read the response; its Host is that name.
func onlyHosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		_, err := netip.ParseAddr(host)
		known := func(name string) bool { return strings.EqualFold(name, strings.TrimSuffix(host, ".")) }
		if err != nil && !known("localhost") && !slices.ContainsFunc(names, known) {
			http.Error(w, "The host name of this request is not known here. Use an IP address, or add the name to PETSTORE_ADMIN_HOSTS.",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// adminHosts are the names by which the admin address may be called: those of
// PETSTORE_ADMIN_HOSTS, and that of PETSTORE_ADMIN_ADDR.
func (c config) adminHosts() []string {
	hosts := slices.Clone(c.AdminHosts)
	if host, _, err := net.SplitHostPort(c.AdminAddr); err == nil && host != "" {
		hosts = append(hosts, host)
	}
	return hosts
}

// addressOf is where a listener listens, which may be nil.
func addressOf(listener net.Listener) string {
	if listener == nil {
		return adminOff
	}
	return listener.Addr().String()
}
