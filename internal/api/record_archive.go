package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"petstore/db"
	"petstore/internal/exchange"
	"petstore/internal/gate"
)

// archive returns the parts of the list of requests as an HTTP Archive
// (http://www.softwareishard.com/blog/har-12-spec). Without a base URL, its URLs have the scheme.
func (s *Server) archive(p *page, q *exchangeQuery, scheme string) list[db.ExchangeListRow, archived] {
	return list[db.ExchangeListRow, archived]{
		find: func(ctx context.Context) ([]db.ExchangeListRow, error) {
			return s.findWhole(ctx, q.page(p, true))
		},
		count:       func(ctx context.Context) (int64, error) { return s.reads.ExchangeCount(ctx, q.ExchangeCountParams) },
		item:        func(row db.ExchangeListRow) archived { return s.archivedFrom(q.AccountID, row, scheme) },
		cursorOf:    cursorOfExchange,
		fitting:     fittingExchanges,
		contentType: gate.ArchiveType,
		prefix:      `{"log":{"version":"1.2","creator":{"name":"Petstore","version":"` + Version + `"},"entries":`,
		suffix:      "}}",
	}
}

// wholeRows is the number of exchanges that an archive reads at a time. One may have 250 KB.
const wholeRows = 16

// findWhole finds exchanges with their messages. It stops at the first one that does not fit into the
// page.
func (s *Server) findWhole(ctx context.Context, params db.ExchangeListParams) (rows []db.ExchangeListRow, err error) {
	for most := int(params.PageSize); len(rows) < most && fittingExchanges(rows) == len(rows); {
		params.PageSize = int32(min(most-len(rows), wholeRows)) //nolint:gosec // at most wholeRows
		part, err := s.reads.ExchangeList(ctx, params)
		if err != nil {
			return nil, err
		}
		rows = append(rows, part...)
		if len(part) < int(params.PageSize) {
			break
		}
		params.BeforeNumber = part[len(part)-1].Number
	}
	return rows, nil
}

// fittingExchanges returns the number of exchanges whose messages fit into a page, but at least one.
func fittingExchanges(rows []db.ExchangeListRow) int {
	size := 0
	for i, row := range rows {
		if size += len(row.Messages); size > maxPageBytes && i > 0 {
			return i
		}
	}
	return len(rows)
}

// archived is an entry of an HTTP Archive. The type and its parts have the names of the format.
type archived struct {
	ID       string           `json:"_id"`
	Started  time.Time        `json:"startedDateTime"`
	Time     float64          `json:"time"` // ms
	Request  archivedRequest  `json:"request"`
	Response archivedResponse `json:"response"`
	Cache    struct{}         `json:"cache"`
	Timings  archivedTimings  `json:"timings"`
}

type archivedTimings struct {
	Send    float64 `json:"send"`
	Wait    float64 `json:"wait"`
	Receive float64 `json:"receive"`
}

type archivedMessage struct {
	HTTPVersion string            `json:"httpVersion"`
	Cookies     []struct{}        `json:"cookies"`
	Headers     []exchange.Header `json:"headers"`
	HeadersSize int               `json:"headersSize"` // -1: unknown
	BodySize    int64             `json:"bodySize"`
}

type archivedRequest struct {
	Method      string            `json:"method"`
	URL         string            `json:"url"`
	QueryString []exchange.Header `json:"queryString"`
	PostData    *archivedPost     `json:"postData,omitempty"`

	archivedMessage
}

type archivedResponse struct {
	Status      int32           `json:"status"` // 0: there is none
	StatusText  string          `json:"statusText"`
	RedirectURL string          `json:"redirectURL"`
	Content     archivedContent `json:"content"`

	archivedMessage
}

type archivedBody struct {
	MimeType string `json:"mimeType"`
	Text     string `json:"text"`
	Encoding string `json:"encoding,omitempty"`
}

// archivedPost is an archivedBody of a request, where the format has no encoding.
type archivedPost struct {
	MimeType string `json:"mimeType"`
	Text     string `json:"text"`
	Encoding string `json:"_encoding,omitempty"`
}

type archivedContent struct {
	Size int64 `json:"size"`

	archivedBody
}

// archivedFrom returns the entry of an exchange.
func (s *Server) archivedFrom(account int64, row db.ExchangeListRow, scheme string) archived {
	e, _ := recordedExchangeFrom(account, row) // the recorder has written it
	entry := archived{
		ID: e.ID, Started: e.StartedAt, Time: e.DurationMs, Timings: archivedTimings{Wait: e.DurationMs},
		Request:  archivedRequest{Method: e.Method, URL: s.archivedURL(e, scheme), QueryString: []exchange.Header{}, archivedMessage: archivedFromMessage(e.Request)},
		Response: archivedResponse{archivedMessage: archivedFromMessage(exchange.Message{})},
	}
	for parameter := range strings.SplitSeq(e.Query, "&") {
		if name, value, _ := strings.Cut(parameter, "="); parameter != "" {
			entry.Request.QueryString = append(entry.Request.QueryString, exchange.Header{Name: unescape(name), Value: unescape(value)})
		}
	}
	if e.Request.Size > 0 {
		entry.Request.PostData = new(archivedPost(archivedFromBody(e.Request)))
	}
	if e.Response != nil {
		entry.Response = archivedResponse{
			Status: e.Status, StatusText: http.StatusText(int(e.Status)), RedirectURL: valueOf(e.Response.Headers, "Location"),
			Content: archivedContent{e.Response.Size, archivedFromBody(*e.Response)}, archivedMessage: archivedFromMessage(*e.Response),
		}
		entry.Response.BodySize = receivedSize(*e.Response)
	}
	return entry
}

// unescape returns a part of a query without its escapes, if they are valid. JSON cannot have bytes that are
// not UTF-8.
func unescape(part string) string {
	if text, err := url.QueryUnescape(part); err == nil {
		part = text
	}
	return strings.ToValidUTF8(part, "\uFFFD")
}

// receivedSize returns the size of the body of a response as the client got it; -1: unknown.
func receivedSize(m exchange.Message) int64 {
	if m.Size == 0 || valueOf(m.Headers, "Content-Encoding") == "" {
		return m.Size
	}
	size, err := strconv.ParseInt(valueOf(m.Headers, "Content-Length"), 10, 64)
	if err != nil {
		return -1
	}
	return size
}

// schemeOf returns the scheme with which a request came to the server. A proxy may have got another one.
func schemeOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// archivedURL returns the URL of a request. Without a base URL, it has the scheme of the request for the archive.
func (s *Server) archivedURL(e recordedExchange, scheme string) string {
	base := s.options.BaseURL
	if base == "" {
		base = scheme + "://" + valueOf(e.Request.Headers, "Host")
	}
	if e.Query != "" {
		return base + e.Path + "?" + e.Query
	}
	return base + e.Path
}

func archivedFromMessage(m exchange.Message) archivedMessage {
	headers := m.Headers
	if headers == nil {
		headers = []exchange.Header{}
	}
	return archivedMessage{HTTPVersion: "HTTP/1.1", Cookies: []struct{}{}, Headers: headers, HeadersSize: -1, BodySize: m.Size}
}

func archivedFromBody(m exchange.Message) archivedBody {
	return archivedBody{MimeType: valueOf(m.Headers, "Content-Type"), Text: m.Body, Encoding: m.Encoding}
}

// valueOf returns the value of a header, or "".
func valueOf(headers []exchange.Header, name string) string {
	for _, h := range headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}
