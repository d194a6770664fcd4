package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"petstore/internal/pgtest"
	"petstore/internal/selfsigned"
	"petstore/internal/tools/need"
)

// newCertificate makes files with a certificate for localhost.
func newCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	need.OK(t, selfsigned.Make(certFile, keyFile, time.Now()))
	return certFile, keyFile
}

// trusting returns a client over HTTP/2 that trusts the certificates in a file.
func trusting(t *testing.T, certFile string) *http.Client {
	t.Helper()
	client := target{certificate: readFile(t, certFile)}.client(patience)
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// TestHTTPS serves over HTTP/2, reloads the certificate without losing connections, and keeps
// the old one while the new files are wrong.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	certFile, keyFile := newCertificate(t)
	otherCert, otherKey := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	need.OK(t, selfsigned.Make(otherCert, otherKey, time.Now().Add(time.Hour)))
	environ := []string{
		"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=127.0.0.1:0",
		"PETSTORE_TLS_CERT_FILE=" + certFile, "PETSTORE_TLS_KEY_FILE=" + keyFile,
	}
	p := begin(t, emptyDir, environ, "serve")
	plain, admin := p.addresses()
	base := "https" + strings.TrimPrefix(plain, "http")
	kept := trusting(t, certFile)
	live := httpRequest{method: http.MethodGet, url: base + "/livez"}
	response, err := live.try(t.Context(), kept)
	if err != nil || response.status != http.StatusOK || response.protocol != 2 {
		t.Fatalf("GET /livez: %+v, %v", response, err)
	}
	wantStatus(t, plain+"/livez", "", http.StatusBadRequest)
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}}
	if conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(plain, "http://")); err == nil {
		conn.Close()
		t.Error("the server accepts TLS 1.1")
	}
	health := slices.Concat(environ, []string{"PETSTORE_ADDR=" + strings.TrimPrefix(plain, "http://")})
	wantOutput(t, health, "ready\n", "healthcheck")

	end := regexp.MustCompile(`\npetstore_certificate_end_timestamp_seconds (\S+)\n`)
	before := end.FindString(read(t, admin+"/metrics"))
	replace(t, otherCert, certFile) // without its key
	p.expect("the old one stays in use")
	if got := end.FindString(read(t, admin+"/metrics")); got != before || got == "" {
		t.Errorf("the metric was %q, and is %q with the same certificate", before, got)
	}
	if _, err := live.try(t.Context(), trusting(t, otherCert)); err == nil {
		t.Error("a certificate without its key is in use")
	}
	need.OK(t, os.Remove(keyFile))
	p.expect("no such file")
	replace(t, otherKey, keyFile)
	p.expect("the certificate has changed")
	block, _ := pem.Decode([]byte(readFile(t, otherCert)))
	other := need.Value(x509.ParseCertificate(block.Bytes))(t)
	match := end.FindStringSubmatch(read(t, admin+"/metrics"))
	if got, err := strconv.ParseFloat(match[1], 64); err != nil || int64(got) != other.NotAfter.Unix() {
		t.Errorf("the metric is %s, %v; the certificate ends at %d", match[1], err, other.NotAfter.Unix())
	}
	if _, err := live.try(t.Context(), trusting(t, otherCert)); err != nil {
		t.Errorf("with the new certificate: %v", err)
	}
	if _, err := live.try(t.Context(), kept); err != nil { // a new connection would fail
		t.Errorf("on a connection from before: %v", err)
	}

	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
	waiting := make(chan error, 1)
	feed := httpRequest{method: http.MethodGet, url: base + "/events", key: key, header: http.Header{"Prefer": {"wait=5"}}} // the shutdown ends the wait
	go func() { waiting <- feed.tryOK(t.Context(), kept) }()
	awaitMetric(t, admin, "petstore_http_requests_in_flight", 1)
	p.exits(0, syscall.SIGTERM)
	if err := <-waiting; err != nil {
		t.Errorf("a request during the shutdown: %v", err)
	}
}

// replace replaces a file with a copy of another one.
func replace(t *testing.T, from, to string) {
	t.Helper()
	writeFile(t, to+".new", readFile(t, from))
	need.OK(t, os.Rename(to+".new", to))
}

func TestWrongCertificate(t *testing.T) {
	t.Parallel()
	certFile, keyFile := newCertificate(t)
	_, otherKey := newCertificate(t)
	for _, test := range []struct{ cert, key, want string }{
		{certFile, "", "invalid configuration: PETSTORE_TLS_KEY_FILE must be set to the file of the private key, because PETSTORE_TLS_CERT_FILE is set"},
		{"", keyFile, "invalid configuration: PETSTORE_TLS_CERT_FILE must be set to the file of the certificate chain, because PETSTORE_TLS_KEY_FILE is set"},
		{"/nowhere/cert.pem", keyFile, "PETSTORE_TLS_CERT_FILE must be a file that petstore can read, but /nowhere/cert.pem cannot be read: no such file or directory"},
		{certFile, "/", "PETSTORE_TLS_KEY_FILE must be a file that petstore can read, but / cannot be read: is a directory"},
		{certFile, otherKey, "PETSTORE_TLS_CERT_FILE and PETSTORE_TLS_KEY_FILE must have a certificate chain and its private key in PEM: tls: private key does not match public key"},
		{keyFile, keyFile, "PETSTORE_TLS_CERT_FILE and PETSTORE_TLS_KEY_FILE must have a certificate chain and its private key in PEM: tls: found a certificate rather than a key"},
	} {
		_, _, err := execute(t, []string{
			"DATABASE_URL=postgres://localhost:1/petstore", "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_TLS_CERT_FILE=" + test.cert, "PETSTORE_TLS_KEY_FILE=" + test.key,
		}, "serve")
		if want := strings.TrimSuffix(test.want, ": tls: found a certificate rather than a key"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}

// TestDevHTTPS: the commands in the folder of dev trust its certificate, and no others.
func TestDevHTTPS(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	p := begin(t, dir, []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0"}, "dev", "--https")
	p.expect("https://localhost:")
	p.expect("curl --cacert .petstore/cert.pem")
	p.listening()
	wantPrivate(t, filepath.Join(dir, devDir))
	stdout, stderr, err := executeIn(t, dir, nil, "", "api", "/pets?limit=1")
	if err != nil || !strings.Contains(stdout, `"id":1`) {
		t.Errorf("petstore api: %v\n%s%s", err, stdout, stderr)
	}
	dev := need.Value((&program{dir: dir}).findDev())(t)
	environ := clientOf(dev.URL, dev.APIKey)
	if _, stderr, err := executeIn(t, dir, environ, "", "api", "/pets?limit=1"); err != nil {
		t.Errorf("petstore api with variables: %v\n%s", err, stderr)
	}
	wantRefusal(t, environ, "its certificate is not valid", "api", "/pets?limit=1", "--retries", "0") // in another folder
	before := readFile(t, filepath.Join(dir, devCertFile))
	p.exits(0, os.Interrupt)
	renew := func(now time.Time) (cert string) {
		t.Helper()
		need.OK(t, selfsigned.Make(filepath.Join(dir, devCertFile), filepath.Join(dir, devKeyFile), now))
		return readFile(t, filepath.Join(dir, devCertFile))
	}
	if renew(time.Now()) != before {
		t.Error("a valid certificate is replaced")
	}
	late := renew(time.Now().Add(selfsigned.Validity))
	if late == before {
		t.Error("a certificate that ends soon is kept")
	}
	if renew(time.Now()) == late {
		t.Error("a certificate that is not valid yet is kept, as after a correction of the clock")
	}
}
