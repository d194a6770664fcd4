package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"petstore/internal/sleep"
)

// certificateInterval is the time between two looks at the files of the certificate.
const certificateInterval = 2 * time.Second

// certificate is the certificate of the server and its key, from two files that may change.
type certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
	seen              []byte // content of the files at the last look
}

// openCertificate reads the certificate of a configuration. It returns nil if there is none.
func openCertificate(c config) (*certificate, error) {
	if c.TLSCertFile == "" {
		return nil, nil //nolint:nilnil // documented
	}
	one := &certificate{certFile: c.TLSCertFile, keyFile: c.TLSKeyFile}
	_, err := one.reload()
	return one, err
}

// reload reads the files, and reports whether they have changed since the last look. After an
// error, the certificate stays.
func (c *certificate) reload() (changed bool, err error) {
	cert, certErr := readPEM("PETSTORE_TLS_CERT_FILE", c.certFile)
	key, keyErr := readPEM("PETSTORE_TLS_KEY_FILE", c.keyFile)
	err = errors.Join(certErr, keyErr)
	seen := bytes.Join([][]byte{cert, key, fmt.Append(nil, err)}, []byte{0})
	if bytes.Equal(seen, c.seen) {
		return false, nil
	}
	c.seen = seen
	if err != nil {
		return true, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return true, fmt.Errorf("PETSTORE_TLS_CERT_FILE and PETSTORE_TLS_KEY_FILE must have a certificate chain and its private key in PEM: %w", err)
	}
	c.current.Store(&pair)
	return true, nil
}

// end returns when the certificate in use ends.
func (c *certificate) end() time.Time { return c.current.Load().Leaf.NotAfter }

// readPEM reads the file that a variable names.
func readPEM(variable, file string) ([]byte, error) {
	text, err := os.ReadFile(file) //nolint:gosec // the operator names the file
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, fmt.Errorf("%s must be a file that petstore can read, but %s cannot be read: %w", variable, file, failed.Err)
	}
	return text, err
}

// follow reloads the certificate when its files change, until ctx ends. It reads the files
// instead of watching them, because programs replace them in many ways. It does nothing for nil.
func (c *certificate) follow(ctx context.Context, log *slog.Logger) {
	for ; c != nil && ctx.Err() == nil; sleep.For(ctx, certificateInterval) {
		switch changed, err := c.reload(); {
		case err != nil:
			log.Warn("the new certificate cannot be used; the old one stays in use", "error", err)
		case changed:
			log.Info("the certificate has changed", "not_after", c.end())
		}
	}
}

// config returns the TLS configuration of a server. It returns nil for nil.
func (c *certificate) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}
