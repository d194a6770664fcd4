package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the times in /proc: USER_HZ, which is 100 on all current
// platforms.
const clockTick = 10 * time.Millisecond

// cpuOfTrees returns cpuOfTree of each process.
func cpuOfTrees(roots []int) ([]time.Duration, error) {
	times := make([]time.Duration, len(roots))
	for i, root := range roots {
		var err error
		if times[i], err = cpuOfTree(root); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// cpuOfTree returns the user and system time of a process and its children, including
// those that have ended.
func cpuOfTree(root int) (time.Duration, error) {
	total, err := cpuOf(root, true)
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", root))
	if err != nil {
		return 0, err
	}
	for field := range strings.FieldsSeq(string(children)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		took, err := cpuOf(child, false)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may have ended
			return 0, err
		}
		total += took
	}
	return total, nil
}

// cpuOf reads /proc/PID/stat (proc_pid_stat(5)): utime and stime, and with ended also
// cutime and cstime, the times of children that have ended.
func cpuOf(pid int, ended bool) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(text), ended)
}

func parseCPU(stat string, ended bool) (time.Duration, error) {
	const utime, stime, cstime = 11, 12, 14 // after the name, which may contain spaces
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	last := stime
	if ended {
		last = cstime
	}
	if len(fields) <= last {
		return 0, fmt.Errorf("/proc/PID/stat is %q", stat)
	}
	var ticks int64
	for _, field := range fields[utime : last+1] {
		number, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/PID/stat: %w", err)
		}
		ticks += number
	}
	return time.Duration(ticks) * clockTick, nil
}

// postmaster returns the process id of the server of a directory of localpg.
func postmaster(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(line)
}
