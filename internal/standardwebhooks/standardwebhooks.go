// Package standardwebhooks signs webhooks as the Standard Webhooks specification says
// (https://www.standardwebhooks.com). Receivers verify them with its libraries.
package standardwebhooks

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a webhook.
const (
	HeaderID        = "webhook-id"        // the same for every attempt
	HeaderTimestamp = "webhook-timestamp" // of the attempt, in Unix seconds
	HeaderSignature = "webhook-signature" // one signature for each secret, separated by spaces
)

const (
	secretPrefix    = "whsec_"
	secretSize      = 32    // bytes of a new secret
	minSecretSize   = 24    // bytes
	maxSecretSize   = 64    // bytes
	signaturePrefix = "v1," // HMAC-SHA-256
)

// ErrInvalidSecret means that a text is not whsec_ and 24 to 64 bytes in base64.
var ErrInvalidSecret = errors.New("standardwebhooks: a secret is whsec_ and 24 to 64 bytes in base64")

// Secret is the secret that a sender and a receiver share. It formats without its key, so
// that logs and errors cannot contain it by accident.
type Secret struct{ key string }

// NewSecret returns a random secret.
func NewSecret() Secret {
	key := make([]byte, secretSize)
	rand.Read(key) // never fails since Go 1.24
	return Secret{string(key)}
}

// DeriveSecret returns the secret that belongs to another secret and a purpose. It is always
// the same, and reveals nothing of the other secret.
func DeriveSecret(from, purpose string) Secret {
	return Secret{string(sum([]byte(from), purpose))}
}

// SecretFrom returns the secret with a key. The error is [ErrInvalidSecret].
func SecretFrom(key []byte) (Secret, error) {
	if len(key) < minSecretSize || len(key) > maxSecretSize {
		return Secret{}, ErrInvalidSecret
	}
	return Secret{string(key)}, nil
}

// ParseSecret reads a secret in the form of [Secret.Reveal]. The error is
// [ErrInvalidSecret].
func ParseSecret(text string) (Secret, error) {
	encoded, found := strings.CutPrefix(text, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil {
		return Secret{}, ErrInvalidSecret
	}
	return SecretFrom(key)
}

// Reveal returns the secret in the form that receivers know: whsec_ and the key in base64.
func (s Secret) Reveal() string { return secretPrefix + base64.StdEncoding.EncodeToString(s.Key()) }

// Key returns the key.
func (s Secret) Key() []byte { return []byte(s.key) }

// Format prints no part of the key for every verb except %T and %p, for which fmt does not
// call a Formatter.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, secretPrefix+"…") }

// Sign sets the headers of a webhook with a body, which is sent at a time. Each secret adds
// a signature, so that a receiver can change its secret.
func Sign(header http.Header, id string, at time.Time, body []byte, secrets ...Secret) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		signatures[i] = signaturePrefix + base64.StdEncoding.EncodeToString(sum(secret.Key(), id+"."+timestamp+"."+string(body)))
	}
	header.Set(HeaderID, id)
	header.Set(HeaderTimestamp, timestamp)
	header.Set(HeaderSignature, strings.Join(signatures, " "))
}

// sum returns the HMAC-SHA-256 of a text.
func sum(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
