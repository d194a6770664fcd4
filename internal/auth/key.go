// Package auth makes and verifies API keys. It knows no HTTP.
package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// The form of a secret (section 7 of the contract): petstore_, 30 random
// characters of base 62, and their CRC-32 (IEEE) in 6 such characters, most
// significant first. The checksum lets secret scanners recognise a key, and us
// refuse a mistyped one without asking the database.
const (
	keyPrefix      = "petstore_"
	randomLength   = 30
	checksumLength = 6
	displayLength  = len(keyPrefix) + 8
	alphabet       = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// ErrInvalidKey says that a secret is not that of a key in force: it is
// malformed, unknown, revoked or expired. Callers are not told which.
var ErrInvalidKey = errors.New("auth: invalid API key")

// Secret is a well-formed API key as its owner sends it. It prints as its
// display prefix, so that no log or error can hold it by accident.
type Secret struct{ text string }

// NewSecret makes a random secret; it holds 178 random bits.
func NewSecret() Secret {
	// Bytes from 248 on are drawn again: 248 is the greatest multiple of 62, so
	// every character is equally likely.
	const limit = 256 - 256%len(alphabet)
	random := make([]byte, 0, randomLength)
	for buffer := make([]byte, randomLength); len(random) < randomLength; {
		rand.Read(buffer) // never fails since Go 1.24
		for _, b := range buffer {
			if int(b) < limit && len(random) < randomLength {
				random = append(random, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return Secret{keyPrefix + string(random) + checksum(string(random))}
}

// ParseSecret checks the form and the checksum of a key; the error is
// [ErrInvalidKey].
func ParseSecret(text string) (Secret, error) {
	body, found := strings.CutPrefix(text, keyPrefix)
	if !found || len(body) != randomLength+checksumLength {
		return Secret{}, ErrInvalidKey
	}
	random := body[:randomLength]
	if strings.Trim(random, alphabet) != "" || checksum(random) != body[randomLength:] {
		return Secret{}, ErrInvalidKey
	}
	return Secret{text}, nil
}

// checksum is the CRC-32 of random in base 62.
func checksum(random string) string {
	sum := crc32.ChecksumIEEE([]byte(random))
	var digits [checksumLength]byte
	for i := checksumLength - 1; i >= 0; i-- {
		digits[i] = alphabet[sum%uint32(len(alphabet))]
		sum /= uint32(len(alphabet))
	}
	return string(digits[:])
}

// Reveal returns the key itself, for the one answer that shows it.
func (s Secret) Reveal() string { return s.text }

// Prefix is the beginning of the key by which people tell keys apart.
func (s Secret) Prefix() string { return s.text[:min(displayLength, len(s.text))] }

// Hash is what the database keeps instead of the key.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(s.text)) }

// Format prints the display prefix. (Go asks no Formatter for %T and %p, which nobody prints a key with.)
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.Prefix()+"…") }
