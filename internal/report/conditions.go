package report

import (
	"net/http"
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
			reads := map[place][]*Exchange{} // unconditional ones of the same tag, within a minute
			for _, e := range r.all {
				if !e.isRead() || e.ETag == "" {
					continue
				}
				if e.IfNoneMatch != "" {
					f.pass()
					continue
				}
				at := e.place(e.RawQuery)
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
		mistake:   "the client read a resource and then changed it without a tag in If-Match, so it may undo the change of another client",
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
				case e.versioned():
					f.pass()
				case undoes(e, read, before):
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
			got, sent := map[place]int{}, map[place]int{} // by tag
			for _, e := range r.all {
				if e.ETag != "" {
					got[e.place(e.ETag)]++
				}
				if e.IfMatch != "" && (e.succeeded() || e.Status == 412) {
					sent[e.place(e.IfMatch)]++
				}
			}
			for _, e := range r.all {
				if e.Status != 412 || e.IfMatch == "" {
					continue
				}
				next, same := e.samePath(1), e.place(e.IfMatch)
				switch {
				case next == nil || next.Began.Before(e.Ended) || next.Began.Sub(e.Ended) > soon:
				case next.isRead() || next.versioned() && next.IfMatch != e.IfMatch:
					f.pass()
				case next.Method != e.Method: // another change, such as a deletion
				case next.versioned() && sent[same] <= max(got[same], 1): // several parts of the client may have read it
				default:
					f.warn(next.ID)
				}
			}
			f.escalate(2) // one may be a test
		},
	},
}

// versioned reports whether a request applies only to one version of a resource.
func (e *Exchange) versioned() bool { return e.IfMatch != "" && e.IfMatch != "*" }

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

// undoes reports whether a write replaces what another client has written since a read. The updates are
// those before the write. A PATCH keeps the fields that it does not have, which may be all changed ones.
func undoes(write, read *Exchange, updates []*Exchange) bool {
	if write.Method != http.MethodPut {
		return false
	}
	for _, e := range slices.Backward(updates) {
		if !e.Began.After(read.Ended) {
			break
		}
		if e.client != write.client && e.Ended.Before(write.Began) {
			return e.ETag != read.ETag && e.ETag != write.ETag
		}
	}
	return false
}
