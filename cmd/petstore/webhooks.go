package main

import (
	"fmt"
	"net/url"
	"strings"

	"petstore/internal/egress"
	"petstore/internal/webhook"
)

// loopback are the networks that dev allows.
var loopback = []string{"127.0.0.0/8", "::1/128"}

// checkWebhooks reports the invalid settings of the guard.
func (c config) checkWebhooks(wrong reportMistake) {
	for _, text := range c.WebhookAllow {
		_, err := egress.ParseNetwork(strings.TrimSpace(text))
		wrong(err != nil, "PETSTORE_WEBHOOK_ALLOW must list IP addresses and networks with an optional port, such as 10.1.0.0/16, 10.1.2.3:8080 or [fd00::/8]:8080, but has %q", text)
	}
	_, valid := c.webhookProxy()
	wrong(!valid, "PETSTORE_WEBHOOK_PROXY must be the URL of an HTTP proxy, such as http://proxy.example:3128")
}

// webhookProxy returns the URL of the proxy, or nil if there is none.
func (c config) webhookProxy() (proxy *url.URL, valid bool) {
	if c.WebhookProxy == "" {
		return nil, true
	}
	proxy = httpURL(c.WebhookProxy)
	hasMore := strings.ContainsAny(c.WebhookProxy, "?#") // also in a password, which would then be a port
	return proxy, proxy != nil && strings.Trim(proxy.Path, "/") == "" && !hasMore
}

// guard returns the guard of the URLs of webhooks. loadConfig has validated the settings.
func (c config) guard() *egress.Guard {
	var options egress.Options
	for _, text := range c.WebhookAllow {
		if network, err := egress.ParseNetwork(strings.TrimSpace(text)); err == nil {
			options.Allow = append(options.Allow, network)
		}
	}
	options.Proxy, _ = c.webhookProxy()
	return egress.New(options)
}

// parseVault returns the vault with these keys. The error names the first invalid key by
// its number.
func parseVault(texts []string) (*webhook.Vault, error) {
	keys := make([]webhook.VaultKey, len(texts))
	for i, text := range texts {
		var err error
		if keys[i], err = webhook.ParseVaultKey(strings.TrimSpace(text)); err != nil {
			return nil, fmt.Errorf("must list keys of 32 random bytes in base64, as openssl rand -base64 32 makes them, but number %d is not one", i+1)
		}
	}
	return webhook.NewVault(keys...)
}
