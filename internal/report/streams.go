package report

import (
	"strings"
	"time"
)

var streamRules = []Rule{
	{
		ID: "stream_resumes", Subject: "Streams", Title: "Resume a stream with Last-Event-ID", Guide: "events#stream",
		situation: "a new stream after one that broke",
		mistake:   "the client opened a new stream without Last-Event-ID, so it misses events or gets them again",
		judge: func(r *Record, f *finding) {
			for _, e := range r.all {
				if !e.broke() {
					continue
				}
				first := r.nextStream(e, e)
				resumed := first
				for resumed != nil && !resumed.resumes() { // it may be of another part of the client
					resumed = r.nextStream(e, resumed)
				}
				switch {
				case first == nil:
				case resumed != nil:
					f.pass()
				case first.query().Get("after") == "latest":
					f.fail(first.ID)
				default: // it begins with the oldest event, so it misses none
					f.warn(first.ID)
				}
			}
		},
	},
	{
		ID: "stream_waits", Subject: "Streams", Title: "Wait before you connect a stream again", Guide: "events#stream",
		situation: "a new stream after one that broke or was refused",
		mistake:   "the client connected a stream again within 200 milliseconds",
		judge: func(r *Record, f *finding) {
			const atOnce = 200 * time.Millisecond
			for _, e := range r.all {
				if !e.streams() || e.Operation != "listEvents" || e.isFinal() || !e.broke() && (e.Status < 400 && e.Status != 0) {
					continue
				}
				switch next := r.nextStream(e, e); {
				case next == nil:
				case pause(e, next) < atOnce:
					f.warn(next.ID)
				default:
					f.pass()
				}
			}
			f.escalate(3) // an HTTP library may have done it once
		},
	},
}

// broke reports whether the server ended a stream that had sent events. Nobody knows why a stream
// ended without a fault: the client may have had enough.
func (e *Exchange) broke() bool {
	return e.streams() && e.Operation == "listEvents" && e.Fault == "close" && e.HasEvents
}

// resumes reports whether a stream begins after an event that the client names.
func (e *Exchange) resumes() bool {
	after := e.query().Get("after")
	return e.LastEventID != "" || after != "" && after != "latest"
}

// nextStream returns the first stream of the client after a request that may continue a stream e, or nil.
func (r *Record) nextStream(e, request *Exchange) *Exchange {
	for next := r.next(request); next != nil && next.Began.Sub(e.Ended) <= soon; next = r.next(next) {
		if next.streams() && next.Operation == e.Operation && !next.Began.Before(e.Ended) && next.episode == e.episode &&
			sameTypes(next, e) {
			return next
		}
	}
	return nil
}

// sameTypes reports whether two streams are for the same events.
func sameTypes(a, b *Exchange) bool {
	return strings.Join(a.query()["type"], ",") == strings.Join(b.query()["type"], ",")
}
