package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"petstore/internal/tools/must"
)

const (
	// quietLoad is the load average per CPU above which other programs disturb a
	// measurement.
	quietLoad = 0.25
	// quietSteal is the share of the CPU time above which other virtual machines on the same
	// host disturb a measurement.
	quietSteal = 0.03
)

// loadWarning returns a warning if other programs ran during the last minute, or "".
func loadWarning() string {
	text, err := os.ReadFile("/proc/loadavg")
	if errors.Is(err, os.ErrNotExist) {
		return "This system has no /proc/loadavg, so bench cannot check whether the machine is quiet."
	}
	must.OK(err)
	minute, _, _ := strings.Cut(string(text), " ")
	load := must.Get(strconv.ParseFloat(minute, 64)) / float64(runtime.NumCPU())
	if load > quietLoad {
		return fmt.Sprintf("The machine is not quiet: the load average is %.2f for each CPU. Stop other programs, wait a minute and run this again.", load)
	}
	return ""
}

// cpuTimes are totals of /proc/stat, in clock ticks.
type cpuTimes struct{ total, stolen int64 }

// readCPUTimes reads /proc/stat, which only Linux has.
func readCPUTimes() (t cpuTimes, known bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, false
	}
	return parseCPUTimes(string(text)), true
}

// parseCPUTimes reads the first line of /proc/stat (proc_stat(5)): user, nice, system,
// idle, iowait, irq, softirq, steal. It ignores the fields after them, because user already
// includes these.
func parseCPUTimes(stat string) (t cpuTimes) {
	const steal = 8
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	must.Hold(len(fields) > steal && fields[0] == "cpu", "/proc/stat begins with %q, not with the times of all CPUs", line)
	for _, field := range fields[1 : steal+1] {
		t.stolen = must.Get(strconv.ParseInt(field, 10, 64)) // the last one
		t.total += t.stolen
	}
	return t
}

// stolenSince returns the share of the CPU time since earlier in which the host ran something
// else.
func (t cpuTimes) stolenSince(earlier cpuTimes) float64 {
	return float64(t.stolen-earlier.stolen) / float64(max(1, t.total-earlier.total))
}

// stealWarning returns a warning if the host took too much CPU time, or "".
func stealWarning(stolen float64) string {
	if stolen > quietSteal {
		return fmt.Sprintf("The host ran other virtual machines in %.0f %% of the CPU time (steal). Do not trust differences; run this again.", 100*stolen)
	}
	return ""
}
