package api_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"

	"petstore/internal/tools/need"
)

// awkwardNames lists names that some layer between client and disk could mishandle.
var awkwardNames = []string{
	"Zoë", "Zoe\u0308", // composed and decomposed
	"👩‍👩‍👧‍👦", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1\uFE0F\u20E3",
	"\u200B", "\u00AD", "\u2060", "\uFEFF", // invisible, but not white space
	" leading", "trailing ", "two  spaces", "line\u2028separator\u2029s", "no-break\u00A0space",
	"مرحبا", "\u202Eevil", "\u202A\u202A", "ภาษาไทย", "한국어", "\u1112\u1161\u11AB", "漢字",
	"İstanbul", "ıı", "straße", "ΑΣΣ", "ﬃ", "ǅ", "K", "Å",
	"Z̮̞̠͙͔ͅḀ̗̞͈̻̗Ḷ͙͎̯̹̞͓G̻O̭̗̮",
	"\uFFFF", "\uFFFE", "\U0010FFFF", "\uE000", "\U0001F1E6", "\uFFFD", "𝕬𝖇𝖈",
	`'; DROP TABLE pets; --`, `" OR ""="`, `<script>alert(1)</script>`, `&amp;&lt;`, `\`, `\\`, `\"`, `\u0041`, `%s%n`, `%00`, `%2F`, `${7*7}`, `{{7*7}}`, `$1`,
	"null", "NULL", "undefined", "NaN", "true", "0", "1e3", "-1", "../../etc/passwd", "CON", "=1+1", "@x", "#", "?", "a,b", "a;b", "a\"b", "`id`", "$(id)",
}

func petPath(id int64) string { return fmt.Sprintf("/pets/%d", id) }

func TestPet(t *testing.T) {
	t.Parallel()
	p := start(t)
	dogs, cats := p.newCategory("dogs"), p.newCategory("cats")

	created := p.post("/pets", object{"name": "Rex", "categoryId": dogs}).want(201)
	rex := decode[pet](created)
	want := pet{ID: rex.ID, Name: "Rex", CategoryID: dogs, Status: "available"}
	same := func(what string, got *response) {
		t.Helper()
		need.Same(t, want, decode[pet](got.want(got.status)), "%s", what)
	}
	same("created", created)
	path := petPath(rex.ID)
	created.wantHeader("Location", path)
	same("pet at its Location", p.get(path).want(200))
	need.Same(t, inventoryItem{PetID: rex.ID, Quantity: 0, Status: "available"}, p.inventory(rex.ID), "inventory entry")

	for _, step := range []struct {
		patch object
		want  pet
	}{
		{object{}, pet{rex.ID, "Rex", dogs, "available"}},
		{object{"name": "Max"}, pet{rex.ID, "Max", dogs, "available"}},
		{object{"categoryId": cats}, pet{rex.ID, "Max", cats, "available"}},
		{object{"status": "sold"}, pet{rex.ID, "Max", cats, "sold"}},
		{object{}, pet{rex.ID, "Max", cats, "sold"}},
		{object{"name": "Rex", "categoryId": dogs, "status": "available"}, pet{rex.ID, "Rex", dogs, "available"}},
	} {
		want = step.want
		same(fmt.Sprint("patched with ", step.patch), p.patch(path, step.patch).want(200))
		same(fmt.Sprint("stored by ", step.patch), p.get(path).want(200))
	}
	want.Name = "Zoë"
	same("merge patch", p.do("PATCH", path, `{"name":"Zo\u00eb"}`, "Content-Type", "application/merge-patch+json").want(200))

	need.Same(t, "", string(p.del(path).want(204).body), "the body of DELETE")
	p.get(path).wantError(404, "pet_not_found")
	p.patch(path, object{}).wantError(404, "pet_not_found")
	p.del(path).wantError(404, "pet_not_found")
	p.get(fmt.Sprintf("/store/inventory/%d", rex.ID)).wantError(404, "inventory_not_found")
	if got := decode[pet](p.post("/pets", object{"name": "Rex", "categoryId": dogs}).want(201)); got.ID == rex.ID {
		t.Errorf("the id %d was used again", rex.ID)
	}
}

// TestNamesAreKeptAsSent: names are stored byte for byte, whatever their JSON
// escapes, and can be found by name.
func TestNamesAreKeptAsSent(t *testing.T) {
	t.Parallel()
	p := start(t)
	home := p.newCategory("home")
	for _, name := range awkwardNames {
		created := p.post("/pets", object{"name": name, "categoryId": home}).want(201)
		stored := p.get(created.header.Get("Location")).want(200)
		need.Same(t, name, decode[pet](stored).Name, "the returned name")
		listed := p.get("/pets?name=" + url.QueryEscape(name)).want(200)
		if !slices.ContainsFunc(decode[[]pet](listed), func(one pet) bool { return one.Name == name }) {
			t.Errorf("%q is not found by its own name: %s", name, listed.body)
		}
		escaped := ""
		for _, unit := range utf16Of(name) {
			escaped += fmt.Sprintf(`\u%04x`, unit)
		}
		patched := p.patch(created.header.Get("Location"), `{"name":"`+escaped+`"}`).want(200)
		need.Same(t, name, decode[pet](patched).Name, "the returned name, which was sent with escapes")
	}
}
