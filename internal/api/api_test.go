package api_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	eventids "petstore/internal/event" // another file declares event
	"petstore/internal/gate"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
	"petstore/internal/tools/secretscan"
)

const maxBodyBytes = 64 << 10

// petstore is a server with an account of its test, seen by one client. Every exchange of the
// client is checked against openapi.yaml.
type petstore struct {
	t        testing.TB
	server   *api.Server
	client   *http.Client
	url      string
	dbURL    string
	direct   string        // like dbURL, without a connection pooler
	db       *pgxpool.Pool // the same database, without the server in between
	pool     *postgres.DB  // the pool of the server
	verifier *auth.Verifier
	key      string // API key of the client; "" sends none
	// sandboxID is the id of the account of the key if [petstore.sandbox] made it.
	sandboxID int64
	log       *logBuffer
	// suffix ends the names of the accounts of a test that shares its database; "" means that
	// the database is its own.
	suffix string
	// replica lets the client read on a standby; nil except on the engine [pgtest.Replica].
	replica *replicaReads
}

// start starts a server on the database that the tests of this process share. Its client has
// an admin key of an account of its own.
//
// A test needs [startAlone] if it could notice other tests or disturb them. It locks tables,
// changes the schema, or sweeps. It reads rows of all accounts, or knows their ids in advance. It
// waits for statements that wait, or cuts, closes or counts connections of the server.
func start(t testing.TB) *petstore {
	t.Helper()
	return startWith(t, sharedConns(t), " "+rand.Text())
}

// startAlone starts a server on a database of its own.
func startAlone(t testing.TB) *petstore {
	t.Helper()
	return startOn(t, pgtest.New(t))
}

// startOn starts a server on a database of its test that may already have another server.
func startOn(t testing.TB, database *pgtest.Database) *petstore {
	t.Helper()
	pool := need.Value(openPool(database))(t)
	t.Cleanup(pool.Close)
	return startWith(t, conns{database, pool, shareReplica(t, database, pool)}, "")
}

// owned returns a condition for the rows of the accounts of the test and of their sandboxes. The
// column has the id of the account. If the database is its own, all rows belong to the test.
func (p *petstore) owned(column string) string {
	p.t.Helper()
	if p.suffix == "" {
		return "TRUE"
	}
	ids := pgtest.List[string](p.t, p.db, `
		SELECT one.id::text
		FROM accounts AS one LEFT JOIN accounts AS parent ON parent.id = one.parent_id
		WHERE right(coalesce(parent.name, one.name), length($1)) = $1`, p.suffix)
	return fmt.Sprintf("%s IN (%s)", column, strings.Join(ids, ", "))
}

// mustBeAlone fails the test unless its database is its own.
func (p *petstore) mustBeAlone() {
	p.t.Helper()
	if p.suffix != "" {
		p.t.Fatal("this test must use startAlone instead of start")
	}
}

type conns struct {
	database *pgtest.Database
	pool     *postgres.DB
	replica  *replicaReads
}

// idle are connections to the shared database that no test uses. A test has them alone,
// because other tests could use up the places of a pool, and the next test finds them open.
var idle struct {
	sync.Mutex
	conns []conns
}

// sharedDatabase returns the shared database with the built-in samples. Otherwise the first sandbox would make
// them, and on a busy machine others would wait for it longer than lock_timeout.
var sharedDatabase = sync.OnceValues(func() (*pgtest.Database, error) {
	ctx := context.Background() // it outlives the first test
	database, err := pgtest.Shared()
	if err != nil {
		return nil, err
	}
	return database, pgx.BeginFunc(ctx, database.Pool, func(tx pgx.Tx) error {
		queries := db.New(tx)
		owner, err := stores.Ensure(ctx, queries, "the owner of a sandbox of each sample")
		if err != nil {
			return err
		}
		for _, sample := range stores.BuiltInSamples() {
			_, err := stores.CreateSandbox(ctx, queries, stores.NewSandbox{ParentID: owner.ID, Name: sample, Sample: sample, Expiry: stores.DefaultExpiry})
			if err != nil {
				return err
			}
		}
		return nil
	})
})

// sharedConns returns connections to the shared database until the test ends.
func sharedConns(t testing.TB) conns {
	t.Helper()
	idle.Lock()
	defer idle.Unlock()
	var on conns
	if last := len(idle.conns) - 1; last >= 0 {
		on, idle.conns = idle.conns[last], idle.conns[:last]
	} else {
		var err error
		if on.database, err = sharedDatabase(); err == nil {
			on.pool, err = openPool(on.database)
		}
		if err == nil {
			on.replica, err = openReplica(on.database, on.pool)
		}
		need.OK(t, err)
	}
	t.Cleanup(func() {
		idle.Lock()
		defer idle.Unlock()
		idle.conns = append(idle.conns, on)
	})
	return on
}

