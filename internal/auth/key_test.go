package auth_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"testing"

	"petstore/internal/auth"
)

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// sealed completes a key with its checksum (ApiKeyWithSecret in the spec), with an
// independent implementation.
func sealed(random string) string {
	rest, digits := uint64(crc32.ChecksumIEEE([]byte(random))), ""
	for rest > 0 {
		digits = string(base62[rest%62]) + digits
		rest /= 62
	}
	return "petstore_" + random + strings.Repeat("0", 6-len(digits)) + digits
}

func TestKeyFormat(t *testing.T) {
	t.Parallel()
	for random, want := range map[string]string{
		// Python's zlib computed these checksums.
		"000000000000000000000000000000": "petstore_0000000000000000000000000000002C8GjS",
		"0123456789ABCDEFGHIJKLMNOPQRST": "petstore_0123456789ABCDEFGHIJKLMNOPQRST4PMbyp",
		"drrYjTdd6emrCGjTGYv3HF2s7u0rih": "petstore_drrYjTdd6emrCGjTGYv3HF2s7u0rih00gEpD", // padded
		"zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz": "petstore_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz4IlJEz",
	} {
		if got := sealed(random); got != want {
			t.Errorf("the checksum in this test gives %s, want %s", got, want)
		}
		secret, err := auth.ParseSecret(want)
		if err != nil {
			t.Errorf("%s was rejected: %v", want, err)
			continue
		}
		if secret.Reveal() != want || secret.Prefix() != want[:len("petstore_")+8] {
			t.Errorf("%s was parsed as %s with the prefix %s", want, secret.Reveal(), secret.Prefix())
		}
		if hash := secret.Hash(); hash != sha256.Sum256([]byte(want)) {
			t.Errorf("%s has the hash %x", want, hash)
		}
	}
	if _, err := auth.ParseSecret(sealed(strings.Repeat("-", 30))); !errors.Is(err, auth.ErrInvalidKey) {
		t.Errorf("hyphens with their checksum: %v", err)
	}
}

// TestNewSecret: new keys are valid and unique, and use all characters equally
// often.
func TestNewSecret(t *testing.T) {
	t.Parallel()
	const keys = 20_000
	form := regexp.MustCompile(`^petstore_[0-9A-Za-z]{36}$`)
	seen, counts := map[string]bool{}, map[byte]int{}
	for range keys {
		key := auth.NewSecret().Reveal()
		random := key[len("petstore_") : len("petstore_")+30]
		if !form.MatchString(key) || key != sealed(random) || seen[key] {
			t.Fatalf("%s is malformed or not unique", key)
		}
		if _, err := auth.ParseSecret(key); err != nil {
			t.Fatalf("%s was rejected: %v", key, err)
		}
		seen[key] = true
		for i := range random {
			counts[random[i]]++
		}
	}
	// Pearson's chi-square with 61 degrees of freedom exceeds 130 once in 500,000 runs.
	expected, chiSquare := float64(keys*30)/62, 0.0
	for i := range base62 {
		chiSquare += math.Pow(float64(counts[base62[i]])-expected, 2) / expected
	}
	if chiSquare > 130 {
		t.Errorf("the characters are not equally likely: chi-square %.1f, %v", chiSquare, counts)
	}
}

// TestSecretNeverPrintsItself: formats, logs, errors and JSON do not contain the
// secret in any base. Vet rejects %p, which does not call Format.
func TestSecretNeverPrintsItself(t *testing.T) {
	t.Parallel()
	secret := auth.NewSecret()
	hidden := secret.Reveal()[len(secret.Prefix()):]
	held := struct {
		Name   string
		Secret auth.Secret
		Next   *auth.Secret
	}{"x", secret, &secret}

	printed := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%100s", "%.50s"} {
		for name, value := range map[string]any{"secret": secret, "pointer": &secret, "struct": held, "slice": []auth.Secret{secret}, "map": map[auth.Secret]int{secret: 1}} {
			printed[verb+" of a "+name] = fmt.Sprintf(verb, value)
		}
	}
	printed["Sprint"] = fmt.Sprint(secret, &secret, held)
	printed["an error"] = fmt.Errorf("refused: %v", secret).Error()
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"slog JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		"slog text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var lines bytes.Buffer
		slog.New(handler(&lines)).Info("made", "secret", secret, "pointer", &secret, "held", held)
		printed[name] = lines.String()
	}
	for name, value := range map[string]any{"secret": secret, "pointer": &secret, "struct": held, "slice": []auth.Secret{secret}} {
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Errorf("JSON of a %s: %v", name, err)
		}
		printed["JSON of a "+name] = string(encoded)
	}
	for how, text := range printed {
		for _, form := range []string{hidden, fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden), base64.StdEncoding.EncodeToString([]byte(secret.Reveal()))[:40]} {
			if strings.Contains(text, form) {
				t.Errorf("%s prints the key: %s", how, text)
			}
		}
		hash := secret.Hash()
		if strings.Contains(text, hex.EncodeToString(hash[:])) {
			t.Errorf("%s prints the hash: %s", how, text)
		}
	}
	if got := fmt.Sprint(secret); !strings.Contains(got, secret.Prefix()) {
		t.Errorf("it prints as %q, which does not identify the key", got)
	}
}

func TestZeroSecret(t *testing.T) {
	t.Parallel()
	var none auth.Secret
	if none.Reveal() != "" || none.Prefix() != "" || !strings.HasPrefix(fmt.Sprint(none), "…") {
		t.Errorf("the zero secret prints as %q", fmt.Sprint(none))
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	scopes := []auth.Scope{auth.Read, auth.Write, auth.Admin}
	for i, name := range []string{"read", "write", "admin"} {
		got, err := auth.ParseScope(name)
		if err != nil || got != scopes[i] || got.String() != name {
			t.Errorf("ParseScope(%q) = %v, %v", name, got, err)
		}
		for j, other := range scopes {
			if includes := got.Includes(other); includes != (i >= j) {
				t.Errorf("%s includes %s: %t", got, other, includes)
			}
		}
	}
	for _, name := range []string{"", "Read", "READ", "reads", "read ", "root", "0", "1"} {
		if got, err := auth.ParseScope(name); err == nil || got != 0 || !strings.Contains(err.Error(), "read, write or admin") {
			t.Errorf("ParseScope(%q) = %v, %v", name, got, err)
		}
	}
	if auth.Scope(0).Includes(auth.Read) {
		t.Error("no scope includes read")
	}
}
