package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"petstore/internal/localpg"
)

const (
	benchAccount = "bench"
	// The comparison draws pages of this size from the lists. Clients read and order the
	// pets on them.
	pageSize, pagesDrawn = 50, 200
	// tolerated is the lowest ratio present/base of requests per second that does not count
	// as a loss.
	tolerated = 0.95
)

// build is one of the two compared builds. It has its own database, which it migrates and
// seeds itself. A build needs the commands migrate up, key create, seed and serve, the
// environment of petstoreEnv, and the paths in load.lua and in this file.
type build struct {
	name     string // base or present
	version  string // from git describe
	program  string
	database string
	server   *process
	load     *generator
	pages    string // a file with a path of GET /pets in each line
}

// compareBuilds compares the program of the working directory with that of another commit,
// and prints the ratios.
func compareBuilds(ctx context.Context, o options, out io.Writer) (err error) {
	base, err := runProgram(ctx, "git", "rev-parse", "--verify", "--quiet", o.base+"^{commit}")
	if err != nil {
		return fmt.Errorf("%q is not a commit; set BASE to a commit, tag or branch, such as HEAD~1", o.base)
	}
	warning, err := loadWarning()
	if err != nil {
		return err
	}
	if warning != "" {
		printWarnings(out, []string{warning})
	}
	dir, removeDir, err := makeDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeDir()) }()
	builds, err := compileBoth(ctx, dir, strings.TrimSpace(string(base)))
	if err != nil {
		return err
	}
	cluster, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	fmt.Fprintf(out, "%s, base %s, present %s, %d pets, %d rounds of %s\n", binaries, builds[0].version, builds[1].version, o.pets, o.rounds, o.duration)
	defer func() {
		for _, b := range builds {
			if b.server != nil {
				b.server.stop()
			}
		}
	}()
	for _, b := range builds {
		if err := b.prepare(ctx, cluster, dir, o); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	if err := compareRounds(ctx, builds, o, out); err != nil {
		return err
	}
	for _, b := range builds {
		hot, err := hotUpdates(ctx, b.database)
		if err != nil {
			return err
		}
		if hot.updates > 0 {
			l := hot.line()
			fmt.Fprintf(out, "%s, %s: %s of %s (target: %s)\n", l.name, b.name, l.ours, l.theirs, l.target)
		}
	}
	return nil
}

// compileBoth builds the program of the commit and that of the working directory, in this
// order.
func compileBoth(ctx context.Context, dir, commit string) (builds [2]*build, err error) {
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	if err := os.Mkdir(source, 0o700); err != nil {
		return builds, err
	}
	if _, err := runProgram(ctx, "git", "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return builds, err
	}
	if _, err := runProgram(ctx, "tar", "-xf", archive, "-C", source); err != nil {
		return builds, err
	}
	for i, b := range []*build{{name: "base"}, {name: "present"}} {
		b.program = filepath.Join(dir, "petstore-"+b.name)
		from, describe := ".", []string{"describe", "--always", "--dirty"}
		if b.name == "base" {
			from, describe = source, []string{"describe", "--always", commit}
		}
		version, err := runProgram(ctx, "git", describe...)
		if err != nil {
			return builds, err
		}
		b.version = strings.TrimSpace(string(version))
		if _, err := runProgram(ctx, "go", "build", "-C", from, "-buildvcs=false", "-o", b.program, "./cmd/petstore"); err != nil {
			return builds, fmt.Errorf("building %s: %w", b.name, err)
		}
		builds[i] = b
	}
	return builds, nil
}

// prepare creates and fills a database with the commands of the build, and starts its
// server.
func (b *build) prepare(ctx context.Context, cluster *localpg.Cluster, dir string, o options) error {
	if err := cluster.EnsureDatabase(ctx, b.name); err != nil {
		return err
	}
	b.database = cluster.URL(b.name)
	if _, err := b.run(ctx, "migrate", "up"); err != nil {
		return err
	}
	var keys []string
	for range apiKeys {
		key, err := b.run(ctx, "key", "create", "--account", benchAccount, "--scope", "write")
		if err != nil {
			return err
		}
		keys = append(keys, strings.TrimSpace(key))
	}
	if err := b.seed(ctx, o.pets); err != nil {
		return err
	}
	if err := vacuum(ctx, b.database); err != nil {
		return err
	}
	var err error
	if b.server, _, err = startPetstore(ctx, b.program, b.program+".log", b.database); err != nil {
		return err
	}
	if err := b.prepareLoad(ctx, dir, keys, o.duration); err != nil {
		return err
	}
	b.server.stop()
	if err := resetUpdateCounts(ctx, b.database); err != nil {
		return err
	}
	b.server, _, err = startPetstore(ctx, b.program, b.program+".log", b.database)
	return err
}

