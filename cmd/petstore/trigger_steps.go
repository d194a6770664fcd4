package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"petstore/internal/event"
	"petstore/internal/follow"
	"petstore/internal/sleep"
	"petstore/internal/webhook"
)

const (
	// exhaustPause is the pause between two looks at a delivery.
	exhaustPause = 100 * time.Millisecond
	// askAgain is the time after which a retry of a delivery without an attempt is due again.
	askAgain = time.Second
	// cleanTimeout is the maximum time to delete a webhook after Ctrl-C.
	cleanTimeout = 5 * time.Second
)

// object is a JSON object.
type object = map[string]any

// triggers have the requests that make an event of each type happen.
var triggers = map[event.Type]func(context.Context, *triggering){
	event.PetCreated: func(ctx context.Context, t *triggering) { t.pet(ctx) },
	event.PetUpdated: func(ctx context.Context, t *triggering) {
		t.send(ctx, "PATCH", t.pet(ctx).path, object{"name": t.name()})
	},
	event.PetDeleted:      func(ctx context.Context, t *triggering) { t.send(ctx, "DELETE", t.pet(ctx).path, nil) },
	event.CategoryCreated: func(ctx context.Context, t *triggering) { t.category(ctx) },
	event.CategoryUpdated: func(ctx context.Context, t *triggering) {
		t.send(ctx, "PATCH", t.category(ctx).path, object{"name": t.name()})
	},
	event.CategoryDeleted:  func(ctx context.Context, t *triggering) { t.send(ctx, "DELETE", t.category(ctx).path, nil) },
	event.InventoryUpdated: func(ctx context.Context, t *triggering) { t.stockedPet(ctx) },
	event.OrderPlaced:      func(ctx context.Context, t *triggering) { t.order(ctx) },
	event.OrderUpdated: func(ctx context.Context, t *triggering) {
		t.send(ctx, "PATCH", t.order(ctx).path, object{"shipDate": time.Now().UTC().AddDate(0, 0, 1).Format(time.RFC3339)})
	},
	event.OrderCompleted: func(ctx context.Context, t *triggering) {
		t.send(ctx, "PATCH", t.order(ctx).path, object{"complete": true})
	},
	event.OrderCancelled:   func(ctx context.Context, t *triggering) { t.send(ctx, "DELETE", t.order(ctx).path, nil) },
	event.MessageQueued:    func(ctx context.Context, t *triggering) { t.message(ctx) },
	event.MessageDelivered: func(ctx context.Context, t *triggering) { t.messageTo(ctx, http.StatusNoContent) },
	event.MessageFailed: func(ctx context.Context, t *triggering) {
		t.exhaust(ctx, t.messageTo(ctx, http.StatusInternalServerError))
	},
	event.WebhookDisabled: func(ctx context.Context, t *triggering) { t.messageTo(ctx, http.StatusGone) },
	event.StoreReset:      func(ctx context.Context, t *triggering) { t.send(ctx, "POST", "/sandboxes/current/reset", nil) },
}

// triggering sends the requests of a trigger. After an error, it sends none.
type triggering struct {
	*client

	err     error
	after   string // the id of the newest event before the trigger
	webhook string // the path of the webhook that the trigger has created; "": none
}

// created is a resource that a trigger has created.
type created struct {
	id   int64
	path string
}

// name returns a name that no resource has.
func (t *triggering) name() string { return "Trigger " + uuid.NewString()[:8] }

// send sends a request, without a body if that is nil.
func (t *triggering) send(ctx context.Context, method, path string, body any) {
	if t.err == nil {
		t.err = t.do(ctx, method, path, body, nil)
	}
}

// create creates a resource in a collection.
func (t *triggering) create(ctx context.Context, collection string, body object) created {
	if t.err != nil {
		return created{}
	}
	var made struct{ ID int64 }
	t.err = t.do(ctx, "POST", collection, body, &made)
	return created{made.ID, fmt.Sprintf("%s/%d", collection, made.ID)}
}

func (t *triggering) category(ctx context.Context) created {
	return t.create(ctx, "/categories", object{"name": t.name()})
}

// pet creates a pet in a new category.
func (t *triggering) pet(ctx context.Context) created {
	return t.create(ctx, "/pets", object{"name": t.name(), "categoryId": t.category(ctx).id})
}

