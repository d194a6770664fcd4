package report_test

import (
	"testing"

	"petstore/internal/report"
)

func TestConditions(t *testing.T) {
	t.Parallel()
	var reads, changed, slow []Exchange
	for i := range 10 {
		reads = append(reads, x(float64(i), "GET /pets/1 200", etag(`"a"`)))
		changed = append(changed, x(float64(i), "GET /pets/1 200", etag(string(rune('a'+i)))))
		slow = append(slow, x(10*float64(i), "GET /pets/1 200", etag(`"a"`)))
	}
	acrossReset := about("condition_reads", "across a reset", NotSeen, reads...)
	acrossReset.record.Events = []Event{{At: at(5.5), Type: report.StoreReset}}
	read := x(0, "GET /store/inventory/1 200", etag(`"a"`))
	tagged := func(after float64, status string, tag string, changes ...change) Exchange {
		return x(after, "PUT /store/inventory/1 "+status, append([]change{ifMatch(tag)}, changes...)...)
	}
	put := func(after float64, tag string, changes ...change) Exchange {
		return x(after, "PUT /store/inventory/1 200", append([]change{etag(tag)}, changes...)...)
	}
	// Four copies of a program read the same tag. The first one to change the resource wins.
	copies := []Exchange{read, read, read, read, tagged(1, "200", `"a"`, etag(`"b"`))}
	for i := range 3 {
		copies = append(copies, tagged(1.02+0.02*float64(i), "412", `"a"`))
	}
	run(t, []test{
		about("condition_reads", "ten times", Warning, reads...),
		acrossReset,
		about("condition_reads", "of changes", NotSeen, changed...),
		about("condition_reads", "with pauses", NotSeen, slow...),
		about("condition_reads", "with the tag", Passed, reads[0], x(1, "GET /pets/1 304", etag(`"a"`), func(e *Exchange) { e.IfNoneMatch = `"a"` })),

		about("condition_updates", "with the tag", Passed, read, tagged(1, "200", `"a"`)),
		about("condition_updates", "without", Warning, read, x(1, "PUT /store/inventory/1 200")),
		about("condition_updates", "lost update", Failed, read, put(0.5, `"b"`, agent("other")), put(1, `"c"`)),
		about("condition_updates", "lost update of any version", Failed, read, put(0.5, `"b"`, agent("other")), put(1, `"c"`, ifMatch("*"))),
		about("condition_updates", "other update changed nothing", Warning, read, put(0.5, `"a"`, agent("other")), put(1, `"c"`)),
		about("condition_updates", "same update", Warning, read, put(0.5, `"b"`, agent("other")), put(1, `"b"`)),
		about("condition_updates", "other fields", Warning, x(0, "GET /pets/1 200", etag(`"a"`)), x(0.5, "PATCH /pets/1 200", etag(`"b"`), agent("other")), x(1, "PATCH /pets/1 200", etag(`"c"`))),
		about("condition_updates", "without a read", NotSeen, x(1, "PUT /store/inventory/1 200")),
		about("condition_updates", "read by another client", NotSeen, x(0, "GET /store/inventory/1 200", etag(`"a"`), agent("other")), x(1, "PUT /store/inventory/1 200")),
		about("condition_updates", "read long ago", NotSeen, read, x(60, "PUT /store/inventory/1 200")),

		about("condition_412", "reads", Passed, tagged(0, "412", `"a"`), x(1, "GET /store/inventory/1 200"), tagged(2, "200", `"b"`)),
		about("condition_412", "knows the new tag", Passed, tagged(0, "412", `"a"`), tagged(1, "200", `"b"`)),
		about("condition_412", "again", Failed, tagged(0, "412", `"a"`), tagged(1, "412", `"a"`), tagged(2, "412", `"a"`)),
		about("condition_412", "again by four parallel copies", Failed, with(copies, tagged(2, "412", `"a"`), tagged(3, "412", `"a"`))...),
		about("condition_412", "parallel copies", NotSeen, copies...),
		about("condition_412", "a copy whose first response was lost", NotSeen, with([]Exchange{read, read, tagged(0.1, "0", `"a"`)}, tagged(0.2, "412", `"a"`), tagged(0.3, "412", `"a"`))...),
		about("condition_412", "in progress", NotSeen, tagged(0, "412", `"a"`, took(1)), tagged(0.1, "412", `"a"`, took(1)), tagged(0.2, "412", `"a"`, took(1))),
		about("condition_412", "without the tag, once", Warning, tagged(0, "412", `"a"`), x(1, "PUT /store/inventory/1 200")),
		about("condition_412", "any version, once", Warning, tagged(0, "412", `"a"`), tagged(1, "200", "*")),
		about("condition_412", "deletes instead", NotSeen, x(0, "PATCH /pets/1 412", ifMatch(`"a"`)), x(1, "DELETE /pets/1 204")),
		about("condition_412", "gives up", NotSeen, tagged(0, "412", `"a"`)),
	})
}
