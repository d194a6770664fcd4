package api_test

import (
	"encoding/json"
	"testing"

	"petstore/internal/tools/need"
)

// TestRules checks that the operations follow the rules of the package stock, whose TestAllSequences has all
// of them.
func TestRules(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{"places some, with another order open", on("available", 5, 3), placing(2), 201, "", on("available", 3, 2, 3)},
		{"places all of the stock", on("available", 5), placing(5), 201, "", on("pending", 0, 5)},
		{"places the maximum quantity", on("available", 1_000_000), placing(1_000_000), 201, "", on("pending", 0, 1_000_000)},

		{"places more than the stock", on("available", 5), placing(6), 409, "insufficient_stock", on("available", 5)},

		{"places while pending", on("pending", 5), placing(1), 409, "pet_not_available", on("pending", 5)},

		{"completes the last units", on("pending", 0, 4), completing(0), 200, "", on("sold", 0)},
		{"completes while units are held", on("pending", 0, 3, 4), completing(1), 200, "", on("pending", 0, 3)},
		{"completes while there are both", on("available", 2, 3, 4), completing(0), 200, "", on("available", 2, 4)},

		{"an open order stays open", on("pending", 0, 4), reopening(0), 200, "", on("pending", 0, 4)},
		{"an empty patch", on("pending", 0, 4), patchingOrder(0, `{}`), 200, "", on("pending", 0, 4)},

		{"cancels without stock, with another order open", on("pending", 0, 3, 4), cancelling(0), 204, "", on("available", 3, 4)},
		{"cancels without stock, of a sold pet", on("sold", 0, 4), cancelling(0), 204, "", on("sold", 4)},
		{"cancels with stock", on("available", 2, 4), cancelling(0), 204, "", on("available", 6)},

		{"restocks a pending pet", on("pending", 0, 4), stocking(5), 200, "", on("available", 5, 4)},
		{"restocks a sold pet with the most", on("sold", 0), stocking(1_000_000_000), 200, "", on("available", 1_000_000_000)},
		{"to 0 while units are held", on("available", 2, 4), stocking(0), 200, "", on("pending", 0, 4)},
		{"to 0, sold, while units are held", on("sold", 2, 4), stocking(0), 200, "", on("sold", 0, 4)},

		{"a sold pet becomes pending", on("sold", 2, 4), moving("pending"), 409, "invalid_transition", on("sold", 2, 4)},
		{"a pet with units becomes sold", on("available", 2, 4), moving("sold"), 200, "", on("sold", 2, 4)},
		{"available without stock", on("pending", 0, 4), moving("available"), 200, "", on("available", 0, 4)},
	})
}

func TestCompleteOrderStaysComplete(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("pending", 0, 4))
	want := order{ID: s.orders[0], PetID: s.pet, Quantity: 4, Complete: true}
	completed := decode[order](s.run(completing(0)).want(200))
	need.Same(t, want, completed, "order")

	// Completing again changes neither the stock nor the status.
	s.run(stocking(5)).want(200)
	s.run(completing(0)).want(200)
	s.wantShelf(on("available", 5))
	s.run(stocking(0)).want(200)
	s.run(completing(0)).want(200)
	s.wantShelf(on("available", 0))

	// A rejected patch changes nothing.
	s.run(reopening(0)).wantError(409, "invalid_transition")
	s.run(patchingOrder(0, `{"complete": false, "shipDate": "2026-12-24T09:30:00Z"}`)).wantError(409, "invalid_transition")
	s.run(cancelling(0)).wantError(409, "order_complete")
	s.run(patchingOrder(0, `{}`)).want(200)
	need.Same(t, want, s.order(0), "final order")
	s.wantShelf(on("available", 0))
}

// TestReturnedUnitsLiftStockAboveItsBound: the stock exceeds its maximum after a cancellation.
func TestReturnedUnitsLiftStockAboveItsBound(t *testing.T) {
	t.Parallel()
	const most = 1_000_000_000
	s := start(t).stage(on("available", 0, 1_000_000))
	s.run(stocking(most)).want(200)
	s.run(cancelling(0)).want(204)
	s.wantShelf(on("available", most+1_000_000))
	s.run(placing(1)).want(201)
	s.wantShelf(on("available", most+999_999, 1))
}

