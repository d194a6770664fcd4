package api_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"petstore/internal/tools/need"
)

// utf16Of returns the code units with which JSON escapes a text.
func utf16Of(text string) []uint16 { return utf16.Encode([]rune(text)) }

func categoryPath(id int64) string { return fmt.Sprintf("/categories/%d", id) }

func TestCategory(t *testing.T) {
	t.Parallel()
	p := start(t)
	text := func(s string) *string { return &s }

	created := p.post("/categories", object{"name": "Dogs", "description": "all of them"}).want(201)
	dogs := decode[category](created)
	path := categoryPath(dogs.ID)
	created.wantHeader("Location", path)
	for _, step := range []struct {
		patch string
		want  category
	}{
		{`{}`, category{dogs.ID, "Dogs", text("all of them")}},
		{`{"name":"dogs"}`, category{dogs.ID, "dogs", text("all of them")}}, // a category may keep its own name
		{`{"description":"some"}`, category{dogs.ID, "dogs", text("some")}},
		{`{"description":""}`, category{dogs.ID, "dogs", text("")}},
		{`{}`, category{dogs.ID, "dogs", text("")}},
		{`{"description":null}`, category{dogs.ID, "dogs", nil}},
		{`{"description":null}`, category{dogs.ID, "dogs", nil}},
		{`{"name":"Hounds","description":"again"}`, category{dogs.ID, "Hounds", text("again")}},
		{`{"name":"Hounds","description":null}`, category{dogs.ID, "Hounds", nil}},
	} {
		for _, resp := range []*response{p.patch(path, step.patch).want(200), p.get(path).want(200)} {
			need.Same(t, step.want, decode[category](resp), "%s after %s", resp.what, step.patch)
			// an absent description is omitted, an empty one is not
			described := strings.Contains(string(resp.body), "description")
			need.Same(t, step.want.Description != nil, described,
				"%s after %s: a description in %s", resp.what, step.patch, resp.body)
		}
	}
	need.Same(t, "", string(p.del(path).want(204).body), "the body of DELETE")
	p.get(path).wantError(404, "category_not_found")
	p.patch(path, `{"name":"x"}`).wantError(404, "category_not_found")
	p.del(path).wantError(404, "category_not_found")
}

func TestCategoryErrors(t *testing.T) {
	t.Parallel()
	p := start(t)
	dogs, cats := p.newCategory("Dogs"), p.newCategory("Cats")
	p.post("/categories", object{"name": "dOGS"}).wantError(409, "category_exists")
	p.patch(categoryPath(cats), object{"name": "DOGS", "description": "x"}).wantError(409, "category_exists")
	unchanged := category{ID: cats, Name: "Cats"}
	need.Same(t, unchanged, decode[category](p.get(categoryPath(cats)).want(200)),
		"the category after a rejected request")
	rex := decode[pet](p.post("/pets", object{"name": "Rex", "categoryId": dogs}).want(201))
	p.del(categoryPath(dogs)).wantError(409, "category_in_use")
	p.patch(petPath(rex.ID), object{"categoryId": cats}).want(200)
	p.del(categoryPath(dogs)).want(204)
	p.post("/categories", object{"name": "dogs"}).want(201)
}

// TestCategoryNamesAreComparedWithoutCase: names are compared by Unicode case
// folding, independent of the locale of the database.
func TestCategoryNamesAreComparedWithoutCase(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, same := range [][]string{
		{"Groß", "GROSS", "gross", "groẞ"},
		{"Zoë", "Zoe\u0308", "ZOË", "zoE\u0308"},
		{"Ångström", "\u212Bngström", "A\u030Angstro\u0308m"},
		{"ﬁsh", "FISH"},
		{"한", "\u1112\u1161\u11AB"},
	} {
		id := p.newCategory(same[0])
		for _, other := range same {
			p.post("/categories", object{"name": other}).wantError(409, "category_exists")
			found := decode[[]category](p.get("/categories" + query("name", other)).want(200))
			if len(found) != 1 || found[0].ID != id {
				t.Errorf("the name %q does not find %q: %+v", other, same[0], found)
			}
		}
	}
	for _, different := range []string{"Zoe", "a", "\u0430", "ａ", "á", "I", "ı", "İ", "x", "x ", " x", "o", "ø"} {
		p.newCategory(different)
	}
}
