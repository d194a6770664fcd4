package webhook

import "strings"

// The types of deliveries that are probes: events that a receiver must refuse, and one that it
// gets twice. Their bodies are events of the type [TestType].
const (
	ProbeForged    = "probe.forged_signature"
	ProbeOld       = "probe.old_timestamp"
	ProbeChanged   = "probe.changed_body"
	ProbeDuplicate = "probe.duplicate"

	probePrefix = "probe."
)

// Probes lists the types of probes.
var Probes = []string{ProbeForged, ProbeOld, ProbeChanged, ProbeDuplicate}

// IsProbe reports whether a delivery is a probe.
func IsProbe(deliveryType string) bool { return strings.HasPrefix(deliveryType, probePrefix) }

// The errors of attempts that a fault rule has changed.
const (
	LostResponse = "A fault rule of the sandbox dropped the response."
	Unsent       = "A fault rule of the sandbox did not send the event."
)
