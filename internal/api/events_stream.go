package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/event"
	"petstore/internal/feed"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

// streamPage is the maximum number of events that a stream reads at a time.
const streamPage = 50

// seenWith says what a request that waits for events has seen with a page.
func seenWith(page feed.Page) gate.Seen {
	return gate.Seen{Newest: page.Next.Sequence, More: page.More, Found: len(page.Events) > 0}
}

// costAfter returns the cost of the page after one that looked through many events; 0: it
// costs nothing before it is read.
func costAfter(page feed.Page) int {
	if !page.More || page.Looked < eventsPerToken {
		return 0
	}
	return windowCost
}

// watchedBy returns the feed of the account that sends a request.
func (s *Server) watchedBy(c *gin.Context) gate.Watched {
	return gate.Watched{Hub: s.feed, Account: gate.Caller(c).AccountID}
}

// awaitEvents waits until the feed has events after an empty page, and returns them. It
// returns an empty page after the time or when the server shuts down.
func (s *Server) awaitEvents(c *gin.Context, q *feed.Query, page feed.Page, wait time.Duration) (feed.Page, error) {
	err := s.gate.Await(c, s.watchedBy(c), wait, seenWith(page), func(ctx context.Context) (gate.Seen, error) {
		cost := costAfter(page)
		if cost > 0 && !s.gate.Limits.Pay(gate.Caller(c), cost) {
			return gate.Seen{Found: true}, nil // the client follows the link when it may again
		}
		next, err := s.readFeed(ctx, gate.Caller(c), q.From(page.Next), cost)
		if err == nil {
			page = next
		}
		return seenWith(page), err
	})
	return page, err
}

// streamEvents sends the events of an account as they happen.
func (s *Server) streamEvents(c *gin.Context, q *feed.Query) error {
	q.Limit = streamPage
	page, err := s.readFeed(c.Request.Context(), gate.Caller(c), q, 0)
	if err != nil {
		return err
	}
	return s.gate.Stream(c, s.watchedBy(c), func(sent *gate.Stream) {
		stream := &eventStream{Stream: sent}
		if q.After != nil {
			stream.told = *q.After
		}
		// A client connects again after this number of ms. An empty line ends an event, and the
		// Python library httpx-sse returns one even if it has no data. So there is none here, and
		// none after a comment.
		stream.Send("retry: 1000\n")
		for {
			stream.sendEvents(page)
			stream.keepAlive(page.Next)
			if !s.awaitMore(c, stream, page) || !stream.KeyWorks() {
				return
			}
			after, paid := q.From(page.Next), costAfter(page)
			if stream.Read(func(ctx context.Context) (err error) {
				page, err = s.readFeed(ctx, gate.Caller(c), after, paid)
				return err
			}) != nil {
				return // the client connects again and gets the error
			}
		}
	})
}

// awaitMore waits until a stream may read the page after another one. It reports false when
// the stream must end.
func (s *Server) awaitMore(c *gin.Context, stream *eventStream, page feed.Page) bool {
	if !page.More {
		return stream.awaitEvent(page.Next)
	}
	for cost := costAfter(page); cost > 0 && !s.gate.Limits.Pay(gate.Caller(c), cost); {
		if !stream.Rest() {
			return false
		}
		stream.keepAlive(page.Next)
	}
	return stream.Continues()
}

// eventStream is a stream of the feed.
type eventStream struct {
	*gate.Stream

	told event.ID // the last id that the client has
}

// awaitEvent waits until there may be events after a position. It reports false when the
// stream must end.
func (s *eventStream) awaitEvent(position event.ID) bool {
	for s.Continues() {
		if s.Wait(position.Sequence) {
			return true
		}
		if !s.KeyWorks() {
			return false
		}
		s.keepAlive(position)
	}
	return false
}

// keepAlive sends a few bytes if the stream has been silent for long. The client has all
// its events up to a position. If it does not know that, it gets the id, without data.
// EventSource then sends it as Last-Event-ID, and dispatches no event. So the cursor of a
// stream does not expire when the account has no event of its types for 30 days.
func (s *eventStream) keepAlive(position event.ID) {
	switch {
	case !s.IsSilent():
	case position != s.told:
		s.Send(fmt.Sprintf("id: %s\n\n", position))
		s.told = position
	default:
		s.Send(":\n")
	}
}

// sendEvents sends the events of a page.
func (s *eventStream) sendEvents(page feed.Page) {
	var text strings.Builder
	for _, e := range page.Events {
		data, err := httpjson.Encode(e)
		if err != nil {
			s.Fail(err)
			return
		}
		fmt.Fprintf(&text, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Type, data)
	}
	if text.Len() > 0 {
		s.Send(text.String())
		s.told, _ = event.ParseID(page.Events[len(page.Events)-1].ID)
	}
}
