//go:build !linux

package pgtest

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// processInfo is what tells one process from another.
type processInfo struct{ name, start string }

// inspect looks at a process; false when it has ended, even if its parent has
// not asked for its end yet.
func inspect(pid int) (processInfo, bool) {
	cmd := exec.Command("ps", "-o", "stat=,lstart=,comm=", "-p", strconv.Itoa(pid))
	cmd.Env = []string{"LC_ALL=C"}
	output, err := cmd.Output()
	if err != nil {
		return processInfo{}, false
	}
	// S+ Sat Nov 21 10:34:04 2026 /usr/local/go/bin/go
	fields := strings.Fields(string(output))
	const state, startTime, command = 0, 1, 6
	if len(fields) <= command || strings.HasPrefix(fields[state], "Z") {
		return processInfo{}, false
	}
	start := strings.NewReplacer("-", "", ":", "").Replace(strings.Join(fields[startTime:command], ""))
	return processInfo{name: filepath.Base(strings.Join(fields[command:], " ")), start: start}, true
}
