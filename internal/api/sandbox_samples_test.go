package api_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	stores "petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/tools/need"
)

const samplesPath = "/samples"

// savedSample is a sample, as a client sees it.
type savedSample struct {
	Name      string
	BuiltIn   bool
	CreatedAt *time.Time
}

func (p *petstore) saveSample(name, from string) string {
	p.t.Helper()
	p.post(samplesPath, object{"name": name, "from": from}).want(201)
	return name
}

var timeInText = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)

// withoutTimes replaces the times of a text except ship dates, which end with a full minute.
func withoutTimes(text []byte) string {
	return timeInText.ReplaceAllStringFunc(string(text), func(at string) string {
		if strings.HasSuffix(at, ":00Z") {
			return at
		}
		return "now"
	})
}

// story changes a store that starts as the shop in every way, with refused requests between,
// and returns the responses without times.
func (p *petstore) story() string {
	p.t.Helper()
	var text bytes.Buffer
	do := func(method, target string, body any, header ...string) {
		resp := p.do(method, target, body, header...)
		fmt.Fprintf(&text, "%s %s: %d %s %s\n", method, target, resp.status, resp.header.Get("Location"), withoutTimes(requestIDInBody.ReplaceAll(resp.body, nil)))
	}
	for i := range 3 {
		do("POST", "/categories", object{"name": fmt.Sprint("Category ", i, time.Now())[:10]})
		do("POST", "/categories", object{"name": "Dogs"}) // exists
		do("POST", "/pets", object{"name": "Max", "categoryId": 1})
		do("POST", "/pets", object{"name": "Max", "categoryId": 999})
		do("POST", "/store/orders", object{"petId": 1, "quantity": 2}, "Idempotency-Key", fmt.Sprint(i))
		do("POST", "/store/orders", object{"petId": 1, "quantity": 2}, "Idempotency-Key", fmt.Sprint(i))
		do("POST", "/store/orders", object{"petId": 1, "quantity": 1000})
		do("DELETE", fmt.Sprint("/store/orders/", 1001+2*i), nil)
		do("POST", "/store/orders", object{"petId": 1})
		do("POST", "/messages", object{"message": "hello"})
	}
	return text.String()
}

var requestIDInBody = regexp.MustCompile(`"requestId":"[^"]*"`)

// TestSameIDs: the same requests to the same sample get the same ids and bodies, in two forks and
// after a reset, whatever other accounts do. Events have the same numbers.
func TestSameIDs(t *testing.T) {
	t.Parallel()
	p := start(t)
	one, other := p.newSandbox("one", "shop"), p.newSandbox("other", "shop")
	inside := p.as(one.Key.Secret)
	want := inside.story()
	for _, id := range []string{"/categories/1001", "/pets/1001", "/store/orders/1001", "/messages/msg_000000000000000000000000000003e9", "/store/orders/1006", "/messages/msg_000000000000000000000000000003eb"} {
		if !strings.Contains(want, ": 201 "+id+" ") && !strings.Contains(want, ": 202 "+id+" ") {
			t.Errorf("nothing has the id %s in\n%s", id, want)
		}
	}
	p.oneOfEach() // takes ids of the sequences
	need.Same(t, want, p.as(other.Key.Secret).story(), "two forks (want: one, got: other)")
	before := withoutTimes(inside.dump())
	need.Same(t, before, withoutTimes(p.as(other.Key.Secret).dump()), "two forks (want: one, got: other)")
	p.post(one.path()+"/reset", nil).want(204)
	need.Same(t, want, inside.story(), "after a reset (want: before, got: after)")
	events, _ := inside.feed("/events")
	fork, _ := p.as(other.Key.Secret).feed("/events")
	if len(events) != 2*len(fork)+1 || events[len(fork)].Type != "store.reset" {
		t.Fatalf("%d events in a fork, and %d in the one that was reset", len(fork), len(events))
	}
	for i, e := range fork {
		for _, again := range []feedEvent{events[i], events[len(fork)+1+i]} {
			if e.Subject != again.Subject || e.Type != again.Type || (again.Sequence-e.Sequence)%int64(len(fork)+1) != 0 || e.Sequence != int64(i+1) {
				t.Errorf("event %d of a fork is %+v, and of the other %+v", i, e, again)
			}
		}
	}

	// A sample of the changed store goes on where the sandbox was, and so does its copy.
	p.saveSample("later", other.ID)
	for range 2 {
		fork := p.as(p.newSandbox("fork", "later").Key.Secret)
		need.Same(t, before, withoutTimes(fork.dump()), "a fork of a sample (want: saved, got: fork)")
		placed := fork.post("/store/orders", object{"petId": 1}).want(201).header.Get("Location")
		sent := fork.post("/messages", object{"message": "hello"}).want(202).header.Get("Location")
		need.Same(t, "/store/orders/1007", placed, "the next order of the fork")
		need.Same(t, "/messages/msg_000000000000000000000000000003ec", sent, "the next message of the fork")
	}
}