// closeShared closes all connections to the shared database, after all tests.
func closeShared() {
	for _, on := range idle.conns {
		on.replica.close()
		on.pool.Close()
	}
}

// openPool opens the pool of a server. Its context is not the one of a test, which ends
// before the pool closes.
func openPool(database *pgtest.Database) (*postgres.DB, error) {
	const maxConns = 12 // as a server has at least by default
	pool, err := postgres.Open(context.Background(), database.URL, maxConns)
	if err == nil {
		pool.WaitAtMost(5 * time.Second) // less than RequestTimeout
	}
	return pool, err
}

// startWith starts a server and creates the account of its client.
func startWith(t testing.TB, on conns, suffix string) *petstore {
	t.Helper()
	p := &petstore{
		t: t, client: client, dbURL: on.database.URL, direct: on.database.DirectURL, db: on.database.Pool,
		pool: on.pool, verifier: auth.NewVerifier(db.New(on.pool), db.New(on.pool.Writing())),
		log: &logBuffer{}, suffix: suffix, replica: on.replica,
	}
	p.key = p.newKey("tester", auth.Admin)
	p.watchLog()
	return p.with(func(*api.Options) {})
}

// with starts another server with changed options.
func (p *petstore) with(change func(*api.Options)) *petstore {
	p.t.Helper()
	options := api.Options{Options: gate.Options{
		DB:             p.pool,
		Verifier:       p.verifier,
		Log:            slog.New(slog.NewJSONHandler(p.log, nil)),
		MaxBodyBytes:   maxBodyBytes,
		RequestTimeout: 6 * time.Second,
	}}
	change(&options)
	if p.replica != nil && options.DB == p.pool { // it follows the primary of this pool
		options.Replicas = p.replica.replicas
	}
	server := need.Value(api.New(options))(p.t)
	need.Background(p.t, server.Record)
	listening := httptest.NewServer(server)
	p.t.Cleanup(func() {
		listening.Close()
		// Package testing keeps this function until all tests have ended, and a server has 2 MB.
		listening.Config.Handler = nil
	})
	other := *p
	other.server, other.url, other.pool, other.verifier = server, listening.URL, options.DB, options.Verifier
	if options.Replicas == nil {
		other.replica = nil
	}
	return &other
}

// theSecrets holds the secrets of all tests so far. No server may send or log one,
// except in the response that creates it.
var theSecrets = sync.OnceValue(func() *secretscan.Secrets { return new(secretscan.Secrets) })

// watchLog searches the server logs at the end of the test for secrets: every key
// that was created or sent, the cursor key and the database password.
func (p *petstore) watchLog() {
	p.t.Helper()
	theSecrets().LearnKeys(p.key)
	signing := need.Value(db.New(p.db).SigningKeyGet(p.t.Context(), "cursor"))(p.t)
	theSecrets().Learn("the cursor key", string(signing))
	password := p.pool.Pool().Config().ConnConfig.Password
	theSecrets().Learn("the database password", password)
	t, log := p.t, p.log // without the rest of p, see with
	t.Cleanup(func() {
		if found := theSecrets().In(log.String()); len(found) > 0 {
			t.Errorf("the log contains %q:\n%s", found, log)
		}
	})
}

// searchResponse fails the test if a response contains a known secret.
func searchResponse(t testing.TB, request *http.Request, received *http.Response, text []byte) {
	t.Helper()
	theSecrets().LearnKeys(request.Header.Get("Authorization"))
	if found := theSecrets().In(fmt.Sprintf("%v\n%s", received.Header, text)); len(found) > 0 {
		t.Errorf("%s %s: %d: the response contains %q: %v\n%s", request.Method, request.URL, received.StatusCode, found, received.Header, text)
	}
	if received.StatusCode < http.StatusMultipleChoices && request.Method == http.MethodPost && (strings.HasPrefix(request.URL.Path, keysPath) || request.URL.Path == sandboxesPath) {
		theSecrets().LearnKeys(string(text)) // shown only in this response
	}
	if received.StatusCode == http.StatusCreated && strings.HasPrefix(request.URL.Path, webhooksPath) {
		learnWebhookSecret(t, text)
	}
}

// named returns the name of an account of the test.
func (p *petstore) named(account string) string { return account + p.suffix }

