package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
	"petstore/internal/sleep"
)

const (
	// keyCheck is the time between two checks of the API key of a stream.
	keyCheck = time.Second
	// heartbeat is the time without an event after which a stream sends its position or a
	// comment. Proxies close a connection that is silent for longer. A client that has
	// vanished does not acknowledge it, so the kernel closes the connection.
	heartbeat = 10 * time.Second
	// defaultStreamPause is the default of [Options.StreamPause].
	defaultStreamPause = 5 * time.Second
)

// Part has the events that a stream sends at a time.
type Part struct {
	Text   []byte // events
	Last   string // the id of the last event that the client has; "": it is the one of the part before
	UpTo   string // the id up to which the client has all events; "": it need not know
	AtOnce bool   // whether the client must know UpTo at once, so that it does not begin at a later one again
	Number int64  // the number up to which the client has all events
	More   bool   // whether there are more
	Cost   int    // of the next part, beyond what the client owes
}

// Add adds an event.
func (p *Part) Add(id, kind string, value any) error {
	data, err := httpjson.Encode(value)
	p.Text = fmt.Appendf(p.Text, "id: %s\nevent: %s\ndata: %s\n\n", id, kind, data)
	p.Last = id
	return err
}

// Stream sends parts of what a request watches: the first one, and those that read returns.
// It ends when it cannot go on: its client disconnects or does not read, its key ends, a read
// fails or the server shuts down. The client then connects again, and gets the error. A read that
// takes too long is repeated. The error of Stream says that the account has too many. The request
// has no place among those in progress.
func (g *Gate) Stream(c *gin.Context, watched Watched, first Part, read func(context.Context) (Part, error)) error {
	if unmodified, err := NotModified(c, varyOfEvents); unmodified || err != nil {
		return err
	}
	state := requestOf(c)
	payer := state.identity.Payer()
	if err := g.Limits.streams.Take(c.Request.Context(), payer, 1); err != nil {
		return err
	}
	defer g.Limits.streams.Give(payer, 1)
	state.reserved.release()
	header := c.Writer.Header()
	header.Set("Content-Type", StreamType)
	header.Set("Cache-Control", "private, no-store")
	header.Set("Vary", varyOfStream)
	header.Set("X-Accel-Buffering", "no") // nginx then does not buffer the stream
	c.Status(http.StatusOK)
	if c.Request.Method == http.MethodHead {
		return nil
	}
	if hidden, ok := c.Writer.(discarded); ok { // send breaks the stream after its first events
		c.Writer = hidden.ResponseWriter
	}
	g.options.Metrics.StreamOpened()
	defer g.options.Metrics.StreamClosed()
	defer state.countWait(time.Now())
	s := &stream{gate: g, c: c, state: state, watched: watched, sent: g.options.Now()}
	s.run(first, read)
	setWriteDeadline(c, g.options.StreamPause) // for the end of the body
	return nil
}

// stream is a response that sends events.
type stream struct {
	gate    *Gate
	c       *gin.Context
	state   *request
	watched Watched
	lastID  string    // of the events that the client has
	sent    time.Time // of the last bytes
	err     error     // that sending has failed
}

// run sends parts until the stream must end.
func (s *stream) run(part Part, read func(context.Context) (Part, error)) {
	// A client connects again after this number of ms. An empty line ends an event, and the
	// Python library httpx-sse returns one even if it has no data. So there is none here, and
	// none after a comment.
	s.send("retry: 1000\n")
	if part.AtOnce && part.UpTo != "" {
		s.sendID(part.UpTo)
	}
	for {
		if part.Text != nil {
			if s.send(string(part.Text)); s.state.injected.closes() {
				s.err = errConnectionClosed
			}
			part.Text = nil // it may be large, and a stream may be silent for long
		}
		s.lastID = cmp.Or(part.Last, s.lastID)
		if !s.awaitMore(part) {
			return
		}
		var next Part
		err := s.gate.boundedRead(s.c, func(ctx context.Context) (err error) {
			next, err = read(ctx)
			return err
		})
		switch {
		case err == nil && !s.keyWorks(): // the read may have waited
			return
		case err == nil:
			part = next
		case errors.Is(err, context.DeadlineExceeded): // others have the places or the connections
			part.Cost = 0 // it is paid
		default:
			if errorResponse(err) == ErrInternal {
				s.state.cause = err
			}
			return
		}
	}
}

// awaitMore waits until the stream may read the part after another one. It reports false when
// the stream must end.
func (s *stream) awaitMore(part Part) (ready bool) {
	for !ready && s.err == nil && s.state.connection.Err() == nil && !s.gate.shuttingDown.Load() {
		s.keepAlive(part)
		switch {
		case !part.More:
			ready = s.wait(part.Number)
		case s.gate.Limits.Pay(s.state.identity, part.Cost):
			ready = true
		default:
			sleep.For(s.state.connection, keyCheck)
		}
		if !s.keyWorks() {
			return false
		}
	}
	return ready
}

// wait waits until there may be events after a number, or the next check of the key is due.
func (s *stream) wait(after int64) (found bool) {
	ctx, cancel := context.WithTimeout(s.state.connection, keyCheck)
	defer cancel()
	return s.watched.Hub.Wait(ctx, s.watched.Account, after) && sleep.For(s.state.connection, readPace)
}

// keyWorks reports whether the API key still works, within the time limit of a request.
func (s *stream) keyWorks() bool {
	s.state.move(time.Now().Add(s.gate.options.RequestTimeout))
	return s.gate.keyRefusal(s.c) == nil
}

// sendID sends the id up to which the client has all events, without data.
func (s *stream) sendID(id string) {
	s.send(fmt.Sprintf("id: %s\n\n", id))
	s.lastID = id
}

// keepAlive sends a few bytes if the stream has been silent for long. The client has all
// its events up to an id. If it does not know that, it gets the id, without data.
// EventSource then sends it as Last-Event-ID, and dispatches no event. So the cursor of a
// stream does not expire when the account has no event of its types for 30 days. Then it looks
// whether the account is still there.
func (s *stream) keepAlive(part Part) {
	if s.gate.options.Now().Sub(s.sent) < heartbeat {
		return
	}
	if part.UpTo != "" && part.UpTo != s.lastID {
		s.sendID(part.UpTo)
	} else {
		s.send(":\n")
	}
	if s.err == nil {
		s.err = s.gate.gone(s.c, s.watched)
	}
}

// send sends text at once. A client that does not read it in time is disconnected, and so
// is one whose account has too many bytes on their way. It does nothing after an error.
func (s *stream) send(text string) {
	if s.err != nil {
		return
	}
	payer, size := s.state.identity.Payer(), int64(len(text))
	if s.err = s.gate.Limits.pageBytes.Take(s.c.Request.Context(), payer, size); s.err != nil {
		return
	}
	defer s.gate.Limits.pageBytes.Give(payer, size)
	setWriteDeadline(s.c, s.gate.options.StreamPause)
	s.sent = s.gate.options.Now() // the client may have the bytes before Flush returns
	if _, s.err = s.c.Writer.WriteString(text); s.err != nil {
		return
	}
	s.c.Writer.Flush() // if it fails, the connection ends
	liftWriteDeadline(s.c)
}
