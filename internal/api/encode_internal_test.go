package api

import (
	"bytes"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/internal/httpjson"
)

func TestEncodeItems(t *testing.T) {
	t.Parallel()
	pets := []pet{
		{ID: 1, Name: "Rex", CategoryID: 2, Status: "sold"},
		{ID: math.MaxInt64, Name: `"<&>\ ` + "\u2028 \t\x01\x7f 🐕 é", CategoryID: math.MaxInt64},
		{},
	}
	for count := range len(pets) + 1 {
		got, encoded, err := encodeItems(pets[:count], func(p pet) pet { return p })
		wantEncoded(t, got, err, pets[:count])
		if encoded != count {
			t.Errorf("%d of %d pets", encoded, count)
		}
	}
	pets[0].Name = "\xff"
	if _, _, err := encodeItems(pets, func(p pet) pet { return p }); err == nil {
		t.Error("invalid UTF-8 is no error")
	}
}

// TestLargeItems: a page has as many items as fit, but at least one. Those that do not fit cost nothing.
func TestLargeItems(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{4 * maxMessageLength: 32, maxPageBytes: 1} {
		calls, items := 0, slices.Repeat([]message{{Message: strings.Repeat("x", size)}}, maxLimit)
		got, count, err := encodeItems(items, func(m message) message { calls++; return m })
		wantEncoded(t, got, err, items[:count])
		if count != want || calls != count+1 || count > 1 && len(got) > maxPageBytes {
			t.Errorf("%d items of %d bytes in %d bytes, after %d; want %d", count, size, len(got), calls, want)
		}
	}
}

// TestEncode compares the functions without reflection with package httpjson.
func TestEncode(t *testing.T) {
	t.Parallel()
	date := time.Date(2026, 12, 24, 1, 2, 3, 4_500, time.UTC)
	orders := []order{{ID: math.MaxInt64, PetID: 2, Quantity: 3, Complete: true, ShipDate: &date}, {ShipDate: &date}, {ShipDate: new(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))}, {ShipDate: &time.Time{}}}
	item, rex := inventoryItem{PetID: 1, Quantity: 2, Status: "sold"}, pet{ID: 1, Name: `"Rex" <🐕>` + "\u2028", CategoryID: 2, Status: "available"}
	data := []affected{
		{Inventory: &item},
		{Pet: &rex},
		{Inventory: &item, Pet: &rex},
		{Inventory: &inventoryItem{}, Pet: &pet{}},
		{Category: &category{ID: 1, Name: "Dogs"}},
		{Message: &message{ID: "msg", CreatedAt: date}, Pet: &rex},
	}
	for _, o := range orders {
		got, err := encode(o)
		wantEncoded(t, got, err, o)
		data = append(data, affected{Order: &o}, affected{Order: &o, Inventory: &item, Pet: &rex})
	}
	for _, a := range data {
		got, err := a.encode()
		wantEncoded(t, got, err, a)
	}
	for _, resource := range []any{orders[0], rex, item, category{ID: 1, Name: "Dogs", Description: new("")}} {
		got, err := encode(resource)
		wantEncoded(t, got, err, resource)
		for field, value := range reflect.ValueOf(resource).Fields() {
			if value.IsZero() {
				t.Errorf("%T.%s has no value in this test, so encode may leave it out", resource, field.Name)
			}
		}
	}
	for _, a := range []affected{{Pet: &pet{Name: "\xff"}}, {Pet: &pet{Status: "\xff"}}, {Inventory: &inventoryItem{Status: "\xff"}}} {
		if _, err := a.encode(); err == nil {
			t.Errorf("invalid UTF-8 in %+v is no error", a)
		}
	}
}

func wantEncoded(t *testing.T, got []byte, err error, value any) {
	t.Helper()
	want, wantErr := httpjson.Encode(value)
	if !bytes.Equal(got, want) || err != nil || wantErr != nil {
		t.Errorf("encoded as %s, %v; want %s, %v", got, err, want, wantErr)
	}
}