// newKey creates an API key for the account with this name.
func (p *petstore) newKey(account string, scope auth.Scope) string {
	p.t.Helper()
	_, key := p.issueIn(account, scope, nil)
	return key
}

func (p *petstore) issueIn(account string, scope auth.Scope, expiresAt *time.Time) (id int64, key string) {
	p.t.Helper()
	queries := db.New(p.db)
	owner := need.Value(stores.Ensure(p.t.Context(), queries, p.named(account)))(p.t)
	wanted := auth.NewKey{AccountID: owner.ID, Name: "test", Scope: scope, ExpiresAt: expiresAt}
	made, secret, err := auth.Issue(p.t.Context(), queries, wanted)
	for postgres.LostToAnother(err) { // to another test, in a deadlock on Citus
		made, secret, err = auth.Issue(p.t.Context(), queries, wanted)
	}
	need.OK(p.t, err)
	return made.ID, secret.Reveal()
}

// accountID returns the id of the account "tester".
func (p *petstore) accountID() (id int64) {
	p.t.Helper()
	account := need.Value(db.New(p.db).AccountGetByName(p.t.Context(), p.named("tester")))(p.t)
	return account.ID
}

// eventID returns an id in the feed of the account "tester". The number 0 is the position
// before the first event.
func (p *petstore) eventID(sequence, nonce int) string {
	p.t.Helper()
	return eventids.IDOf(p.accountID(), int64(sequence), int64(nonce)).String()
}

// at returns the same client with another URL.
func (p *petstore) at(url string) *petstore {
	other := *p
	other.url = url
	return &other
}

// listening starts another listener of the server, with another configuration.
func (p *petstore) listening(change func(*httptest.Server)) *petstore {
	p.t.Helper()
	listener := httptest.NewUnstartedServer(p.server)
	change(listener)
	listener.Start()
	p.t.Cleanup(listener.Close)
	return p.at(listener.URL)
}

// as returns the same server with a client that uses another key.
func (p *petstore) as(key string) *petstore {
	other := *p
	other.key, other.sandboxID = key, 0
	return &other
}

// in returns the same server for a subtest.
func (p *petstore) in(t testing.TB) *petstore {
	t.Helper()
	other := *p
	other.t = t
	return &other
}

// response is an HTTP response with its whole body.
type response struct {
	t      testing.TB
	what   string // method and target of the request
	status int
	header http.Header
	body   []byte
	closes bool // whether no other response follows on its connection
}

// do sends a request and returns the response, checked against openapi.yaml. The
// body is JSON as a string, or a value to encode. The header is a list of names and
// values; an empty value removes the field.
func (p *petstore) do(method, target string, body any, header ...string) *response {
	p.t.Helper()
	resp := need.Value(p.try(method, target, body, header...))(p.t)
	return resp
}

// try is do for goroutines and fault tests. It returns connection errors.
func (p *petstore) try(method, target string, body any, header ...string) (*response, error) {
	var sent []byte
	switch body := body.(type) {
	case nil:
	case string:
		sent = []byte(body)
	case []byte:
		sent = body
	default:
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = encoded
	}
	if body != nil { // it may be empty
		header = append([]string{"Content-Type", "application/json"}, header...)
	}
	request, err := p.newRequest(p.t.Context(), method, target, bytes.NewReader(sent), header...)
	if err != nil {
		return nil, err
	}
	return p.send(request, sent)
}

// newRequest prepares a request for [petstore.send], with the header of [petstore.do].
func (p *petstore) newRequest(ctx context.Context, method, target string, body io.Reader, header ...string) (*http.Request, error) {
	if !strings.HasPrefix(target, "http") {
		target = p.url + target
	}
	request, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	if p.key != "" {
		request.Header.Set("Authorization", "Bearer "+p.key)
	}
	if request.Body != nil && request.Body != http.NoBody {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Del(header[i])
		if header[i+1] != "" {
			request.Header.Set(header[i], header[i+1])
		}
	}
	return request, nil
}

// request is newRequest in the goroutine of the test.
func (p *petstore) request(ctx context.Context, method, target string, body io.Reader, header ...string) *http.Request {
	p.t.Helper()
	request := need.Value(p.newRequest(ctx, method, target, body, header...))(p.t)
	return request
}

// sent is send in the goroutine of the test.
func (p *petstore) sent(request *http.Request, body []byte) *response {
	p.t.Helper()
	resp := need.Value(p.send(request, body))(p.t)
	return resp
}

