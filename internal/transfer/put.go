package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/casefold"
	"petstore/internal/follow"
	"petstore/internal/httpjson"
)

// refusedError is a response that ends an import, because the next rows would get it too.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

// errLacking means that a row in doubt cannot be sent again, because its category is missing. An earlier import may
// have sent it with the category that had the name then.
var errLacking = errors.New("the category of a row in doubt is missing")

// resource has the fields of resources that an import needs.
type resource struct {
	ID     int64  `json:"id"`
	PetID  int64  `json:"petId"`
	Name   string `json:"name"`
	Status string `json:"status"`
}

// send sends a request and decodes the response. The error is [RowErrors], [refusedError], or says that
// nobody knows the result.
func (r *run) send(ctx context.Context, one Request, into any) error {
	status, text, err := r.Send(ctx, one)
	if err != nil {
		return err
	}
	if status == http.StatusNoContent {
		return nil
	}
	if status < http.StatusMultipleChoices {
		if err := json.Unmarshal(text, into); err != nil {
			return &refusedError{errors.New("the response is not from Petstore")}
		}
		return nil
	}
	var problem struct {
		Code, Message string
		Errors        []httpjson.Violation
	}
	_ = json.Unmarshal(text, &problem) // another server has sent it
	failed := follow.NewStatusError(status, text)
	failed.Message = strings.TrimSuffix(failed.Message, ".")
	switch {
	case status >= http.StatusInternalServerError, status == http.StatusRequestTimeout, problem.Code == "idempotency_in_progress":
		return failed
	case slices.Contains([]int{400, 404, 409, 413, 422}, status) && problem.Code != "" && problem.Code != "route_not_found" && problem.Code != "sandbox_full":
		return mistakes(problem.Code, problem.Message, problem.Errors)
	default:
		return &refusedError{failed}
	}
}

// post creates a resource with the fields of a row, and returns its id.
func (r *run) post(ctx context.Context, one *row) (int64, error) {
	var made resource
	err := r.send(ctx, Request{http.MethodPost, one.resource.Path, one.body(), r.key(one.line), one.until}, &made)
	return made.ID, err
}

func (r *run) putCategory(ctx context.Context, one *row) (int64, error) {
	r.Source.dropIgnored(one)
	return r.post(ctx, one)
}

// putPet creates a pet. A pet of an archive with orders is available until [run.settle].
func (r *run) putPet(ctx context.Context, one *row) (int64, error) {
	if id := one.number("id"); r.Source.units[id] > 0 {
		one.fields["status"] = jsontext.Value(`"available"`)
	}
	r.Source.dropIgnored(one)
	if one.fields[categoryName] != nil {
		if err := one.validate(); err != nil { // its name becomes part of a URL, or of a new category
			return 0, err
		}
		text, _ := jsontext.AppendUnquote(nil, one.take(categoryName)) // valid JSON
		id, err := r.categoryNamed(ctx, string(text))
		_, isLacking := errors.AsType[RowErrors](err)
		switch {
		case isLacking && one.inDoubt && r.InDoubt == "":
			return 0, errLacking
		case isLacking && one.inDoubt && r.InDoubt == "skip":
			return unknownID, nil
		case err != nil:
			return 0, err
		}
		one.fields["categoryId"] = numberValue(id)
	} else if err := r.mapID(one, "categoryId", categories); err != nil {
		return 0, err
	}
	id, err := r.post(ctx, one)
	if wrong, isWrong := errors.AsType[RowErrors](err); isWrong && wrong[0].Code == "idempotency_key_reused" {
		return unknownID, nil // the server has the row, with another category that had the name then
	}
	return id, err
}

// categoryNamed returns the id of the category with a name, and creates it if that is wanted.
func (r *run) categoryNamed(ctx context.Context, name string) (id int64, err error) {
	key := casefold.Key(name)
	r.mu.Lock() // so that only one row creates it
	defer r.mu.Unlock()
	id, known := r.categories[key]
	for attempt := 0; !known; attempt++ {
		var found []resource
		query := url.Values{"name": {name}, "sort": {"name"}, "limit": {"1"}} // the whole name is the first with this prefix
		if err := r.send(ctx, Request{Method: http.MethodGet, Path: "/categories?" + query.Encode()}, &found); err != nil {
			return 0, err
		}
		var made resource
		if known = len(found) > 0 && casefold.Key(found[0].Name) == key; known {
			id = found[0].ID
		} else if known = !r.CreateCategories; !known {
			quoted, _ := jsontext.AppendQuote(nil, name) // valid UTF-8
			create := Request{Method: http.MethodPost, Path: "/categories", Body: fmt.Appendf(nil, `{"name":%s}`, quoted), Key: r.key("category " + key)}
			err := r.send(ctx, create, &made)
			if err != nil && attempt > 0 { // else another client may have created it
				return 0, err
			}
			id, known = made.ID, err == nil
		}
	}
	if r.categories[key] = id; id == 0 {
		return 0, wrong(categoryName, "unknown_category", "There is no category %q. Add --create-categories to create it.", name)
	}
	return id, nil
}

