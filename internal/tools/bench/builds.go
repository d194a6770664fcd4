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

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
)

const (
	account = "bench"
	// Pages of 50 that the lists of a comparison are drawn from. Their pets are the
	// ones that clients read and order.
	pageSize, pagesDrawn = 50, 200
	// tolerated is the least ratio present/base of requests a second that is no loss.
	tolerated = 0.95
)

// build is one of the two builds that are compared: its program, a database of its
// own that it has migrated itself, and the data in it as HTTP shows it. A build
// needs the commands migrate up, key create, seed and serve, the environment of
// petstoreEnv, and the paths that load.lua and this file name.
type build struct {
	name     string // base or present
	version  string // what git calls it
	program  string
	database string
	server   *process
	load     *generator
	pages    string // a file with a path of GET /pets in each line
}

// compareBuilds measures the program of the working directory against the one of
// another commit, both in turn, and prints the ratios.
func compareBuilds(ctx context.Context, o options, out io.Writer) (err error) {
	base, err := output(ctx, "git", "rev-parse", "--verify", "--quiet", o.base+"^{commit}")
	if err != nil {
		return fmt.Errorf("%q is no commit; set BASE to a commit, a tag or a branch, such as HEAD~1", o.base)
	}
	if err := warnOfLoad(out); err != nil {
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
	cluster, binaries, err := startPostgres(ctx, filepath.Join(dir, "postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	fmt.Fprintf(out, "%s, base %s, present %s, %d pets, %d turns of %s\n", binaries, builds[0].version, builds[1].version, o.pets, o.rounds, o.duration)
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
	if err := compareTurns(ctx, builds, o, out); err != nil {
		return err
	}
	return errors.Join(printHOT(ctx, out, "base", builds[0].database), printHOT(ctx, out, "present", builds[1].database))
}

// compileBoth builds the program of the commit and the one of the working
// directory, in this order.
func compileBoth(ctx context.Context, dir, commit string) (builds [2]*build, err error) {
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	if err := os.Mkdir(source, 0o700); err != nil {
		return builds, err
	}
	if _, err := output(ctx, "git", "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return builds, err
	}
	if _, err := output(ctx, "tar", "-xf", archive, "-C", source); err != nil {
		return builds, err
	}
	for i, b := range []*build{{name: "base"}, {name: "present"}} {
		b.program = filepath.Join(dir, "petstore-"+b.name)
		from, describe := ".", []string{"describe", "--always", "--dirty"}
		if b.name == "base" {
			from, describe = source, []string{"describe", "--always", commit}
		}
		version, err := output(ctx, "git", describe...)
		if err != nil {
			return builds, err
		}
		b.version = strings.TrimSpace(string(version))
		if _, err := output(ctx, "go", "build", "-C", from, "-buildvcs=false", "-o", b.program, "./cmd/petstore"); err != nil {
			return builds, fmt.Errorf("building %s: %w", b.name, err)
		}
		builds[i] = b
	}
	return builds, nil
}

// prepare makes a database for a build, by its own commands, and starts it.
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
		key, err := b.run(ctx, "key", "create", "--account", account, "--scope", "write")
		if err != nil {
			return err
		}
		keys = append(keys, strings.TrimSpace(key))
	}
	if err := b.seed(ctx, o.pets); err != nil {
		return err
	}
	if err := tidy(ctx, b.database); err != nil {
		return err
	}
	var err error
	if b.server, _, err = startPetstore(ctx, b.program, b.program+".log", b.database); err != nil {
		return err
	}
	if err := b.gather(ctx, dir, keys, o.duration); err != nil {
		return err
	}
	b.server.stop()
	if err := forgetUpdates(ctx, b.database); err != nil {
		return err
	}
	b.server, _, err = startPetstore(ctx, b.program, b.program+".log", b.database)
	return err
}

// run runs a command of the build and returns what it printed on stdout.
func (b *build) run(ctx context.Context, args ...string) (string, error) {
	out, err := outputEnv(ctx, append(os.Environ(), "DATABASE_URL="+b.database), b.program, args...)
	return string(out), err
}

// seed fills the store of the account. Builds whose accounts share one store have
// no flag for it.
func (b *build) seed(ctx context.Context, pets int) error {
	number := strconv.Itoa(pets)
	if _, withAccount := b.run(ctx, "seed", "--pets", number, "--account", account); withAccount != nil {
		if _, err := b.run(ctx, "seed", "--pets", number); err != nil {
			return errors.Join(withAccount, err)
		}
	}
	return nil
}

// tidy brings both databases to the same state before they are measured:
// autovacuum is off.
func tidy(ctx context.Context, databaseURL string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "VACUUM (ANALYZE)")
	if err == nil {
		_, err = conn.Exec(ctx, "CHECKPOINT")
	}
	return errors.Join(err, conn.Close(ctx))
}

