package api_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	stores "petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	feedevent "petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// catchUpTime is the maximum time that a test waits for a replica.
const catchUpTime = 20 * time.Second

// replicated is a server on a pair.
type replicated struct {
	*petstore

	pair     *pgtest.Pair
	replicas *postgres.Replicas
	ends     atomic.Int64 // the batches that read the position of the replica at their end too
}

// TestReplicas runs the tests of a server with a replica on one pair. Some pause its standby, so they run
// one after the other.
func TestReplicas(t *testing.T) {
	t.Parallel()
	pair := pgtest.NewPair(t)
	for name, test := range map[string]func(*replicated){
		"consistency tokens": testConsistencyTokens, "tokens of writes": testTokensOfWrites, "invalid tokens": testInvalidTokens,
		"walk": testWalkDoesNotGoBack, "ends": testOnlyWalksReadEnds, "preference": testPreferenceAppliedByThePrimary, "shared reads": testSharedReadsOfReplicas,
		"new keys": testReplicaWithoutTheKey, "first pages": testFirstPageOfABehindReplica, "pages instead": testReadsOfPagesInstead, "all reads": testReplicaServesAllReads,
	} {
		t.Run(name, func(t *testing.T) { test(startReplicated(t, pair.In(t))) })
	}
}

// startReplicated starts a server with an account of its own on a pair, whose standby is in rotation.
func startReplicated(t *testing.T, pair *pgtest.Pair) *replicated {
	t.Helper()
	pool := need.Value(openPool(pair.Database))(t)
	t.Cleanup(pool.Close)
	p := startWith(t, conns{pair.Database, pool, nil}, " "+rand.Text())
	r := &replicated{pair: pair}
	countEnds := pgtest.Around(func(_ context.Context, all []pgtest.Statement) (ended func()) {
		if len(all) > 1 && all[0].SQL == all[len(all)-1].SQL {
			r.ends.Add(1)
		}
		return nil
	})
	r.replicas = need.Value(postgres.OpenReplicas(t.Context(), p.pool, []string{pair.Standby.URL}, postgres.ReplicaOptions{
		MaxConns: 8, MaxLag: time.Hour, Patience: catchUpTime, Log: slog.New(slog.DiscardHandler), Tracers: []pgx.QueryTracer{countEnds},
	}))(t)
	t.Cleanup(r.replicas.Close)
	need.Background(t, r.replicas.Run)
	r.petstore = p.with(func(o *api.Options) { o.Replicas = r.replicas })
	need.Within(t, catchUpTime, "the replica is in rotation", func() bool { return r.replicas.Status(0).InRotation })
	return r
}

// pause stops the replay of the standby until the test ends.
func (r *replicated) pause() {
	r.t.Helper()
	r.pair.Standby.Pause()
	r.t.Cleanup(r.pair.Standby.Resume)
}

// tokenOf returns the token of a response to a write.
func tokenOf(r *response) string {
	r.t.Helper()
	token := r.header.Get("Petstore-Consistency")
	if token == "" {
		r.t.Errorf("%s: no Petstore-Consistency", r.what)
	}
	return token
}

func (r *replicated) rename(id int64, name string) (token string) {
	r.t.Helper()
	return tokenOf(r.patch(fmt.Sprint("/categories/", id), object{"name": name}).want(200))
}

// read sends a GET with a consistency, and reports whether the replica served it.
func (r *replicated) read(path, consistency string) (resp *response, byReplica bool) {
	r.t.Helper()
	before := r.replicas.Reads(postgres.ReadFresh)
	resp = r.do("GET", path, nil, "Prefer", "consistency="+consistency)
	want := ""
	if resp.status < http.StatusBadRequest {
		want = "consistency=" + strings.Trim(consistency, `"`)
	}
	resp.wantHeader("Preference-Applied", want)
	return resp, r.replicas.Reads(postgres.ReadFresh) > before
}

// readBy is read. If the replica should serve the GET and does not, readBy sends it again:
// on a loaded machine, the replica can be out of rotation for a moment.
func (r *replicated) readBy(byReplica bool, path, consistency string) (resp *response, replica bool) {
	r.t.Helper()
	resp, replica = r.read(path, consistency)
	for deadline := time.Now().Add(catchUpTime); byReplica && !replica && time.Now().Before(deadline); <-time.After(time.Millisecond) {
		resp, replica = r.read(path, consistency)
	}
	return resp, replica
}

