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
	got := p.as(p.newKey("tester", auth.Read)).get(queued.header.Get("Location")).want(200)
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
