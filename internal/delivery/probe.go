package delivery

import (
	"bytes"
	"context"
	"time"

	"petstore/internal/faults"
	"petstore/internal/standardwebhooks"
	"petstore/internal/webhook"
)

// probeAge is the age of the timestamp of a probe. Receivers should refuse more than 5 minutes.
const probeAge = time.Hour

// sent is the content of an attempt. Unless it is a probe, the signature is of the body.
type sent struct {
	body    []byte
	at      time.Time
	secrets []standardwebhooks.Secret
}

// probe returns what an attempt sends. A probe has a mistake that the receiver must find.
func (r *result) probe(to *target) sent {
	s := sent{r.body, r.at, to.secrets}
	switch r.eventType {
	case webhook.ProbeForged:
		s.secrets = []standardwebhooks.Secret{standardwebhooks.NewSecret()}
	case webhook.ProbeOld:
		s.at = r.at.Add(-probeAge)
	case webhook.ProbeChanged:
		s.body = bytes.Replace(r.body, []byte(`"data":{}`), []byte(`"data":{"changed":true}`), 1)
	}
	return s
}

// injectFault injects a fault into the first attempt of a delivery of a sandbox, if a rule applies.
// It reports whether the response is lost. If the event is not sent, it sets the problem.
func (d *drain) injectFault(ctx context.Context, r *result) (loses bool) {
	if d.payer == d.AccountID || r.attempts > 0 || r.isProbe() {
		return false
	}
	rule, err := d.faults.Choose(ctx, d.payer, d.AccountID, faults.DeliverWebhook)
	d.warn(ctx, "could not read the fault rules of a sandbox", err)
	if rule == nil {
		return false
	}
	if *rule.CloseWhen == faults.CloseBefore {
		r.problem = webhook.Unsent
		return false
	}
	return true
}
