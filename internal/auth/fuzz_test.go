package auth_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"petstore/internal/auth"
)

// FuzzParseSecret checks that the parser accepts only complete keys, and that two
// valid keys differ in more than one character.
func FuzzParseSecret(f *testing.F) {
	key := auth.NewSecret().Reveal()
	for _, seed := range []string{
		"", "petstore_", key, key + "0", key[:len(key)-1], " " + key, key + "\n", strings.ToUpper(key), strings.ToLower(key), strings.Replace(key, "_", "-", 1),
		"petstore_" + strings.Repeat("0", 36), "petstore_" + strings.Repeat("ä", 18), "petstore_" + strings.Repeat("\x00", 36), key[:9] + key, key[9:],
		"petstore_000000000000000000000000000000" + "3Qp0tI",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		secret, err := auth.ParseSecret(text)
		if err != nil {
			if !errors.Is(err, auth.ErrInvalidKey) || secret.Reveal() != "" {
				t.Fatalf("%q: %v, and the secret %q", text, err, secret.Reveal())
			}
			return
		}
		const length = len("petstore_") + 30 + 6
		if secret.Reveal() != text || len(text) != length || !strings.HasPrefix(text, "petstore_") || !strings.HasPrefix(text, secret.Prefix()) {
			t.Fatalf("%q was accepted as %q with the prefix %q", text, secret.Reveal(), secret.Prefix())
		}
		if printed := fmt.Sprintf("%v %s %q %+v %#v %x", secret, secret, secret, secret, secret, secret); strings.Contains(printed, text[len(secret.Prefix()):]) {
			t.Fatalf("%q prints as %s", text, printed)
		}
		for i := range text {
			for _, other := range []byte{'0', 'Z', 'a', '_', 0, text[i] ^ 0x20} {
				if changed := text[:i] + string(other) + text[i+1:]; changed != text {
					if _, err := auth.ParseSecret(changed); err == nil {
						t.Fatalf("both %q and %q were accepted", text, changed)
					}
				}
			}
		}
	})
}
