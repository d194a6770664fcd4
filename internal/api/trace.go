package api

import (
	"regexp"
	"strings"
)

// traceParentPattern is a traceparent field: version, trace id, parent id, flags
// and, after version 00, whatever may follow.
var traceParentPattern = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)

// traceID gives the id of the trace that a request belongs to, by its
// traceparent fields (W3C Trace Context, 3.2); empty where they name none.
func traceID(fields []string) string {
	if len(fields) != 1 {
		return ""
	}
	parts := traceParentPattern.FindStringSubmatch(fields[0])
	if parts == nil {
		return ""
	}
	version, trace, parent, more := parts[1], parts[2], parts[3], parts[4]
	if version == "ff" || (version == "00" && more != "") || strings.Trim(trace, "0") == "" || strings.Trim(parent, "0") == "" {
		return ""
	}
	return trace
}