// want fails the test unless a GET returns a text, from the replica or not.
func (r *replicated) want(path, consistency, text string, byReplica bool) {
	r.t.Helper()
	resp, replica := r.readBy(byReplica, path, consistency)
	if body := string(resp.want(200).body); !strings.Contains(body, text) || replica != byReplica {
		r.t.Errorf("%s, consistency=%s, by the replica: %t\n%s; want %q, %t", resp.what, consistency, replica, body, text, byReplica)
	}
}

// awaitReplica waits until the replica serves a GET with a token. Every response must have the text.
func (r *replicated) awaitReplica(path, token, text string) {
	r.t.Helper()
	need.Within(r.t, catchUpTime, "the replica serves the read", func() bool {
		resp, byReplica := r.read(path, token)
		if !strings.Contains(string(resp.want(200).body), text) {
			r.t.Fatalf("%s is stale: %s", resp.what, resp.body)
		}
		return byReplica
	})
}

// testConsistencyTokens: a GET with a token sees the write of the token. The replica serves
// it if it has replayed the write.
func testConsistencyTokens(r *replicated) {
	id := r.newCategory("Dogs")
	path := fmt.Sprint("/categories/", id)
	first := r.rename(id, "first")
	r.awaitReplica(path, first, "first")
	tag := r.get(path).header.Get("ETag")

	r.pause()
	second := r.rename(id, "second")
	r.want(path, second, "second", false)
	r.want(path, first, "first", true)
	r.want(path, "eventual", "first", true)
	r.want(path, `"eventual"`, "first", true)
	need.Contains(r.t, "the page", string(r.get(path).want(200).body), "second") // without a preference
	r.want("/categories?name=sec", second, "second", false)
	r.want("/categories?name=first", "eventual", "first", true)
	same := r.do("GET", path, nil, "Prefer", "consistency="+first, "If-None-Match", tag).want(304)
	same.wantHeader("Preference-Applied", "consistency="+first)
	both := r.do("GET", "/categories", nil, "Prefer", "count=exact, consistency=eventual").want(200)
	both.wantHeader("Preference-Applied", "consistency=eventual, count=exact").wantHeader("X-Total-Count", "1")
	// a replica decides about rows that it does not have
	missing := r.post("/categories", object{"name": "third"}).want(201)
	if resp, byReplica := r.read(missing.header.Get("Location"), "eventual"); resp.status != 404 || !byReplica {
		r.t.Errorf("%s: %d, by the replica: %t", resp.what, resp.status, byReplica)
	}
	r.want(missing.header.Get("Location"), tokenOf(missing), "third", false)

	r.pair.Standby.Resume()
	r.awaitReplica(path, second, "second")
}

// testTokensOfWrites: every successful response to a write has a token that a replica without the
// write does not serve. A replay has a token too. Errors and reads have none.
func testTokensOfWrites(r *replicated) {
	for range 2 {
		resp := r.do("POST", "/messages", object{"message": "Hello"}, "Idempotency-Key", "once").want(202)
		tokenOf(resp)
	}
	all := r.everyOperation()
	r.pause()
	for _, one := range all {
		if one.method() == "GET" {
			continue
		}
		token := tokenOf(r.do(one.method(), one.target, one.body).want(one.success))
		if _, byReplica := r.read("/account", token); byReplica {
			r.t.Errorf("%s: a replica without the write serves a read with its token", one.route)
		}
	}
	for _, other := range []*response{r.get("/pets").want(200), r.get("/readyz").want(200), r.del("/pets/9007199254740991").want(404), r.post("/pets", object{}).want(400)} {
		other.wantHeader("Petstore-Consistency", "")
	}
}