// TestResetToASample: a sandbox returns to its sample, even if that is deleted, and a new sample
// with the same name changes nothing.
func TestResetToASample(t *testing.T) {
	t.Parallel()
	p := start(t)
	source := p.newSandbox("source", "empty")
	p.as(source.Key.Secret).newPet("Rex", 5)
	p.saveSample("rex", source.ID)
	fork := p.newSandbox("fork", "rex")
	inside := p.as(fork.Key.Secret)
	want := string(inside.dump())
	p.del(samplesPath + "/rex").want(204)
	p.get(samplesPath+"/rex").wantError(404, "sample_not_found")
	p.del(samplesPath+"/rex").wantError(404, "sample_not_found")
	p.post(sandboxesPath, object{"sample": "rex"}).wantError(422, "unknown_sample")
	p.as(source.Key.Secret).newPet("Max", 5)
	p.saveSample("rex", source.ID)
	inside.newPet("Igor", 1)
	p.post(fork.path()+"/reset", nil).want(204)
	need.Same(t, want, string(inside.dump()), "after a reset")
	need.Same(t, "rex", decode[sandbox](p.get(fork.path()).want(200)).Sample, "the sample of the sandbox")
	forked := decode[[]pet](p.as(p.newSandbox("new", "rex").Key.Secret).get("/pets").want(200))
	need.Same(t, 2, len(forked), "pets of a fork of the new sample")
}

// TestListSamples checks the pages of the list, which has the built-in samples and no deleted one.
func TestListSamples(t *testing.T) {
	t.Parallel()
	p := start(t)
	box := p.newSandbox("box", "empty").ID
	for _, name := range []string{"zoo", "a", "deleted", "s1", "9"} {
		p.saveSample(name, box)
	}
	p.del(samplesPath + "/deleted").want(204)
	all := decode[[]savedSample](p.get(samplesPath).want(200))
	names := mapped(all, func(one savedSample) string { return fmt.Sprint(one.Name, " ", one.BuiltIn) })
	need.Same(t, []string{"9 false", "a false", "empty true", "s1 false", "shop true", "zoo false"}, names, "samples")
	for _, one := range all {
		if (one.CreatedAt == nil) != one.BuiltIn || one.CreatedAt != nil && time.Since(*one.CreatedAt) > time.Hour {
			t.Errorf("the sample %+v", one)
		}
		need.Same(t, one, decode[savedSample](p.get(samplesPath+"/"+one.Name).want(200)),
			"a sample (want: in the list, got: alone)")
	}
	walkAll(p, samplesPath, nil, all)
}

