// Story is a day in the shop with a Go client that oapi-codegen generates from the spec.
// `make clients` generates and runs it with PETSTORE_URL and PETSTORE_API_KEY. story.ts
// is the same story in TypeScript.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/oapi-codegen/nullable"

	"story/petstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shop := must(petstore.NewClientWithResponses(os.Getenv("PETSTORE_URL"),
		petstore.WithRequestEditorFn(bearer(os.Getenv("PETSTORE_API_KEY")))))

	category := expect(201, must(shop.CreateCategoryWithResponse(ctx, nil, petstore.NewCategory{
		Name:        "Axolotls " + uuid.NewString(),
		Description: new("Salamanders that stay young"),
	}))).JSON201
	newPet := petstore.NewPet{Name: "Xochi", CategoryId: category.Id}
	once := &petstore.CreatePetParams{IdempotencyKey: new(uuid.NewString())}
	created := expect(201, must(shop.CreatePetWithResponse(ctx, once, newPet)))
	pet := *created.JSON201
	same(*pet.Status, petstore.Available)
	same(created.Headers201.Location, fmt.Sprintf("/pets/%d", pet.Id))
	step("category %d, pet %d", category.Id, pet.Id)

	again := expect(201, must(shop.CreatePetWithResponse(ctx, once, newPet)))
	same(*again.JSON201, pet)
	same(*again.Headers201.IdempotentReplayed, true)
	step("the same POST under its Idempotency-Key: the same pet, once")

	expect(200, must(shop.SetInventoryWithResponse(ctx, pet.Id, nil, petstore.InventoryUpdate{Quantity: 3})))
	step("3 units in stock")

	stock := func() petstore.InventoryItem {
		return *expect(200, must(shop.GetInventoryItemWithResponse(ctx, pet.Id, nil))).JSON200
	}
	shipDate := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	two := petstore.OrderInput{PetId: pet.Id, Quantity: new(int32(2)), ShipDate: &shipDate}
	placed := expect(201, must(shop.PlaceOrderWithResponse(ctx, nil, two)))
	order := *placed.JSON201
	same(order, petstore.Order{Id: order.Id, PetId: &pet.Id, Quantity: two.Quantity, ShipDate: &shipDate, Complete: new(false)})
	same(stock().Quantity, 1)
	step("order %d of 2, 1 left", *order.Id)

	tooMany := expect(409, must(shop.PlaceOrderWithResponse(ctx, nil, two))).JSON409
	same(tooMany.Code, "insufficient_stock")
	step("2 more: %d %s", tooMany.Status, tooMany.Code)

	tag := placed.Headers201.ETag
	expect(304, must(shop.GetOrderWithResponse(ctx, *order.Id, &petstore.GetOrderParams{IfNoneMatch: &tag})))
	step("If-None-Match: 304")

	ifMatch := &petstore.UpdateOrderParams{IfMatch: &tag}
	noDate := petstore.OrderPatch{ShipDate: nullable.NewNullNullable[time.Time]()}
	changed := expect(200, must(shop.UpdateOrderWithResponse(ctx, *order.Id, ifMatch, noDate)))
	same(changed.JSON200.ShipDate, nil)
	same(changed.Headers200.ETag != tag, true)
	late := expect(412, must(shop.UpdateOrderWithResponse(ctx, *order.Id, ifMatch, noDate))).JSON412
	same(late.Code, "precondition_failed")
	step("If-Match: shipDate cleared; with the old tag %d %s", late.Status, late.Code)

	complete := petstore.OrderPatch{Complete: new(true)}
	completed := expect(200, must(shop.UpdateOrderWithResponse(ctx, *order.Id, nil, complete))).JSON200
	same(*completed.Complete, true)
	refused := expect(409, must(shop.CancelOrderWithResponse(ctx, *order.Id, nil))).JSON409
	same(refused.Code, "order_complete")
	step("order completed; it cannot be cancelled: %d %s", refused.Status, refused.Code)

	second := expect(201, must(shop.PlaceOrderWithResponse(ctx, nil, petstore.OrderInput{PetId: pet.Id}))).JSON201 // quantity: 1
	same(stock(), petstore.InventoryItem{PetId: pet.Id, Quantity: 0, Status: petstore.Pending})
	expect(204, must(shop.CancelOrderWithResponse(ctx, *second.Id, nil)))
	same(stock(), petstore.InventoryItem{PetId: pet.Id, Quantity: 1, Status: petstore.Available})
	step("order %d took the last unit; cancelled, it gave it back", *second.Id)

	for _, name := range []string{"Atl", "Metztli"} {
		more := petstore.NewPet{Name: name, CategoryId: category.Id, Status: new(petstore.Pending)}
		expect(201, must(shop.CreatePetWithResponse(ctx, nil, more)))
	}
	var names []string
	pages := 0
	byName := &petstore.ListPetsParams{
		CategoryId: &category.Id,
		Sort:       new(petstore.ListPetsParamsSortNAME),
		Limit:      new(int32(2)),
	}
	for link, more := "", true; more; pages++ {
		page := expect(200, must(shop.ListPetsWithResponse(ctx, byName, follow(link))))
		for _, pet := range *page.JSON200 {
			names = append(names, pet.Name)
		}
		link, more = nextPage(page.Headers200.Link)
	}
	same(names, []string{"Atl", "Metztli", "Xochi"})
	same(pages, 2)
	step("%d pets on %d pages", len(names), pages)

	invalid := expect(400, must(shop.CreatePetWithResponse(ctx, nil, petstore.NewPet{Name: " "}))).JSON400
	same(invalid.Code, "validation_failed")
	var faults []string
	for _, fault := range *invalid.Errors {
		faults = append(faults, *fault.Pointer+" "+fault.Code)
	}
	same(faults, []string{"/name blank", "/categoryId out_of_range"})
	step("a bad pet: %d %s with both faults", invalid.Status, invalid.Code)

	stranger := expect(401, must(shop.ListPetsWithResponse(ctx, nil, bearer("nobody"))))
	same(stranger.JSON401.Code, "invalid_api_key")
	same(stranger.Headers401.WWWAuthenticate, `Bearer realm="petstore", error="invalid_token"`)
	step("a wrong key: %d %s", stranger.JSON401.Status, stranger.JSON401.Code)

	message := expect(202, must(shop.QueueMessageWithResponse(ctx, nil, petstore.MessageInput{Message: "Xochi sends her regards"}))).JSON202
	same(message.Status, "queued")
	step("message %s %s", message.Id, message.Status)

	sandbox := expect(201, must(shop.CreateSandboxWithResponse(ctx, petstore.SandboxInput{
		Name:      new("story"),
		ExpiresAt: new(time.Now().Add(10 * time.Minute)),
	}))).JSON201
	inside := must(petstore.NewClientWithResponses(os.Getenv("PETSTORE_URL"), petstore.WithRequestEditorFn(bearer(sandbox.ApiKey.Secret))))
	rex := func() int64 {
		return expect(200, must(inside.GetInventoryItemWithResponse(ctx, 1, nil))).JSON200.Quantity
	}
	all := petstore.WebhookInput{Url: "https://example.com/", Types: []petstore.WebhookType{petstore.ALL}}
	webhook := expect(201, must(inside.CreateWebhookWithResponse(ctx, all))).JSON201
	inSandbox := expect(201, must(inside.PlaceOrderWithResponse(ctx, nil, petstore.OrderInput{PetId: 1, Quantity: new(int32(2))}))).JSON201
	orders := &petstore.ListEventsParams{Type: &[]petstore.EventType{petstore.EventTypeOrderPlaced}}
	events := *expect(200, must(inside.ListEventsWithResponse(ctx, orders))).JSON200
	same(len(events), 1)
	same(events[0].Data.Order, inSandbox)
	delivery := expect(202, must(inside.TestWebhookWithResponse(ctx, webhook.Id))).JSON202
	same(delivery.Type, "webhook.test")
	deliveries := *expect(200, must(inside.ListWebhookDeliveriesWithResponse(ctx, webhook.Id, nil))).JSON200
	same(slices.ContainsFunc(deliveries, func(one petstore.WebhookDelivery) bool { return one.Id == delivery.Id }), true)
	step("webhook %s: a test among its deliveries", webhook.Id)
	same(rex(), 98)
	expect(204, must(inside.ResetSandboxWithResponse(ctx, "current")))
	same(rex(), 100)
	expect(204, must(shop.DeleteSandboxWithResponse(ctx, sandbox.Id)))
	ended := expect(401, must(inside.ListPetsWithResponse(ctx, nil))).JSON401
	same(ended.Code, "invalid_api_key")
	step("sandbox %s: created, used, reset and deleted", sandbox.Id)
}

