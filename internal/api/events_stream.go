package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/event"
	"petstore/internal/httpjson"
)

const (
	// eventStream is the content type of Server-Sent Events
	// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
	eventStream = "text/event-stream"

	// keyCheck is the time between two checks of the API key of a stream.
	keyCheck = time.Second
	// heartbeat is the time without an event after which a stream sends its position or a
	// comment. Proxies close a connection that is silent for longer. A client that has
	// vanished does not acknowledge it, so the kernel closes the connection.
	heartbeat = 10 * time.Second
	// streamPage is the maximum number of events that a stream reads at a time.
	streamPage = 50
	// streamPause is the maximum time in which a client of a stream must read what the
	// server has sent.
	streamPause = 5 * time.Second
)

// acceptsStream reports whether a request prefers a stream of events to a page. If Accept
// gives both the same weight, it must name the stream, at least by text/*, and no less
// precisely than the page.
func acceptsStream(c *gin.Context) bool {
	if c.FullPath() != eventsPath {
		return false
	}
	stream, page := httpjson.QualityOf(c.Request.Header, eventStream), httpjson.QualityOf(c.Request.Header, httpjson.ContentType)
	if stream.Weight != page.Weight {
		return stream.Weight > page.Weight
	}
	const textRange = 2
	return stream.Weight > 0 && stream.Specificity >= max(page.Specificity, textRange)
}

// sight says what a request that waits for events has seen with the page.
func (page *feedPage) sight() sight {
	return sight{newest: page.next.Sequence, more: page.more, found: len(page.events) > 0}
}

// awaitEvents waits until the feed has events after an empty page, and returns them. It
// returns an empty page after the time or when the server shuts down.
func (s *Server) awaitEvents(c *gin.Context, q *feedQuery, page feedPage, wait time.Duration) (feedPage, error) {
	err := s.await(c, wait, page.sight(), func(ctx context.Context) (sight, error) {
		paid := page.toPay()
		if paid > 0 && !s.limits.pay(caller(c), paid) {
			return sight{found: true}, nil // the client follows the link when it may again
		}
		next, err := s.readFeed(ctx, caller(c), q.from(page.next), paid)
		if err == nil {
			page = next
		}
		return page.sight(), err
	})
	return page, err
}

// nextPage reads the page after another one for a stream, which has paid for it.
func (s *Server) nextPage(c *gin.Context, q *feedQuery, after feedPage) (page feedPage, err error) {
	err = s.look(c, func(ctx context.Context) error {
		page, err = s.readFeed(ctx, caller(c), q.from(after.next), after.toPay())
		return err
	})
	return page, err
}

// toPay returns the cost of the page after one that looked through many events; 0: it costs
// nothing before it is read.
func (page *feedPage) toPay() int {
	if !page.more || page.looked < eventsPerToken {
		return 0
	}
	return windowCost
}

// streamEvents sends the events of an account as they happen, until the client
// disconnects, its key ends or the server shuts down.
func (s *Server) streamEvents(c *gin.Context, q *feedQuery) error {
	q.limit = streamPage
	page, err := s.readFeed(c.Request.Context(), caller(c), q, 0)
	if err != nil {
		return err
	}
	payer := caller(c).Payer()
	if err := s.limits.streams.Take(c.Request.Context(), payer, 1); err != nil {
		return err
	}
	defer s.limits.streams.Give(payer, 1)
	s.leave(c)
	header := c.Writer.Header()
	header.Set("Content-Type", eventStream)
	header.Set("Cache-Control", "private, no-store")
	header.Set("Vary", varyOfStream)
	header.Set("X-Accel-Buffering", "no") // nginx then does not buffer the stream
	c.Status(http.StatusOK)
	if c.Request.Method == http.MethodHead || injectionOf(c) != nil && injectionOf(c).Effect == effectClose {
		return nil
	}
	s.metrics.StreamOpened()
	defer s.metrics.StreamClosed()
	defer countWait(c, time.Now())
	stream := &stream{c: c, limits: s.limits, payer: payer, now: s.now, pause: s.streamPause, sent: s.now()}
	if q.after != nil {
		stream.told = *q.after
	}
	// A client connects again after this number of ms. An empty line ends an event, and the
	// Python library httpx-sse returns one even if it has no data. So there is none here, and
	// none after a comment.
	stream.send("retry: 1000\n")
	for stream.err == nil {
		stream.sendEvents(page)
		stream.keepAlive(page.next)
		if s.shuttingDown.Load() || !s.awaitMore(c, stream, q.account, page) || !s.keyWorks(c) {
			break
		}
		if page, err = s.nextPage(c, q, page); err != nil {
			break // the client connects again and gets the error
		}
	}
	if stream.err == nil {
		setWriteDeadline(c, stream.pause) // for the end of the body
	}
	return nil
}

