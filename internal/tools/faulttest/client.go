package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"petstore/internal/follow"
	"petstore/internal/tools/must"
)

// requestTimeout is longer than any response may take.
const requestTimeout = 10 * time.Second

// client sends requests to one service with one key. It is safe for concurrent use.
type client struct {
	base, key string
	transport http.RoundTripper // nil: the shared one
}

// transport keeps enough idle connections for the largest row.
var transport = &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true}

// response is a response whose body was read completely.
type response struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// do sends a request. An empty body means no body. The header is a list of names and
// values; an empty value removes the header. The error says that there was no response.
func (c *client) do(ctx context.Context, method, target, body string, header ...string) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.base+target, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	if c.key != "" {
		request.Header.Set("Authorization", "Bearer "+c.key)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Del(header[i])
		if header[i+1] != "" {
			request.Header.Set(header[i], header[i+1])
		}
	}
	using := c.transport
	if using == nil {
		using = transport
	}
	began := time.Now()
	received, err := using.RoundTrip(request)
	if err != nil {
		return response{took: time.Since(began)}, err
	}
	defer received.Body.Close()
	text, err := io.ReadAll(received.Body)
	return response{received.StatusCode, received.Header, text, time.Since(began)}, err
}

// want sends a request, and fails the row unless the response has this status.
func (c *client) want(ctx context.Context, status int, method, target, body string) (resp response) {
	must.Explain(method+" "+target, func() { resp = must.Get(c.do(ctx, method, target, body)).check(status) })
	return resp
}

// check fails the row unless the response has this status.
func (resp response) check(status int) response {
	must.Hold(resp.status == status, "%s, want %d", resp, status)
	return resp
}

// withKey returns the same client with another key.
func (c *client) withKey(key string) *client {
	other := *c
	other.key = key
	return &other
}

// order orders one unit of a pet.
func (c *client) order(ctx context.Context, pet int, header ...string) (response, error) {
	return c.do(ctx, "POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet), header...)
}

// getPet reads a pet.
func (c *client) getPet(ctx context.Context, pet int) (response, error) {
	return c.do(ctx, "GET", fmt.Sprintf("/pets/%d", pet), "")
}

// order is an Order in a response.
type order struct {
	ID    int64 `json:"id"`
	PetID int64 `json:"petId"`
}

// stockItem is an InventoryItem in a response.
type stockItem struct {
	Quantity int    `json:"quantity"`
	Status   string `json:"status"`
}

// listedPet is a Pet in a list.
type listedPet struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

// setStock sets the quantity of a pet in stock.
func (c *client) setStock(ctx context.Context, pet, quantity int) {
	c.want(ctx, http.StatusOK, "PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, quantity))
}

// decode returns the body of a response, and fails the row if that is of another type.
func decode[T any](resp response) (value T) {
	if err := json.Unmarshal(resp.body, &value); err != nil {
		must.OK(fmt.Errorf("%s: %w", resp, err))
	}
	return value
}

// next returns the target of the next page, or "" after the last page.
func (resp response) next() string {
	if link := follow.NextLink(resp.header); link != nil {
		return link.String()
	}
	return ""
}

// code returns the error code of an Error, or "" for another body.
func (resp response) code() string {
	var problem struct{ Code string }
	_ = json.Unmarshal(resp.body, &problem) // another body has no code
	return problem.Code
}

// String returns the status and body on one line, shortened.
func (resp response) String() string {
	const enough = 300
	body := string(resp.body)
	if len(body) > enough {
		body = body[:enough] + "…"
	}
	return fmt.Sprintf("%d %s", resp.status, strings.TrimSpace(body))
}
