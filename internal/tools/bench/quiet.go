package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"petstore/internal/tools/must"
)

// loadWarning returns a warning if other programs ran during the last minute.
func loadWarning() (warnings []string) {
	const quiet = 0.25 // for each CPU
	minute, _, _ := strings.Cut(readProc("loadavg"), " ")
	load := must.Get(strconv.ParseFloat(minute, 64)) / float64(runtime.NumCPU())
	if load > quiet {
		warnings = append(warnings, fmt.Sprintf("The machine is not quiet: the load average is %.2f for each CPU. Stop other programs, wait a minute and run this again.", load))
	}
	return warnings
}

// stealWarning returns a warning if the host took too much CPU time between two versions of
// /proc/stat.
func stealWarning(before, after string) (warnings []string) {
	const quiet = 0.03
	total, stolen := cpuTimes(after)
	totalBefore, stolenBefore := cpuTimes(before)
	if share := (stolen - stolenBefore) / max(1, total-totalBefore); share > quiet {
		warnings = append(warnings, fmt.Sprintf("The host ran other virtual machines in %.0f %% of the CPU time (steal). Do not trust differences; run this again.", 100*share))
	}
	return warnings
}

// cpuTimes reads the first line of /proc/stat (proc_stat(5)): user, nice, system, idle, iowait,
// irq, softirq, steal. It ignores the fields after them, because user already includes these.
func cpuTimes(stat string) (total, stolen float64) {
	const steal = 8
	fields := strings.Fields(stat)
	must.Hold(len(fields) > steal && fields[0] == "cpu", "/proc/stat is %.100q", stat)
	for _, field := range fields[1 : steal+1] {
		stolen = must.Get(strconv.ParseFloat(field, 64)) // the last one
		total += stolen
	}
	return total, stolen
}

func readProc(name string) string { return string(must.Get(os.ReadFile("/proc/" + name))) }
