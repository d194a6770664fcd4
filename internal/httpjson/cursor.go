package httpjson

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
)

// Position is a position in the order of a list, by id or by key and then id.
type Position struct {
	Key string
	ID  int64
	// Token is a sealed text for the request with the cursor, or "". See [Sealer].
	Token string
}

// cursorMACLength is the number of bytes of HMAC-SHA-256 in a cursor. The id and the
// length of the token as varints, the token and the key follow them. All are in base64 for
// URLs.
const cursorMACLength = 16

// SealCursor returns a cursor for a position in a list. It is signed with the key, and
// valid only for the same list.
func SealCursor(key []byte, list string, at Position) string {
	payload := binary.AppendVarint(binary.AppendVarint(nil, at.ID), int64(len(at.Token)))
	payload = append(append(payload, at.Token...), at.Key...)
	return base64.RawURLEncoding.EncodeToString(append(cursorMAC(key, list, payload), payload...))
}

// OpenCursor returns the position of a cursor that SealCursor returned for the same list.
func OpenCursor(key []byte, list, cursor string) (at Position, ok bool) {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(sealed) < cursorMACLength || strings.ContainsAny(cursor, "\r\n") { // the decoder skips them
		return Position{}, false
	}
	mac, payload := sealed[:cursorMACLength], sealed[cursorMACLength:]
	if !hmac.Equal(mac, cursorMAC(key, list, payload)) {
		return Position{}, false
	}
	id, idLength := binary.Varint(payload)
	if idLength <= 0 {
		return Position{}, false
	}
	payload = payload[idLength:]
	size, sizeLength := binary.Varint(payload)
	if sizeLength <= 0 || size < 0 || size > int64(len(payload)-sizeLength) {
		return Position{}, false
	}
	payload = payload[sizeLength:]
	return Position{Key: string(payload[size:]), ID: id, Token: string(payload[:size])}, true
}

func cursorMAC(key []byte, list string, payload []byte) []byte {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%d:%s", len(list), list)
	mac.Write(payload)
	return mac.Sum(nil)[:cursorMACLength]
}
