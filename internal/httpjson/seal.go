package httpjson

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
)

// Sealer encrypts and authenticates short texts, so that clients can neither read nor
// change them. It is safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer returns a Sealer for a purpose. It derives its key from the secret, so a secret
// may have several purposes. Each text gets a random nonce. After 2^40 texts, two of them
// have the same nonce with a probability below 2^-16, and may then be forged.
func NewSealer(secret []byte, purpose string) (*Sealer, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, purpose, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("httpjson: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("httpjson: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Sealer{aead}, err
}

// Seal returns the sealed text.
func (s *Sealer) Seal(text []byte) []byte { return s.aead.Seal(nil, nil, text, nil) } //nolint:gosec // the AEAD adds a random nonce

// Open returns the text that was sealed with the same secret and purpose.
func (s *Sealer) Open(sealed []byte) (text []byte, ok bool) {
	text, err := s.aead.Open(nil, nil, sealed, nil)
	return text, err == nil
}
