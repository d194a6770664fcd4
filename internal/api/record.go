package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/exchange"
	"petstore/internal/feed"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

// recordedRequest is the RecordedRequest schema of the spec, as lists have it.
type recordedRequest struct {
	ID             string         `json:"id"`
	StartedAt      time.Time      `json:"startedAt"`
	DurationMs     float64        `json:"durationMs"`
	RequestID      string         `json:"requestId"`
	APIKeyID       int64          `json:"apiKeyId"`
	Method         string         `json:"method"`
	Path           string         `json:"path"`
	Query          string         `json:"query,omitempty"`
	Operation      string         `json:"operation,omitempty"`
	Status         int32          `json:"status,omitzero"`
	Code           string         `json:"code,omitempty"`
	IdempotencyKey string         `json:"idempotencyKey,omitempty"`
	Fault          *injectedFault `json:"fault,omitempty"`
}

// injectedFault is the InjectedFault schema of the spec.
type injectedFault struct {
	Rule   int64  `json:"rule"`
	Effect string `json:"effect"`
}

// recordedExchange is the RecordedRequest schema of the spec with the messages.
type recordedExchange struct {
	recordedRequest

	exchange.Messages
}

// exchangeID is the id of a recorded request.
type exchangeID struct{ account, number int64 }

func (id exchangeID) String() string { return fmt.Sprintf("req_%d_%d", id.account, id.number) }

// exchangeIDPattern matches the ids that String returns. The number 0 is the beginning of a record.
var exchangeIDPattern = regexp.MustCompile(`^req_([1-9][0-9]{0,15})_(0|[1-9][0-9]{0,15})$`)

func parseExchangeID(text string) (id exchangeID, ok bool) {
	match := exchangeIDPattern.FindStringSubmatch(text)
	if match == nil {
		return id, false
	}
	id.account, _ = strconv.ParseInt(match[1], 10, 64) // the pattern allows only numbers
	id.number, _ = strconv.ParseInt(match[2], 10, 64)
	return id, true
}

func recordedRequestFrom(account int64, row db.ExchangeListRow) recordedRequest {
	r := recordedRequest{
		ID: exchangeID{account, row.Number}.String(), StartedAt: row.StartedAt.UTC(), DurationMs: float64(row.Microseconds) / 1000,
		RequestID: row.RequestID, APIKeyID: row.APIKeyID, Method: row.Method, Path: row.Path, Query: row.Query,
		Operation: row.Operation, Status: row.Status, Code: row.Code, IdempotencyKey: row.IdempotencyKey,
	}
	if rule, effect, injected := strings.Cut(row.Fault, "/"); injected {
		r.Fault = &injectedFault{Effect: effect}
		r.Fault.Rule, _ = strconv.ParseInt(rule, 10, 64)
	}
	return r
}

func recordedExchangeFrom(account int64, row db.ExchangeListRow) (e recordedExchange, err error) {
	e.recordedRequest = recordedRequestFrom(account, row)
	err = json.Unmarshal([]byte(row.Messages), &e.Messages)
	return e, err
}

// exchangeQuery says which requests of a sandbox a client wants.
type exchangeQuery struct {
	sandbox       string     // the id in the path, or current
	after, before exchangeID // zero: not given
	resumes       bool       // whether after comes from Last-Event-ID
	latest        bool       // whether to begin at the end

	// findRecord sets the account and, to begin at the end, the number of the newest request.
	db.ExchangeCountParams
}

const firstStatus, lastStatus = 100, 599

// newExchangeQuery returns a query of all requests of the sandbox in the path.
func newExchangeQuery(c *gin.Context, params *httpjson.Params) *exchangeQuery {
	return &exchangeQuery{sandbox: readSandboxID(c, params), ExchangeCountParams: db.ExchangeCountParams{BeforeNumber: math.MaxInt64, LastStatus: lastStatus}}
}