// testInvalidTokens: the server rejects a token that it has not issued.
func testInvalidTokens(r *replicated) {
	token := tokenOf(r.post("/messages", object{"message": "Hello"}).want(202))
	sealed := need.Value(base64.RawURLEncoding.DecodeString(token))(r.t)
	forger := need.Value(httpjson.NewSealer([]byte("another secret"), "petstore consistency token"))(r.t)
	changed := append([]byte{}, sealed...)
	changed[len(changed)-1] ^= 1
	for _, invalid := range []string{
		"", "strong", "Eventual", token[1:], token + "AA", token + "=", strings.ToLower(token), token + " " + token,
		base64.RawURLEncoding.EncodeToString(changed), base64.RawURLEncoding.EncodeToString(forger.Seal(make([]byte, 12))),
	} {
		for _, path := range []string{"/pets", "/pets/1", "/account"} {
			resp, _ := r.read(path, invalid)
			resp.wantViolations("invalid_consistency", "Prefer invalid_format")
		}
	}
	r.do("GET", "/pets", nil, "Prefer", "consistency").wantError(400, "invalid_consistency")
	r.do("GET", "/livez", nil, "Prefer", "consistency=x").want(200)
	r.do("POST", "/messages", object{"message": "Hello"}, "Prefer", "consistency=x").want(202)
	r.do("GET", "/pets", nil, "Prefer", "respond-async, consistency="+token+"; a=b").want(200)
	again := tokenOf(r.post("/messages", object{"message": "Hello"}).want(202))
	if again[:8] == token[:8] {
		r.t.Errorf("the tokens %s and %s are readable", token, again)
	}
}

// TestPreferenceWithoutReplicas: without replicas, the server ignores the preference, and
// writes have no token.
func TestPreferenceWithoutReplicas(t *testing.T) {
	t.Parallel()
	p := startWithoutStandby(t)
	written := p.post("/messages", object{"message": "Hello"}).want(202)
	read := p.do("GET", "/messages", nil, "Prefer", "consistency=x").want(200)
	written.wantHeader("Petstore-Consistency", "")
	read.wantHeader("Preference-Applied", "")
}

// testWalkDoesNotGoBack: the pages of a walk do not go back in time, whatever the
// consistency of each request, and also if the server changes between pages.
func testWalkDoesNotGoBack(r *replicated) {
	var token string
	for i := range 4 {
		token = tokenOf(r.post("/categories", object{"name": fmt.Sprint("Category ", i)}).want(201))
	}
	r.awaitReplica("/categories", token, "Category 3")
	r.pause()
	names := func(resp *response) string {
		return strings.Join(mapped(decode[[]category](resp), func(one category) string { return one.Name }), ", ")
	}
	page := func(path, consistency, want string, byReplica bool) (next string) {
		r.t.Helper()
		resp, replica := r.readBy(byReplica, path, consistency)
		if got := names(resp.want(200)); got != want || replica != byReplica {
			r.t.Errorf("%s, consistency=%s: %s, by the replica: %t; want %s, %t", path, consistency, got, replica, want, byReplica)
		}
		return resp.link("next")
	}
	all := decode[[]category](r.get("/categories"))
	newer := r.rename(all[1].ID, "renamed")

	// The replica keeps its state, so a walk on it can continue there.
	old := page("/categories?limit=1", "eventual", "Category 0", true)
	page(old, "eventual", "Category 1", true)
	page(old, token, "Category 1", true)
	page(old, newer, "renamed", false)
	// A walk that began on the primary continues there, until the replica has caught up.
	for _, first := range []string{
		page("/categories?limit=1", newer, "Category 0", false),
		r.get("/categories?limit=1").want(200).link("next"),
	} {
		page(first, "eventual", "renamed", false)
		page(first, token, "renamed", false)
	}
	recent := page("/categories?limit=1", newer, "Category 0", false)

	r.pair.Standby.Resume()
	r.awaitReplica(recent, "eventual", "renamed")
	r.awaitReplica(old, newer, "renamed")
}

// testOnlyWalksReadEnds: the position after a read costs something, and only a cursor needs it.
func testOnlyWalksReadEnds(r *replicated) {
	r.newPet("one", 1)
	r.awaitReplica("/pets", tokenOf(r.post("/messages", object{"message": "hi"}).want(202)), "one")
	for path, want := range map[string]bool{"/pets": true, "/pets?status=available": true, "/messages": true, "/events": false, "/pets?id=1": false} {
		before := r.ends.Load()
		r.want(path, "eventual", "[", true)
		need.Same(r.t, want, r.ends.Load() > before, "whether %s reads the position at its end", path)
	}
}

