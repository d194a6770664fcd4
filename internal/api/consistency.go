package api

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/coalesce"
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

// read runs the handler of a GET. It is the only place that chooses where a request reads.
// By default, the statements of s.reads run on the primary. With the preference they run on
// a replica, if one includes the position of the client. The handler may run several times.
func (s *Server) read(c *gin.Context, r route) error {
	ctx := c.Request.Context()
	value, preferred := "", false
	if s.replicas != nil && r.scope != 0 {
		if value, preferred = httpjson.Preference(c.Request.Header, consistencyPreference); !preferred {
			s.replicas.ServedByDefault()
		}
	}
	if !preferred {
		return postgres.RetryRead(ctx, func() error { return r.handle(c) })
	}
	after, err := s.wantedPosition(ctx, value)
	if err != nil {
		return err
	}
	applyPreference(c.Writer.Header(), consistencyPreference+"="+value)
	err = s.replicas.Read(ctx, after, func(ctx context.Context) error {
		c.Request = c.Request.WithContext(ctx)
		return r.handle(c)
	})
	if err != nil { // the handler has sent nothing
		c.Writer.Header().Del("Preference-Applied")
	}
	return err
}

// applyPreference adds a preference to the header of a response (RFC 7240, section 3).
func applyPreference(header http.Header, preference string) {
	if applied := header.Get("Preference-Applied"); applied != "" {
		preference = applied + ", " + preference
	}
	header.Set("Preference-Applied", preference)
}

// wantedPosition returns the position in the value of the preference; nil: any. The error
// is [errInvalidConsistency] or comes from the database. The server does not ignore an
// invalid token, because the client relies on it.
func (s *Server) wantedPosition(ctx context.Context, value string) (*postgres.Position, error) {
	if value == eventualConsistency {
		return nil, nil //nolint:nilnil // documented
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err == nil && !strings.ContainsAny(value, "\r\n") { // the decoder skips them
		position, ok, err := s.openPosition(ctx, string(sealed))
		if ok || err != nil {
			return &position, err
		}
	}
	return nil, errInvalidConsistency.WithViolations([]httpjson.Violation{{
		Header: "Prefer", Code: "invalid_format", Message: "`consistency` must be `eventual` or the value of `Petstore-Consistency` in a response from this API.",
	}})
}

// write runs the handler of a write. If the response needs a token, it first gets the key,
// so that a write that has committed does not fail.
func (s *Server) write(c *gin.Context, r route) error {
	if s.replicas != nil && r.scope != 0 {
		if _, err := s.positions.get(c.Request.Context()); err != nil {
			return err
		}
	}
	return r.handle(c)
}

// reportPosition sends the position after a write as a token. The token of an unknown
// position makes later reads use the primary.
func (s *Server) reportPosition(c *gin.Context, position postgres.Position) {
	if sealed := s.sealPosition(c.Request.Context(), position); sealed != "" {
		c.Header(consistencyHeader, base64.RawURLEncoding.EncodeToString([]byte(sealed)))
	}
}

// endOfPage returns the sealed position of a page, so that the next page is not read from
// an earlier state. It is "" if the position is unknown.
func (s *Server) endOfPage(ctx context.Context) string {
	position := postgres.ReaderOf(ctx).End(ctx)
	if position == (postgres.Position{}) {
		return ""
	}
	return s.sealPosition(ctx, position)
}

// continueWalk makes a request read a state that includes the position of the page before.
// If that is unknown, only the primary has such a state for sure.
func (s *Server) continueWalk(ctx context.Context, sealed string) error {
	reader := postgres.ReaderOf(ctx)
	if reader == nil {
		return nil
	}
	position, _, err := s.openPosition(ctx, sealed)
	if err != nil {
		return err
	}
	return reader.Require(position)
}

// positionLength is the number of bytes of a position: the timeline and the LSN.
const positionLength = 4 + 8

// readSealer returns what seals positions. It derives its key from that of cursors.
func (s *Server) readSealer(ctx context.Context) (*httpjson.Sealer, error) {
	key, err := s.cursorKey.get(ctx)
	if err != nil {
		return nil, err
	}
	return httpjson.NewSealer(key, "petstore consistency token")
}

// sealPosition seals a position. It returns "" if there are no replicas.
func (s *Server) sealPosition(ctx context.Context, position postgres.Position) string {
	if s.replicas == nil {
		return ""
	}
	sealer, err := s.positions.get(ctx)
	if err != nil {
		return ""
	}
	text := binary.BigEndian.AppendUint32(make([]byte, 0, positionLength), position.Timeline)
	return string(sealer.Seal(binary.BigEndian.AppendUint64(text, position.LSN)))
}

// openPosition returns a sealed position. The error comes from the database.
func (s *Server) openPosition(ctx context.Context, sealed string) (position postgres.Position, ok bool, err error) {
	sealer, err := s.positions.get(ctx)
	if err != nil {
		return position, false, err
	}
	text, ok := sealer.Open([]byte(sealed))
	if !ok || len(text) != positionLength {
		return position, false, nil
	}
	return postgres.Position{Timeline: binary.BigEndian.Uint32(text), LSN: binary.BigEndian.Uint64(text[4:])}, true, nil
}

// The choice whether a shared read must know the position after it.
const (
	withEnd    = true
	withoutEnd = false
)

// sharedRead is a [coalesce.Coalescer] of reads. Only requests that read from the same
// server share a run, and each checks what the run saw against its own position.
type sharedRead[Key comparable, In, Out any] struct {
	runs *coalesce.Coalescer[readKey[Key], In, sighted[Out]]
}

// readKey is the key of runs on one server.
type readKey[Key comparable] struct {
	target any // of a [postgres.Reader]
	key    Key
}

// sighted is the output of a run, and what the run saw.
type sighted[Out any] struct {
	out  Out
	seen postgres.Seen
}

// shareReads returns a sharedRead of a function, which [coalesce.New] describes.
func shareReads[Key comparable, In, Out any](limits coalesce.Limits, ends bool, run func(context.Context, Key, []In) ([]Out, error)) *sharedRead[Key, In, Out] {
	return &sharedRead[Key, In, Out]{coalesce.New(limits, func(ctx context.Context, key readKey[Key], ins []In) ([]sighted[Out], error) {
		ctx, reader := postgres.ReaderOf(ctx).Shared(ctx, ends)
		outs, err := run(ctx, key.key, ins)
		all, seen := make([]sighted[Out], len(outs)), reader.Seen()
		for i, out := range outs {
			all[i] = sighted[Out]{out, seen}
		}
		return all, err
	})}
}

// Do returns the output for in, as [coalesce.Coalescer.Do] does.
func (s *sharedRead[Key, In, Out]) Do(ctx context.Context, key Key, in In) (out Out, err error) {
	reader := postgres.ReaderOf(ctx)
	shared, err := s.runs.Do(ctx, readKey[Key]{reader.Target(), key}, in)
	if err == nil {
		err = reader.Saw(shared.seen)
	}
	if err != nil {
		return out, err
	}
	return shared.out, nil
}
