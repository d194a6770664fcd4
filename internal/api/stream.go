package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gin-gonic/gin"

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
	first, err := partOf(page)
	if err != nil {
		return err
	}
	if first.text == "" && q.After != nil {
		first.last = q.After.String()
	}
	return s.stream(c, s.watchedBy(c), first, func(ctx context.Context) (streamPart, error) {
		next, err := s.readFeed(ctx, gate.Caller(c), q.From(page.Next), costAfter(page))
		if err != nil {
			return streamPart{}, err
		}
		page = next
		return partOf(page)
	})
}

// partOf returns the part of a stream that a page of the feed makes.
func partOf(page feed.Page) (part streamPart, err error) {
	part = streamPart{upTo: page.Next.String(), number: page.Next.Sequence, more: page.More, cost: costAfter(page)}
	for _, e := range page.Events {
		err = errors.Join(err, part.add(e.ID, e.Type, e))
	}
	return part, err
}

// streamPart has the events that a stream sends at a time.
type streamPart struct {
	text   string // events
	last   string // the id of the last event that the client has; "": it is the one of the part before
	upTo   string // the id up to which the client has all events; "": it need not know
	number int64  // the number up to which the client has all events
	more   bool   // whether there are more
	cost   int    // of the next part
}

// add adds an event.
func (p *streamPart) add(id, kind string, value any) error {
	data, err := httpjson.Encode(value)
	p.text += fmt.Sprintf("id: %s\nevent: %s\ndata: %s\n\n", id, kind, data)
	p.last = id
	return err
}

// stream sends parts of what a request watches, until the stream must end. If a read fails, the
// client connects again and gets the error.
func (s *Server) stream(c *gin.Context, watched gate.Watched, part streamPart, read func(context.Context) (streamPart, error)) error {
	return s.gate.Stream(c, watched, func(stream *gate.Stream) {
		// A client connects again after this number of ms. An empty line ends an event, and the
		// Python library httpx-sse returns one even if it has no data. So there is none here, and
		// none after a comment.
		stream.Send("retry: 1000\n")
		for lastID := ""; ; { // of the events that the client has
			if part.text != "" {
				stream.Send(part.text)
			}
			lastID = cmp.Or(part.last, lastID)
			if !s.awaitMore(c, stream, part, &lastID) {
				return
			}
			if stream.Read(func(ctx context.Context) (err error) {
				part, err = read(ctx)
				return err
			}) != nil {
				return
			}
		}
	})
}

// awaitMore waits until a stream may read the part after another one. It reports false when
// the stream must end.
func (s *Server) awaitMore(c *gin.Context, stream *gate.Stream, part streamPart, lastID *string) (ready bool) {
	for !ready && stream.Continues() {
		keepAlive(stream, part, lastID)
		switch {
		case !part.more:
			ready = stream.Wait(part.number)
		case part.cost == 0 || s.gate.Limits.Pay(gate.Caller(c), part.cost):
			ready = true
		default:
			stream.Rest()
		}
		if !stream.KeyWorks() {
			return false
		}
	}
	return ready
}

// keepAlive sends a few bytes if the stream has been silent for long. The client has all
// its events up to an id. If it does not know that, it gets the id, without data.
// EventSource then sends it as Last-Event-ID, and dispatches no event. So the cursor of a
// stream does not expire when the account has no event of its types for 30 days.
func keepAlive(stream *gate.Stream, part streamPart, lastID *string) {
	switch {
	case !stream.IsSilent():
	case part.upTo != "" && part.upTo != *lastID:
		stream.Send(fmt.Sprintf("id: %s\n\n", part.upTo))
		*lastID = part.upTo
	default:
		stream.Send(":\n")
	}
}