// TestSampleBodies checks which names and sandboxes a new sample can have. TestFields has the other values of each field.
func TestSampleBodies(t *testing.T) {
	t.Parallel()
	p := start(t)
	box := p.newSandbox("box", "empty")
	expired := p.newSandbox("expired", "empty")
	p.exec("UPDATE accounts SET expires_at = now() WHERE id = $1", accountOf(expired))
	gone := p.newSandbox("gone", "empty")
	p.del(gone.path()).want(204)
	p.post(samplesPath, object{"name": "Shop", "from": "current"}).wantViolations("validation_failed", "/name invalid_format", "/from invalid_format")
	p.del(samplesPath+"/A?x=1").wantViolations("invalid_parameter", "name invalid_format", "x unknown")
	p.post(sandboxesPath, object{"sample": "none"}).wantError(422, "unknown_sample")
	stranger := p.as(p.newKey("stranger", auth.Admin))
	for _, from := range []string{expired.ID, gone.ID, "sbx_9007199254740991", stranger.newSandbox("foreign", "empty").ID, fmt.Sprint("sbx_", p.accountID())} {
		p.post(samplesPath, object{"name": "a", "from": from}).wantError(422, "unknown_sandbox")
	}
	resp := p.post(samplesPath, object{"name": strings.Repeat("a", 50), "from": box.ID}).want(201)
	resp.wantHeader("Location", samplesPath+"/"+strings.Repeat("a", 50))
	p.do("POST", samplesPath, object{"name": "0-", "from": box.ID}, "Idempotency-Key", "not valid").want(201)
	for _, name := range []string{"0-", "shop", "empty"} {
		p.do("POST", samplesPath, object{"name": name, "from": box.ID}, "Idempotency-Key", "key").wantError(409, "sample_exists")
	}
	for _, name := range []string{"shop", "empty"} {
		p.del(samplesPath+"/"+name).wantError(409, "built_in_sample")
		p.get(samplesPath + "/" + name).want(200)
	}
}

// TestSamplesOfTheKey: a key of a sandbox sees the built-in samples only, and cannot save any.
func TestSamplesOfTheKey(t *testing.T) {
	t.Parallel()
	p := start(t)
	box := p.newSandbox("box", "empty")
	p.saveSample("mine", box.ID)
	inside := p.as(box.Key.Secret)
	inside.post(samplesPath, object{"name": "theirs", "from": box.ID}).wantError(409, "nested_sandbox")
	inside.get(samplesPath+"/mine").wantError(404, "sample_not_found")
	inside.del(samplesPath+"/mine").wantError(404, "sample_not_found")
	need.Same(t, 2, len(decode[[]savedSample](inside.get(samplesPath).want(200))), "samples that a sandbox sees")
	stranger := p.as(p.newKey("stranger", auth.Admin))
	stranger.post(sandboxesPath, object{"sample": "mine"}).wantError(422, "unknown_sample")
	stranger.saveSample("mine", stranger.newSandbox("box", "shop").ID)
	p.as(p.newKey("tester", auth.Write)).post(samplesPath, object{"name": "a", "from": box.ID}).wantError(403, "insufficient_scope")
	p.get(samplesPath + "/mine").want(200)
}

// TestTooManySamples: an account has at most 20 samples.
func TestTooManySamples(t *testing.T) {
	t.Parallel()
	p := start(t)
	box := p.newSandbox("box", "empty").ID
	const requests = stores.MaxSamples + 5
	count := map[int]int{}
	for _, resp := range allAtOnce(t, requests, func(i int) (*response, error) {
		return p.try("POST", samplesPath, object{"name": fmt.Sprint("s", i), "from": box})
	}) {
		count[resp.status]++
	}
	if count[201] > stores.MaxSamples || count[201]+count[409]+count[429]+count[503] != requests {
		t.Errorf("statuses %v", count)
	}
	for i := count[201]; i < stores.MaxSamples; i++ {
		p.saveSample(fmt.Sprint("more", i), box)
	}
	p.post(samplesPath, object{"name": "last", "from": box}).wantError(409, "too_many_samples")
	p.del(samplesPath + "/" + decode[[]savedSample](p.get(samplesPath + "?limit=2").want(200))[1].Name).want(204)
	p.saveSample("last", box)
}