// awaitMore waits until a stream may read the page after another one. It reports false when
// the stream must end.
func (s *Server) awaitMore(c *gin.Context, stream *stream, account int64, page feedPage) bool {
	if !page.more {
		return s.awaitEvent(c, stream, account, page.next)
	}
	for cost := page.toPay(); cost > 0 && !s.limits.pay(caller(c), cost); {
		if !pause(connectionOf(c), keyCheck) || s.shuttingDown.Load() || !s.keyWorks(c) {
			return false
		}
		stream.keepAlive(page.next)
	}
	return true
}

// awaitEvent waits until there may be events after a position. It reports false when the
// stream must end.
func (s *Server) awaitEvent(c *gin.Context, stream *stream, account int64, position event.ID) bool {
	for stream.err == nil && connectionOf(c).Err() == nil && !s.shuttingDown.Load() {
		ctx, cancel := context.WithTimeout(connectionOf(c), keyCheck)
		found := s.feed.Wait(ctx, account, position.Sequence)
		cancel()
		if found {
			return pause(connectionOf(c), readPace)
		}
		if !s.keyWorks(c) {
			return false
		}
		stream.keepAlive(position)
	}
	return false
}

// keyWorks reports whether the API key of a stream still works. A database that fails ends
// no stream.
func (s *Server) keyWorks(c *gin.Context) bool {
	ctx, cancel := context.WithTimeout(connectionOf(c), s.requestTimeout)
	defer cancel()
	c.Request = c.Request.WithContext(ctx)
	_, err := s.authenticate(c)
	_, refused := errors.AsType[*httpjson.Error](err)
	return !refused
}

// stream is the response of a stream.
type stream struct {
	c      *gin.Context
	limits *limits
	payer  int64
	now    func() time.Time
	pause  time.Duration // in which the client must read what the server has sent
	sent   time.Time     // of the last bytes
	told   event.ID      // the last id that the client has
	err    error         // that sending has failed
}

// keepAlive sends a few bytes if the stream has been silent for long. The client has all
// its events up to a position. If it does not know that, it gets the id, without data.
// EventSource then sends it as Last-Event-ID, and dispatches no event. So the cursor of a
// stream does not expire when the account has no event of its types for 30 days.
func (s *stream) keepAlive(position event.ID) {
	switch {
	case s.err != nil || s.now().Sub(s.sent) < heartbeat:
	case position != s.told:
		s.send(fmt.Sprintf("id: %s\n\n", position))
		s.told = position
	default:
		s.send(":\n")
	}
}

// sendEvents sends the events of a page.
func (s *stream) sendEvents(page feedPage) {
	var text strings.Builder
	for _, e := range page.events {
		data, err := httpjson.Encode(e)
		if err != nil {
			s.err = err
			return
		}
		fmt.Fprintf(&text, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Type, data)
	}
	if text.Len() > 0 {
		s.send(text.String())
		s.told, _ = event.ParseID(page.events[len(page.events)-1].ID)
	}
}

// send sends text at once. A client that does not read it in time is disconnected, and so
// is one whose account has too many bytes on their way.
func (s *stream) send(text string) {
	size := int64(len(text))
	if s.err = s.limits.pageBytes.Take(s.c.Request.Context(), s.payer, size); s.err != nil {
		return
	}
	defer s.limits.pageBytes.Give(s.payer, size)
	setWriteDeadline(s.c, s.pause)
	if _, s.err = s.c.Writer.WriteString(text); s.err == nil {
		s.err = http.NewResponseController(s.c.Writer).Flush()
	}
	s.sent = s.now()
}
