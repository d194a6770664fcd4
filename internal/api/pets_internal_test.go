package api

import (
	"bytes"
	"math"
	"testing"

	"petstore/internal/httpjson"
)

func TestEncodePets(t *testing.T) {
	t.Parallel()
	pets := []pet{
		{ID: 1, Name: "Rex", CategoryID: 2, Status: "sold"},
		{ID: math.MaxInt64, Name: `"<&>\ ` + "\u2028 \t\x01\x7f 🐕 é", CategoryID: math.MaxInt64},
		{},
	}
	for count := range len(pets) + 1 {
		want, err := httpjson.Encode(pets[:count])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := encodePets(pets[:count]); !bytes.Equal(got, want) || err != nil {
			t.Errorf("encodePets: %s, %v; want %s", got, err, want)
		}
	}
	pets[0].Name = "\xff"
	if _, err := encodePets(pets); err == nil {
		t.Error("invalid UTF-8 is no error")
	}
}