// stockedPet creates a pet with two units.
func (t *triggering) stockedPet(ctx context.Context) created {
	pet := t.pet(ctx)
	t.send(ctx, "PUT", fmt.Sprintf("/store/inventory/%d", pet.id), object{"quantity": 2})
	return pet
}

// order places an order for a new pet.
func (t *triggering) order(ctx context.Context) created {
	return t.create(ctx, "/store/orders", object{"petId": t.stockedPet(ctx).id, "quantity": 1})
}

// queued is a message that a trigger has queued.
type queued struct{ ID, Status string }

func (t *triggering) message(ctx context.Context) (made queued) {
	if t.err == nil {
		t.err = t.do(ctx, "POST", "/messages", object{"message": t.name()}, &made)
	}
	return made
}

// messageTo queues a message for a new webhook of this machine, which returns a status to
// every event until the trigger ends.
func (t *triggering) messageTo(ctx context.Context, status int) queued {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.err = err
		return queued{}
	}
	receiver := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }),
		ReadHeaderTimeout: readHeaderTimeout,
	}
	go func() { _ = receiver.Serve(listener) }() // ends with the process
	var made struct{ ID string }
	t.err = t.do(ctx, "POST", "/webhooks", object{"url": "http://" + listener.Addr().String(), "types": []string{"message.queued"}, "description": webhook.OfTrigger}, &made)
	if failed, ok := errors.AsType[*follow.StatusError](t.err); ok && failed.Code == "url_not_allowed" {
		t.err = fmt.Errorf("%s allows no webhooks to this machine, which this type of events needs; use petstore dev, or set PETSTORE_WEBHOOK_ALLOW of the server", t.url)
	}
	if t.err == nil {
		t.webhook = "/webhooks/" + made.ID
	}
	return t.message(ctx)
}

// triedDelivery is the delivery of an event to a webhook.
type triedDelivery struct {
	ID, EventID, Status string
	Attempts            []object
}

// exhaust retries the delivery of a message at once until the message has failed. It looks at the
// message, because a failed delivery does not always decide about it. Until a new webhook has got the
// older messages that wait for one, it gets another delivery.
func (t *triggering) exhaust(ctx context.Context, message queued) {
	if t.err == nil {
		t.err = t.retryUntilFailed(ctx, message)
	}
}

func (t *triggering) retryUntilFailed(ctx context.Context, message queued) error {
	var asked time.Time // when the last retry was due
	for retried := 0; ; sleep.For(ctx, exhaustPause) {
		if err := t.do(ctx, "GET", "/messages/"+message.ID, nil, &message); err != nil || message.Status == "failed" {
			return err
		}
		// The newest delivery is of an older message, if the webhook has got that one later.
		var one triedDelivery
		err := t.eachElement(ctx, call{method: "GET", path: t.webhook + "/deliveries?limit=200"}, func(text json.RawMessage) error {
			if one.EventID > t.after {
				return nil
			}
			return json.Unmarshal(text, &one)
		})
		if err != nil {
			return err
		}
		// The server tries a webhook that fails with one delivery at a time, which may be an
		// older message. So a retry may come to nothing.
		if one.EventID > t.after && one.Status == "pending" && (len(one.Attempts) > retried || time.Since(asked) > askAgain) {
			retried, asked = len(one.Attempts), time.Now()
			if err := t.do(ctx, "POST", t.webhook+"/deliveries/"+one.ID+"/retry", nil, nil); err != nil {
				return err
			}
		}
	}
}

// clean deletes the webhook of the trigger.
func (t *triggering) clean(ctx context.Context) error {
	if t.webhook == "" {
		return nil
	}
	limited, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(cleanTimeout, cancel) })()
	err := t.do(limited, "DELETE", t.webhook, nil, nil)
	if failed, ok := errors.AsType[*follow.StatusError](err); ok && failed.Code == "webhook_not_found" {
		err = nil // the response to an earlier attempt was lost
	}
	if limited.Err() != nil {
		err = fmt.Errorf("%s has not deleted the webhook within %s", t.url, cleanTimeout)
	}
	if err != nil {
		return fmt.Errorf("%w; the webhook is left, so delete it with `petstore api DELETE %s`", err, t.webhook)
	}
	return nil
}