// putStock sets the stock of a pet. With an archive, its orders take their units later.
func (r *run) putStock(ctx context.Context, one *row) (int64, error) {
	r.Source.dropIgnored(one)
	units := r.Source.units[one.number("petId")]
	if one.number("petId") < 1 {
		return 0, one.validate() // it is not in the body, so the server cannot tell
	}
	if err := r.mapID(one, "petId", pets); err != nil {
		return 0, err
	}
	if units == 0 {
		return one.number("petId"), r.settle(ctx, one)
	}
	stocked := maps.Clone(one.fields)
	stocked["quantity"] = numberValue(min(one.number("quantity")+units, maxQuantity))
	delete(stocked, "status")
	_, err := r.setStock(ctx, stocked) // stock makes the pet available
	return one.number("petId"), err
}

// setStock sets the stock of the pet in a row, and returns the status of the pet.
func (r *run) setStock(ctx context.Context, of fields) (status string, err error) {
	stock := maps.Clone(of)
	path := "/store/inventory/" + string(stock.take("petId"))
	var item resource
	err = r.send(ctx, Request{Method: http.MethodPut, Path: path, Body: stock.body()}, &item)
	return item.Status, err
}

// settle sets the stock and the status of a pet of an archive to the exported ones.
func (r *run) settle(ctx context.Context, one *row) error {
	wanted, _ := jsontext.AppendUnquote(nil, one.take("status")) // without one, any is right
	status, err := r.setStock(ctx, one.fields)
	for err == nil && len(wanted) > 0 && status != string(wanted) {
		next := string(wanted)
		if status == "sold" && next == "pending" { // a sold pet must become available first
			next = "available"
		}
		var changed resource
		err = r.send(ctx, Request{Method: http.MethodPatch, Path: "/pets/" + string(one.fields["petId"]), Body: fmt.Appendf(nil, `{"status":%q}`, next)}, &changed)
		status = changed.Status
	}
	return err
}

// putOrder places an order and completes it. Both take effect once. It cancels an order that the server
// does not complete, so that a corrected row is not the second one.
func (r *run) putOrder(ctx context.Context, one *row) (int64, error) {
	r.Source.dropIgnored(one)
	if complete := one.fields["complete"]; complete != nil && complete.Kind() != 't' && complete.Kind() != 'f' {
		return 0, one.validate()
	}
	complete := one.take("complete")
	if err := r.mapID(one, "petId", pets); err != nil {
		return 0, err
	}
	id, err := r.post(ctx, one)
	if err == nil && complete.Kind() == 't' {
		err = r.complete(ctx, fmt.Sprintf("%s/%d", one.resource.Path, id))
		if refused, ok := errors.AsType[*refusedError](err); ok { // the row is in doubt: the server has the order
			err = refused.error
		}
	}
	return id, err
}

// complete completes the order at a path, or cancels it if the server refuses that.
func (r *run) complete(ctx context.Context, path string) error {
	var done resource
	err := r.send(ctx, Request{Method: http.MethodPatch, Path: path, Body: []byte(`{"complete":true}`)}, &done)
	if _, isWrong := errors.AsType[RowErrors](err); !isWrong {
		return err
	}
	canceled := r.send(ctx, Request{Method: http.MethodDelete, Path: path}, nil)
	if _, isWrong := errors.AsType[RowErrors](canceled); canceled != nil && !isWrong { // else it is gone
		return canceled
	}
	return err
}

// remember notes the new id of a category or a pet of an archive.
func (r *run) remember(of *Resource, old, id int64) {
	if ids := r.mapped[of]; ids != nil && r.Source.Resource == nil && old > 0 && id > 0 {
		r.mu.Lock()
		ids[old] = id
		r.mu.Unlock()
	}
}

// newID returns the new id of a category or a pet of an archive, or 0 if it was not imported.
func (r *run) newID(of *Resource, old int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mapped[of][old]
}

// mapID replaces an id of an archive by the new one.
func (r *run) mapID(one *row, name string, of *Resource) error {
	old := one.number(name)
	if r.Source.Resource != nil || old == 0 {
		return nil
	}
	id := r.newID(of, old)
	if id == 0 {
		return wrong(name, "unknown_"+of.Kind, "The archive has no %s %d before this line, or it was not imported.", of.Kind, old)
	}
	one.fields[name] = numberValue(id)
	return nil
}

func numberValue(number int64) jsontext.Value { return strconv.AppendInt(nil, number, 10) }