// readExchangeQuery reads the parameters that the list and the stream share.
func (s *Server) readExchangeQuery(c *gin.Context, params *httpjson.Params) (*exchangeQuery, error) {
	q := newExchangeQuery(c, params)
	q.Operation, _ = params.Enum("operation", s.recordedOperations...)
	if status, given := params.Value("status"); given {
		q.FirstStatus, q.LastStatus = readStatuses(params, status)
	}
	if id := params.ID("apiKeyId"); id != nil {
		q.APIKeyID = *id
	}
	q.IdempotencyKey = params.Text("idempotencyKey", maxIdempotencyKey)
	after, given := params.Value("after")
	if q.latest = after == feed.Latest; given && !q.latest {
		q.after = readExchangeID(params, "after", after)
	}
	if before, given := params.Value("before"); given {
		q.before = readExchangeID(params, "before", before)
		q.BeforeNumber = q.before.number
	}
	if last := c.GetHeader("Last-Event-ID"); last != "" && httpjson.Prefers(c.Request.Header, gate.StreamType) {
		id, ok := parseExchangeID(last)
		if !ok {
			return nil, errInvalidLastEventID
		}
		q.after, q.resumes, q.latest = id, true, false
	}
	q.AfterNumber = q.after.number
	return q, nil
}

// readStatuses reads a status such as 404, or a class such as 4xx.
func readStatuses(params *httpjson.Params, text string) (first, last int32) {
	const class = 100
	if digit, ok := strings.CutSuffix(text, "xx"); ok && len(digit) == 1 && digit >= "1" && digit <= "5" {
		first = int32(digit[0]-'0') * class
		return first, first + class - 1
	}
	status, err := strconv.ParseInt(text, 10, 32)
	if err != nil || status < firstStatus || status > lastStatus || len(text) != len("404") {
		params.Reject("status", "invalid_format", "`status` must be a status such as `404`, or a class such as `4xx`.")
	}
	return int32(status), int32(status)
}

// readExchangeID reads the id of a recorded request from the text of a parameter.
func readExchangeID(params *httpjson.Params, name, text string) exchangeID {
	id, ok := parseExchangeID(text)
	if !ok || id.number == 0 { // 0 comes only from a stream
		params.Reject(name, "invalid_format", "`"+name+"` must be the id of a recorded request, such as `req_1042_57`.")
	}
	return id
}

// findRecord finds the sandbox of a query. The error says that there is none, or that an id in the
// query belongs to another one.
func (s *Server) findRecord(c *gin.Context, params *httpjson.Params, q *exchangeQuery) error {
	if err := params.Err(); err != nil {
		return err
	}
	sandbox, err := s.sandboxOf(c, q.sandbox)
	if err != nil {
		return err
	}
	q.AccountID = sandbox.ID
	if q.resumes && q.after.account != q.AccountID {
		return errInvalidLastEventID
	}
	for _, bound := range []struct {
		name string
		id   exchangeID
	}{{"after", q.after}, {"before", q.before}} {
		if bound.id != (exchangeID{}) && bound.id.account != q.AccountID {
			params.Reject(bound.name, "invalid_format", "`"+bound.name+"` must be the id of a recorded request of this sandbox.")
		}
	}
	if err := params.Err(); err != nil || !q.latest {
		return err
	}
	q.AfterNumber, err = endOfRecord(c.Request.Context(), s.queries, q.AccountID)
	return err
}

// endOfRecord returns the number of the newest request of a sandbox; 0: it has sent none.
func endOfRecord(ctx context.Context, queries *db.Queries, account int64) (int64, error) {
	log, err := queries.ExchangeLogGet(ctx, account)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return log.LastNumber, err
}

// exchangeEnds returns the numbers of the newest requests of sandboxes.
func (s *Server) exchangeEnds(ctx context.Context, accounts []int64) ([]db.FeedEndsRow, error) {
	rows, err := s.queries.ExchangeEnds(ctx, accounts)
	return transform(rows, func(row db.ExchangeEndsRow) db.FeedEndsRow { return db.FeedEndsRow(row) }), err
}

// recordOf returns what a request for a record waits for. The parent of a sandbox outlives it.
func (s *Server) recordOf(c *gin.Context, q *exchangeQuery) gate.Watched {
	wanted := db.SandboxGetParams{ParentID: gate.Caller(c).Payer(), ID: q.AccountID}
	return gate.Watched{Hub: s.exchanges, Account: q.AccountID, Check: func(ctx context.Context) error {
		_, err := s.queries.SandboxGet(ctx, wanted)
		return orNotFound(err, errSandboxNotFound)
	}}
}

