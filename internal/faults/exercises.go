package faults

import "petstore/db"

// Exercise is a set of rules for a subject. With it, an ordinary test run shows how a client
// handles the failures of that subject.
type Exercise struct {
	Name string
	// Text says what happens to the client.
	Text  string
	Rules []db.FaultCreateParams
}

// Exercises lists the exercises. The seeds are fixed, so a client that sends one request at a time
// gets the same faults in each run.
var Exercises = []Exercise{
	{
		"lost-responses", "Requests take effect, but their responses are lost. A stream breaks after its first events.",
		[]db.FaultCreateParams{
			first(1, lost("placeOrder")), first(1, lost("createPet")), first(1, lost("createCategory")), first(1, lost("queueMessage")),
			first(2, lost("listEvents")), share(0.2, 1, lost(AnyOperation)),
		},
	},
	{
		"overload", "The first five requests return 502. Then a quarter of the requests return 503 with `Retry-After`, and a tenth 500.",
		[]db.FaultCreateParams{
			first(5, failing(AnyOperation, 502)), share(0.25, 2, failing(AnyOperation, 503)), share(0.1, 3, failing(AnyOperation, 500)),
		},
	},
	{
		"slow", "The first request takes 10 seconds longer. Then a fifth of the requests take 4 seconds longer, and many others 1.5 seconds.",
		[]db.FaultCreateParams{first(1, delayed(AnyOperation, 10_000)), share(0.2, 4, delayed(AnyOperation, 4000)), share(0.3, 5, delayed(AnyOperation, 1500))},
	},
	{
		"rate-limit", "The first four requests and then a fifth of the others return 429 with `Retry-After`.",
		[]db.FaultCreateParams{first(4, failing(AnyOperation, 429)), share(0.2, 6, failing(AnyOperation, 429))},
	},
	{
		"flaky-webhooks", "Events come 5 seconds late, or a second time after 5 seconds.",
		[]db.FaultCreateParams{
			first(1, lost(DeliverWebhook)), share(0.5, 7, lost(DeliverWebhook)), share(0.5, 8, closed(DeliverWebhook, CloseBefore)),
		},
	},
	{
		"all", "A few of all of these.",
		[]db.FaultCreateParams{
			first(1, lost("placeOrder")), first(1, lost("createPet")), first(1, lost("listEvents")),
			first(1, failing("listPets", 429)), first(2, failing("getInventoryItem", 503)), first(5, failing("listPets", 502)),
			first(1, delayed("listCategories", 10_000)), share(0.05, 9, lost(AnyOperation)), share(0.05, 10, failing(AnyOperation, 503)),
			first(1, lost(DeliverWebhook)), share(0.3, 11, lost(DeliverWebhook)),
		},
	},
}

func closed(operation, when string) db.FaultCreateParams {
	return db.FaultCreateParams{Operation: operation, Effect: EffectClose, CloseWhen: &when}
}

func lost(operation string) db.FaultCreateParams { return closed(operation, CloseAfter) }

func failing(operation string, status int32) db.FaultCreateParams {
	return db.FaultCreateParams{Operation: operation, Effect: EffectStatus, Status: &status}
}

func delayed(operation string, ms int32) db.FaultCreateParams {
	return db.FaultCreateParams{Operation: operation, Effect: EffectDelay, DelayMs: &ms}
}

// first limits a rule to a number of requests.
func first(number int64, rule db.FaultCreateParams) db.FaultCreateParams {
	rule.First = &number
	return rule
}

// share limits a rule to a share of the requests.
func share(probability float64, seed int64, rule db.FaultCreateParams) db.FaultCreateParams {
	rule.Probability, rule.Seed = &probability, &seed
	return rule
}
