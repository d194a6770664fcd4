// Good is an errand in the shop with the retries of hashicorp/go-retryablehttp.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	randv2 "math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

var shop = retryablehttp.NewClient()

// backoff honors Retry-After as the default does, and varies the other pauses.
func backoff(least, most time.Duration, attempt int, response *http.Response) time.Duration {
	pause := retryablehttp.DefaultBackoff(least, most, attempt, response)
	if response != nil && response.Header.Get("Retry-After") != "" {
		return pause
	}
	return pause/2 + randv2.N(pause)
}

// send sends a request with a JSON body, unless that is nil. Headers are names and values.
func send(method, path string, body any, headers ...string) (http.Header, []byte) {
	var text any
	if body != nil {
		encoded, err := json.Marshal(body)
		check(err)
		text = encoded
	}
	request, err := retryablehttp.NewRequestWithContext(context.Background(), method, os.Getenv("PETSTORE_URL")+path, text)
	check(err)
	request.Header.Set("Authorization", "Bearer "+os.Getenv("PETSTORE_API_KEY"))
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := shop.Do(request)
	check(err)
	defer response.Body.Close()
	var got bytes.Buffer
	_, err = got.ReadFrom(response.Body)
	check(err)
	if response.StatusCode >= http.StatusBadRequest {
		log.Fatalf("%s %s: %s", method, path, got.Bytes())
	}
	return response.Header, got.Bytes()
}

func post(path string, body any) http.Header {
	header, _ := send("POST", path, body, "Idempotency-Key", rand.Text())
	return header
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	shop.RetryMax, shop.RetryWaitMin, shop.Backoff, shop.Logger = 8, 100*time.Millisecond, backoff, nil
	next := regexp.MustCompile(`<([^>]*)>; rel="next"`)
	for page := "/pets?limit=50"; page != ""; {
		header, _ := send("GET", page, nil)
		page = ""
		if link := next.FindStringSubmatch(header.Get("Link")); link != nil {
			page = link[1]
		}
	}
	post("/pets", map[string]any{"name": "Xochi", "categoryId": 1})
	for quantity := range 3 {
		post("/store/orders", map[string]any{"petId": 1, "quantity": quantity + 1})
	}
	header, body := send("GET", "/store/inventory/1", nil)
	var stock struct{ Quantity int }
	check(json.Unmarshal(body, &stock))
	send("PUT", "/store/inventory/1", map[string]any{"quantity": stock.Quantity + 10}, "If-Match", header.Get("ETag"))
	message := post("/messages", map[string]any{"message": "Xochi sends her regards"})
	send("GET", message.Get("Location"), nil, "Prefer", "wait=1")
	fmt.Println("  done")
}
