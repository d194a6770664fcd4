package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" // its init also registers on http.DefaultServeMux, which is not served
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"petstore/internal/telemetry"
)

const (
	adminOff = "off" // the value of PETSTORE_ADMIN_ADDR that disables the admin address

	// adminWriteTimeout limits a response. net/http/pprof adds the time of a profile to it.
	adminWriteTimeout = 2 * time.Minute

	adminMaxHeaderBytes = 12 << 10
)

// listenAdmin listens on PETSTORE_ADMIN_ADDR. It returns nil if that is off.
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

// startAdmin serves the metrics and the profiles of net/http/pprof on the listener,
// which may be nil. The address of the API serves neither. Hosts are the allowed
// host names (see [onlyHosts]). The returned function stops it at once.
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
	go func() { _ = server.Serve(listener) }() // ends when closed
	return func() { _ = server.Close() }
}

// onlyHosts passes on requests whose Host is an IP address, localhost or one of the
// names, with any port. It rejects others with 421 (Misdirected Request). Otherwise
// a web page could resolve its own name to this address (DNS rebinding) and read
// the response.
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

// adminHosts returns the allowed host names of the admin address, from
// PETSTORE_ADMIN_HOSTS and PETSTORE_ADMIN_ADDR.
func (c config) adminHosts() []string {
	hosts := slices.Clone(c.AdminHosts)
	if host, _, err := net.SplitHostPort(c.AdminAddr); err == nil && host != "" {
		hosts = append(hosts, host)
	}
	return hosts
}

// addressOf returns the address of a listener, or "off" for nil.
func addressOf(listener net.Listener) string {
	if listener == nil {
		return adminOff
	}
	return listener.Addr().String()
}
