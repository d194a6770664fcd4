package report

import (
	"slices"
	"time"
)

const (
	// unconditional is the number of times that a client may read a resource again that has not
	// changed, without If-None-Match, within a minute.
	unconditional = 10
	// editTime is the longest time from a read to the change that it was for.
	editTime = 10 * time.Second
)

var conditionRules = []Rule{
	{
		ID: "condition_reads", Subject: "Conditions", Title: "Send If-None-Match to read a resource again", Guide: "concurrency#preconditions",
		situation: "a resource that was read ten times within a minute without a change, or a read with If-None-Match",
		mistake:   "the client read a resource ten times within a minute without If-None-Match, although it had not changed",
		judge: func(r *Record, f *finding) {
			type resource struct {
				client  *client
				episode int
				path    string
			}
			reads := map[resource][]*Exchange{} // unconditional ones of the same tag, within a minute
			for _, e := range r.all {
				if !e.isRead() || e.ETag == "" {
					continue
				}
				if e.IfNoneMatch != "" {
					f.pass()
					continue
				}
				at := resource{e.client, e.episode, e.Path + "?" + e.RawQuery}
				before := reads[at]
				for len(before) > 0 && (before[0].ETag != e.ETag || e.Began.Sub(before[0].Began) > time.Minute) {
					before = before[1:]
				}
				if reads[at] = append(before, e); len(reads[at]) == unconditional {
					f.warn(e.ID)
					delete(reads, at)
				}
			}
		},
	},
	{
		ID: "condition_updates", Subject: "Conditions", Title: "Send If-Match to change what you have read", Guide: "concurrency#preconditions",
		situation: "a resource that a client read and then changed",
		mistake:   "the client read a resource and then changed it without If-Match, so it may undo the change of another client",
		judge: func(r *Record, f *finding) {
			updates := map[string][]*Exchange{} // by path
			for _, e := range r.all {
				if !e.isUpdate() || !e.succeeded() {
					continue
				}
				before := updates[e.Path]
				updates[e.Path] = append(before, e)
				read := e.samePath(-1)
				switch {
				case read == nil || !read.isRead() || read.ETag == "" || e.Began.Sub(read.Ended) > editTime:
				case e.IfMatch != "":
					f.pass()
				case isChangedBetween(read, e, before):
					f.fail(e.ID)
				default:
					f.warn(e.ID)
				}
			}
		},
	},
	{
		ID: "condition_412", Subject: "Conditions", Title: "Read a resource again after 412", Guide: "concurrency#preconditions",
		situation: "another request for a resource after a 412",
		mistake:   "after a 412, the client sent the change again without reading the resource",
		judge: func(r *Record, f *finding) {
			for _, e := range r.all {
				if e.Status != 412 || e.IfMatch == "" {
					continue
				}
				next := e.samePath(1)
				switch {
				case next == nil || next.Began.Sub(e.Ended) > soon:
				case next.isRead() || next.IfMatch != "" && next.IfMatch != e.IfMatch:
					f.pass()
				case next.Method != e.Method: // another change, such as a deletion
				default:
					f.warn(next.ID)
				}
			}
			f.escalate(2) // one may be a test
		},
	},
}

// samePath returns the last request of the client for the same path before this one (-1), the next
// one (1), or nil.
func (e *Exchange) samePath(step int) *Exchange {
	const nearby = 50
	for i := 1; i <= nearby; i++ {
		other := e.at(i * step)
		if other == nil || other.episode != e.episode {
			return nil
		}
		if other.Path == e.Path {
			return other
		}
	}
	return nil
}

// isChangedBetween reports whether another client changed a resource after a read and before a write.
// The updates have changed the resource before the write.
func isChangedBetween(read, write *Exchange, updates []*Exchange) bool {
	for _, e := range slices.Backward(updates) {
		if !e.Began.After(read.Ended) {
			break
		}
		if e.client != write.client && e.Ended.Before(write.Began) {
			return true
		}
	}
	return false
}
