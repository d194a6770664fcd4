package api

import (
	"context"
	"net/url"
	"sync"

	"petstore/internal/admission"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/report"
)

// List is a list of an account with a filter and a sort.
type List struct {
	Account    int64
	Path, Sort string
	Query      url.Values
}

// SealCursor makes the cursor of any position, so that a test does not need the pages before it.
func SealCursor(secret []byte, list List, at httpjson.Position) string {
	p := &page{account: list.Account, sort: list.Sort, path: list.Path, url: &url.URL{RawQuery: list.Query.Encode()}}
	return httpjson.SealCursor(secret, p.listID(), at)
}

// PositionOf returns the position of a consistency token.
func (s *Server) PositionOf(ctx context.Context, token string) (postgres.Position, error) {
	position, err := s.gate.WantedPosition(ctx, token)
	if err != nil {
		return postgres.Position{}, err
	}
	return *position, nil
}

// WaitingForEvents returns the number of requests that wait for events.
func (s *Server) WaitingForEvents() int { return s.feed.Waiting() }

// WaitingForRecords returns the number of requests that wait for exchanges.
func (s *Server) WaitingForRecords() int { return s.exchanges.Waiting() }

// IsCountWaiting reports whether an expensive query waits for its turn.
func (s *Server) IsCountWaiting() bool { return s.gate.Limits.Counts.IsContended() }

// Decodings are the large bodies that are decoded.
func (s *Server) Decodings() *admission.Pool { return s.gate.Limits.Decodings }

// Judging has functions to call before a report is judged, by the URL of its guides.
var Judging = watchJudge()

func watchJudge() *sync.Map {
	var watched sync.Map
	judge = func(r *report.Record, guides string) report.Report {
		if begin, found := watched.Load(guides); found {
			begin.(func())()
		}
		return report.Judge(r, guides)
	}
	return &watched
}