// testPreferenceAppliedByThePrimary: the replica has the sandbox, but not the state of a page
// of its record. The response of the primary still has Preference-Applied.
func testPreferenceAppliedByThePrimary(r *replicated) {
	sandbox, category := r.newSandbox("walk", stores.SampleEmpty), r.newCategory("Dogs")
	path := sandbox.path() + "/requests"
	r.recordRequest(sandbox.ID)
	r.exec(`INSERT INTO exchanges SELECT (jsonb_populate_record(e, '{"number": 2}')).* FROM exchanges AS e WHERE account_id = $1`, accountOf(sandbox))
	r.awaitReplica(path, r.rename(category, "first"), accountOf(sandbox)+"_2")
	r.pause()
	r.rename(category, "second")
	if _, byReplica := r.read(r.get(path+"?limit=1").want(200).link("next"), "eventual"); byReplica {
		r.t.Error("the replica served a page that it does not have")
	}

	// The same holds for a page that a request waits for.
	id, _ := stores.ParseSandboxID(sandbox.ID)
	r.recordRequests(id, 3, 3)
	waited := r.do("GET", path+"?after=req_"+accountOf(sandbox)+"_2", nil, "Prefer", "wait=20, consistency=eventual").want(200)
	need.Same(r.t, 1, len(decode[[]recorded](waited)), "requests of the page after the wait")
}

// testSharedReadsOfReplicas: requests that share a read each get a state that includes their own token.
// On a busy machine the replica may not serve a read in time. Then the primary serves it, or the server
// returns 503. So the number of old responses must equal the number of reads that the replica served.
func testSharedReadsOfReplicas(r *replicated) {
	pet := r.newPet("old", 1)
	token := tokenOf(r.patch(fmt.Sprint("/pets/", pet), object{"name": "old"}).want(200))
	r.awaitReplica("/pets", token, "old")
	r.pause()
	newer := tokenOf(r.patch(fmt.Sprint("/pets/", pet), object{"name": "new"}).want(200))
	served := r.replicas.Reads(postgres.ReadFresh)
	var old, failed atomic.Uint64
	read := func(path, consistency string, mayBeOld bool) {
		resp := r.tryAvailable(path, consistency, &failed)
		body := string(resp.body)
		isOld := strings.Contains(body, `"old"`)
		if resp.status != 200 || isOld == strings.Contains(body, `"new"`) || isOld && !mayBeOld {
			r.t.Errorf("%s, consistency=%q: %d %s; may be old: %t", path, consistency, resp.status, body, mayBeOld)
		}
		if isOld {
			old.Add(1)
		}
	}
	// "" is a request without the preference
	mayBeOld := map[string]bool{newer: false, token: true, "eventual": true, "": false}
	var clients sync.WaitGroup
	for consistency, may := range mayBeOld {
		for _, path := range []string{fmt.Sprint("/pets/", pet), "/pets", "/pets?sort=-id", "/pets?status=available"} {
			for range 3 {
				clients.Go(func() {
					for range 10 {
						read(path, consistency, may)
					}
				})
			}
		}
	}
	clients.Wait()
	// A failed read may count as one of the replica.
	if served = r.replicas.Reads(postgres.ReadFresh) - served; old.Load() == 0 || served < old.Load() || served > old.Load()+failed.Load() {
		r.t.Errorf("%d old responses, but the replica served %d reads, and %d failed", old.Load(), served, failed.Load())
	}
}

// testReplicaWithoutTheKey: a replica that does not have a new key or its account yet does not make the
// server say that the key is invalid.
func testReplicaWithoutTheKey(r *replicated) {
	r.awaitReplica("/categories", tokenOf(r.post("/categories", object{"name": "known"}).want(201)), "known")
	r.pause()
	made := r.post(sandboxesPath, object{"name": "new"}).want(201)
	inside := r.as(decode[sandbox](made).Key.Secret)
	for _, consistency := range []string{"eventual", tokenOf(made)} {
		for _, path := range []string{"/events", "/events?after=latest", "/account", "/sandboxes/current", ownRecord} {
			inside.do("GET", path, nil, "Prefer", "consistency="+consistency).want(200)
		}
	}
	other := r.makeKey("new", "read")
	got := decode[struct{ APIKey apiKey }](r.as(other.Secret).do("GET", "/account", nil, "Prefer", "consistency=eventual").want(200))
	need.Same(r.t, other.ID, got.APIKey.ID, "the key of GET /account")
}

// testFirstPageOfABehindReplica: a replica knows the end of a feed and lacks its events, as two standbys
// behind one address do if one is behind. The first page has the events, which the next one would skip.
func testFirstPageOfABehindReplica(r *replicated) {
	const end = "UPDATE account_state SET last_sequence = $2 WHERE account_id = $1"
	r.exec(end, r.accountID(), 1)
	r.pair.CatchUp(r.pair.Standby)
	r.pause()
	r.exec(end, r.accountID(), 0)
	r.newCategory("Dogs")
	for _, path := range []string{"/events", "/events?type=category.created"} {
		r.want(path, "eventual", "category.created", true)
	}
}

