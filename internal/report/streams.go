package report

import (
	"slices"
	"sort"
	"time"
)

var streamRules = []Rule{
	{
		ID: "stream_resumes", Subject: "Streams", Title: "Resume a stream with Last-Event-ID", Guide: "events#stream",
		situation: "a new stream after one that broke",
		mistake:   "the client opened a new stream without Last-Event-ID, so it misses events or gets them again",
		judge: func(r *Record, f *finding) {
			streams, resuming := r.streams(func(*Exchange) bool { return true }), r.streams((*Exchange).resumes)
			for _, e := range r.all {
				if !e.broke() {
					continue
				}
				first := streams.next(e)
				switch {
				case first == nil:
				case resuming.next(e) != nil: // the first may be of another part of the client
					f.pass()
				case first.after == "latest":
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
			for _, same := range r.streams(func(*Exchange) bool { return true }) {
				parts := slices.Max(countInProgress(same)) + 1 // of the client, which each have a stream
				waiting := slices.DeleteFunc(slices.Clone(same), func(e *Exchange) bool {
					return e.isFinal() || !e.broke() && e.Status < 400 && e.Status != 0
				})
				slices.SortStableFunc(waiting, func(a, b *Exchange) int { return a.Ended.Compare(b.Ended) })
				for i, next := range same {
					for len(waiting) > 0 && pause(waiting[0], next) > soon {
						waiting = waiting[1:]
					}
					switch {
					case len(waiting) == 0 || !waiting[0].Ended.Before(next.Began):
						continue
					case pause(waiting[0], next) >= atOnce:
						f.pass()
					case i < parts: // it may be the first stream of a part
						continue
					default:
						f.warn(next.ID)
					}
					waiting = waiting[1:]
				}
			}
			f.escalate(3) // an HTTP library may have done it once
		},
	},
}

// broke reports whether the server ended a stream that had sent events. Nobody knows why a stream
// ended without a fault: the client may have had enough.
func (e *Exchange) broke() bool { return e.streams && e.Fault == "close" && e.HasEvents }

// resumes reports whether a stream begins after an event that the client names.
func (e *Exchange) resumes() bool {
	return e.LastEventID != "" || e.after != "" && e.after != "latest"
}

// streams has streams of events by their types, in the order of their starts.
type streams map[place][]*Exchange

// streams returns the streams of events for which a function reports true.
func (r *Record) streams(which func(*Exchange) bool) streams {
	all := streams{}
	for _, e := range r.all {
		if e.streams && which(e) {
			all[e.place(e.types)] = append(all[e.place(e.types)], e)
		}
	}
	return all
}

// next returns the first stream that may continue another one, or nil.
func (s streams) next(e *Exchange) *Exchange {
	same := s[e.place(e.types)]
	i := sort.Search(len(same), func(i int) bool { return same[i].index > e.index && !same[i].Began.Before(e.Ended) })
	if i == len(same) || same[i].Began.Sub(e.Ended) > soon {
		return nil
	}
	return same[i]
}