func step(format string, args ...any) { fmt.Printf("  "+format+"\n", args...) }

// must panics if err is not nil: the request failed, or the response does not follow
// the spec.
func must[T any](result T, err error) T {
	if err != nil {
		panic(err)
	}
	return result
}

// expect panics unless the response has this status.
func expect[T interface {
	StatusCode() int
	GetBody() []byte
}](status int, resp T) T {
	if resp.StatusCode() != status {
		panic(fmt.Sprintf("status %d, want %d: %s", resp.StatusCode(), status, resp.GetBody()))
	}
	return resp
}

// same panics unless both are equal.
func same[T any](got, want T) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("got %v, want %v", got, want))
	}
}

func bearer(key string) petstore.RequestEditorFn {
	return func(_ context.Context, request *http.Request) error {
		request.Header.Set("Authorization", "Bearer "+key)
		return nil
	}
}

// follow sends a request to a link of a response, unless the link is "".
func follow(link string) petstore.RequestEditorFn {
	return func(_ context.Context, request *http.Request) error {
		if link == "" {
			return nil
		}
		next, err := request.URL.Parse(link)
		request.URL = next
		return err
	}
}

// nextPage returns the link with rel="next" of a Link header, if it has one.
func nextPage(header string) (link string, ok bool) {
	found := regexp.MustCompile(`<([^>]*)>; rel="next"`).FindStringSubmatch(header)
	if found == nil {
		return "", false
	}
	return found[1], true
}
