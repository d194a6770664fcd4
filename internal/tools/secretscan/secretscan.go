// Package secretscan finds secrets in the output of a program. Only tests import it.
package secretscan

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"sync"
)

// Shortest is the length in bytes of the fragments that a scan looks for: any
// Shortest consecutive bytes of a secret. A scan ignores shorter secrets.
const Shortest = 16

// Secrets is a set of secrets to scan for. The zero value is empty. It is safe for
// concurrent use.
type Secrets struct {
	mu        sync.RWMutex
	secrets   map[string]bool           // all that were learned
	fragments map[[Shortest]byte]string // to the name of the secret
	parts     map[[partSize]byte]bool   // of fragments
}

// Every fragment in a text has a part that begins at a multiple of stride. A scan examines only
// these parts of megabytes of text, and few of them are in a fragment.
const (
	stride   = Shortest - partSize + 1
	partSize = 8
)

// Learn adds a secret under a name that is safe to print. A scan also finds the
// secret in hexadecimal, in base64 at any offset, and URL-encoded.
func (s *Secrets) Learn(name, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets, s.fragments, s.parts = map[string]bool{}, map[[Shortest]byte]string{}, map[[partSize]byte]bool{}
	}
	if len(secret) < Shortest || s.secrets[secret] {
		return
	}
	s.secrets[secret] = true
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret)), fmt.Sprintf("%X", secret)}
	for skipped := range 3 {
		// The last characters also depend on the bytes that follow the secret.
		const unsure = 4
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			encoded := encoding.EncodeToString([]byte(secret[skipped:]))
			forms = append(forms, encoded[:len(encoded)-unsure])
		}
	}
	for _, form := range forms {
		for i := 0; i+Shortest <= len(form); i++ {
			if fragment := [Shortest]byte([]byte(form[i : i+Shortest])); isVaried(fragment) {
				s.fragments[fragment] = name
				for part := range stride {
					s.parts[[partSize]byte(fragment[part:])] = true
				}
			}
		}
	}
}

// isVaried reports whether a fragment has more than 4 distinct bytes. Less varied
// fragments, such as a run of zeros, also occur outside secrets.
func isVaried(fragment [Shortest]byte) bool {
	const few = 4
	different := 0
	for i, b := range fragment {
		if bytes.IndexByte(fragment[:i], b) < 0 {
			different++
		}
	}
	return different > few
}

// keyPattern matches an API key: its display prefix, then its secret part.
var keyPattern = regexp.MustCompile(`(petstore_[0-9A-Za-z]{8})([0-9A-Za-z]{28})`)

// LearnKeys adds the secret parts of the API keys in a text, without their display
// prefixes.
func (s *Secrets) LearnKeys(text string) {
	for _, key := range keyPattern.FindAllStringSubmatch(text, -1) {
		s.Learn("the API key "+key[1], key[2])
	}
}

// In returns the names of the secrets of which the text holds a fragment, each once.
func (s *Secrets) In(text string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []string
	seen := map[string]bool{}
	for i := 0; i+partSize <= len(text); i += stride {
		if !s.parts[[partSize]byte([]byte(text[i:i+partSize]))] {
			continue
		}
		for from := max(0, i-stride+1); from <= i && from+Shortest <= len(text); from++ {
			if name, ok := s.fragments[[Shortest]byte([]byte(text[from:from+Shortest]))]; ok && !seen[name] {
				seen[name] = true
				found = append(found, name)
			}
		}
	}
	return found
}
