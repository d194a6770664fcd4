package api

import (
	"context"
	"errors"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/feed"
	"petstore/internal/gate"
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
	if first.Text == nil && q.After != nil {
		first.Last = q.After.String()
	}
	first.AtOnce = q.Latest
	page.Events = nil // as the stream may be silent for long
	return s.gate.Stream(c, s.watchedBy(c), first, func(ctx context.Context) (gate.Part, error) {
		next, err := s.readFeed(ctx, gate.Caller(c), q.From(page.Next), costAfter(page))
		if err != nil {
			return gate.Part{}, err
		}
		page = next
		page.Events = nil
		return partOf(next)
	})
}

// partOf returns the part of a stream that a page of the feed makes.
func partOf(page feed.Page) (part gate.Part, err error) {
	part = gate.Part{UpTo: page.Next.String(), Number: page.Next.Sequence, More: page.More, Cost: costAfter(page)}
	for _, e := range page.Events {
		err = errors.Join(err, part.Add(e.ID, e.Type, e))
	}
	return part, err
}
