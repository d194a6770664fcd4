package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	maxConns  = 8 // of the plain server, which is slower with more; Petstore uses its default
	hotPet    = 1
	starts    = 5
	deepPage  = 2000
	firstPath = "/pets?limit=50&sort=name&status=available"
)

// comparedServers are the running servers and what the load generator needs.
type comparedServers struct {
	dir, database, plainDatabase, pgbenchDatabase string
	pgbench                                       string // the program
	swagger                                       string // a URL or ""
	*generator
	petstore, plain   *process
	constantURL       string
	stopConstant      func()
	startTimes        []time.Duration
	deepPath          string // of page 2,000 of the available pets by name
	pages, plainPages string // files with a path of GET /pets in each line
	orderScript       string // a file with a script of pgbench
}

func (s *comparedServers) start(ctx context.Context) error {
	if err := buildPrograms(ctx, s.dir); err != nil {
		return err
	}
	for i := range starts {
		p, took, err := startPetstore(ctx, filepath.Join(s.dir, "petstore"), filepath.Join(s.dir, "petstore.log"), s.database)
		if err != nil {
			return err
		}
		s.petstore, s.startTimes = p, append(s.startTimes, took)
		if i < starts-1 {
			p.stop()
		}
	}
	var err error
	if s.plain, err = startPlain(ctx, s.dir, s.plainDatabase, maxConns); err != nil {
		return err
	}
	s.constantURL, s.stopConstant, err = startConstant(ctx)
	return err
}

func (s *comparedServers) stop() {
	if s.petstore != nil {
		s.petstore.stop()
	}
	if s.plain != nil {
		s.plain.stop()
	}
	if s.stopConstant != nil {
		s.stopConstant()
	}
}

// writeLoads writes the files that wrk and pgbench read. It needs the running servers.
func (s *comparedServers) writeLoads(ctx context.Context, smallKeys []string) error {
	paths, err := s.pagePaths(ctx, firstPath, min(deepPage, s.pets/pageSize))
	if err != nil {
		return err
	}
	s.deepPath = paths[len(paths)-1]
	first := fmt.Sprintf("/pets?limit=%d", pageSize)
	pages, err := s.pagePaths(ctx, first, min(pagesDrawn, s.pets/pageSize))
	if err != nil {
		return err
	}
	plainPages := make([]string, len(pages))
	for i := range plainPages { // the ids have no gaps
		plainPages[i] = fmt.Sprintf("%s&after=%d", first, i*pageSize)
	}
	for _, file := range []struct {
		path *string
		name string
		text string
	}{
		{&s.small, "small-keys", joinLines(smallKeys)},
		{&s.pages, "pages", joinLines(pages)},
		{&s.plainPages, "plain-pages", joinLines(plainPages)},
		{&s.orderScript, "order.pgbench", string(orderScript)},
	} {
		*file.path = filepath.Join(s.dir, file.name)
		if err := os.WriteFile(*file.path, []byte(file.text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// joinLines returns a text with each value in a line.
func joinLines(values []string) string { return strings.Join(values, "\n") + "\n" }

// pagePaths follows the links of a list and returns the paths of its first pages.
func (s *comparedServers) pagePaths(ctx context.Context, path string, pages int) ([]string, error) {
	paths := []string{path}
	for len(paths) < pages {
		var pets []json.RawMessage
		next, err := getPage(ctx, s.petstore.url, path, s.keys[0], &pets)
		if err != nil {
			return nil, err
		}
		if next == "" {
			return nil, fmt.Errorf("%s ends at page %d; use more pets", paths[0], len(paths))
		}
		paths, path = append(paths, next), next
	}
	return paths, nil
}
