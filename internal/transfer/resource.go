// Package transfer moves the resources of a store out of it and into it, over the API.
//
// Rows are lines of NDJSON or of CSV. An archive is NDJSON with the resources of a whole store,
// in which each row has a kind.
package transfer

import (
	"context"
	"slices"

	"petstore/internal/casefold"
	"petstore/internal/httpjson"
)

// Resource is a list of the API.
type Resource struct {
	Name string // such as pets
	Kind string // such as pet, in the rows of an archive and in the data of events
	Path string

	columns  []column
	required []string
	more     []string // columns that only an import has
	// put sends a row and returns the id of the resource. The error is [RowErrors] if it is only
	// about the row.
	put func(*run, context.Context, *row) (int64, error)
	// check reads the fields of a row as the operation does, and the ones that only an import has.
	check func(*httpjson.Object)
}

// column is a column of a CSV file.
type column struct {
	name   string
	isText bool // else a number or a boolean
}

// The limits are in the spec, and a test compares them.
const (
	maxDescription             = 2000
	maxOrderUnits, maxQuantity = 1_000_000, 1_000_000_000
)

var (
	categories = &Resource{
		Name: "categories", Kind: "category", Path: "/categories", put: (*run).putCategory,
		columns: []column{{"id", false}, {"name", true}, {"description", true}}, required: []string{"name"},
		check: func(o *httpjson.Object) {
			o.Name(casefold.MaxName)
			o.Text("description", 0, maxDescription)
		},
	}
	pets = &Resource{
		Name: "pets", Kind: "pet", Path: "/pets", put: (*run).putPet, more: []string{categoryName},
		columns: []column{{"id", false}, {"name", true}, {"categoryId", false}, {"status", true}}, required: []string{"name"},
		check: func(o *httpjson.Object) {
			o.Name(casefold.MaxName)
			if o.Has(categoryName) {
				o.Text(categoryName, 1, casefold.MaxName)
				o.Exclude("is not allowed beside `"+categoryName+"`.", "categoryId")
			} else {
				o.Require("categoryId")
			}
			o.ID("categoryId")
			o.Enum("status", "available", "pending", "sold")
		},
	}
	inventory = &Resource{
		Name: "inventory", Kind: "inventory", Path: "/store/inventory", put: (*run).putStock,
		columns: []column{{"petId", false}, {"quantity", false}, {"status", true}}, required: []string{"petId", "quantity"},
		check: func(o *httpjson.Object) {
			o.ID("petId")
			o.Integer("quantity", 0, maxQuantity)
			o.Enum("status", "available", "pending", "sold")
		},
	}
	orders = &Resource{
		Name: "orders", Kind: "order", Path: "/store/orders", put: (*run).putOrder,
		columns: []column{{"id", false}, {"petId", false}, {"quantity", false}, {"shipDate", true}, {"complete", false}}, required: []string{"petId"},
		check: func(o *httpjson.Object) {
			o.ID("petId")
			o.Integer("quantity", 1, maxOrderUnits)
			o.Time("shipDate")
			o.Bool("complete")
		},
	}
)

// categoryName is the column with the name of the category of a pet.
const categoryName = "category"

// Resources are the resources of an archive, in its order. A row refers only to rows before it.
var Resources = []*Resource{categories, pets, inventory, orders}

// Names returns the names of the resources.
func Names() []string {
	names := make([]string, len(Resources))
	for i, r := range Resources {
		names[i] = r.Name
	}
	return names
}

// Find returns the resource with a name, or nil.
func Find(name string) *Resource {
	if i := slices.IndexFunc(Resources, func(r *Resource) bool { return r.Name == name }); i >= 0 {
		return Resources[i]
	}
	return nil
}

// importColumns returns the names of the columns that a file may have.
func (r *Resource) importColumns() []string {
	names := slices.Clone(r.more)
	for _, c := range r.columns {
		names = append(names, c.name)
	}
	return names
}

// isText reports whether the cells of a column are texts.
func (r *Resource) isText(name string) bool {
	i := slices.IndexFunc(r.columns, func(c column) bool { return c.name == name })
	return i < 0 || r.columns[i].isText
}
