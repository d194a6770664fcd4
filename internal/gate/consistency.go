package gate

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

const (
	// consistencyHeader has the position of a write, for later reads.
	consistencyHeader = "Petstore-Consistency"
	// consistencyPreference is the preference that allows a replica. Its value is
	// eventualConsistency or a token.
	consistencyPreference = "consistency"
	eventualConsistency   = "eventual"
)

// WantedPosition returns the position in the value of the preference; nil: any. The error
// is [ErrInvalidConsistency] or comes from the database. The server does not ignore an
// invalid token, because the client relies on it.
func (g *Gate) WantedPosition(ctx context.Context, value string) (*postgres.Position, error) {
	if value == eventualConsistency {
		return nil, nil //nolint:nilnil // documented
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err == nil && !strings.ContainsAny(value, "\r\n") { // the decoder skips them
		position, ok, err := g.openPosition(ctx, string(sealed))
		if ok || err != nil {
			return &position, err
		}
	}
	return nil, ErrInvalidConsistency.WithViolations([]httpjson.Violation{{
		Header: "Prefer", Code: "invalid_format", Message: "`consistency` must be `eventual` or the value of `Petstore-Consistency` in a response from this API.",
	}})
}

// ReportPosition sends the position after a write as a token. The token of an unknown
// position makes later reads use the primary.
func (g *Gate) ReportPosition(c *gin.Context, position postgres.Position) {
	if sealed := g.sealPosition(c.Request.Context(), position); sealed != "" {
		c.Header(consistencyHeader, base64.RawURLEncoding.EncodeToString([]byte(sealed)))
	}
}

// EndOfPage returns the sealed position of a page, so that the next page is not read from
// an earlier state. It is "" if the position is unknown.
func (g *Gate) EndOfPage(ctx context.Context) string {
	position := postgres.ReaderOf(ctx).End(ctx)
	if position == (postgres.Position{}) {
		return ""
	}
	return g.sealPosition(ctx, position)
}

// ContinueWalk makes a request read a state that includes the position of the page before.
// If that is unknown, only the primary has such a state for sure.
func (g *Gate) ContinueWalk(ctx context.Context, sealed string) error {
	reader := postgres.ReaderOf(ctx)
	if reader == nil {
		return nil
	}
	position, _, err := g.openPosition(ctx, sealed)
	if err != nil {
		return err
	}
	return reader.Require(position)
}

// secrets are the same in all processes.
type secrets struct {
	cursors   []byte           // signs cursors
	positions *httpjson.Sealer // seals the positions of writes and pages, with a key derived from the one of cursors
}

// sharedSecrets returns the secrets, which it reads from the database once.
func (g *Gate) sharedSecrets(ctx context.Context) (*secrets, error) {
	if known := g.secrets.Load(); known != nil {
		return known, nil
	}
	key, err := g.queries.SigningKeyGet(ctx, "cursor")
	if err != nil {
		return nil, err
	}
	sealer, err := httpjson.NewSealer(key, "petstore consistency token")
	if err != nil {
		return nil, err
	}
	read := &secrets{key, sealer}
	g.secrets.Store(read)
	return read, nil
}

// SigningKey returns the key that signs cursors in all processes. The error comes from the database.
func (g *Gate) SigningKey(ctx context.Context) ([]byte, error) {
	shared, err := g.sharedSecrets(ctx)
	if err != nil {
		return nil, err
	}
	return shared.cursors, nil
}

// positionLength is the number of bytes of a position: the timeline and the LSN.
const positionLength = 4 + 8

// sealPosition seals a position. It returns "" if there are no replicas.
func (g *Gate) sealPosition(ctx context.Context, position postgres.Position) string {
	if g.options.Replicas == nil {
		return ""
	}
	shared, err := g.sharedSecrets(ctx)
	if err != nil {
		return ""
	}
	text := binary.BigEndian.AppendUint32(make([]byte, 0, positionLength), position.Timeline)
	return string(shared.positions.Seal(binary.BigEndian.AppendUint64(text, position.LSN)))
}

// openPosition returns a sealed position. The error comes from the database.
func (g *Gate) openPosition(ctx context.Context, sealed string) (position postgres.Position, ok bool, err error) {
	shared, err := g.sharedSecrets(ctx)
	if err != nil {
		return position, false, err
	}
	text, ok := shared.positions.Open([]byte(sealed))
	if !ok || len(text) != positionLength {
		return position, false, nil
	}
	return postgres.Position{Timeline: binary.BigEndian.Uint32(text), LSN: binary.BigEndian.Uint64(text[4:])}, true, nil
}
