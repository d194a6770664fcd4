package event_test

import (
	"slices"
	"strings"
	"testing"

	"petstore/internal/event"
)

// TestID: the ids of a feed sort by number, and no two accounts have the same id.
func TestID(t *testing.T) {
	t.Parallel()
	const most = 1<<48 - 1
	var ids []string
	for _, account := range []int64{1, 2, 15, 16, most} {
		for _, sequence := range []int64{0, 1, 9, 10, 1042, most} {
			id := event.IDOf(account, sequence, 0x5f0c9a1e)
			ids = append(ids, id.String())
			if read, ok := event.ParseID(id.String()); !ok || read != id {
				t.Errorf("ParseID(%s) = %+v, %t, want %+v", id, read, ok, id)
			}
		}
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != 30 {
		t.Errorf("the ids %v are not sorted, or some are the same", ids)
	}
	if id := event.IDOf(3, 1042, 0x5f0c9a1e).String(); id != "evt_0000000000030000000004125f0c9a1e" {
		t.Errorf("the id %s", id)
	}
	valid := ids[3]
	for _, text := range []string{
		"", "evt_", valid[4:], valid[:35], valid + "0", valid + "00", strings.ToUpper(valid), "evt_" + strings.ToUpper(ids[29][4:]),
		"evt_" + strings.Repeat("g", 32), "evt_-" + valid[5:], "wh_" + valid[4:], " " + valid,
	} {
		if id, ok := event.ParseID(text); ok {
			t.Errorf("ParseID(%q) = %+v", text, id)
		}
	}
}
