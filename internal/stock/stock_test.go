package stock_test

import (
	"errors"
	"testing"

	"petstore/internal/stock"
)

func TestPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		state stock.State
		units int64
		want  stock.State
		err   error
	}{
		"some units": {stock.State{5, 1, stock.Available}, 2, stock.State{3, 3, stock.Available}, nil},
		"all units":  {stock.State{5, 0, stock.Available}, 5, stock.State{0, 5, stock.Pending}, nil},
		"too many":   {stock.State{5, 0, stock.Available}, 6, stock.State{5, 0, stock.Available}, stock.ErrInsufficient},
		"no units":   {stock.State{0, 0, stock.Available}, 1, stock.State{0, 0, stock.Available}, stock.ErrInsufficient},
		"pending":    {stock.State{5, 0, stock.Pending}, 1, stock.State{5, 0, stock.Pending}, stock.ErrNotAvailable},
		"sold":       {stock.State{5, 0, stock.Sold}, 9, stock.State{5, 0, stock.Sold}, stock.ErrNotAvailable},
	} {
		if got, err := test.state.Place(test.units); got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, test.want, test.err)
		}
	}
}

func TestOtherChanges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ got, want stock.State }{
		"complete the last order": {stock.State{0, 2, stock.Pending}.Complete(2), stock.State{0, 0, stock.Sold}},
		"complete one of two":     {stock.State{0, 3, stock.Pending}.Complete(2), stock.State{0, 1, stock.Pending}},
		"complete with stock":     {stock.State{1, 2, stock.Available}.Complete(2), stock.State{1, 0, stock.Available}},
		"cancel the last units":   {stock.State{0, 2, stock.Pending}.Cancel(2), stock.State{2, 0, stock.Available}},
		"cancel with stock":       {stock.State{1, 2, stock.Pending}.Cancel(2), stock.State{3, 0, stock.Pending}},
		"cancel of a sold pet":    {stock.State{0, 2, stock.Sold}.Cancel(2), stock.State{2, 0, stock.Sold}},
		"restock a sold pet":      {stock.State{0, 0, stock.Sold}.Restock(7), stock.State{7, 0, stock.Available}},
		"restock a pending pet":   {stock.State{0, 2, stock.Pending}.Restock(7), stock.State{7, 2, stock.Available}},
		"empty, units held":       {stock.State{4, 2, stock.Available}.Restock(0), stock.State{0, 2, stock.Pending}},
		"empty, none held":        {stock.State{4, 0, stock.Available}.Restock(0), stock.State{0, 0, stock.Available}},
		"empty a pending pet":     {stock.State{4, 2, stock.Pending}.Restock(0), stock.State{0, 2, stock.Pending}},
		"empty a sold pet":        {stock.State{4, 0, stock.Sold}.Restock(0), stock.State{0, 0, stock.Sold}},
	} {
		if test.got != test.want {
			t.Errorf("%s: %+v, want %+v", name, test.got, test.want)
		}
	}
}
