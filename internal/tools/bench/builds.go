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
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
)

const (
	benchAccount = "bench"
	// The comparison draws pages of this size from the lists. Clients read and order the
	// pets on them.
	pageSize, pagesDrawn = 50, 200
	// deliveriesPerSecond is how many deliveries a measurement has for each second of its
	// duration. They may take longer.
	deliveriesPerSecond = 2000
	// differentPages stands for the file with the pages of a build.
	differentPages = "@"
)

// build is one of the two compared builds. It has its own PostgreSQL, whose database it
// migrates and seeds itself. A build needs the commands migrate up, key create, seed and serve, the
// environment of petstoreEnv, and the paths in load.lua and in this file.
type build struct {
	name     string // base or present
	version  string // from git describe
	program  string
	cluster  *localpg.Cluster
	postgres int // the process id of the cluster
	database string
	account  int64
	admin    string // an API key
	server   *process
	load     *generator
	pages    string // a file with a path of GET /pets in each line
}

// compareBuilds compares the programs of the working directory and of another commit,
// and prints the ratios.
func compareBuilds(ctx context.Context, o options, out io.Writer) (err error) {
	base, err := runProgram(ctx, "git", "rev-parse", "--verify", "--quiet", o.base+"^{commit}")
	if err != nil {
		return fmt.Errorf("%q is not a commit; set BASE to a commit, tag or branch, such as HEAD~1", o.base)
	}
	r, err := newReport(ctx, o)
	if err != nil {
		return err
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
	sink, err := newSink(ctx)
	if err != nil {
		return err
	}
	defer sink.close()
	defer func() {
		for _, b := range builds {
			err = errors.Join(err, b.stop(context.WithoutCancel(ctx)))
		}
	}()
	fmt.Fprintf(out, "%s\n%s\n", r.machine, r.setting)
	for _, b := range builds {
		fmt.Fprintf(out, "%s: %s\n", b.name, b.version)
		if err := b.prepare(ctx, dir, o); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	if err := r.measureRounds(ctx, buildWorkloads(builds, sink), builds[0].load, o); err != nil {
		return err
	}
	printWarnings(out, r.warnings)
	return printCPU(out, r.results, o.most)
}

// compileBoth builds the programs of the commit and of the working directory, in this
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

// prepare starts a PostgreSQL, creates and fills a database with the commands of the build,
// and starts its server.
func (b *build) prepare(ctx context.Context, dir string, o options) (err error) {
	postgresDir := filepath.Join(dir, "postgres-"+b.name)
	if b.cluster, _, err = startPostgres(ctx, postgresDir); err != nil {
		return err
	}
	if b.postgres, err = postmaster(postgresDir); err != nil {
		return err
	}
	if err := b.cluster.EnsureDatabase(ctx, petstoreDatabase); err != nil {
		return err
	}
	b.database = b.cluster.URL(petstoreDatabase)
	if _, err := b.run(ctx, "migrate", "up"); err != nil {
		return err
	}
	var keys []string
	for range apiKeys {
		key, err := b.createKey(ctx, "write")
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	if b.admin, err = b.createKey(ctx, "admin"); err != nil {
		return err
	}
	if err := b.seed(ctx, o.pets); err != nil {
		return err
	}
	if err := vacuum(ctx, b.database); err != nil {
		return err
	}
	if b.server, _, err = startPetstore(ctx, b.program, b.program+".log", b.database, allowLoopback); err != nil {
		return err
	}
	if err := b.prepareLoad(ctx, dir, keys, o.duration); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return err
	}
	return errors.Join(conn.QueryRow(ctx, "SELECT id FROM accounts WHERE name = $1", benchAccount).Scan(&b.account), conn.Close(ctx))
}

// stop stops what prepare has started.
func (b *build) stop(ctx context.Context) error {
	if b == nil || b.cluster == nil {
		return nil
	}
	if b.server != nil {
		b.server.stop()
	}
	return b.cluster.Stop(ctx)
}

func (b *build) createKey(ctx context.Context, scope string) (string, error) {
	key, err := b.run(ctx, "key", "create", "--account", benchAccount, "--scope", scope)
	return strings.TrimSpace(key), err
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

// buildWorkloads returns the workloads that compare the builds. They also measure CPU times.
func buildWorkloads(builds [2]*build, s *sink) (all []workload) {
	const many = 64
	for _, request := range []struct {
		name string
		load load
	}{
		{readPets, load{kind: "pet"}},
		{"GET /pets?limit=50, one page", load{kind: "path", path: "/pets?limit=50"}},
		{"GET /pets?limit=50, different pages", load{kind: "path", path: differentPages}},
		{randomOrders, load{kind: "order"}},
		{randomOrders + ", Idempotency-Key", load{kind: "keyed"}},
		{flashSale, load{kind: "sale"}},
		{"POST /pets", load{kind: "create"}},
	} {
		request.load.connections = many
		all = append(all, workload{name: request.name, other: builds[0].requests(request.load), ours: builds[1].requests(request.load)})
	}
	for _, hooks := range []int{1, 4} {
		all = append(all, workload{name: fmt.Sprintf("deliveries to %d webhooks", hooks), other: builds[0].deliveries(hooks, s), ours: builds[1].deliveries(hooks, s)})
	}
	return all
}

// requests measures requests to the build.
func (b *build) requests(l load) side {
	return side{b.name, func(ctx context.Context, g *generator) (measurement, error) {
		if l.path == differentPages {
			l.path += b.pages
		}
		own := *b.load
		own.duration = g.duration
		return b.withCPU(func() (measurement, error) { return own.wrk(ctx, b.server.url, l) })
	}}
}

// deliveries measures the deliveries of stored events to new webhooks. Their rate includes
// the last attempts and their records.
func (b *build) deliveries(hooks int, s *sink) side {
	return side{b.name, func(ctx context.Context, g *generator) (m measurement, err error) {
		paths, err := b.createWebhooks(ctx, hooks, s.url)
		if err != nil {
			return m, err
		}
		defer func() { err = errors.Join(err, b.deleteWebhooks(ctx, paths)) }()
		s.count.Store(0)
		number := int64(deliveriesPerSecond * g.duration.Seconds())
		if err := execute(ctx, b.database, addEvents, b.account, number/int64(hooks)); err != nil {
			return m, err
		}
		return b.withCPU(func() (measurement, error) {
			began := time.Now()
			err := await(ctx, "the deliveries", func() (bool, error) {
				if s.count.Load() < number {
					return false, nil
				}
				return b.allDelivered(ctx, paths)
			})
			return measurement{requests: number, perSecond: float64(number) / time.Since(began).Seconds()}, err
		})
	}}
}

// createWebhooks creates webhooks over HTTP, because builds may store them differently. It
// returns their paths.
func (b *build) createWebhooks(ctx context.Context, hooks int, target string) (paths []string, err error) {
	for range hooks {
		response, err := send(ctx, http.MethodPost, b.server.url+"/webhooks", b.admin, fmt.Sprintf(`{"url": %q, "types": ["*"]}`, target))
		if err != nil {
			return nil, err
		}
		response.Body.Close()
		paths = append(paths, response.Header.Get("Location"))
	}
	return paths, nil
}

// allDelivered reports whether no delivery to the webhooks is pending.
func (b *build) allDelivered(ctx context.Context, paths []string) (bool, error) {
	for _, path := range paths {
		var pending []json.RawMessage
		if _, err := getPage(ctx, b.server.url, path+"/deliveries?status=pending&limit=1", b.admin, &pending); err != nil || len(pending) > 0 {
			return false, err
		}
	}
	return true, nil
}

// deleteWebhooks deletes webhooks with their deliveries.
func (b *build) deleteWebhooks(ctx context.Context, paths []string) error {
	for _, path := range paths {
		response, err := send(ctx, http.MethodDelete, b.server.url+path, b.admin, "")
		if err != nil {
			return err
		}
		response.Body.Close()
	}
	return nil
}

// withCPU adds the CPU times of the server and of PostgreSQL during a measurement.
func (b *build) withCPU(measure func() (measurement, error)) (m measurement, err error) {
	processes := []int{b.server.cmd.Process.Pid, b.postgres}
	before, err := cpuOfTrees(processes)
	if err != nil {
		return m, err
	}
	if m, err = measure(); err != nil {
		return m, err
	}
	after, err := cpuOfTrees(processes)
	if err != nil {
		return m, err
	}
	for i := range m.cpu {
		m.cpu[i] = (after[i] - before[i]) / time.Duration(m.requests)
	}
	return m, nil
}

// cpuMicroseconds returns the CPU time of a request.
func cpuMicroseconds(m measurement) float64 {
	return float64(m.cpu[0]+m.cpu[1]) / float64(time.Microsecond)
}

// cpuVerdict says whether the present build uses more CPU time than the base, multiplied
// by most. A question mark means that the rounds disagree.
func cpuVerdict(p pair, most float64) string {
	median, least, greatest := p.ratios(cpuMicroseconds)
	switch {
	case least > most:
		return "MORE"
	case median > most:
		return "more?"
	case greatest > most:
		return "ok?"
	default:
		return "ok"
	}
}

// printCPU prints a line for each workload, and then the verdict. It is an error if a
// workload uses too much CPU time in every round.
func printCPU(out io.Writer, results []*result, most float64) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(table, "CPU µs of server + PostgreSQL\tbase\tpresent\tratio\tof the rounds\t\tbase/s\tpresent/s\tratio\tof the rounds\t")
	names := map[string][]string{} // by verdict
	for _, l := range results {
		verdict := cpuVerdict(l.measured, most)
		names[verdict] = append(names[verdict], l.name)
		c, fewest, greatest := l.measured.ratios(cpuMicroseconds)
		r, slowest, fastest := l.measured.ratios(rate)
		fmt.Fprintf(table, "%s\t%s\t%s\t%.3f\t%.2f to %.2f\t%s\t%.0f\t%.0f\t%.2f\t%.2f to %.2f\t\n", l.name,
			cpuFigures(l.measured[0]), cpuFigures(l.measured[1]), c, fewest, greatest, verdict,
			medianOf(l.measured[0], rate), medianOf(l.measured[1], rate), r, slowest, fastest)
	}
	_ = table.Flush() // writes to standard output
	if unsure := names["more?"]; unsure != nil {
		fmt.Fprintf(out, "The rounds disagree about: %s. Run this again on a quiet machine.\n", strings.Join(unsure, "; "))
	}
	if more := names["MORE"]; more != nil {
		return fmt.Errorf("CPU per request is above %.2f of the base in every round: %s", most, strings.Join(more, "; "))
	}
	_, err := fmt.Fprintf(out, "No workload has CPU per request above %.2f of the base in every round.\n", most)
	return err
}

// cpuFigures returns the medians of the CPU times of the server and of PostgreSQL.
func cpuFigures(all []measurement) string {
	part := func(i int) float64 {
		return medianOf(all, func(m measurement) float64 { return float64(m.cpu[i]) / float64(time.Microsecond) })
	}
	return fmt.Sprintf("%.1f + %.1f", part(0), part(1))
}
