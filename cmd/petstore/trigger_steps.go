package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"petstore/internal/event"
	"petstore/internal/follow"
	"petstore/internal/sleep"
)

const (
	// exhaustPause is the pause between two looks at a delivery.
	exhaustPause = 100 * time.Millisecond
	// askAgain is the time after which a retry of a delivery without an attempt is due again.
	askAgain = time.Second
)

// object is a JSON object.
type object = map[string]any

// triggers have the requests that make an event of each type happen.
var triggers = map[event.Type]func(context.Context, *triggering) error{
	event.PetCreated: func(ctx context.Context, t *triggering) error { return errOf(t.pet(ctx)) },
	event.PetUpdated: func(ctx context.Context, t *triggering) error {
		pet, err := t.pet(ctx)
		return t.then(ctx, err, "PATCH", pet, object{"name": t.name()})
	},
	event.PetDeleted: func(ctx context.Context, t *triggering) error {
		pet, err := t.pet(ctx)
		return t.then(ctx, err, "DELETE", pet, nil)
	},
	event.CategoryCreated: func(ctx context.Context, t *triggering) error { return errOf(t.category(ctx)) },
	event.CategoryUpdated: func(ctx context.Context, t *triggering) error {
		category, err := t.category(ctx)
		return t.then(ctx, err, "PATCH", fmt.Sprintf("/categories/%d", category), object{"name": t.name()})
	},
	event.CategoryDeleted: func(ctx context.Context, t *triggering) error {
		category, err := t.category(ctx)
		return t.then(ctx, err, "DELETE", fmt.Sprintf("/categories/%d", category), nil)
	},
	event.InventoryUpdated: func(ctx context.Context, t *triggering) error { return errOf(t.stockedPet(ctx)) },
	event.OrderPlaced:      func(ctx context.Context, t *triggering) error { return errOf(t.order(ctx)) },
	event.OrderUpdated: func(ctx context.Context, t *triggering) error {
		order, err := t.order(ctx)
		return t.then(ctx, err, "PATCH", order, object{"shipDate": time.Now().UTC().AddDate(0, 0, 1).Format(time.RFC3339)})
	},
	event.OrderCompleted: func(ctx context.Context, t *triggering) error {
		order, err := t.order(ctx)
		return t.then(ctx, err, "PATCH", order, object{"complete": true})
	},
	event.OrderCancelled: func(ctx context.Context, t *triggering) error {
		order, err := t.order(ctx)
		return t.then(ctx, err, "DELETE", order, nil)
	},
	event.MessageQueued:    func(ctx context.Context, t *triggering) error { return t.message(ctx) },
	event.MessageDelivered: func(ctx context.Context, t *triggering) error { return t.messageTo(ctx, http.StatusNoContent) },
	event.MessageFailed: func(ctx context.Context, t *triggering) error {
		if err := t.messageTo(ctx, http.StatusInternalServerError); err != nil {
			return err
		}
		return t.exhaust(ctx)
	},
	event.WebhookDisabled: func(ctx context.Context, t *triggering) error { return t.messageTo(ctx, http.StatusGone) },
	event.StoreReset: func(ctx context.Context, t *triggering) error {
		return t.do(ctx, "POST", "/sandboxes/current/reset", nil, nil)
	},
}

func errOf[T any](_ T, err error) error { return err }

// triggering sends the requests of a trigger.
type triggering struct {
	*client

	webhook string // the path of the webhook that the trigger has created; "": none
}

// name returns a name that no resource has.
func (t *triggering) name() string { return "Trigger " + uuid.NewString()[:8] }

// then sends a request after one that has returned an error or nil.
func (t *triggering) then(ctx context.Context, err error, method, path string, body object) error {
	if err != nil {
		return err
	}
	if body == nil {
		return t.do(ctx, method, path, nil, nil)
	}
	return t.do(ctx, method, path, body, nil)
}

// create creates a resource in a collection and returns its id.
func (t *triggering) create(ctx context.Context, collection string, body object) (id int64, err error) {
	var made struct{ ID int64 }
	err = t.do(ctx, "POST", collection, body, &made)
	return made.ID, err
}

