package main

import (
	"bytes"
	"net/http"
	"os"
	"testing"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// TestLocalWebhooks: dev allows webhooks on the machine itself, and serve only in networks
// that are configured. With a key, the database has sealed secrets.
func TestLocalWebhooks(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const secretKey = "cGV0c3RvcmUgdGVzdCBrZXkgb2YgMzIgYnl0ZXMhISE="
	environ := []string{"DATABASE_URL=" + database.OwnerURL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_SECRET_KEY=" + secretKey}
	dev := begin(t, pgtest.Dir(t), environ, "dev")
	key := keyPattern.FindString(dev.expect("API key"))
	base := dev.address()
	const local = `{"url":"http://localhost:3000/hook","types":["*"]}`
	post(t, base+"/webhooks", key, local)
	dev.exits(0, os.Interrupt)

	var account int64
	var id string
	var stored []byte
	need.OK(t, database.Pool.QueryRow(t.Context(), "SELECT account_id, id, secret FROM webhooks").Scan(&account, &id, &stored))
	sealing := need.Value(webhook.ParseVaultKey(secretKey))(t)
	vault := need.Value(webhook.NewVault(sealing))(t)
	opened, err := vault.Open(webhook.Endpoint{AccountID: account, ID: id}, stored)
	if err != nil || bytes.Contains(stored, opened.Key()) {
		t.Errorf("the secret is not sealed with PETSTORE_SECRET_KEY: %v", err)
	}

	pool := pgtest.Open(t, database.URL, 4)
	for allow, want := range map[string]int{"": http.StatusUnprocessableEntity, "10.0.0.0/8": http.StatusUnprocessableEntity, "10.0.0.0/8,127.0.0.0/8:3000,::1": http.StatusCreated} {
		base := serveInProcess(t, pool, append(environ, "PETSTORE_WEBHOOK_ALLOW="+allow))
		request := httpRequest{method: http.MethodPost, url: base + "/webhooks", key: key, body: local}
		if got := request.send(t).status; got != want {
			t.Errorf("a local webhook with PETSTORE_WEBHOOK_ALLOW=%s: status %d, want %d", allow, got, want)
		}
	}
}
