package gate

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
	"petstore/internal/sleep"
)

const (
	// eventStream is the content type of Server-Sent Events
	// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
	eventStream = "text/event-stream"
	// ArchiveType is the content type of HTTP Archives, which has no registration.
	ArchiveType = "application/har+json"
	// MarkdownType is the content type of Markdown.
	MarkdownType = "text/markdown"

	// keyCheck is the time between two checks of the API key of a stream.
	keyCheck = time.Second
	// heartbeat is the time without an event after which a stream sends its position or a
	// comment. Proxies close a connection that is silent for longer. A client that has
	// vanished does not acknowledge it, so the kernel closes the connection.
	heartbeat = 10 * time.Second
	// defaultStreamPause is the default of [Options.StreamPause].
	defaultStreamPause = 5 * time.Second
)

// PrefersStream reports whether a request prefers a stream of events to a page. If Accept
// gives both the same weight, it must name the stream, at least by text/*, and no less
// precisely than the page.
func PrefersStream(header http.Header) bool { return prefers(header, eventStream) }

// PrefersArchive reports whether a request prefers an HTTP Archive to a page, by the same rule.
func PrefersArchive(header http.Header) bool { return prefers(header, ArchiveType) }

// PrefersMarkdown reports whether a request prefers Markdown to JSON, by the same rule.
func PrefersMarkdown(header http.Header) bool { return prefers(header, MarkdownType) }

func prefers(header http.Header, mediaType string) bool {
	wanted, page := httpjson.QualityOf(header, mediaType), httpjson.QualityOf(header, httpjson.ContentType)
	if wanted.Weight != page.Weight {
		return wanted.Weight > page.Weight
	}
	const typeRange = 2
	return wanted.Weight > 0 && wanted.Specificity >= max(page.Specificity, typeRange)
}

// Stream is a response that sends events until it cannot go on: its client disconnects or
// does not read, its key ends or the server shuts down.
type Stream struct {
	gate    *Gate
	c       *gin.Context
	state   *request
	watched Watched
	sent    time.Time // of the last bytes
	err     error     // that sending has failed
}

// Stream sends the header of a stream, and lets run send the events. The error says that the
// account has too many. The request has no place among those in progress.
func (g *Gate) Stream(c *gin.Context, watched Watched, run func(*Stream)) error {
	state := requestOf(c)
	payer := state.identity.Payer()
	if err := g.Limits.streams.Take(c.Request.Context(), payer, 1); err != nil {
		return err
	}
	defer g.Limits.streams.Give(payer, 1)
	g.leave(c)
	header := c.Writer.Header()
	header.Set("Content-Type", eventStream)
	header.Set("Cache-Control", "private, no-store")
	header.Set("Vary", varyOfStream)
	header.Set("X-Accel-Buffering", "no") // nginx then does not buffer the stream
	c.Status(http.StatusOK)
	if c.Request.Method == http.MethodHead {
		return nil
	}
	if hidden, ok := c.Writer.(discarded); ok { // Send breaks the stream after its first events
		c.Writer = hidden.ResponseWriter
	}
	g.options.Metrics.StreamOpened()
	defer g.options.Metrics.StreamClosed()
	defer state.countWait(time.Now())
	s := &Stream{gate: g, c: c, state: state, watched: watched, sent: g.options.Now()}
	run(s)
	if s.err == nil {
		setWriteDeadline(c, g.options.StreamPause) // for the end of the body
	}
	return nil
}

// Continues reports whether the client can still get events.
func (s *Stream) Continues() bool {
	return s.err == nil && s.state.connection.Err() == nil && !s.gate.shuttingDown.Load()
}

// KeyWorks reports whether the API key still works. A database that fails ends no stream.
func (s *Stream) KeyWorks() bool {
	s.state.move(time.Now().Add(s.gate.options.RequestTimeout))
	_, err := s.gate.authenticate(s.c)
	_, refused := errors.AsType[*httpjson.Error](err)
	return !refused
}

// Rest waits until the next check of the key is due.
func (s *Stream) Rest() { sleep.For(s.state.connection, keyCheck) }

// Wait waits until there may be events after a number, or the next check of the key is due.
func (s *Stream) Wait(after int64) (found bool) {
	ctx, cancel := context.WithTimeout(s.state.connection, keyCheck)
	defer cancel()
	return s.watched.Hub.Wait(ctx, s.watched.Account, after) && sleep.For(s.state.connection, readPace)
}

// Read reads from the database as a request in progress.
func (s *Stream) Read(read func(context.Context) error) error { return s.gate.look(s.c, read) }

// IsSilent reports whether the stream has sent nothing for so long that a heartbeat is due.
func (s *Stream) IsSilent() bool { return s.gate.options.Now().Sub(s.sent) >= heartbeat }

// Send sends text at once. A client that does not read it in time is disconnected, and so
// is one whose account has too many bytes on their way. It does nothing after an error.
func (s *Stream) Send(text string) {
	if s.err != nil {
		return
	}
	payer, size := s.state.identity.Payer(), int64(len(text))
	if s.err = s.gate.Limits.pageBytes.Take(s.c.Request.Context(), payer, size); s.err != nil {
		return
	}
	defer s.gate.Limits.pageBytes.Give(payer, size)
	setWriteDeadline(s.c, s.gate.options.StreamPause)
	if _, s.err = s.c.Writer.WriteString(text); s.err == nil {
		s.err = http.NewResponseController(s.c.Writer).Flush()
	}
	s.sent = s.gate.options.Now()
	if s.state.injected.closes() && strings.HasPrefix(text, "id:") {
		s.err = errConnectionClosed
	}
}
