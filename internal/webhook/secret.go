// Package webhook holds what the API and the worker share about webhooks: ids, and the
// secrets that sign (https://www.standardwebhooks.com).
package webhook

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Secret signs the events that an endpoint receives, with HMAC-SHA-256. Only [Secret.Reveal]
// shows it.
type Secret struct{ key []byte }

// secretPrefix begins the form of a secret that clients see.
const secretPrefix = "whsec_"

// Lengths of the key of a secret in bytes. Standard Webhooks allows 24 to 64.
const (
	secretLength    = 32
	minSecretLength = 24
	maxSecretLength = 64
)

// NewSecret returns a random secret.
func NewSecret() Secret {
	key := make([]byte, secretLength)
	_, _ = rand.Read(key) // never fails
	return Secret{key}
}

// ParseSecret reads the form that [Secret.Reveal] returns.
func ParseSecret(text string) (Secret, error) {
	encoded, found := strings.CutPrefix(text, secretPrefix)
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !found || err != nil || len(key) < minSecretLength || len(key) > maxSecretLength {
		return Secret{}, errors.New("webhook: a secret is whsec_ and 24 to 64 bytes in base64")
	}
	return Secret{key}, nil
}

// Key returns the key of the HMAC.
func (s Secret) Key() []byte { return s.key }

// Reveal returns the secret in the form that clients see: whsec_ and base64.
func (s Secret) Reveal() string { return secretPrefix + base64.StdEncoding.EncodeToString(s.key) }

// String hides the secret, so that no log has it.
func (Secret) String() string { return secretPrefix + "…" }

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// Endpoint names a webhook of an account. A sealed secret opens only for its endpoint.
type Endpoint struct {
	AccountID int64
	ID        string
}

// The first byte of a stored secret.
const (
	isPlain  = 0 // the key of the HMAC follows
	isSealed = 1 // the id of the key of the vault, a nonce and the ciphertext follow
)

const keyIDLength = 4

// VaultKey is a key of a [Vault]: 32 random bytes.
type VaultKey [32]byte

// ParseVaultKey reads a key in base64, as openssl rand -base64 32 makes it.
func ParseVaultKey(text string) (VaultKey, error) {
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(key) != len(VaultKey{}) {
		return VaultKey{}, errors.New("webhook: a key of a vault is 32 bytes in base64")
	}
	return VaultKey(key), nil
}

// Vault seals secrets with AES-256-GCM before they are stored. A copy of the database then
// has no secret that works. A vault without keys stores secrets as they are. It is safe for
// concurrent use.
type Vault struct{ keys []vaultKey }

type vaultKey struct {
	id   [keyIDLength]byte
	aead cipher.AEAD
}

// NewVault returns a vault. It seals with the first key and opens with all, so that an
// operator can replace the key. The error is one of the cryptographic libraries.
func NewVault(keys ...VaultKey) (*Vault, error) {
	v := &Vault{}
	for _, key := range keys {
		block, err := aes.NewCipher(key[:])
		if err != nil {
			return nil, fmt.Errorf("webhook: %w", err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("webhook: %w", err)
		}
		sum := sha256.Sum256(append([]byte("petstore webhook key id\x00"), key[:]...))
		v.keys = append(v.keys, vaultKey{[keyIDLength]byte(sum[:keyIDLength]), aead})
	}
	return v, nil
}

// Seal returns the form of a secret to store.
func (v *Vault) Seal(e Endpoint, s Secret) []byte {
	if len(v.keys) == 0 {
		return append([]byte{isPlain}, s.key...)
	}
	key := v.keys[0]
	nonce := make([]byte, key.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	sealed := slices.Concat([]byte{isSealed}, key.id[:], nonce)
	return key.aead.Seal(sealed, nonce, s.key, e.additional())
}

// Open returns the secret of an endpoint from its stored form. The error says what the
// operator must do, and never has a part of the secret.
func (v *Vault) Open(e Endpoint, stored []byte) (Secret, error) {
	if len(stored) > minSecretLength && stored[0] == isPlain {
		return Secret{slices.Clone(stored[1:])}, nil
	}
	if len(stored) <= 1+keyIDLength || stored[0] != isSealed {
		return Secret{}, fmt.Errorf("webhook: the stored secret of %s is damaged; rotate it", e.ID)
	}
	id, rest := [keyIDLength]byte(stored[1:1+keyIDLength]), stored[1+keyIDLength:]
	for _, key := range v.keys {
		if key.id != id || len(rest) < key.aead.NonceSize() {
			continue
		}
		nonce, sealed := rest[:key.aead.NonceSize()], rest[key.aead.NonceSize():]
		if opened, err := key.aead.Open(nil, nonce, sealed, e.additional()); err == nil {
			return Secret{opened}, nil
		}
		return Secret{}, fmt.Errorf("webhook: the stored secret of %s is damaged or of another webhook; rotate it", e.ID)
	}
	return Secret{}, fmt.Errorf("webhook: the secret of %s is sealed with a key that is not in PETSTORE_SECRET_KEY; add that key, or rotate the secret", e.ID)
}

// additional returns the data that a sealed secret is bound to.
func (e Endpoint) additional() []byte { return fmt.Appendf(nil, "%d %s", e.AccountID, e.ID) }
