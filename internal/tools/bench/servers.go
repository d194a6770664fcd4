package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// petstoreEnv turns everything on, with limits that are never reached. Webhooks may have URLs
// on this machine.
var petstoreEnv = []string{
	"PETSTORE_RATE_LIMIT=1000000", "PETSTORE_RATE_BURST=1000000", "PETSTORE_AUTH_FAILURE_LIMIT=1000000",
	"PETSTORE_LOG_LEVEL=info", "PETSTORE_LOG_FORMAT=json", "PETSTORE_ADMIN_ADDR=127.0.0.1:0", "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8",
}

// process is a running server.
type process struct {
	*run.Process

	url string
}

// start starts a program with more environment variables and a log file.
func start(ctx context.Context, env []string, program string, args ...string) *process {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	return &process{Process: run.Start(cmd, program+".log")}
}

// awaitReady waits until GET path succeeds, and returns how long that took.
func (p *process) awaitReady(ctx context.Context, addr, path string) time.Duration {
	p.url = "http://" + addr
	return must.Await(ctx, 30*time.Second, func() { send(ctx, http.MethodGet, p.url+path, "") })
}

// stop sends SIGTERM and waits for the process, if it runs.
func (p *process) stop(ctx context.Context) {
	if p != nil && !p.HasEnded() {
		p.Terminate(context.WithoutCancel(ctx))
	}
}

// constant is a handler that returns constant bytes.
func constant(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"id":123456,"name":"Bella the Brave","categoryId":3,"status":"available"}`) // the client may be gone
}

// client keeps its connections, which the CPU time of requests does not include.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// send sends a request with headers, and returns the header and the body of the response. It fails
// unless that is a success.
func send(ctx context.Context, method, target, body string, header ...string) (http.Header, []byte) {
	request := must.Get(http.NewRequestWithContext(ctx, method, target, strings.NewReader(body)))
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(header, 2) {
		request.Header.Set(pair[0], pair[1])
	}
	response, err := client.Do(request)
	must.OK(err)
	defer response.Body.Close()
	text := must.Get(io.ReadAll(response.Body))
	must.Hold(response.StatusCode < http.StatusMultipleChoices, "%s %s: %s: %.500s", method, target, response.Status, text)
	return response.Header, text
}

// withCPU adds the CPU times of processes, each with its children, to a measurement.
func withCPU(pids []int, measure func() measurement) measurement {
	before := make([]time.Duration, len(pids))
	for i, pid := range pids {
		before[i] = cpuOfTree(pid)
	}
	m := measure()
	for i, pid := range pids {
		m.cpu = append(m.cpu, float64((cpuOfTree(pid)-before[i]).Microseconds())/float64(m.requests))
	}
	return m
}

// cpuOfTree returns the user and system time of a process and its children, including
// those that have ended.
func cpuOfTree(root int) time.Duration {
	total := parseCPU(readProc(fmt.Sprintf("%d/stat", root)))
	for child := range strings.FieldsSeq(readProc(fmt.Sprintf("%d/task/%[1]d/children", root))) {
		if stat, err := os.ReadFile("/proc/" + child + "/stat"); err == nil { // it may have ended
			total += parseCPU(string(stat))
		}
	}
	return total
}

// parseCPU reads /proc/PID/stat (proc_pid_stat(5)): the times of the process, utime and stime,
// and the times of its children that have ended, cutime and cstime.
func parseCPU(stat string) time.Duration {
	const utime, cstime = 11, 14       // after the name, which may contain spaces
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all current platforms
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	must.Hold(len(fields) > cstime, "/proc/PID/stat is %q", stat)
	var ticks int64
	for _, field := range fields[utime : cstime+1] {
		ticks += must.Get(strconv.ParseInt(field, 10, 64))
	}
	return time.Duration(ticks) * tick
}

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