// send sends a prepared request with this body.
func (p *petstore) send(request *http.Request, sent []byte) (*response, error) {
	p.t.Helper()
	preference := p.replica.prefer(request)
	received, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer received.Body.Close()
	text, err := io.ReadAll(received.Body)
	if err != nil {
		return nil, err
	}
	if received.Header.Get("Content-Encoding") == "gzip" {
		if text, err = gunzip(text); err != nil {
			return nil, err
		}
	}
	searchResponse(p.t, request, received, text)
	theContract().check(p.t, request, sent, received, text)
	p.replica.learn(p.t, p.server, received.Header, preference)
	return &response{t: p.t, what: request.Method + " " + request.URL.RequestURI(), status: received.StatusCode, header: received.Header, body: text, closes: received.Close}, nil
}

func gunzip(text []byte) ([]byte, error) {
	if len(text) == 0 { // a response to HEAD, or 304
		return nil, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

// client does not follow redirects and asks for compression only where a test does.
var client = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       2 * time.Minute,
}

// background calls a function in a goroutine. The function that it returns waits for the result.
func background[T any](call func() T) (result func() T) {
	done := make(chan T, 1)
	go func() { done <- call() }()
	return func() T { return <-done }
}

// begin sends a request as [petstore.do] does, and does not wait for the response. The function
// that it returns does, and fails the test if there is none.
func (p *petstore) begin(method, target string, body any, header ...string) (received func() *response) {
	var resp *response
	failed := background(func() (err error) {
		resp, err = p.try(method, target, body, header...)
		return err
	})
	return func() *response {
		p.t.Helper()
		need.OK(p.t, failed())
		return resp
	}
}

// leaving sends requests at the same time. The function that it returns hangs up all clients, waits
// for them, and fails the test if one got a response.
func (p *petstore) leaving(clients int, method, target, body string, header ...string) (leave func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	var gone sync.WaitGroup
	for range clients {
		request := p.request(ctx, method, target, strings.NewReader(body), header...)
		gone.Go(func() {
			if _, err := p.send(request, []byte(body)); !errors.Is(err, context.Canceled) {
				p.t.Errorf("%s %s: %v, before the client hung up", method, target, err)
			}
		})
	}
	return func() {
		cancel()
		gone.Wait()
	}
}

// get, post, put, patch and del send a request with the usual headers.
func (p *petstore) get(target string) *response { p.t.Helper(); return p.do("GET", target, nil) }

func (p *petstore) post(target string, body any) *response {
	p.t.Helper()
	return p.do("POST", target, body)
}

func (p *petstore) put(target string, body any) *response {
	p.t.Helper()
	return p.do("PUT", target, body)
}

func (p *petstore) patch(target string, body any) *response {
	p.t.Helper()
	return p.do("PATCH", target, body)
}
func (p *petstore) del(target string) *response { p.t.Helper(); return p.do("DELETE", target, nil) }

// want fails the test unless the response has this status.
func (r *response) want(status int) *response {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("%s: status %d, want %d: %s", r.what, r.status, status, r.body)
	}
	return r
}

// wantHeader fails the test unless a header field of the response has this value; "" means that
// it is absent.
func (r *response) wantHeader(name, want string) *response {
	r.t.Helper()
	if got := r.header.Get(name); got != want {
		r.t.Errorf("%s: %d with %s %q, want %q", r.what, r.status, name, got, want)
	}
	return r
}

// wantSuccess ends the test unless the status of the response is 2xx.
func (r *response) wantSuccess() {
	r.t.Helper()
	if r.status >= http.StatusMultipleChoices {
		r.t.Fatalf("%s: status %d: %s", r.what, r.status, r.body)
	}
}

// wantError fails the test unless the response is a complete Error with this status and code.
func (r *response) wantError(status int, code string) *response {
	r.t.Helper()
	r.want(status)
	got := r.error()
	if got.Code != code || got.Status != status || got.Message == "" {
		r.t.Fatalf("%s: %s; want code %s and status %d", r.what, r.body, code, status)
	}
	if got.RequestID == "" {
		r.t.Errorf("%s: no requestId", r.what)
	}
	r.wantHeader("X-Request-Id", got.RequestID)
	return r.wantHeader("Content-Type", "application/json").wantHeader("Cache-Control", "no-store")
}

// errorBody is the Error schema.
type errorBody struct {
	Code, Message string
	Status        int
	RequestID     string
	Errors        []violation
	Checks        map[string]string
}

type violation struct {
	Pointer   *string
	Parameter *string
	Header    string
	Code      string
	Message   string
}

