// Story is a day in the shop with a Go client that openapi-generator generates from the
// spec with docs/openapi-generator-go.yaml. `make clients` generates and runs it with
// PETSTORE_URL and PETSTORE_API_KEY. ../story.go is a longer version of the story.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"time"

	"story/petstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shop := client(os.Getenv("PETSTORE_API_KEY"))

	unique := strconv.FormatInt(time.Now().UnixNano(), 36)
	category := must(shop.CategoriesAPI.CreateCategory(ctx).CategoryInput(*petstore.NewCategoryInput("Axolotls " + unique)).Execute())
	newPet := *petstore.NewPetInput("Étoile", category.Id)
	pet := must(shop.PetsAPI.CreatePet(ctx).PetInput(newPet).IdempotencyKey(unique).Execute())
	same(*pet.Status, petstore.PETSTATUS_AVAILABLE)
	again, response, err := shop.PetsAPI.CreatePet(ctx).PetInput(newPet).IdempotencyKey(unique).Execute()
	same(must(again, response, err), pet)
	same(response.Header.Get("Idempotent-Replayed"), "true")
	step("category %d, pet %d, created once by two requests", category.Id, pet.Id)

	found := must(shop.PetsAPI.ListPets(ctx).CategoryId(category.Id).Status([]petstore.PetStatus{petstore.PETSTATUS_AVAILABLE}).Sort("-name").Execute())
	same(found, []petstore.Pet{*pet})
	step("%d pet in the list", len(found))

	must(shop.InventoryAPI.SetInventory(ctx, pet.Id).InventoryUpdate(*petstore.NewInventoryUpdate(1)).Execute())
	shipDate := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	input := *petstore.NewOrderInput(pet.Id)
	input.SetShipDate(shipDate)
	order := must(shop.StoreAPI.PlaceOrder(ctx).OrderInput(input).Execute())
	same(order.GetQuantity(), 1)
	same(order.GetShipDate(), shipDate)
	_, _, err = shop.StoreAPI.PlaceOrder(ctx).OrderInput(input).Execute()
	refused(err, 409, "pet_not_available")
	_, _, err = client("nobody").PetsAPI.ListPets(ctx).Execute()
	refused(err, 401, "invalid_api_key")
	step("order %d; one more and a wrong key are refused", order.GetId())

	sandbox := must(shop.SandboxesAPI.CreateSandbox(ctx).SandboxInput(*petstore.NewSandboxInput()).Execute())
	inside := client(sandbox.ApiKey.Secret)
	all := *petstore.NewWebhookInput("https://example.com/", []petstore.WebhookType{petstore.WEBHOOKTYPE_ALL})
	webhook := must(inside.WebhooksAPI.CreateWebhook(ctx).WebhookInput(all).Execute())
	order = must(inside.StoreAPI.PlaceOrder(ctx).OrderInput(*petstore.NewOrderInput(1)).Execute())
	events := must(inside.EventsAPI.ListEvents(ctx).Type_([]petstore.EventType{petstore.EVENTTYPE_ORDER_PLACED}).Execute())
	same(len(events), 1)
	same(events[0].Data.Order, order)
	step("event %s", events[0].Id)
	delivery := must(inside.WebhooksAPI.TestWebhook(ctx, webhook.Id).Execute())
	same(delivery.Type, "webhook.test")
	deliveries := must(inside.WebhooksAPI.ListWebhookDeliveries(ctx, webhook.Id).Execute())
	var listed bool
	for _, one := range deliveries {
		listed = listed || one.Id == delivery.Id
	}
	same(listed, true)
	step("webhook %s, with a test in its deliveries", webhook.Id)
	if _, err := shop.SandboxesAPI.DeleteSandbox(ctx, sandbox.Id).Execute(); err != nil {
		panic(err)
	}
}

func client(key string) *petstore.APIClient {
	config := petstore.NewConfiguration()
	config.Servers = petstore.ServerConfigurations{{URL: os.Getenv("PETSTORE_URL")}}
	config.AddDefaultHeader("Authorization", "Bearer "+key)
	return petstore.NewAPIClient(config)
}

func step(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }

// must panics if the request failed, or the response does not follow the spec.
func must[T any](result T, _ *http.Response, err error) T {
	if err != nil {
		panic(err)
	}
	return result
}

// refused panics unless a request has failed with this status and error code.
func refused(err error, status int32, code string) {
	var failure *petstore.GenericOpenAPIError
	if !errors.As(err, &failure) {
		panic(fmt.Sprintf("got %v, want %s", err, code))
	}
	body := failure.Model().(petstore.Error)
	same([]any{body.Status, body.Code}, []any{status, code})
}

// same panics unless both are equal.
func same[T any](got, want T) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("got %v, want %v", got, want))
	}
}
