package delivery

import (
	"bytes"
	"time"

	"petstore/internal/standardwebhooks"
	"petstore/internal/webhook"
)

// probeAge is the age of the timestamp of a probe. Receivers should refuse more than 5 minutes.
const probeAge = time.Hour

// content is the body, time and secrets of an attempt. Unless it is a probe, the signature is of the body.
type content struct {
	body    []byte
	at      time.Time
	secrets []standardwebhooks.Secret
}

// content returns what an attempt sends. A probe has a mistake that the receiver must find.
func (r *result) content(to *target) content {
	c := content{r.body, r.at, to.secrets}
	switch r.eventType {
	case webhook.ProbeForged:
		c.secrets = []standardwebhooks.Secret{standardwebhooks.NewSecret()}
	case webhook.ProbeOld:
		c.at = r.at.Add(-probeAge)
	case webhook.ProbeChanged:
		c.body = bytes.Replace(r.body, []byte(`"data":{}`), []byte(`"data":{"changed":true}`), 1)
	}
	return c
}