// listRequests lists the requests of a sandbox, newest first, or sends them as they end.
func (s *Server) listRequests(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, newestFirst)
	q, err := s.readExchangeQuery(c, params)
	if err != nil {
		return err
	}
	if err := s.findRecord(c, params, q); err != nil {
		return err
	}
	if httpjson.Prefers(c.Request.Header, gate.StreamType) {
		return s.streamRequests(c, q)
	}
	p.account, p.path = q.AccountID, c.Request.URL.Path // so that a cursor is valid for this sandbox only
	if q.latest {
		p.url = q.resolved(p.url)
	}
	if err := s.leaveLostPlace(c.Request.Context(), p, q); err != nil {
		return err
	}
	p.after.ID = q.BeforeNumber
	if err := s.applyCursor(c.Request.Context(), p); err != nil {
		return err
	}
	wait := gate.PreferredWait(c)
	if wait > 0 {
		if err := s.awaitRequest(c, q, wait); err != nil {
			return err
		}
	}
	gate.ApplyWait(c.Writer.Header(), wait)
	if httpjson.Prefers(c.Request.Header, gate.ArchiveType) {
		return writePage(s, c, params, p, s.archive(p, q, schemeOf(c.Request)))
	}
	return writePage(s, c, params, p, s.recordList(p, q))
}

// leaveLostPlace makes a list begin with the oldest request if the record ends before `after`. A crash of
// the database has then lost the newest requests, and their numbers return.
func (s *Server) leaveLostPlace(ctx context.Context, p *page, q *exchangeQuery) error {
	if q.after.number == 0 {
		return nil
	}
	end, err := endOfRecord(ctx, s.reads, q.AccountID)
	if err == nil && q.after.number > end { // a replica may be behind
		end, err = endOfRecord(ctx, s.queries, q.AccountID)
	}
	if err == nil && q.after.number > end {
		q.AfterNumber = 0
		p.url = q.resolved(p.url)
	}
	return err
}

// resolved returns the URL of a request with the id after which its list begins. Otherwise the next page
// would begin elsewhere, and requests with different ids would share a page.
func (q *exchangeQuery) resolved(requested *url.URL) *url.URL {
	query := requested.Query()
	query.Del("after")
	if q.AfterNumber > 0 { // otherwise it begins with the oldest request
		query.Set("after", exchangeID{q.AccountID, q.AfterNumber}.String())
	}
	return &url.URL{Path: requested.Path, RawQuery: query.Encode()}
}

// recordList returns the parts of the list of requests.
func (s *Server) recordList(p *page, q *exchangeQuery) list[db.ExchangeListRow, recordedRequest] {
	return list[db.ExchangeListRow, recordedRequest]{
		find: func(ctx context.Context) ([]db.ExchangeListRow, error) {
			return s.reads.ExchangeList(ctx, q.page(p, false))
		},
		count:    func(ctx context.Context) (int64, error) { return s.reads.ExchangeCount(ctx, q.ExchangeCountParams) },
		item:     func(row db.ExchangeListRow) recordedRequest { return recordedRequestFrom(q.AccountID, row) },
		cursorOf: cursorOfExchange,
	}
}

func cursorOfExchange(row db.ExchangeListRow) httpjson.Position {
	return httpjson.Position{ID: row.Number}
}

// page returns the parameters of the query for a page. Whole rows have the messages.
func (q *exchangeQuery) page(p *page, whole bool) db.ExchangeListParams {
	return db.ExchangeListParams{
		Whole: whole, AccountID: q.AccountID, AfterNumber: q.AfterNumber, BeforeNumber: p.after.ID, Operation: q.Operation,
		FirstStatus: q.FirstStatus, LastStatus: q.LastStatus, APIKeyID: q.APIKeyID, IdempotencyKey: q.IdempotencyKey, PageSize: p.queryLimit(),
	}
}

// next returns the parameters of the query for the oldest requests after a number.
func (q *exchangeQuery) next(after int64, most int32) db.ExchangesAfterParams {
	return db.ExchangesAfterParams{
		AccountID: q.AccountID, AfterNumber: after, Operation: q.Operation, FirstStatus: q.FirstStatus, LastStatus: q.LastStatus,
		APIKeyID: q.APIKeyID, IdempotencyKey: q.IdempotencyKey, PageSize: most,
	}
}

// laterRequests are the oldest requests after a number that match.
type laterRequests struct {
	rows []db.ExchangesAfterRow
	more bool  // whether more may follow
	last int64 // the number up to which the query has looked through the record, as far as it goes
}

