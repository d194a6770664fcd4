package delivery_test

import (
	"slices"
	"testing"
	"time"

	"petstore/internal/event"
)

// BenchmarkDeliveries measures the rate of deliveries to endpoints of this machine.
func BenchmarkDeliveries(b *testing.B) {
	for name, hooks := range map[string]int{"1 webhook": 1, "4 webhooks": 4} {
		b.Run(name, func(b *testing.B) {
			f := newFeed(b)
			to := receive(b, nil)
			for range hooks {
				f.webhook(to.url)
			}
			for from := 1; from <= b.N; from += 500 {
				f.emit(pets(from, min(from+499, b.N))...)
			}
			b.ResetTimer()
			f.work().Wake(f.account)
			to.await(b.N * hooks)
			await(f, int64(b.N*hooks), "SELECT count(*) FROM webhook_deliveries WHERE status = 'delivered'")
			b.ReportMetric(float64(b.N*hooks)/b.Elapsed().Seconds(), "webhooks/s")
		})
	}
}

// BenchmarkFirstAttempt measures the time from the commit of an event to the request, with
// one event at a time. In the second case, 10,000 deliveries are due at another webhook,
// which does not respond. In the third, only the sweep notices the event.
func BenchmarkFirstAttempt(b *testing.B) {
	for _, c := range []struct {
		name           string
		hanging, woken bool
	}{{"alone", false, true}, {"beside a webhook that hangs", true, true}, {"written by another process", false, false}} {
		b.Run(c.name, func(b *testing.B) {
			f := newFeed(b)
			to := receive(b, nil)
			f.webhook(to.url, "store.reset")
			worker := f.work()
			if c.hanging {
				f.webhook(hanging(b), "pet.created")
				for i := range 10 {
					f.emit(pets(1000*i+1, 1000*i+1000)...)
				}
				worker.Wake(f.account)
				await(f, 10_000, "SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'")
			}
			b.ResetTimer()
			var took []time.Duration
			for i := range b.N {
				f.emit(event.Reset())
				began := time.Now()
				if c.woken {
					worker.Wake(f.account)
				}
				to.await(i + 1)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
			b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "max-ms")
		})
	}
}
