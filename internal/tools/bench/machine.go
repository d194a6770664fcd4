package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// machine names the CPUs, the kernel and the version of Go.
func machine() string {
	model, kernel := runtime.GOARCH, runtime.GOOS
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if name := cpuModel(string(text)); name != "" {
			model = name
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = "Linux " + strings.TrimSpace(string(release))
	}
	return fmt.Sprintf("%d CPUs (%s), %s, %s", runtime.NumCPU(), model, kernel, runtime.Version())
}

// cpuModel returns the first model in /proc/cpuinfo, or "".
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
