package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// requestTimeout is longer than any response may take.
const requestTimeout = 10 * time.Second

// client sends requests to one service with one key. It is safe for concurrent use.
type client struct {
	base, key string
	validator *validator // nil: exchanges are not validated
	transport http.RoundTripper
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
// values; an empty value removes the header. The error says that there was no response, or
// that the response does not match the spec.
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
	resp := response{received.StatusCode, received.Header, text, time.Since(began)}
	if err == nil && c.validator != nil {
		err = c.validator.validate(request, body, resp)
	}
	return resp, err
}

// want sends a request whose response must have this status.
func (c *client) want(ctx context.Context, status int, method, target, body string) (response, error) {
	resp, err := c.do(ctx, method, target, body)
	if err == nil {
		err = resp.check(status)
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", method, target, err)
	}
	return resp, err
}

// check returns an error unless the response has this status.
func (resp response) check(status int) error {
	if resp.status != status {
		return fmt.Errorf("%s, want %d", resp, status)
	}
	return nil
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

// stock reads the inventory entry of a pet.
func (c *client) stock(ctx context.Context, pet int) (item stockItem, err error) {
	resp, err := c.want(ctx, http.StatusOK, "GET", fmt.Sprintf("/store/inventory/%d", pet), "")
	if err != nil {
		return item, err
	}
	return item, resp.decode(&item)
}

// setStock sets the quantity of a pet in stock.
func (c *client) setStock(ctx context.Context, pet, quantity int) error {
	_, err := c.want(ctx, http.StatusOK, "PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, quantity))
	return err
}

func (resp response) decode(into any) error {
	if err := json.Unmarshal(resp.body, into); err != nil {
		return fmt.Errorf("%s: %w", resp, err)
	}
	return nil
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
