package report

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"petstore/internal/exchange"
	"petstore/internal/httpjson"
)

// Record has the facts about the clients of a sandbox.
type Record struct {
	Exchanges  []Exchange
	Events     []Event // in the order of the feed
	Deliveries []Delivery
	// Incomplete says that requests are missing.
	Incomplete bool

	all     []*Exchange    // that rules judge, in the order of their starts
	effects map[effect]int // how many requests have had one
	chains  [][]*Exchange
}

// Event is an event of the feed.
type Event struct {
	At            time.Time
	Type, Subject string
}

// The types of events that rules read.
const (
	OrderPlaced = "order.placed"
	StoreReset  = "store.reset"
)

// client is a program, as its API key and its User-Agent tell.
type client struct {
	all []*Exchange // in the order of their starts
}

// Exchange is a request with its response: the parts that rules read.
type Exchange struct {
	ID           string
	Began, Ended time.Time
	APIKeyID     int64
	Method, Path string
	RawQuery     string
	Operation    string // "": the path does not exist
	Status       int    // 0: the client got no response
	Code         string // of the error that the client got
	Key          string // Idempotency-Key
	Fault        string // the injected effect; "": none
	Redacted     []string

	// Headers of the request.
	Agent, Accept, ContentType, Prefer, IfMatch, IfNoneMatch, LastEventID string
	// Headers of the response.
	ETag, Link, Location, RateLimit, RateLimitPolicy string
	RetryAfter                                       time.Duration
	Replayed, Deprecated                             bool

	Body       Body
	Violations []Violation // of a 400
	IsEmpty    bool        // whether the response is an empty list, or a message that waits
	HasEvents  bool        // whether the response is a stream with an event

	client               *client
	episode, index       int    // the number of resets before it; its index among the exchanges of the client
	streams              bool   // whether it is for a stream of events
	lasts                bool   // whether it is meant to last: a stream, or a request that waits for a change
	cursor, after, types string // parameters of the query
	hasLimit             bool   // another one
}

// Body identifies the body of a request.
type Body struct {
	Size int64
	// Hash is 0 if the record does not have the whole body.
	Hash uint64
}

// equals reports whether two bodies are known and equal.
func (b Body) equals(other Body) bool { return b.Hash != 0 && b == other }

// mayEqual reports whether two bodies can be equal, as far as they are known.
func (b Body) mayEqual(other Body) bool {
	if b.Hash == 0 || other.Hash == 0 {
		return b.Size == other.Size || b.Size == 0 || other.Size == 0
	}
	return b == other
}

// Violation is one reason for a 400.
type Violation struct {
	Parameter string `json:"parameter"`
	Code      string `json:"code"`
}

// prepare sorts and groups the exchanges. Operations on sandboxes and samples are of a test and not of
// the client that it tests, so no rule judges them.
func (r *Record) prepare() {
	for i := range r.Exchanges {
		if e := &r.Exchanges[i]; !strings.HasPrefix(e.Path, "/sandboxes") && !strings.HasPrefix(e.Path, "/samples") {
			r.all = append(r.all, e)
		}
	}
	slices.SortStableFunc(r.all, func(a, b *Exchange) int { return a.Began.Compare(b.Began) })
	var resets []time.Time
	for _, event := range r.Events {
		if event.Type == StoreReset {
			resets = append(resets, event.At)
		}
	}
	slices.SortFunc(resets, time.Time.Compare)
	type name struct {
		apiKeyID int64
		agent    string
	}
	clients := map[name]*client{}
	r.effects = map[effect]int{}
	episode := 0
	for _, e := range r.all {
		for episode < len(resets) && !resets[episode].After(e.Began) {
			episode++
		}
		if e.Status == 0 {
			e.Code = ""
		}
		by := name{e.APIKeyID, e.Agent}
		if clients[by] == nil {
			clients[by] = &client{}
		}
		e.client, e.episode, e.index = clients[by], episode, len(clients[by].all)
		e.client.all = append(e.client.all, e)
		e.streams = e.Operation == "listEvents" && httpjson.Prefers(http.Header{"Accept": {e.Accept}}, "text/event-stream")
		e.lasts = e.streams || e.waits()
		query := e.query()
		e.cursor, e.after, e.types, e.hasLimit = query.Get("cursor"), query.Get("after"), strings.Join(query["type"], ","), query.Has("limit")
		if e.hasEffect() {
			r.effects[e.effect()]++
		}
	}
	for _, c := range clients {
		r.addChains(c.all)
	}
	slices.SortStableFunc(r.chains, func(a, b []*Exchange) int {
		return cmp.Or(a[0].Began.Compare(b[0].Began), cmp.Compare(a[0].ID, b[0].ID))
	})
}

// place is a path as a client sees it between two resets, with something more that counts, such as a
// tag.
type place struct {
	client     *client
	episode    int
	path, more string
}

// place returns the place of an exchange.
func (e *Exchange) place(more string) place { return place{e.client, e.episode, e.Path, more} }

// at returns the exchange of the same client so many steps away, or nil.
func (e *Exchange) at(step int) *Exchange {
	if i := e.index + step; i >= 0 && i < len(e.client.all) {
		return e.client.all[i]
	}
	return nil
}

// follows reports whether a request may wait for a change, instead of polling for it.
func (e *Exchange) follows() bool { return e.Operation == "listEvents" || e.Operation == "getMessage" }

// waits reports whether a request waits for a change, as the server reads it.
func (e *Exchange) waits() bool {
	return e.follows() && httpjson.PreferredWait(http.Header{"Prefer": {e.Prefer}}) > 0
}

func (e *Exchange) succeeded() bool { return e.Status >= 200 && e.Status < 400 }

// isFinal reports whether the same request would fail again.
func (e *Exchange) isFinal() bool {
	return e.Status >= 400 && e.Status < 500 && e.Status != 408 && e.Status != 429 && e.Code != "idempotency_in_progress"
}

// isLost reports whether the client cannot know if the request took effect.
func (e *Exchange) isLost() bool {
	return e.Status == 0 || e.Status == 408 || e.Status >= 500
}

func (e *Exchange) isRead() bool { return e.Method == http.MethodGet || e.Method == http.MethodHead }

// isUpdate reports whether a request changes a resource that exists.
func (e *Exchange) isUpdate() bool { return e.Method == http.MethodPut || e.Method == http.MethodPatch }

// lists reports whether a request is for a page of a list.
func (e *Exchange) lists() bool {
	return e.isRead() && strings.HasPrefix(e.Operation, "list") && e.Operation != "listEvents"
}

// takesKey reports whether a request may have an Idempotency-Key.
func (e *Exchange) takesKey() bool {
	return slices.Contains([]string{"createPet", "createCategory", "placeOrder", "queueMessage"}, e.Operation)
}

// hidesKey reports whether the record does not have the Idempotency-Key, because it may be a secret.
func (e *Exchange) hidesKey() bool { return strings.Contains(e.Key, exchange.Redacted) }

func (e *Exchange) violates(code string) bool {
	return slices.ContainsFunc(e.Violations, func(v Violation) bool { return v.Code == code })
}

// query returns the parameters of the query.
func (e *Exchange) query() url.Values {
	query, _ := url.ParseQuery(e.RawQuery) // the server has refused what is invalid
	return query
}

// rejectsParameter reports whether a parameter is one of the violations.
func (e *Exchange) rejectsParameter(name string) bool {
	return slices.ContainsFunc(e.Violations, func(v Violation) bool { return v.Parameter == name })
}