func (r *response) error() errorBody {
	r.t.Helper()
	return decode[errorBody](r)
}

// violations lists the entries of an Error, such as "/name required" or "limit out_of_range".
func (r *response) violations() []string {
	r.t.Helper()
	var all []string
	for _, v := range r.error().Errors {
		where := v.Header
		if v.Pointer != nil {
			where = *v.Pointer
		}
		if v.Parameter != nil {
			where = *v.Parameter
		}
		all = append(all, where+" "+v.Code)
	}
	return all
}

func decode[T any](r *response) T {
	r.t.Helper()
	var value T
	if err := json.Unmarshal(r.body, &value); err != nil {
		r.t.Fatalf("%s: %v: %s", r.what, err, r.body)
	}
	return value
}

// link returns the target of a link of the response, or "".
func (r *response) link(rel string) string {
	for one := range strings.SplitSeq(r.header.Get("Link"), ", ") {
		if target, isRel := strings.CutSuffix(one, fmt.Sprintf(`>; rel=%q`, rel)); isRel {
			return strings.TrimPrefix(target, "<")
		}
	}
	return ""
}

// The resources, as a client sees them.
type (
	pet struct {
		ID         int64
		Name       string
		CategoryID int64
		Status     string
	}
	category struct {
		ID          int64
		Name        string
		Description *string
	}
	order struct {
		ID, PetID, Quantity int64
		ShipDate            *time.Time
		Complete            bool
	}
	inventoryItem struct {
		PetID, Quantity int64
		Status          string
	}
	message struct {
		ID, Message, Status string
		CreatedAt           time.Time
	}
)

type object = map[string]any

func (p *petstore) newCategory(name string) int64 {
	p.t.Helper()
	return decode[category](p.post("/categories", object{"name": name}).want(201)).ID
}

// newPet creates a pet with this stock in a category of its own.
func (p *petstore) newPet(name string, stock int64) int64 {
	p.t.Helper()
	id := decode[pet](p.post("/pets", object{"name": name, "categoryId": p.newCategory("category of " + name)}).want(201)).ID
	if stock > 0 {
		p.put(fmt.Sprintf("/store/inventory/%d", id), object{"quantity": stock}).want(200)
	}
	return id
}

func (p *petstore) newOrder(petID, quantity int64) int64 {
	p.t.Helper()
	return decode[order](p.post("/store/orders", object{"petId": petID, "quantity": quantity}).want(201)).ID
}

// inventory returns the stock and the status of a pet.
func (p *petstore) inventory(petID int64) inventoryItem {
	p.t.Helper()
	return decode[inventoryItem](p.get(fmt.Sprintf("/store/inventory/%d", petID)).want(200))
}

// walk reads all pages of a list.
func walk[T any](p *petstore, target string) []T {
	p.t.Helper()
	const tooManyPages = 1000
	var all []T
	for range tooManyPages {
		page := p.get(target).want(200)
		all = append(all, decode[[]T](page)...)
		if target = page.link("next"); target == "" {
			return all
		}
	}
	p.t.Fatalf("%s: the list does not end", target)
	return nil
}

// atOnce runs n functions at the same time and waits for them.
func atOnce(t testing.TB, n int, run func(i int) error) {
	t.Helper()
	var group sync.WaitGroup
	begin, failures := make(chan struct{}), make([]error, n)
	for i := range n {
		group.Go(func() {
			<-begin
			failures[i] = run(i)
		})
	}
	close(begin)
	group.Wait()
	need.OK(t, errors.Join(failures...))
}

// allAtOnce sends n requests at the same time.
func allAtOnce(t testing.TB, n int, send func(i int) (*response, error)) []*response {
	t.Helper()
	responses := make([]*response, n)
	atOnce(t, n, func(i int) (err error) {
		responses[i], err = send(i)
		return err
	})
	return responses
}

// outcomes counts responses by status and error code, such as "409 category_exists". Each error
// must be complete.
func outcomes(responses []*response) map[string]int {
	count := map[string]int{}
	for _, resp := range responses {
		if resp.status >= http.StatusBadRequest {
			resp.wantError(resp.status, resp.error().Code)
		}
		count[resp.brief()]++
	}
	return count
}

// mapped returns the result of a function for each item; nil: there are no items.
func mapped[T, R any](items []T, of func(T) R) (results []R) {
	for _, item := range items {
		results = append(results, of(item))
	}
	return results
}

// query encodes parameters, given as names and values.
func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Add(pairs[i], pairs[i+1])
	}
	return "?" + values.Encode()
}

// logBuffer collects the log of a server.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
