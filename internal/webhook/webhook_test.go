package webhook_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

func vault(t *testing.T, keys ...byte) *webhook.Vault {
	t.Helper()
	var all []webhook.VaultKey
	for _, key := range keys {
		all = append(all, webhook.VaultKey{key})
	}
	made := need.Value(webhook.NewVault(all...))(t)
	return made
}

func TestVault(t *testing.T) {
	t.Parallel()
	at := webhook.Endpoint{AccountID: 7, ID: "wh_1"}
	secret := standardwebhooks.NewSecret()
	plain, first, second, both := vault(t), vault(t, 1), vault(t, 2), vault(t, 2, 1)
	for what, test := range map[string]struct {
		stored []byte
		open   *webhook.Vault
		at     webhook.Endpoint
		fault  string // in the error; "": none
	}{
		"without a key":                 {plain.Seal(at, secret), plain, at, ""},
		"stored before there was a key": {plain.Seal(at, secret), first, at, ""},
		"with the key":                  {first.Seal(at, secret), first, at, ""},
		"with a new key before it":      {first.Seal(at, secret), both, at, ""},
		"sealed with the new key":       {both.Seal(at, secret), second, at, ""},
		"with another key":              {first.Seal(at, secret), second, at, "PETSTORE_SECRET_KEY"},
		"no key any more":               {first.Seal(at, secret), plain, at, "PETSTORE_SECRET_KEY"},
		"of another webhook":            {first.Seal(at, secret), first, webhook.Endpoint{AccountID: 7, ID: "wh_2"}, "another webhook"},
		"of another account":            {first.Seal(at, secret), first, webhook.Endpoint{AccountID: 8, ID: "wh_1"}, "another webhook"},
		"damaged":                       {flipLast(first.Seal(at, secret)), first, at, "damaged"},
		"cut":                           {first.Seal(at, secret)[:10], first, at, "damaged"},
		"empty":                         {nil, first, at, "damaged"},
		"another version":               {append([]byte{9}, secret.Key()...), first, at, "damaged"},
	} {
		opened, err := test.open.Open(test.at, test.stored)
		switch {
		case test.fault == "" && (err != nil || opened.Reveal() != secret.Reveal()):
			t.Errorf("%s: %v", what, err)
		case test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)):
			t.Errorf("%s: error %v, want one with %q", what, err, test.fault)
		}
	}
	sealed := first.Seal(at, secret)
	if bytes.Contains(sealed, secret.Key()) || bytes.Equal(sealed, first.Seal(at, secret)) {
		t.Error("a sealed secret has the secret, or is the same twice")
	}
	if key, err := webhook.ParseVaultKey(strings.Repeat("A", 43) + "="); err != nil || key != (webhook.VaultKey{}) {
		t.Errorf("a key of zeros was read as %v: %v", key, err)
	}
	for _, text := range []string{"", strings.Repeat("A", 44), strings.Repeat("A", 42) + "==", strings.Repeat("A", 43), strings.Repeat("*", 43) + "="} {
		if _, err := webhook.ParseVaultKey(text); err == nil {
			t.Errorf("%q was read as a key", text)
		}
	}
}

func flipLast(sealed []byte) []byte {
	sealed[len(sealed)-1] ^= 1
	return sealed
}

func TestIDs(t *testing.T) {
	t.Parallel()
	id := webhook.NewID()
	if !webhook.IsID(id) || webhook.IsDeliveryID(id) {
		t.Errorf("webhook id %q", id)
	}
	before := webhook.FirstDeliveryID(time.Now())
	var ids []string
	for range 100 {
		id := webhook.NewDeliveryID()
		if !webhook.IsDeliveryID(id) || webhook.IsID(id) {
			t.Fatalf("delivery id %q", id)
		}
		ids = append(ids, id)
	}
	if !slices.IsSorted(ids) || ids[0] <= before || ids[len(ids)-1] >= webhook.FirstDeliveryID(time.Now().Add(time.Millisecond)) {
		t.Errorf("ids from %s to %s do not sort by time", ids[0], ids[len(ids)-1])
	}
	if webhook.IsID("wh_") || webhook.IsID(id+"0") || webhook.IsID(strings.ToUpper(id)) {
		t.Error("a malformed id was accepted")
	}
}