// run runs a command of the build and returns its standard output.
func (b *build) run(ctx context.Context, args ...string) (string, error) {
	out, err := runProgramEnv(ctx, append(os.Environ(), "DATABASE_URL="+b.database), b.program, args...)
	return string(out), err
}

// seed fills the store of the account. Builds without a store per account have no --account
// flag.
func (b *build) seed(ctx context.Context, pets int) error {
	number := strconv.Itoa(pets)
	if _, withAccount := b.run(ctx, "seed", "--pets", number, "--account", benchAccount); withAccount != nil {
		if _, err := b.run(ctx, "seed", "--pets", number); err != nil {
			return errors.Join(withAccount, err)
		}
	}
	return nil
}

// prepareLoad reads ids and pages of available pets over HTTP, since the ids of a build are
// unknown, and fills their stock.
func (b *build) prepareLoad(ctx context.Context, dir string, keys []string, duration time.Duration) error {
	var ids, paths []string
	category := int64(0)
	path := fmt.Sprintf("/pets?limit=%d&status=available", pageSize)
	for path != "" && len(paths) < pagesDrawn {
		var pets []struct{ ID, CategoryID int64 }
		next, err := getPage(ctx, b.server.url, path, keys[0], &pets)
		if err != nil {
			return err
		}
		for _, pet := range pets {
			ids, category = append(ids, strconv.FormatInt(pet.ID, 10)), pet.CategoryID
		}
		paths, path = append(paths, path), next
	}
	if len(ids) == 0 {
		return errors.New("the sample data has no available pet")
	}
	if err := b.fillStock(ctx, keys, ids); err != nil {
		return err
	}
	hot, err := strconv.ParseInt(ids[0], 10, 64)
	if err != nil {
		return err
	}
	if b.load, err = newGenerator(dir, keys, 0, hot, duration); err != nil {
		return err
	}
	b.load.category = category
	b.load.ids, b.pages = filepath.Join(dir, b.name+"-ids"), filepath.Join(dir, b.name+"-pages")
	return errors.Join(
		os.WriteFile(b.load.ids, []byte(strings.Join(ids, "\n")+"\n"), 0o600),
		os.WriteFile(b.pages, []byte(strings.Join(paths, "\n")+"\n"), 0o600),
	)
}

