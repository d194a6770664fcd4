// Package webhook is about the webhooks of accounts: their ids, changes and secrets, replays of
// the feed to them, and the deletion of old deliveries. Package delivery sends.
package webhook

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"petstore/internal/standardwebhooks"
)

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
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("webhook: %w", err)
		}
		sum := sha256.Sum256(append([]byte("petstore webhook key id\x00"), key[:]...))
		v.keys = append(v.keys, vaultKey{[keyIDLength]byte(sum[:keyIDLength]), aead})
	}
	return v, nil
}

// Seal returns the form of a secret to store.
func (v *Vault) Seal(e Endpoint, s standardwebhooks.Secret) []byte {
	if len(v.keys) == 0 {
		return append([]byte{isPlain}, s.Key()...)
	}
	key := v.keys[0]
	sealed := slices.Concat([]byte{isSealed}, key.id[:])
	return key.aead.Seal(sealed, nil, s.Key(), e.additional()) //nolint:gosec // the AEAD adds a random nonce
}

// Open returns the secret of an endpoint from its stored form. The error says what the
// operator must do, and never has a part of the secret.
func (v *Vault) Open(e Endpoint, stored []byte) (standardwebhooks.Secret, error) {
	if len(stored) > 0 && stored[0] == isPlain {
		return e.secret(stored[1:])
	}
	if len(stored) <= 1+keyIDLength || stored[0] != isSealed {
		return standardwebhooks.Secret{}, fmt.Errorf("webhook: the stored secret of %s is damaged; rotate it", e.ID)
	}
	id, sealed := [keyIDLength]byte(stored[1:1+keyIDLength]), stored[1+keyIDLength:]
	for _, key := range v.keys {
		if key.id != id {
			continue
		}
		if opened, err := key.aead.Open(nil, nil, sealed, e.additional()); err == nil {
			return e.secret(opened)
		}
		return standardwebhooks.Secret{}, fmt.Errorf("webhook: the stored secret of %s is damaged or of another webhook; rotate it", e.ID)
	}
	return standardwebhooks.Secret{}, fmt.Errorf("webhook: the secret of %s is sealed with a key that is not in PETSTORE_SECRET_KEY; add that key, or rotate the secret", e.ID)
}

// secret returns the secret with a stored key.
func (e Endpoint) secret(key []byte) (standardwebhooks.Secret, error) {
	secret, err := standardwebhooks.SecretFrom(key)
	if err != nil {
		return secret, fmt.Errorf("webhook: the stored secret of %s is damaged; rotate it", e.ID)
	}
	return secret, nil
}

// additional returns the data that a sealed secret is bound to.
func (e Endpoint) additional() []byte { return fmt.Appendf(nil, "%d %s", e.AccountID, e.ID) }