// testReadsOfPagesInstead: a replica does not have a new sandbox, so the primary reads many of its pages
// instead. Their reads hang, and at most two have a connection.
func testReadsOfPagesInstead(r *replicated) {
	const pages, most = 12, 2
	s := r.turnstile("FeedEnd", func(o *api.Options) { o.Replicas, o.RequestTimeout = r.replicas, 30*time.Second })
	r.awaitReplica("/categories", tokenOf(r.post("/categories", object{"name": "known"}).want(201)), "known")
	r.pause()
	inside := s.as(decode[sandbox](r.post(sandboxesPath, object{"name": "new"}).want(201)).Key.Secret)
	s.together(pages, func(i int) error {
		inside.do("GET", "/events?type="+feedevent.TypeNames()[i], nil, "Prefer", "consistency=eventual").want(200)
		return nil
	})
	s.wantAtMost(most)
}

// tryAvailable sends a GET with a consistency, which may be empty, until the server is
// available. It counts the failures.
func (r *replicated) tryAvailable(path, consistency string, failed *atomic.Uint64) *response {
	var header []string
	if consistency != "" {
		header = []string{"Prefer", "consistency=" + consistency}
	}
	for began := time.Now(); ; failed.Add(1) {
		resp, err := r.try("GET", path, nil, header...)
		if err != nil {
			r.t.Error(err)
			return &response{}
		}
		if resp.status != http.StatusServiceUnavailable || time.Since(began) > catchUpTime {
			return resp
		}
	}
}

// testReplicaServesAllReads: every GET with an API key can be read from a replica, with the
// same response as from the primary.
func testReplicaServesAllReads(r *replicated) {
	pet := r.newPet("Rex", 5)
	order, category := r.newOrder(pet, 1), r.newCategory("Dogs")
	message := r.post("/messages", object{"message": "Hello"}).want(202).header.Get("Location")
	sandbox := r.post(sandboxesPath, object{"sample": "empty"}).want(201).header.Get("Location")
	sample := r.saveSample("replicated", strings.TrimPrefix(sandbox, sandboxesPath+"/"))
	recordedID := r.recordRequest(strings.TrimPrefix(sandbox, sandboxesPath+"/"))
	token := tokenOf(r.put(sandbox+"/faults", object{"rules": []object{{"operation": "*", "effect": "delay", "delayMs": 1}}}).want(200))
	r.newKey("other", auth.Read)
	r.awaitReplica("/pets", token, "Rex")
	for _, path := range []string{
		"/pets", fmt.Sprint("/pets/", pet), fmt.Sprintf("/pets?id=%d", pet), fmt.Sprintf("/pets?id=%d&id=99", pet), "/pets?name=r&sort=-name", "/pets?status=available",
		"/categories", fmt.Sprint("/categories/", category), "/store/orders", fmt.Sprint("/store/orders/", order), "/store/orders?shipDateFrom=2020-01-01T00:00:00Z",
		fmt.Sprintf("/store/orders?petId=%d", pet), "/store/orders?complete=false", "/store/inventory", "/store/inventory?low=true", fmt.Sprint("/store/inventory/", pet),
		"/store/inventory/summary", "/messages", message, "/account", keysPath, sandboxesPath, sandbox, sandbox + "/faults", samplesPath, samplesPath + "/" + sample,
		sandbox + "/requests", sandbox + "/requests/" + recordedID,
	} {
		primary := r.get(path).want(200)
		r.want(path, token, strings.TrimSpace(string(primary.body)), true)
		head := r.do("HEAD", path, nil, "Prefer", "consistency=eventual").want(200)
		head.wantHeader("Content-Length", primary.header.Get("Content-Length"))
		if !strings.HasPrefix(string(primary.body), "[") {
			continue
		}
		before := r.replicas.Reads(postgres.ReadFresh)
		counted := r.do("GET", path, nil, "Prefer", "count=exact, consistency="+token).want(200)
		if counted.header.Get("X-Total-Count") != r.do("GET", path, nil, "Prefer", "count=exact").header.Get("X-Total-Count") ||
			r.replicas.Reads(postgres.ReadFresh) == before {
			r.t.Errorf("%s: the count of the replica is %v", path, counted.header)
		}
	}
	r.as(r.newKey("other", auth.Read)).do("GET", "/account", nil, "Prefer", "consistency=eventual").want(200)
}
