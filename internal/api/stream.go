package api

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/feed"
	"petstore/internal/gate"
)

// streamPage is the maximum number of events that a stream reads at a time.
const streamPage = 50

// rowsPerToken is the number of rows, looked through, that count as one request.
const rowsPerToken = 1000

// seen returns what a request that waits for events has seen.
func (r *feedReading) seen() gate.Seen {
	return gate.Seen{Newest: r.page.Next.Sequence, More: r.page.More, Cost: r.cost(), Found: r.page.found}
}

// watchedBy returns the feed of the account that sends a request.
func (s *Server) watchedBy(c *gin.Context) gate.Watched {
	return gate.Watched{Hub: s.feed, Account: gate.Caller(c).AccountID}
}

// awaitEvents waits until the feed has events after an empty page, and reads them. It leaves an
// empty page after the time or when the server shuts down.
func (s *Server) awaitEvents(c *gin.Context, r *feedReading, wait time.Duration) error {
	return s.gate.Await(c, s.watchedBy(c), wait, r.seen(), func(ctx context.Context) (gate.Seen, error) {
		err := r.next(ctx)
		return r.seen(), err
	})
}

// streamEvents sends the events of an account as they happen.
func (s *Server) streamEvents(c *gin.Context, q *feed.Query) error {
	q.Limit = streamPage
	r, err := s.beginFeed(c, q, feedForm{stream: true})
	if err != nil {
		return err
	}
	first := r.part()
	if first.Text == nil && q.After != nil {
		first.Last = q.After.String()
	}
	first.AtOnce = q.Latest
	return s.gate.Stream(c, s.watchedBy(c), first, func(ctx context.Context) (gate.Part, error) {
		if err := r.next(ctx); err != nil {
			return gate.Part{}, apiError(err)
		}
		return r.part(), nil
	})
}

// part returns the part of a stream that the last page makes. It forgets the text, as the stream may be
// silent for long.
func (r *feedReading) part() gate.Part {
	part := r.page.part
	part.UpTo, part.Number, part.More, part.Cost = r.page.Next.String(), r.page.Next.Sequence, r.page.More, r.cost()
	r.page.part = gate.Part{}
	return part
}
