//go:build clients

package delivery_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"petstore/db"
)

// TestReferenceLibraries verifies requests with the libraries of Standard Webhooks for
// JavaScript and Python, during the grace of a rotation. `make clients` installs them.
func TestReferenceLibraries(t *testing.T) {
	t.Parallel()
	libraries := os.Getenv("PETSTORE_WEBHOOK_LIBRARIES")
	if libraries == "" {
		t.Fatal("PETSTORE_WEBHOOK_LIBRARIES must be set to the folder of the libraries; run make clients")
	}
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook(to.url)
	next := []byte("another key of thirty-two bytes!")
	if _, err := f.queries.WebhookRotate(t.Context(), db.WebhookRotateParams{AccountID: f.account, ID: id, Secret: stored(next), GraceSeconds: 3600}); err != nil {
		t.Fatal(err)
	}
	f.emit(pets(1, 3)...)
	f.message()
	f.work().Wake(f.account)
	type request struct {
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
	}
	var given struct {
		Secrets  []string  `json:"secrets"`
		Requests []request `json:"requests"`
	}
	for _, k := range [][]byte{key, next} {
		given.Secrets = append(given.Secrets, "whsec_"+base64.StdEncoding.EncodeToString(k))
	}
	for _, r := range to.await(5) { // with message.delivered
		headers := map[string]string{}
		for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
			headers[name] = r.header.Get(name)
		}
		given.Requests = append(given.Requests, request{headers, r.body})
	}
	input, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"node", "testdata/verify.mjs"},
		{filepath.Join(libraries, "venv", "bin", "python"), "testdata/verify.py"},
	} {
		verify := exec.CommandContext(t.Context(), command[0], command[1])
		verify.Stdin = bytes.NewReader(input)
		output, err := verify.CombinedOutput()
		if err != nil || strings.TrimSpace(string(output)) != "10" {
			t.Errorf("%v: %v\n%s", command, err, output)
		}
	}
}
