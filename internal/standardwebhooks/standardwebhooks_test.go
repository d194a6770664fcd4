package standardwebhooks_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
)

// TestSign compares the signature with the example of the specification.
func TestSign(t *testing.T) {
	t.Parallel()
	secret := need.Value(standardwebhooks.ParseSecret("whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))(t)
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	header := http.Header{}
	standardwebhooks.Sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), secret)
	for name, want := range map[string]string{
		"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330", "webhook-signature": want,
	} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	standardwebhooks.Sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), standardwebhooks.NewSecret(), secret)
	both := strings.Split(header.Get("webhook-signature"), " ")
	if len(both) != 2 || both[0] == want || both[1] != want {
		t.Errorf("with two secrets: %q", both)
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	first, second := standardwebhooks.NewSecret(), standardwebhooks.NewSecret()
	if first == second || len(first.Key()) != 32 {
		t.Errorf("new secrets: %q and %q", first.Key(), second.Key())
	}
	if parsed, err := standardwebhooks.ParseSecret(first.Reveal()); err != nil || parsed != first {
		t.Errorf("ParseSecret of a new secret: %q, %v", parsed.Key(), err)
	}
	if text := fmt.Sprintf("%s %v %+v %#v %q %x", first, first, first, first, first, first); strings.Contains(text, first.Reveal()[6:20]) || strings.Contains(text, fmt.Sprintf("%x", first.Key()[:8])) {
		t.Errorf("a secret formats as %s", text)
	}
	if a, b := standardwebhooks.DeriveSecret("key", "one"), standardwebhooks.DeriveSecret("key", "two"); a == b || a != standardwebhooks.DeriveSecret("key", "one") {
		t.Errorf("derived secrets: %q and %q", a.Key(), b.Key())
	}
	encode := func(size int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, size)) }
	for text, valid := range map[string]bool{
		encode(24): true, encode(64): true, encode(23): false, encode(65): false, "": false, "whsec_": false, "whsec_!": false,
		strings.TrimPrefix(encode(32), "whsec_"): false, encode(32) + "=": false,
	} {
		if _, err := standardwebhooks.ParseSecret(text); (err == nil) != valid || !valid && !errors.Is(err, standardwebhooks.ErrInvalidSecret) {
			t.Errorf("ParseSecret(%q): %v", text, err)
		}
	}
}