// gather asks the server for pets that are for sale, so that nothing is known
// about ids, and puts plenty of each in stock.
func (b *build) gather(ctx context.Context, dir string, keys []string, duration time.Duration) error {
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
		return errors.New("the sample data has no pet for sale")
	}
	if err := b.stockUp(ctx, keys, ids); err != nil {
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

// stockUp sets the stock of pets so high that no order is refused. A client for
// each key does it.
func (b *build) stockUp(ctx context.Context, keys, ids []string) error {
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
	body := fmt.Sprintf(`{"quantity": %d}`, plentiful)
	response, err := send(ctx, http.MethodPut, target, key, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // so that the connection is used again
	return err
}

// getPage reads a page of a list, and returns the path of the next one, empty
// when there is none.
func getPage(ctx context.Context, baseURL, path, key string, page any) (next string, err error) {
	response, err := send(ctx, http.MethodGet, baseURL+path, key, "")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	err = json.NewDecoder(response.Body).Decode(page)
	_, _ = io.Copy(io.Discard, response.Body) // so that the connection is used again
	if err != nil {
		return "", fmt.Errorf("GET %s: %w", path, err)
	}
	return nextPage(response.Header.Get("Link"))
}

// nextPage reads the path of the link rel="next", which may be a URL or a
// reference relative to the host.
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

// send sends one request and returns its response, which is a success.
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
		text, _ := io.ReadAll(io.LimitReader(response.Body, 500)) // for the message alone
		response.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, target, response.Status, text)
	}
	return response, nil
}

// duel is one work of a comparison and what was measured of it, turn by turn.
type duel struct {
	name     string
	load     func(*build) load
	measured [2][]measured // base, present
}

func duels(only string) []*duel {
	const many = 64
	simple := func(kind string) func(*build) load {
		return func(*build) load { return load{kind, "", many} }
	}
	all := []*duel{
		{name: "GET /pets/{petId}", load: simple("pet")},
		{name: "GET /pets?limit=50, one page", load: func(*build) load { return load{"path", "/pets?limit=50", many} }},
		{name: "GET /pets?limit=50, different pages", load: func(b *build) load { return load{"path", "@" + b.pages, many} }},
		{name: "POST /store/orders", load: simple("order")},
		{name: "POST /store/orders, Idempotency-Key", load: simple("keyed")},
		{name: "POST, one pet (flash sale)", load: simple("sale")},
		{name: "POST /pets", load: simple("create")},
	}
	return slices.DeleteFunc(all, func(d *duel) bool { return !strings.Contains(d.name, only) })
}

// compareTurns measures every work of both builds, turn after turn. The two sides
// of a work follow each other, and another one begins in each turn.
func compareTurns(ctx context.Context, builds [2]*build, o options, out io.Writer) error {
	works := duels(o.only)
	if len(works) == 0 {
		return fmt.Errorf("the name of no work contains %q", o.only)
	}
	watched, err := startQuiet()
	if err != nil {
		return err
	}
	for turn := range o.rounds {
		if err := watched.sample(ctx); err != nil {
			return err
		}
		for _, d := range works {
			for i := range builds {
				side := (turn + i) % len(builds)
				m, err := builds[side].load.wrk(ctx, builds[side].server.url, d.load(builds[side]))
				if err != nil {
					return fmt.Errorf("%s, %s: %w", builds[side].name, d.name, err)
				}
				d.measured[side] = append(d.measured[side], m)
			}
		}
	}
	printDuels(out, works)
	for _, b := range builds {
		memory, err := b.server.memory()
		if errors.Is(err, os.ErrNotExist) {
			break // no /proc here
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "memory of %s after all this: %d MB\n", b.name, memory>>20)
	}
	return watched.warn(out)
}

// ratios returns present/base of a quantity: the median over the turns, the least
// and the greatest.
func (d *duel) ratios(quantity func(measured) float64) (median, least, greatest float64) {
	all := make([]float64, len(d.measured[0]))
	for i := range all {
		all[i] = quantity(d.measured[1][i]) / quantity(d.measured[0][i])
	}
	return medianOf(all, func(r float64) float64 { return r }), slices.Min(all), slices.Max(all)
}

// verdict says whether the present build is slower than the base. Where turns
// disagree about it, it says so.
func (d *duel) verdict() string {
	median, least, greatest := d.ratios(rate)
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

func printDuels(out io.Writer, works []*duel) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(table, "work, 64 connections\tbase/s\tpresent/s\tratio\tof the turns\tbase p99 ms\tpresent p99 ms\tratio\tof the turns\t\t")
	for _, d := range works {
		r, least, greatest := d.ratios(rate)
		p, shortest, longest := d.ratios(p99Milliseconds)
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%.2f\t%.2f to %.2f\t%.1f\t%.1f\t%.2f\t%.2f to %.2f\t%s\t\n", d.name,
			medianOf(d.measured[0], rate), medianOf(d.measured[1], rate), r, least, greatest,
			medianOf(d.measured[0], p99Milliseconds), medianOf(d.measured[1], p99Milliseconds), p, shortest, longest, d.verdict())
	}
	_ = table.Flush() // to stdout
}
