package httpjson_test

import (
	"fmt"
	"testing"

	"petstore/internal/httpjson"
)

// BenchmarkObject measures the bodies of an order, and of a fault rule with as many unknown fields as fit
// into 64 KB.
func BenchmarkObject(b *testing.B) {
	fields := ""
	for i := range 7000 {
		fields += fmt.Sprintf(`,"%d":1`, i)
	}
	for _, body := range []struct {
		name, text string
		read       func(*httpjson.Object)
	}{
		{"an order", `{"petId": 42, "quantity": 3, "shipDate": "2026-12-24T09:30:00Z"}`, func(o *httpjson.Object) {
			o.Require("petId")
			o.ReadOnly("id", "complete")
			o.ID("petId")
			o.Integer("quantity", 1, 1000)
			o.Time("shipDate")
		}},
		{"unknown fields", `{"rules":[{"operation":"*","status":500` + fields + `}]}`, func(o *httpjson.Object) {
			o.Require("rules")
			for _, rule := range o.Objects("rules", 20) {
				rule.Require("operation", "effect", "status")
				rule.Enum("operation", "*")
				for _, name := range []string{"status", "delayMs", "first", "probability", "seed"} {
					rule.Integer(name, 1, 1000)
				}
			}
		}},
	} {
		b.Run(body.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				o := httpjson.ParseObject([]byte(body.text))
				body.read(o)
				_ = o.Err()
			}
		})
	}
}
