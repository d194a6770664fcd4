package main

import (
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
		Short: "Ask a server on this machine whether it is ready",
		Long: `Healthcheck asks /readyz of the server that listens on PETSTORE_ADDR on this
machine, and fails when it is not ready. It is a container's HEALTHCHECK.`,
		Example: "  petstore healthcheck",
		Args:    usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.loadConfig(false)
			if err != nil {
				return err
			}
			url := "http://" + reachable(c.Addr) + "/readyz"
			request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			response, err := (&http.Client{Timeout: healthcheckTimeout}).Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answers %s", url, response.Status)
			}
			fmt.Fprintln(p.stdout, "ready")
			return nil
		},
	}
}

// reachable is the address at which a listener on addr is reached from this machine.
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
