package webhook

import (
	"encoding/hex"
	"regexp"
	"time"

	"github.com/google/uuid"

	"petstore/internal/event"
)

// OfTrigger describes webhooks whose receiver is petstore trigger, and not a client that a report judges.
const OfTrigger = "petstore trigger"

// TestType is the type of an event that tests a webhook.
const TestType = "webhook.test"

// The prefixes of ids. A UUIDv7 (RFC 9562) in hexadecimal follows, so that ids sort by time.
const (
	idPrefix         = "wh_"
	deliveryIDPrefix = "dlv_"
)

var (
	idPattern         = regexp.MustCompile(`^wh_[0-9a-f]{32}$`)
	deliveryIDPattern = regexp.MustCompile(`^dlv_[0-9a-f]{32}$`)
)

// NewID returns the id of a new webhook.
func NewID() string { return newID(idPrefix) }

// NewDeliveryID returns the id of a new delivery.
func NewDeliveryID() string { return newID(deliveryIDPrefix) }

// NewTestID returns the id of a new webhook.test event, which is in no feed. It is not the id
// of another event: a UUIDv7 begins with a time that is above the number of any account.
func NewTestID() string { return newID(event.IDPrefix) }

func newID(prefix string) string {
	id := uuid.Must(uuid.NewV7()) // reading random bytes never fails
	return prefix + hex.EncodeToString(id[:])
}

// IsID reports whether text has the form of the id of a webhook.
func IsID(text string) bool { return idPattern.MatchString(text) }

// IsDeliveryID reports whether text has the form of the id of a delivery.
func IsDeliveryID(text string) bool { return deliveryIDPattern.MatchString(text) }

// FirstDeliveryID returns an id that divides deliveries by a time in milliseconds. The ids
// of earlier deliveries are less, and the ids of all others are not.
func FirstDeliveryID(at time.Time) string {
	var id [16]byte
	milliseconds := uint64(max(at.UnixMilli(), 0))
	for i := range 6 {
		id[i] = byte(milliseconds >> (40 - 8*i)) //nolint:gosec // a byte of the number
	}
	return deliveryIDPrefix + hex.EncodeToString(id[:])
}
