// Package leaks finds secrets in what a program says. It is imported by tests
// alone.
package leaks

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"sync"
)

// Shortest is how much of a secret has to show to be found: this many bytes in a
// row, at any place of it. A secret that is shorter is not looked for.
const Shortest = 16

// Secrets are what must not be said. The zero value has none; its methods can be
// called at the same time.
type Secrets struct {
	mu     sync.RWMutex
	pieces map[[Shortest]byte]string // to what they are pieces of
}

// Learn adds a secret, under a name that may be told: as it is, in hexadecimal, in
// base64 wherever it begins in what is encoded, and as part of a URL.
func (s *Secrets) Learn(name, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pieces == nil {
		s.pieces = map[[Shortest]byte]string{}
	}
	if len(secret) < Shortest {
		return
	}
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret)), fmt.Sprintf("%X", secret)}
	for skipped := range 3 {
		// the last characters also depend on what follows
		const unsure = 4
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			encoded := encoding.EncodeToString([]byte(secret[skipped:]))
			forms = append(forms, encoded[:len(encoded)-unsure])
		}
	}
	for _, form := range forms {
		for i := 0; i+Shortest <= len(form); i++ {
			if piece := [Shortest]byte([]byte(form[i : i+Shortest])); isVaried(piece) {
				s.pieces[piece] = name
			}
		}
	}
}

// isVaried reports whether a piece has more than a few different bytes. What has
// not, such as a row of zeros, is part of a made-up secret and of much else.
func isVaried(piece [Shortest]byte) bool {
	const few = 4
	different := map[byte]bool{}
	for _, b := range piece {
		different[b] = true
	}
	return len(different) > few
}

// keyPattern is an API key: its display prefix, and what is secret of it.
var keyPattern = regexp.MustCompile(`(petstore_[0-9A-Za-z]{8})([0-9A-Za-z]{28})`)

// LearnKeys adds the API keys in a text. What is shown of them does not count.
func (s *Secrets) LearnKeys(text string) {
	for _, key := range keyPattern.FindAllStringSubmatch(text, -1) {
		s.Learn("the API key "+key[1], key[2])
	}
}

// In names the secrets of which a text holds a piece.
func (s *Secrets) In(text string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []string
	seen := map[string]bool{}
	for i := 0; i+Shortest <= len(text); i++ {
		if name, is := s.pieces[[Shortest]byte([]byte(text[i:i+Shortest]))]; is && !seen[name] {
			seen[name] = true
			found = append(found, name)
		}
	}
	return found
}