// fillStock sets the stock of the pets so high that every order succeeds, with one client
// per key.
func (b *build) fillStock(ctx context.Context, keys, ids []string) error {
	failures := make([]error, len(keys))
	var group sync.WaitGroup
	for i, key := range keys {
		group.Go(func() {
			for next := i; next < len(ids) && failures[i] == nil; next += len(keys) {
				failures[i] = putStock(ctx, b.server.url+"/store/inventory/"+ids[next], key)
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}

func putStock(ctx context.Context, target, key string) error {
	body := fmt.Sprintf(`{"quantity": %d}`, unitsInStock)
	response, err := send(ctx, http.MethodPut, target, key, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // to reuse the connection
	return err
}

// getPage reads a page of a list and returns the path of the next page, or "".
func getPage(ctx context.Context, baseURL, path, key string, page any) (next string, err error) {
	response, err := send(ctx, http.MethodGet, baseURL+path, key, "")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	err = json.NewDecoder(response.Body).Decode(page)
	_, _ = io.Copy(io.Discard, response.Body) // to reuse the connection
	if err != nil {
		return "", fmt.Errorf("GET %s: %w", path, err)
	}
	return nextPage(response.Header.Get("Link"))
}

// nextPage returns the path of the link rel="next", which may be a URL or relative to the
// host.
func nextPage(header string) (string, error) {
	for link := range strings.SplitSeq(header, ",") {
		target, found := strings.CutSuffix(strings.TrimSpace(link), `>; rel="next"`)
		if !found {
			continue
		}
		u, err := url.Parse(strings.TrimPrefix(target, "<"))
		if err != nil {
			return "", err
		}
		return u.RequestURI(), nil
	}
	return "", nil
}

// send sends a request. A response that is not a success is an error.
func send(ctx context.Context, method, target, key, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500)) // only for the message
		response.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, target, response.Status, text)
	}
	return response, nil
}

// comparison is one workload and its measurements, one for each round.
type comparison struct {
	name     string
	load     func(*build) load
	measured pair // base, present
}

func comparisons(only string) []*comparison {
	const many = 64
	simple := func(kind string) func(*build) load {
		return func(*build) load { return load{kind: kind, connections: many} }
	}
	all := []*comparison{
		{name: "GET /pets/{petId}", load: simple("pet")},
		{name: "GET /pets?limit=50, one page", load: func(*build) load { return load{kind: "path", path: "/pets?limit=50", connections: many} }},
		{name: "GET /pets?limit=50, different pages", load: func(b *build) load { return load{kind: "path", path: "@" + b.pages, connections: many} }},
		{name: "POST /store/orders", load: simple("order")},
		{name: "POST /store/orders, Idempotency-Key", load: simple("keyed")},
		{name: "POST, one pet (flash sale)", load: simple("sale")},
		{name: "POST /pets", load: simple("create")},
	}
	return slices.DeleteFunc(all, func(c *comparison) bool { return !strings.Contains(c.name, only) })
}

// compareRounds measures every workload with both builds, round after round. Both builds
// are measured in direct succession, and take turns to go first.
func compareRounds(ctx context.Context, builds [2]*build, o options, out io.Writer) error {
	workloads := comparisons(o.only)
	if len(workloads) == 0 {
		return fmt.Errorf("no request has a name that contains %q; run without -only to see the names", o.only)
	}
	disturbed, err := watchDisturbance()
	if err != nil {
		return err
	}
	for round := range o.rounds {
		if err := disturbed.during(ctx, func() error { return measureBuilds(ctx, builds, workloads, round) }); err != nil {
			return err
		}
	}
	printComparisons(out, workloads)
	for _, b := range builds {
		memory, err := b.server.memory()
		if errors.Is(err, os.ErrNotExist) {
			break // not Linux
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "memory of %s after all rounds: %d MB\n", b.name, memory>>20)
	}
	printWarnings(out, disturbed.warnings())
	return nil
}

// measureBuilds adds a round to the workloads.
func measureBuilds(ctx context.Context, builds [2]*build, workloads []*comparison, round int) error {
	for _, c := range workloads {
		for i := range builds {
			side := (round + i) % len(builds)
			m, err := builds[side].load.wrk(ctx, builds[side].server.url, c.load(builds[side]))
			if err != nil {
				return fmt.Errorf("%s, %s: %w", builds[side].name, c.name, err)
			}
			c.measured[side] = append(c.measured[side], m)
		}
	}
	return nil
}

// verdict says whether the present build is slower than the base. A question mark means
// that the rounds disagree.
func (c *comparison) verdict() string {
	median, least, greatest := c.measured.ratios(rate)
	switch {
	case greatest < tolerated:
		return "SLOWER"
	case median < tolerated:
		return "slower?"
	case least < tolerated:
		return "ok?"
	default:
		return "ok"
	}
}

func printComparisons(out io.Writer, workloads []*comparison) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(table, "request, 64 connections\tbase/s\tpresent/s\tratio\tof the rounds\tbase p99 ms\tpresent p99 ms\tratio\tof the rounds\t\t")
	for _, c := range workloads {
		r, least, greatest := c.measured.ratios(rate)
		p, shortest, longest := c.measured.ratios(p99Milliseconds)
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.2f\t%.2f to %.2f\t%.1f\t%.1f\t%.2f\t%.2f to %.2f\t%s\t\n", c.name,
			medianOf(c.measured[0], rate), medianOf(c.measured[1], rate), r, least, greatest,
			medianOf(c.measured[0], p99Milliseconds), medianOf(c.measured[1], p99Milliseconds), p, shortest, longest, c.verdict())
	}
	_ = table.Flush() // writes to standard output
}
