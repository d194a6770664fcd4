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

// patience is longer than any answer may take: who waits this long has none.
const patience = 10 * time.Second

// client asks one service with one key. It is safe for concurrent use.
type client struct {
	base, key string
	judge     *judge // nil: exchanges are not judged
	transport http.RoundTripper
}

// transport is for as many clients as there are in the largest row.
var transport = &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true}

// answer is what came back, read in whole.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

// do sends a request; an empty body is none. Header are names and values, of
// which the empty ones take a field away. The error says that there was no
// answer, or one that the description does not describe.
func (c *client) do(ctx context.Context, method, target, body string, header ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.base+target, strings.NewReader(body))
	if err != nil {
		return answer{}, err
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
	response, err := using.RoundTrip(request)
	if err != nil {
		return answer{took: time.Since(began)}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	a := answer{response.StatusCode, response.Header, text, time.Since(began)}
	if err == nil && c.judge != nil {
		err = c.judge.exchange(request, body, a)
	}
	return a, err
}

// want is do for a request that must have this status.
func (c *client) want(ctx context.Context, status int, method, target, body string, header ...string) (answer, error) {
	a, err := c.do(ctx, method, target, body, header...)
	if err == nil && a.status != status {
		err = fmt.Errorf("%s %s: %s, want %d", method, target, a, status)
	}
	return a, err
}

// as is the same client with another key.
func (c *client) as(key string) *client {
	other := *c
	other.key = key
	return &other
}

// order orders one unit of a pet.
func (c *client) order(ctx context.Context, pet int, header ...string) (answer, error) {
	return c.do(ctx, "POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet), header...)
}

// order is an order as the service answers it.
type order struct {
	ID    int64 `json:"id"`
	PetID int64 `json:"petId"`
}

// stockItem is an inventory entry as the service answers it.
type stockItem struct {
	Quantity int    `json:"quantity"`
	Status   string `json:"status"`
}

// stock reads how much there is of a pet.
func (c *client) stock(ctx context.Context, pet int) (item stockItem, err error) {
	a, err := c.want(ctx, http.StatusOK, "GET", fmt.Sprintf("/store/inventory/%d", pet), "")
	if err != nil {
		return item, err
	}
	return item, a.decode(&item)
}

// setStock sets how much there is of a pet.
func (c *client) setStock(ctx context.Context, pet, quantity int) error {
	_, err := c.want(ctx, http.StatusOK, "PUT", fmt.Sprintf("/store/inventory/%d", pet), fmt.Sprintf(`{"quantity": %d}`, quantity))
	return err
}

func (a answer) decode(into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	return nil
}

// code is the code of an Error; empty for another body.
func (a answer) code() string {
	var problem struct{ Code string }
	_ = json.Unmarshal(a.body, &problem) // then it has none
	return problem.Code
}

// String is the answer on one line, for people.
func (a answer) String() string {
	const enough = 300
	body := string(a.body)
	if len(body) > enough {
		body = body[:enough] + "…"
	}
	return fmt.Sprintf("%d %s", a.status, strings.TrimSpace(body))
}
