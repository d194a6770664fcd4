package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/docs"
	"petstore/internal/exchange"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/report"
	"petstore/internal/webhook"
)

const (
	// reportPage is the number of exchanges that a report reads at a time, with their bodies.
	reportPage = 100
	// reportEvents is the number of the newest events that a report looks through.
	reportEvents = 10_000
)

// getReport judges the clients of a sandbox.
func (s *Server) getReport(c *gin.Context) error {
	params := readParams(c)
	q := newExchangeQuery(c, params)
	if err := s.findRecord(c, params, q); err != nil {
		return err
	}
	judged, err := s.judgeReported(c.Request.Context(), gate.Caller(c).Payer(), q)
	if err != nil {
		return err
	}
	const vary = "Origin, Accept"
	if unmodified, err := gate.NotModified(c, vary); unmodified || err != nil {
		return err
	}
	c.Header("Cache-Control", "private, no-store")
	c.Header("Vary", vary)
	if httpjson.Prefers(c.Request.Header, gate.MarkdownType) {
		httpjson.Send(c.Writer, http.StatusOK, gate.MarkdownType+"; charset=utf-8", []byte(judged.Markdown()))
		return nil
	}
	return httpjson.Write(c.Writer, judged)
}

// judge judges a record. A test waits in it.
var judge = report.Judge

// judgeReported reads and judges what the report on a sandbox is about. It counts as a count of its
// payer, who may read the response slowly afterwards.
func (s *Server) judgeReported(ctx context.Context, payer int64, q *exchangeQuery) (report.Report, error) {
	if err := s.gate.Limits.Counts.Take(ctx, payer, 1); err != nil {
		return report.Report{}, err
	}
	defer s.gate.Limits.Counts.Give(payer, 1)
	record, err := s.readReported(ctx, q)
	if err != nil {
		return report.Report{}, err
	}
	return judge(record, s.options.BaseURL+docs.HomePath+"/"), nil
}

// readReported reads what the report on a sandbox is about.
func (s *Server) readReported(ctx context.Context, q *exchangeQuery) (*report.Record, error) {
	log, err := s.reads.ExchangeLogGet(ctx, q.AccountID)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	record := &report.Record{}
	oldest, since := log.LastNumber+1, s.options.Now()
	for p := (&page{limit: reportPage, after: last}); ; {
		rows, err := s.reads.ExchangeList(ctx, q.page(p, true))
		if err != nil {
			return nil, err
		}
		for _, row := range rows[:min(len(rows), reportPage)] {
			one, err := reportedFrom(q.AccountID, row)
			if err != nil {
				return nil, err
			}
			record.Exchanges = append(record.Exchanges, one)
			oldest = row.Number
			if row.StartedAt.Before(since) { // a request that takes long has a later number
				since = row.StartedAt
			}
		}
		if len(rows) <= reportPage {
			break
		}
		p.after.ID = oldest
	}
	record.Incomplete = log.Dropped > 0 || oldest > max(log.FirstNumber, 1)
	if err := s.addReportedEvents(ctx, record, q.AccountID, since); err != nil {
		return nil, err
	}
	if log.FirstNumber <= 1 { // nobody has emptied the record: a probe of the console may be older than all requests
		since = s.options.Now().Add(-exchange.MaxAge)
	}
	return record, s.addReportedDeliveries(ctx, record, q.AccountID, since)
}

// reportedFrom returns the parts of an exchange that rules read.
func reportedFrom(account int64, row db.ExchangeListRow) (report.Exchange, error) {
	_, effect, _ := strings.Cut(row.Fault, "/")
	e := report.Exchange{
		ID: exchangeID{account, row.Number}.String(), Began: row.StartedAt, Ended: row.StartedAt.Add(time.Duration(row.Microseconds) * time.Microsecond),
		APIKeyID: row.APIKeyID, Method: row.Method, Path: row.Path, RawQuery: row.Query, Operation: row.Operation,
		Status: int(row.Status), Code: row.Code, Key: row.IdempotencyKey, Fault: effect,
	}
	return e, e.SetMessages(row.Messages)
}

// skew returns how far the clock of the primary, which events have, is ahead of the clock of this process,
// which requests have. It is the least difference that is possible, so 0 if they may agree.
func (s *Server) skew(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	now, err := s.queries.Clock(ctx)
	return max(time.Until(now), min(now.Sub(began), 0)), err
}

// addReportedEvents adds the newest events since a time that rules read, oldest first.
func (s *Server) addReportedEvents(ctx context.Context, record *report.Record, account int64, since time.Time) error {
	end, err := s.reads.FeedEnd(ctx, account)
	if err != nil {
		return err
	}
	skew, err := s.skew(ctx)
	if err != nil {
		return err
	}
	rows, err := s.reads.ReportEvents(ctx, db.ReportEventsParams{AccountID: account, AfterSequence: end.LastSequence - reportEvents, Since: since.Add(skew)})
	for _, row := range slices.Backward(rows) {
		record.Events = append(record.Events, report.Event{At: row.CreatedAt.Add(-skew), Type: row.Type, Subject: row.Subject})
	}
	return err
}

// addReportedDeliveries adds the newest deliveries since a time, oldest first.
func (s *Server) addReportedDeliveries(ctx context.Context, record *report.Record, account int64, since time.Time) error {
	rows, err := s.reads.ReportDeliveries(ctx, db.ReportDeliveriesParams{AccountID: account, FirstID: webhook.FirstDeliveryID(since), Without: webhook.OfTrigger})
	if err != nil {
		return err
	}
	for _, row := range slices.Backward(rows) {
		d := report.Delivery{ID: row.ID, WebhookID: row.WebhookID, Type: row.Type, Status: row.Status}
		if err := json.Unmarshal(row.Attempts, &d.Attempts); err != nil {
			return err
		}
		record.Deliveries = append(record.Deliveries, d)
	}
	return nil
}
