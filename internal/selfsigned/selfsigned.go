// Package selfsigned makes certificates for servers on this machine.
package selfsigned

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"time"
)

const (
	// Validity is the longest that browsers accept.
	Validity = 397 * 24 * time.Hour
	renewal  = 7 * 24 * time.Hour // before its end
)

// Make makes a self-signed certificate for localhost, unless the files have a valid one. It is not the
// certificate of an authority, so a program that trusts it trusts only its server.
func Make(certFile, keyFile string, now time.Time) error {
	if kept, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil && !now.Before(kept.Leaf.NotBefore) && now.Before(kept.Leaf.NotAfter.Add(-renewal)) {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "localhost"},
		NotBefore:             now.Add(-time.Hour), // clocks of containers and browsers may differ
		NotAfter:              now.Add(Validity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	write := func(file, kind string, der []byte) error {
		return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	}
	return errors.Join(write(keyFile, "PRIVATE KEY", private), write(certFile, "CERTIFICATE", cert))
}