// findLater reads requests of a sandbox.
func findLater(ctx context.Context, queries *db.Queries, params db.ExchangesAfterParams) (found laterRequests, err error) {
	end, err := endOfRecord(ctx, queries, params.AccountID)
	if err != nil {
		return found, err
	}
	if found.rows, err = queries.ExchangesAfter(ctx, params); err != nil {
		return found, err
	}
	n := len(found.rows)
	if n > 0 {
		found.last = found.rows[n-1].Number
	}
	if found.more = n == int(params.PageSize); !found.more {
		found.last = max(found.last, end)
	}
	return found, nil
}

// lookForLater is [findLater] for a request that waits and for a stream.
func (s *Server) lookForLater(ctx context.Context, payer int64, params db.ExchangesAfterParams) (laterRequests, error) {
	return readPlaced(ctx, s.placedReads, placedKey{payer, params, admission.ReadParts}, func(ctx context.Context) (laterRequests, error) {
		return findLater(ctx, s.reads, params)
	})
}

// awaitRequest waits until the record has a request that matches, the time is over or the server
// shuts down.
func (s *Server) awaitRequest(c *gin.Context, q *exchangeQuery, wait time.Duration) error {
	from, payer := q.AfterNumber, gate.Caller(c).Payer()
	see := func(found laterRequests, err error) (gate.Seen, error) {
		if err != nil {
			return gate.Seen{}, err
		}
		if len(found.rows) == 0 {
			from = max(from, found.last) // the next look does not read these again
		}
		return gate.Seen{Newest: found.last, Found: len(found.rows) > 0}, nil
	}
	seen, err := see(s.lookForLater(c.Request.Context(), payer, q.next(from, 1))) // as the page, if it need not wait
	if err != nil {
		return err
	}
	return s.gate.Await(c, s.recordOf(c, q), wait, seen, func(ctx context.Context) (gate.Seen, error) {
		return see(s.lookForLater(ctx, payer, q.next(from, 1)))
	})
}

// streamRequests sends the requests of a sandbox as they end.
func (s *Server) streamRequests(c *gin.Context, q *exchangeQuery) error {
	at, payer := q.AfterNumber, gate.Caller(c).Payer()
	first := gate.Part{More: true, AtOnce: q.latest, UpTo: exchangeID{q.AccountID, q.AfterNumber}.String()}
	return s.gate.Stream(c, s.recordOf(c, q), first, func(ctx context.Context) (part gate.Part, err error) {
		found, err := s.lookForLater(ctx, payer, q.next(at, streamPage))
		if err != nil {
			return part, err
		}
		at, part.More = found.last, found.more // a crash of the database may lose the newest requests, whose numbers return
		for _, row := range found.rows {
			r := recordedRequestFrom(q.AccountID, db.ExchangeListRow(row))
			err = errors.Join(err, part.Add(r.ID, "request", r))
		}
		part.Number = at
		return part, err
	})
}

// getRequest sends a request of a sandbox with its response.
func (s *Server) getRequest(c *gin.Context) error {
	params := readParams(c)
	q := newExchangeQuery(c, params)
	if err := s.findRecord(c, params, q); err != nil {
		return err
	}
	id, ok := parseExchangeID(c.Param("requestId"))
	if !ok || id.account != q.AccountID {
		return errRequestNotFound
	}
	rows, err := s.reads.ExchangeList(c.Request.Context(), db.ExchangeListParams{
		Whole: true, AccountID: id.account, AfterNumber: id.number - 1, BeforeNumber: id.number + 1, LastStatus: lastStatus, PageSize: 1,
	})
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errRequestNotFound
	}
	whole, err := recordedExchangeFrom(id.account, rows[0])
	if err != nil {
		return err
	}
	representation, err := httpjson.Encode(whole)
	if err != nil {
		return err
	}
	if err := s.gate.ReserveResponse(c, len(representation)); err != nil {
		return err
	}
	return httpjson.WriteResource(c.Writer, c.Request, representation)
}

// deleteRequests empties the record of a sandbox.
func (s *Server) deleteRequests(c *gin.Context, id string) error {
	_, err := s.changeSandbox(c, id, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries, accountID int64) error {
		if err := queries.ExchangeLogEmpty(ctx, accountID); err != nil {
			return err
		}
		return queries.ExchangesDelete(ctx, accountID)
	})
	if err == nil {
		c.Status(http.StatusNoContent)
	}
	return err
}