// TestShipDate: the response has the ship date in UTC, to the microsecond. FuzzParseTime checks the parser
// against the standard library, and TestFields has values of other types.
func TestShipDate(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("available", 1_000, 1))
	for _, test := range []struct{ name, sent, want string }{
		{"UTC", "2026-12-24T09:30:00Z", "2026-12-24T09:30:00Z"},
		{"lower case", "2026-12-24t09:30:00.5z", "2026-12-24T09:30:00.5Z"},
		{"east", "2026-12-24T01:30:00+02:00", "2026-12-23T23:30:00Z"},
		{"one digit", "2026-12-24T09:30:00.5Z", "2026-12-24T09:30:00.5Z"},
		{"nine digits are truncated", "2026-12-24T09:30:00.123456789Z", "2026-12-24T09:30:00.123456Z"},
		{"the earliest", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"},
		{"the earliest in UTC, with an offset", "0000-12-31T23:00:00-01:00", "0001-01-01T00:00:00Z"},
		{"before 1970", "1582-10-15T12:00:00.000001999Z", "1582-10-15T12:00:00.000001Z"},
		{"the latest", "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := s.in(t)
			placed := p.post("/store/orders", object{"petId": s.pet, "shipDate": test.sent}).want(201)
			patched := p.patch(s.orderPath(0), object{"shipDate": test.sent}).want(200)
			read := p.get(placed.header.Get("Location")).want(200)
			for _, resp := range []*response{placed, patched, read} {
				need.Same(t, any(test.want), decode[map[string]any](resp)["shipDate"],
					"%s: shipDate for %s", resp.what, test.sent)
			}
		})
	}
	leap := s.patch(s.orderPath(0), object{"shipDate": "2017-01-01t00:59:60.5+01:00"}).wantError(400, "validation_failed")
	need.Same(t, "`shipDate` must not have the second 60, because leap seconds are not supported.", leap.error().Errors[0].Message, "the message for a leap second")
	s.patch(s.orderPath(0), `{"shipDate": "2026-12-24T09:30:00Z\u0000"}`).wantViolations("validation_failed", "/shipDate invalid_characters")
}

// TestShipDateAtAnyTime: the ship date can be set, cleared or left alone at any time.
func TestShipDateAtAnyTime(t *testing.T) {
	t.Parallel()
	s := start(t).stage(on("pending", 0, 4))
	path := s.orderPath(0)
	steps := []struct{ patch, want string }{
		{`{}`, ``},
		{`{"shipDate": "2026-12-24T09:30:00Z"}`, `"2026-12-24T09:30:00Z"`},
		{`{}`, `"2026-12-24T09:30:00Z"`},
		{`{"complete": false}`, `"2026-12-24T09:30:00Z"`},
		{`{"shipDate": null}`, ``},
		{`{"shipDate": null}`, ``},
		{`{"shipDate": "2027-01-01T00:00:00Z", "complete": true}`, `"2027-01-01T00:00:00Z"`},
		{`{"shipDate": "2027-01-02T00:00:00Z"}`, `"2027-01-02T00:00:00Z"`},
		{`{"shipDate": null, "complete": true}`, ``},
		{`{"shipDate": "2027-01-03T00:00:00Z", "complete": true}`, `"2027-01-03T00:00:00Z"`},
		{`{}`, `"2027-01-03T00:00:00Z"`},
	}
	for _, step := range steps {
		for _, resp := range []*response{
			s.run(patchingOrder(0, step.patch)).want(200),
			s.get(path).want(200),
		} {
			got := string(decode[map[string]json.RawMessage](resp)["shipDate"])
			need.Same(t, step.want, got, "after %s: the ship date of %s", step.patch, resp.what)
		}
	}
	s.wantShelf(on("sold", 0))
}

// TestDeletePetWithOrders: a pet with open or complete orders cannot be deleted, and stays unchanged.
func TestDeletePetWithOrders(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, test := range []struct {
		name   string
		before shelf
		orders []event // before the deletion
		after  shelf
	}{
		{"open", on("available", 2, 4), nil, on("available", 2, 4)},
		{"complete", on("pending", 0, 4), []event{completing(0)}, on("sold", 0)},
		{"both", on("pending", 0, 3, 4), []event{completing(1)}, on("pending", 0, 3)},
		{"one cancelled, one open", on("pending", 0, 3, 4), []event{cancelling(1)}, on("available", 4, 3)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := p.in(t).stage(test.before)
			for _, event := range test.orders {
				s.run(event)
			}
			s.run(deleting).wantError(409, "pet_in_use")
			s.wantShelf(test.after)
			s.run(stocking(1)).want(200) // the entry still works
		})
	}
	t.Run("all cancelled", func(t *testing.T) {
		t.Parallel()
		s := p.in(t).stage(on("pending", 0, 3, 4))
		s.run(cancelling(0)).want(204)
		s.run(cancelling(1)).want(204)
		s.run(deleting).want(204)
		s.get(s.petPath()).wantError(404, "pet_not_found")
		s.get(s.inventoryPath()).wantError(404, "inventory_not_found")
		s.run(stocking(1)).wantError(404, "inventory_not_found")
		s.run(deleting).wantError(404, "pet_not_found")
		need.Same(t, gone, s.stored(), "the pet in the database")
	})
}
