// Generated is an errand in the shop with a Go client that oapi-codegen generates. It goes on after an error.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"

	"github.com/google/uuid"

	"story/petstore"
)

// errUnexpected is the status of a response that is not a success.
type errUnexpected int

func (e errUnexpected) Error() string { return fmt.Sprint(int(e)) }

func check(response *http.Response, err error) error {
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = errUnexpected(response.StatusCode)
	}
	return err
}

func main() {
	ctx := context.Background()
	shop, err := petstore.NewClientWithResponses(os.Getenv("PETSTORE_URL"), petstore.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Getenv("PETSTORE_API_KEY"))
		return nil
	}))
	if err != nil {
		panic(err)
	}
	attempt := func(step func() error) {
		if err := step(); err != nil {
			fmt.Println(" ", err)
		}
	}
	once := func() *string { return new(uuid.NewString()) }
	next := regexp.MustCompile(`<([^>]*)>; rel="next"`)

	attempt(func() error {
		params := &petstore.ListPetsParams{Limit: new(int32(50))}
		for {
			page, err := shop.ListPetsWithResponse(ctx, params)
			if err != nil {
				return err
			}
			if err := check(page.HTTPResponse, nil); err != nil {
				return err
			}
			link := next.FindStringSubmatch(page.HTTPResponse.Header.Get("Link"))
			if link == nil {
				return nil
			}
			parsed, err := url.Parse(link[1])
			if err != nil {
				return err
			}
			params.Cursor = new(parsed.Query().Get("cursor"))
		}
	})
	attempt(func() error {
		return check(shop.CreatePet(ctx, &petstore.CreatePetParams{IdempotencyKey: once()}, petstore.NewPet{Name: "Xochi", CategoryId: 1}))
	})
	for quantity := range int32(3) {
		attempt(func() error {
			order := petstore.OrderInput{PetId: 1, Quantity: new(quantity + 1)}
			return check(shop.PlaceOrder(ctx, &petstore.PlaceOrderParams{IdempotencyKey: once()}, order))
		})
	}
	attempt(func() error {
		item, err := shop.GetInventoryItemWithResponse(ctx, 1, nil)
		if err != nil {
			return err
		}
		if err := check(item.HTTPResponse, nil); err != nil {
			return err
		}
		params := &petstore.SetInventoryParams{IfMatch: new(item.HTTPResponse.Header.Get("ETag"))}
		return check(shop.SetInventory(ctx, 1, params, petstore.InventoryUpdate{Quantity: int32(item.JSON200.Quantity) + 10}))
	})
	attempt(func() error {
		made, err := shop.QueueMessageWithResponse(ctx, &petstore.QueueMessageParams{IdempotencyKey: once()}, petstore.MessageInput{Message: "Hello"})
		if err != nil {
			return err
		}
		if err := check(made.HTTPResponse, nil); err != nil {
			return err
		}
		return check(shop.GetMessage(ctx, made.JSON202.Id, &petstore.GetMessageParams{Prefer: new("wait=1")}))
	})
}