// category creates a category and returns its id.
func (t *triggering) category(ctx context.Context) (id int64, err error) {
	return t.create(ctx, "/categories", object{"name": t.name()})
}

// pet creates a pet in a new category and returns its path.
func (t *triggering) pet(ctx context.Context) (path string, err error) {
	category, err := t.category(ctx)
	if err != nil {
		return "", err
	}
	id, err := t.create(ctx, "/pets", object{"name": t.name(), "categoryId": category})
	return fmt.Sprintf("/pets/%d", id), err
}

// stockedPet creates a pet with two units and returns its id.
func (t *triggering) stockedPet(ctx context.Context) (id int64, err error) {
	path, err := t.pet(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(path, "/pets/%d", &id); err != nil {
		return 0, err
	}
	return id, t.do(ctx, "PUT", fmt.Sprintf("/store/inventory/%d", id), object{"quantity": 2}, nil)
}

// order places an order for a new pet and returns its path.
func (t *triggering) order(ctx context.Context) (path string, err error) {
	pet, err := t.stockedPet(ctx)
	if err != nil {
		return "", err
	}
	id, err := t.create(ctx, "/store/orders", object{"petId": pet, "quantity": 1})
	return fmt.Sprintf("/store/orders/%d", id), err
}

func (t *triggering) message(ctx context.Context) error {
	return t.do(ctx, "POST", "/messages", object{"message": t.name()}, nil)
}

// messageTo queues a message for a new webhook of this machine, which returns a status to
// every event until the trigger ends.
func (t *triggering) messageTo(ctx context.Context, status int) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	receiver := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }),
		ReadHeaderTimeout: readHeaderTimeout,
	}
	go func() { _ = receiver.Serve(listener) }() // ends with the process
	var made struct{ ID string }
	err = t.do(ctx, "POST", "/webhooks", object{"url": "http://" + listener.Addr().String(), "types": []string{"message.queued"}}, &made)
	if failed, ok := errors.AsType[*follow.StatusError](err); ok && failed.Code == "url_not_allowed" {
		return fmt.Errorf("%s allows no webhooks to this machine, which this type of events needs; use petstore dev, or set PETSTORE_WEBHOOK_ALLOW of the server", t.url)
	}
	if err != nil {
		return err
	}
	t.webhook = "/webhooks/" + made.ID
	return t.message(ctx)
}

// triedDelivery is the delivery of an event to a webhook.
type triedDelivery struct {
	ID, EventID, Status string
	Attempts            []object
}

// exhaust retries the delivery of a message at once until it has no attempts left.
func (t *triggering) exhaust(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, triggerPatience)
	defer cancel()
	err := t.retryUntilFailed(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the delivery of the message has attempts left after %s; is a worker running?", triggerPatience)
	}
	return err
}

func (t *triggering) retryUntilFailed(ctx context.Context) error {
	var asked time.Time // when the last retry was due
	for retried := 0; ; sleep.For(ctx, exhaustPause) {
		var deliveries []triedDelivery
		if err := t.do(ctx, "GET", t.webhook+"/deliveries", nil, &deliveries); err != nil {
			return err
		}
		if len(deliveries) > 0 {
			// The webhook may also get older messages that wait for one.
			one := slices.MaxFunc(deliveries, func(a, b triedDelivery) int { return strings.Compare(a.EventID, b.EventID) })
			if one.Status == "failed" {
				return nil
			}
			// The server tries a webhook that fails with one delivery at a time, which may be an
			// older message. So a retry may come to nothing.
			if len(one.Attempts) > retried || time.Since(asked) > askAgain {
				retried, asked = len(one.Attempts), time.Now()
				if err := t.do(ctx, "POST", t.webhook+"/deliveries/"+one.ID+"/retry", nil, nil); err != nil {
					return err
				}
			}
		}
	}
}

// clean deletes the webhook of the trigger.
func (t *triggering) clean(ctx context.Context) error {
	if t.webhook == "" {
		return nil
	}
	return t.do(context.WithoutCancel(ctx), "DELETE", t.webhook, nil, nil)
}
