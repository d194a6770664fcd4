package api

import (
	"petstore/internal/event"
	"petstore/internal/groupcommit"
)

// affected is the data of an event: the resources whose representation a change has
// altered, as they are afterwards, or as they were before they were deleted.
type affected struct {
	Order     *order         `json:"order,omitzero"`
	Inventory *inventoryItem `json:"inventory,omitzero"`
	Pet       *pet           `json:"pet,omitzero"`
	Category  *category      `json:"category,omitzero"`
	Message   *message       `json:"message,omitzero"`
}

// affectedPet returns what a change of a pet or of its stock has altered.
func affectedPet(before, after groupcommit.Pet) (a affected) {
	if pet := stockedPet(after); pet != stockedPet(before) {
		a.Pet = &pet
	}
	if item := stockOf(after); item != stockOf(before) {
		a.Inventory = &item
	}
	return a
}

// withOrder adds the order after a change, if the change has altered it.
func (a affected) withOrder(before, after order) affected {
	if !after.equals(before) {
		a.Order = &after
	}
	return a
}

// emit adds an event about a change of a resource to the feed. A change that has altered
// no representation has no event.
func emit(state *groupcommit.State, kind event.Type, subject string, a affected) error {
	if a == (affected{}) {
		return nil
	}
	data, err := a.encode()
	if err == nil {
		state.Emit(event.Event{Type: kind, Subject: subject, Data: data})
	}
	return err
}
