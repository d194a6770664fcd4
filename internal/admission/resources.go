package admission

import (
	"math"
	"time"
)

// Resource is something of which a process has a limited amount.
type Resource struct {
	Name string
	// Total is the amount that all payers together may hold.
	Total int64
	// Share is the amount that one payer may hold. 0 means a quarter of the total, rounded up.
	Share int64
	// Least is the amount that one payer may hold if a quarter of the total is less.
	Least int64
	// Wait is the longest time that a request waits for its part. 0 means that it does not
	// wait.
	Wait time.Duration
}

// Forever is a Wait that only the end of the context ends.
const Forever time.Duration = math.MaxInt64

// shares is the number of payers that can take everything, each its share.
const shares = 4

// OfOnePayer returns the amount that one payer may hold.
func (r Resource) OfOnePayer() int64 {
	if r.Share > 0 {
		return r.Share
	}
	return max((r.Total+shares-1)/shares, r.Least)
}

// Of returns the resource with another total.
func (r Resource) Of(total int) Resource {
	r.Total = int64(total)
	return r
}

// ReadParts are the parts of a place of Reads. Pages that share a round trip to the database take one
// part each. They are more than share one, so that the next pages gather while some are read.
const ReadParts = 64

// The resources of requests with an API key.
var (
	// Requests are requests in progress: after their body has arrived, until the response. A
	// share is more than a default pool serves at once. The others wait for a connection.
	Requests = Resource{Name: "requests in progress", Total: 2560}
	// Bodies are bodies that are arriving. BodyBytes are the bytes of all bodies, until the
	// response.
	Bodies    = Resource{Name: "bodies that arrive", Total: 512}
	BodyBytes = Resource{Name: "bytes of bodies", Total: 32 << 20}
	// PageBytes are bytes of responses that clients have not read yet.
	PageBytes = Resource{Name: "bytes of pages being sent", Total: 64 << 20, Share: 8 << 20}
	// Streams are open streams of events, and LongPolls requests that wait for a change. Each
	// has a connection. Both together leave connections to others.
	Streams   = Resource{Name: "streams of events", Total: 800}
	LongPolls = Resource{Name: "requests that wait for a change", Total: 800}
	// Delays are requests that wait for the delay of a fault rule.
	Delays = Resource{Name: "requests that a fault rule delays", Total: 512}
	// Exchanges are bytes of the requests of sandboxes that are not in their record yet.
	Exchanges = Resource{Name: "bytes of exchanges to record", Total: 16 << 20}
	// Counts are exact counts and summaries, which read an index entry per row. Reports read the
	// whole record of a sandbox, and some lists many rows in vain.
	Counts = Resource{Name: "exact counts and other expensive queries", Total: 2, Share: 1, Wait: time.Second}
	// Locks are transactions that wait for locks of rows. The total is the number of
	// connections that such transactions may have ([petstore/internal/postgres.DB.LockWaits]).
	// A payer has two, so that one that waits does not stop its others.
	Locks = Resource{Name: "transactions that wait for locks", Least: 2, Wait: Forever}
	// Reads are the reads of pages, of requests that wait and of streams, with the encoding. Requests for
	// the same share a read. The total is the same as for Locks, times ReadParts.
	Reads = Resource{Name: "reads of pages, of requests that wait and of streams", Least: 2 * ReadParts, Wait: Forever}
	// Decodings are large bodies that are decoded, or redacted for the record. They take only CPU time. With
	// one of each payer at a time, the requests of others find a processor.
	Decodings = Resource{Name: "large bodies that are decoded", Total: 2, Share: 1, Wait: Forever}
	// Loads are transactions that write many rows: new sandboxes and samples, resets and replays.
	Loads = Resource{Name: "new sandboxes and samples, resets and replays", Total: 2, Share: 1, Wait: 3 * time.Second}
	// FastWebhooks and SlowWebhooks are webhooks to which the worker delivers at a time. Slow
	// are those that fail or have taken long lately.
	FastWebhooks = Resource{Name: "webhooks that receive deliveries", Total: 400, Wait: Forever}
	SlowWebhooks = Resource{Name: "slow webhooks that receive deliveries", Total: 200, Wait: Forever}
	// DeliveryTransactions are statements and transactions of the worker for such webhooks.
	DeliveryTransactions = Resource{Name: "transactions of deliveries", Total: 4, Share: 4, Wait: Forever}
	// Dispatches are transactions of the worker that add the deliveries of events.
	Dispatches = Resource{Name: "dispatches of events to webhooks", Total: 2, Share: 1, Wait: Forever}
	// Settlements are transactions of the worker that adapt messages that wait to a webhook.
	Settlements = Resource{Name: "adaptations of messages to webhooks", Total: 2, Share: 1, Wait: Forever}
)

// Resources lists all resources, as decision 8 does.
func Resources() []Resource {
	return []Resource{
		Requests, Bodies, BodyBytes, PageBytes, Streams, LongPolls, Delays, Exchanges, Counts, Locks, Reads, Decodings, Loads,
		FastWebhooks, SlowWebhooks, DeliveryTransactions, Dispatches, Settlements,
	}
}
