package api

import (
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/httpjson"
)

// The functions of this file encode as [httpjson.Encode] does, without reflection. The
// orders of a group are encoded one after the other while the group holds its locks, and a
// page has many pets.

// usualItem is the number of bytes of an order or a pet.
const usualItem = 128

// encode encodes a resource.
func encode(resource any) ([]byte, error) { return appendItem(make([]byte, 0, usualItem), resource) }

// appendItem appends the JSON of a resource.
func appendItem(encoded []byte, resource any) ([]byte, error) {
	switch resource := resource.(type) {
	case order:
		return appendOrder(encoded, resource), nil
	case pet:
		return appendPet(encoded, resource)
	case inventoryItem:
		return appendStock(encoded, resource)
	default:
		other, err := httpjson.Encode(resource)
		return append(encoded, other...), err
	}
}

// writeResource sends a resource in response to a read, with its entity tag.
func writeResource(c *gin.Context, resource any) error {
	representation, err := encode(resource)
	if err != nil {
		return err
	}
	return httpjson.WriteResource(c.Writer, c.Request, representation)
}

// encode encodes the data of an event.
func (a affected) encode() ([]byte, error) {
	const usual = 256 // bytes of the data of an order
	if a != (affected{Order: a.Order, Inventory: a.Inventory, Pet: a.Pet}) {
		return httpjson.Encode(a)
	}
	data, separator := make([]byte, 0, usual), byte('{')
	name := func(text string) {
		data = append(append(data, separator), text...)
		separator = ','
	}
	var err error
	if a.Order != nil {
		name(`"order":`)
		data = appendOrder(data, *a.Order)
	}
	if a.Inventory != nil {
		name(`"inventory":`)
		if data, err = appendStock(data, *a.Inventory); err != nil {
			return nil, err
		}
	}
	if a.Pet != nil {
		name(`"pet":`)
		if data, err = appendPet(data, *a.Pet); err != nil {
			return nil, err
		}
	}
	return append(data, '}'), nil
}

func appendOrder(encoded []byte, o order) []byte {
	encoded = strconv.AppendInt(append(encoded, `{"id":`...), o.ID, 10)
	encoded = strconv.AppendInt(append(encoded, `,"petId":`...), o.PetID, 10)
	encoded = strconv.AppendInt(append(encoded, `,"quantity":`...), o.Quantity, 10)
	if o.ShipDate != nil {
		encoded = append(o.ShipDate.AppendFormat(append(encoded, `,"shipDate":"`...), time.RFC3339Nano), '"')
	}
	encoded = strconv.AppendBool(append(encoded, `,"complete":`...), o.Complete)
	return append(encoded, '}')
}

func appendStock(encoded []byte, item inventoryItem) ([]byte, error) {
	encoded = strconv.AppendInt(append(encoded, `{"petId":`...), item.PetID, 10)
	encoded = strconv.AppendInt(append(encoded, `,"quantity":`...), item.Quantity, 10)
	encoded, err := jsontext.AppendQuote(append(encoded, `,"status":`...), item.Status)
	return append(encoded, '}'), err
}

func appendPet(encoded []byte, p pet) ([]byte, error) {
	encoded = strconv.AppendInt(append(encoded, `{"id":`...), p.ID, 10)
	encoded, err := jsontext.AppendQuote(append(encoded, `,"name":`...), p.Name)
	if err != nil {
		return nil, err
	}
	encoded = strconv.AppendInt(append(encoded, `,"categoryId":`...), p.CategoryID, 10)
	encoded, err = jsontext.AppendQuote(append(encoded, `,"status":`...), p.Status)
	return append(encoded, '}'), err
}

// transform returns the results of a function for all items, never nil.
func transform[In, Out any](items []In, convert func(In) Out) []Out {
	results := make([]Out, len(items))
	for i, item := range items {
		results[i] = convert(item)
	}
	return results
}

// inUTC returns a time as responses have it, or nil.
func inUTC(at *time.Time) *time.Time {
	if at == nil {
		return nil
	}
	return new(at.UTC())
}
