package api_test

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"petstore/internal/auth"
	"petstore/internal/tools/need"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	p := start(t)
	began := time.Now().Add(-time.Second)
	queued := p.post("/messages", object{"message": "hello"}).want(202)
	sent := decode[message](queued)
	if sent.Message != "hello" || sent.Status != "queued" || !regexp.MustCompile(`^msg_[0-9a-f]{32}$`).MatchString(sent.ID) {
		t.Errorf("queued message: %s", queued.body)
	}
	if sent.CreatedAt.Before(began) || sent.CreatedAt.After(time.Now().Add(time.Second)) {
		t.Errorf("createdAt %s is not now", sent.CreatedAt)
	}
	got := p.get(queued.header.Get("Location")).want(200)
	need.Same(t, string(queued.body), string(got.body), "queued message and message read (want: queued, got: read)")
}

func TestTextsAreKeptAsSent(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := categoryPath(p.newCategory("one"))
	texts := append([]string{" ", "\t", "a\r\nb", "\u0001\u001B[31m\u007F\u0085"}, awkwardNames...)
	for _, text := range texts {
		need.Same(t, text, decode[message](p.post("/messages", object{"message": text}).want(202)).Message,
			"the returned message")
		need.Same(t, &text, decode[category](p.patch(path, object{"description": text}).want(200)).Description,
			"the returned description")
	}
	slices.Reverse(texts) // newest first
	need.Same(t, texts, mapped(walk[message](p, "/messages?limit=20"), messageText), "list")
}

func messageText(one message) string { return one.Message }

// TestMessagesBelongToAnAccount: all keys of an account can read its messages, and no other account can.
func TestMessagesBelongToAnAccount(t *testing.T) {
	t.Parallel()
	p := start(t)
	alice, aliceReads := p.as(p.newKey("alice", auth.Write)), p.as(p.newKey("alice", auth.Read))
	bob := p.as(p.newKey("bob", auth.Admin))
	ids := func(p *petstore) []string {
		return mapped(walk[message](p, "/messages?limit=1"), func(one message) string { return one.ID })
	}
	first := decode[message](alice.post("/messages", object{"message": "1"}).want(202)).ID
	bobs := decode[message](bob.post("/messages", object{"message": "2"}).want(202)).ID
	second := decode[message](alice.post("/messages", object{"message": "3"}).want(202)).ID

	need.Same(t, []string{second, first}, ids(aliceReads), "alice's messages")
	need.Same(t, []string{bobs}, ids(bob), "bob's messages")
	need.Same(t, nil, ids(p), "messages of the other account")
	aliceReads.get("/messages/" + first).want(200)
	bob.get("/messages/"+first).wantError(404, "message_not_found")
	alice.get("/messages/"+bobs).wantError(404, "message_not_found")
	aliceReads.post("/messages", object{"message": "x"}).wantError(403, "insufficient_scope")

	// a cursor is valid for the account that received it, with any of its keys
	next := alice.get("/messages?limit=1").want(200).link("next")
	aliceReads.get(next).want(200)
	bob.get(next).wantError(400, "invalid_cursor")
}
