package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// quietLoad is the load average per CPU above which other programs disturb a
	// measurement.
	quietLoad = 0.25
	// quietSteal is the share of the CPU time above which other virtual machines on the same
	// host disturb a measurement.
	quietSteal = 0.03
	// quietShare is the share above which other programs do. The idle servers of the
	// comparison use up to 0.03.
	quietShare = 0.06
	// quietSample is how long sample measures the machine, which should be idle.
	quietSample = time.Second
)

// cpuTimes are the totals in the first line of /proc/stat, in clock ticks.
type cpuTimes struct{ total, idle, stolen int64 }

// readCPUTimes reads /proc/stat, which only Linux has.
func readCPUTimes() (cpuTimes, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, err
	}
	return parseCPUTimes(string(text))
}

// parseCPUTimes reads the first line of /proc/stat (proc_stat(5)): user, nice, system,
// idle, iowait, irq, softirq, steal. It ignores the fields after them, because user already
// includes these.
func parseCPUTimes(stat string) (t cpuTimes, err error) {
	const idle, iowait, steal = 3, 4, 7
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < steal+2 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q, not with the times of all CPUs", line)
	}
	for i, field := range fields[1 : steal+2] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat: %w", err)
		}
		t.total += ticks
		switch i {
		case idle, iowait:
			t.idle += ticks
		case steal:
			t.stolen = ticks
		}
	}
	return t, nil
}

// since returns two shares of the CPU time since earlier: the time that the machine was
// busy, including stolen time, and the time that its host ran something else.
func (t cpuTimes) since(earlier cpuTimes) (busy, stolen float64) {
	total := t.total - earlier.total
	if total <= 0 {
		return 0, 0
	}
	return 1 - float64(t.idle-earlier.idle)/float64(total), float64(t.stolen-earlier.stolen) / float64(total)
}

// loadAverage returns the load average of the last minute per CPU.
func loadAverage() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	minute, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(minute, 64)
	return load / float64(runtime.NumCPU()), err
}

// loadWarning returns a warning if other programs ran during the last minute, or "".
func loadWarning() (string, error) {
	load, err := loadAverage()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "This system has no /proc/loadavg, so bench cannot check whether the machine is quiet.", nil
	case err == nil && load > quietLoad:
		return fmt.Sprintf("The machine is not quiet: the load average is %.2f for each CPU. Stop other programs, wait a minute and run this again.", load), nil
	}
	return "", err
}

// disturbance records how much other programs and virtual machines disturb a comparison. On
// a system without /proc/stat it is nil and records nothing.
type disturbance struct {
	others []float64 // the busy share before and after each round, without load of our own
	stolen []float64 // the share that the host took during each round
}

func watchDisturbance() (*disturbance, error) {
	if _, err := readCPUTimes(); errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing to record without /proc/stat
	} else if err != nil {
		return nil, err
	}
	return &disturbance{}, nil
}

// during runs a round and records what disturbs it.
func (d *disturbance) during(ctx context.Context, round func() error) error {
	if d == nil {
		return round()
	}
	before, err := d.sample(ctx)
	if err != nil {
		return err
	}
	if err := round(); err != nil {
		return err
	}
	after, err := d.sample(ctx)
	_, stolen := after.since(before)
	d.stolen = append(d.stolen, stolen)
	return err
}

// sample records how busy the machine is while it should be idle. It returns the times at
// the end.
func (d *disturbance) sample(ctx context.Context) (now cpuTimes, err error) {
	before, err := readCPUTimes()
	if err != nil {
		return now, err
	}
	select {
	case <-ctx.Done():
		return now, ctx.Err()
	case <-time.After(quietSample):
	}
	now, err = readCPUTimes()
	busy, _ := now.since(before)
	d.others = append(d.others, busy)
	return now, err
}

// warnings returns a warning for each kind of disturbance.
func (d *disturbance) warnings() (all []string) {
	if d == nil || len(d.stolen) == 0 {
		return nil
	}
	if most := slices.Max(d.stolen); most > quietSteal {
		all = append(all, fmt.Sprintf("The host ran other virtual machines in %.0f %% of the CPU time of a round (steal). Do not trust differences; run this again.", 100*most))
	}
	if most := slices.Max(d.others); most > quietShare {
		all = append(all, fmt.Sprintf("Other programs used up to %.0f %% of the CPU time between rounds. Stop them and run this again.", 100*most))
	}
	return all
}

// printWarnings prints warnings, one per line.
func printWarnings(out io.Writer, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(out, "WARNING:", warning)
	}
}
