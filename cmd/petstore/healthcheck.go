package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

const healthcheckTimeout = 5 * time.Second

func (p *program) healthcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Check whether a server on this machine is ready",
		Long: `Healthcheck requests /readyz from the server on PETSTORE_ADDR on this
machine, and fails if it is not ready. With PETSTORE_TLS_CERT_FILE it uses HTTPS, and
accepts any certificate. Use it as the HEALTHCHECK of a container.`,
		Example: "  petstore healthcheck",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.loadConfig()
			if err != nil {
				return err
			}
			url := c.scheme() + "://" + reachable(c.Addr) + "/readyz"
			request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			client := newHTTPClient(healthcheckTimeout, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the certificate has another name, and the request no secret
			client.Transport.(*http.Transport).Proxy = nil                                     //nolint:forcetypeassert // see newHTTPClient
			response, err := client.Do(request)
			if err != nil {
				return fmt.Errorf("no server responds at %s: %s; start one with `petstore serve`, or set PETSTORE_ADDR to where it listens", url, whyNoResponse(err, healthcheckTimeout))
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("the server at %s is not ready: it responds with %s; read its log", url, response.Status)
			}
			fmt.Fprintln(p.stdout, "ready")
			return nil
		},
	}
}

// reachable returns the address of a listener on addr for clients on this machine.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
