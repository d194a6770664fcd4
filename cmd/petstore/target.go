package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/account"
	"petstore/internal/auth"
)

const defaultURL = "http://localhost:8080"

// target is the server and the key of a client command.
type target struct {
	url, key string
	isDev    bool // whether they belong to the running dev
	// address is where to connect, whatever the host of the URL resolves to; empty: to that host.
	address string
	// certificate is trusted besides the authorities of the machine, in PEM.
	certificate string
}

// client returns an HTTP client for the server.
func (t target) client(timeout time.Duration) *http.Client {
	var config *tls.Config
	if t.certificate != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		roots.AppendCertsFromPEM([]byte(t.certificate))
		config = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	client := newHTTPClient(timeout, config)
	if t.address != "" {
		transport := client.Transport.(*http.Transport) //nolint:forcetypeassert // see newHTTPClient
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, t.address)
		}
	}
	return client
}

// urlFlag is the --url of a client command.
const urlFlag = "url"

func addURLFlag(cmd *cobra.Command) {
	cmd.Flags().String(urlFlag, "", "the URL of the API (default: PETSTORE_URL, the running dev, or "+defaultURL+")")
}

// currentSandbox names the sandbox of the API key.
const currentSandbox = "current"

func addSandboxFlag(cmd *cobra.Command, value *string) {
	isSandbox := func(text string) bool {
		_, isID := account.ParseSandboxID(text)
		return isID || text == currentSandbox
	}
	addTextFlag(cmd, value, "sandbox", textRule{"must be current or the id of a sandbox, such as sbx_1002", isSandbox}, "the id of the sandbox; current is the one of the API key")
}

// target returns the server and the key of a client command. --url and the variables come
// first. The key of the running dev goes to its own server only.
func (p *program) target(cmd *cobra.Command) (target, error) {
	c, err := p.loadConfig()
	if err != nil {
		return target{}, err
	}
	to := target{url: c.URL, key: c.APIKey}
	if flag := cmd.Flags().Lookup(urlFlag); flag.Changed {
		if to.url = flag.Value.String(); !isClientURL(to.url) {
			return target{}, wrongUsage(cmd, "--url "+clientURLRule)
		}
	}
	to.url = strings.TrimSuffix(to.url, "/")
	dev, err := p.findDev()
	isOther := !dev.serves(to.url)
	switch {
	case to.key == "" && err != nil:
		return target{}, fmt.Errorf("PETSTORE_API_KEY must be set to an API key, because %w; petstore dev and petstore key create print one", err)
	case to.key == "" && isOther:
		return target{}, fmt.Errorf("PETSTORE_API_KEY must be set to an API key for %s; petstore key create prints one", to.url)
	case err != nil && to.url == "":
		to.url = defaultURL
	case err == nil && !isOther:
		to.url, to.address, to.certificate, to.key = dev.URL, dev.Address, dev.Certificate, cmp.Or(to.key, dev.APIKey)
		to.isDev = to.key == dev.APIKey
	}
	if _, err := auth.ParseSecret(to.key); err != nil {
		return target{}, errors.New("PETSTORE_API_KEY has no API key, which begins with petstore_; check for missing characters or spaces")
	}
	return to, nil
}
