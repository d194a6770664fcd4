package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// FuzzBodies sends arbitrary bodies to the operations that take one. No request may
// fail with 5xx or violate the spec.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"name": "Rex", "categoryId": 1}`, `{"name": "Rex", "categoryId": 1, "status": "sold"}`, `{"name": "Rex", "categoryId": 99}`,
		`{"name": "", "categoryId": 0, "status": "x", "id": 1}`, `{"name": "\u0000\ud83d\ude00"}`, `{"name": "\ud800"}`, `{"name": "a", "name": "b"}`,
		`{"name": "Ⓐ", "description": "x"}`, `{"description": null}`, `{"petId": 1}`, `{"petId": 1, "quantity": 2, "shipDate": "2026-12-24T09:30:00.5+02:00"}`,
		`{"petId": 9223372036854775807, "quantity": 1000000}`, `{"complete": true}`, `{"complete": false, "shipDate": null}`, `{"quantity": 0}`,
		`{"quantity": 1e3}`, `{"quantity": 1000000000}`, `{"quantity": 99999999999999999999}`, `{"message": "hello"}`, `{"message": ""}`,
		"{\"message\": \"\xff\"}", "\xef\xbb\xbf{}", `{"a": ` + strings.Repeat("[", 40), `{} {}`,
	} {
		for operation := range 7 {
			f.Add(operation, []byte(seed))
		}
	}
	p := start(f)
	s := p.stage(on("available", 1_000_000, 1))
	operations := []struct{ method, target string }{
		{"POST", "/pets"},
		{"PATCH", s.petPath()},
		{"POST", "/categories"},
		{"POST", "/store/orders"},
		{"PATCH", s.orderPath(0)},
		{"PUT", s.inventoryPath()},
		{"POST", "/messages"},
	}
	f.Fuzz(func(t *testing.T, operation int, body []byte) {
		if operation < 0 || operation >= len(operations) {
			return
		}
		resp := p.in(t).do(operations[operation].method, operations[operation].target, body)
		if !slices.Contains([]int{200, 201, 202, 400, 409, 413, 422}, resp.status) {
			t.Errorf("%s %q: %d %s", resp.what, body, resp.status, resp.body)
		}
	})
}

// FuzzQueries sends arbitrary queries to every list. No request may fail with 5xx or violate the spec.
func FuzzQueries(f *testing.F) {
	for _, seed := range []string{
		"", "&", "=", "limit=1", "limit=0", "limit=+1", "limit=201", "limit=1&limit=1", "sort=name", "sort=-id", "cursor=AAAA", "cursor=", "id=1&id=2", "id=0",
		"status=sold&status=pending", "status=Sold", "categoryId=1", "name=r%C3%A9", "name=%ff", "name=%00", "name=%0A", "name=%F4%8F%BF%BF", "name=%25_", "petId=1", "petId=01",
		"complete=true", "complete=1", "shipDateFrom=2026-12-24T00:00:00Z&shipDateTo=2027-01-01T00:00:00%2B01:00", "shipDateTo=0001-01-01T00:00:00Z",
		"low=true", "low=0", "shipDateTo=2026-12-24T00:00:00Z&sort=-shipDate", "name=a&sort=id", "nothing=1", "a;b", "limit=%", "%zz=1", strings.Repeat("id=1&", 101),
	} {
		for list := range 5 {
			f.Add(list, seed)
		}
	}
	lists := []string{"/pets", "/categories", "/store/orders", "/store/inventory", "/messages"}
	p := start(f)
	for i := range 3 {
		p.newOrder(p.newPet(fmt.Sprint("pet ", i), 5), 1)
	}
	f.Fuzz(func(t *testing.T, list int, query string) {
		unsendable := func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }
		if list < 0 || list >= len(lists) || strings.ContainsFunc(query, unsendable) {
			return
		}
		resp := p.in(t).get(lists[list] + "?" + query)
		if resp.status != 200 && resp.status != 400 {
			t.Errorf("%s: %d %s", resp.what, resp.status, resp.body)
		}
	})
}
