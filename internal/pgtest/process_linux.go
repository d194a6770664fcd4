package pgtest

import (
	"fmt"
	"os"
	"strings"
)

// processInfo is what tells one process from another.
type processInfo struct{ name, start string }

// inspect looks at a process; false when it has ended, even if its parent has
// not asked for its end yet.
func inspect(pid int) (processInfo, bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return processInfo{}, false
	}
	// proc(5): pid (name) state ppid … starttime; the name may hold anything
	head, tail, found := cutLast(string(content), ") ")
	_, name, named := strings.Cut(head, "(")
	fields := strings.Fields(tail)
	const state, startTime = 0, 19
	if !found || !named || len(fields) <= startTime || fields[state] == "Z" || fields[state] == "X" {
		return processInfo{}, false
	}
	return processInfo{name: name, start: fields[startTime]}, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
