package api

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// sorts are the values of the parameter sort of a list. The first value of each
// slice is the default.
type sorts struct {
	// plain is allowed without a range filter.
	plain []string
	// ranged is allowed with one: a range is read in the order of its own column,
	// because no index holds a range of one column in the order of another.
	ranged []string
	// filters are the names of the range filters.
	filters []string
}

var (
	byIDOnly     = sorts{plain: []string{"id"}}
	byNameOnly   = sorts{plain: []string{"name"}}
	byPetIDOnly  = sorts{plain: []string{"petId"}}
	newestFirst  = sorts{plain: []string{"-id"}}
	byIDOrName   = sorts{plain: []string{"id", "-id", "name", "-name"}, ranged: []string{"name", "-name"}, filters: []string{"name"}}
	byIDOrShipAt = sorts{plain: []string{"id", "-id"}, ranged: []string{"shipDate", "-shipDate"}, filters: []string{"shipDateFrom", "shipDateTo"}}
)

// readSort reads the parameter sort. A list with one sort does not have it.
func readSort(params *httpjson.Params, s sorts) string {
	allowed, which := s.plain, "without"
	if slices.ContainsFunc(s.filters, params.Has) {
		allowed, which = s.ranged, "with"
	}
	if len(allowed) == 1 {
		return allowed[0]
	}
	sort, given := params.Value("sort")
	if !given {
		return allowed[0]
	}
	if !slices.Contains(allowed, sort) {
		params.Reject("sort", "not_in_enum", "`sort` must be one of "+httpjson.QuotedList(allowed)+" in a list "+which+" the filter `"+strings.Join(s.filters, "` or `")+"`.")
	}
	return sort
}

// sortMark is the placeholder of the sort in list queries (see queries/pets.sql).
const sortMark = "/* sort */ 'id'"

// sortedBy runs list queries with sorts, which must be values of [sorts]. A sort
// becomes part of the statement, so that Postgres chooses the index by it even when
// it plans without the values of the parameters.
type sortedBy struct {
	db.DBTX

	sorts []string // of a single query, or of each in a batch
}

// Query runs a list query.
func (s sortedBy) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.DBTX.Query(ctx, withSort(sql, s.sorts[0]), args...)
}

// SendBatch runs several list queries.
func (s sortedBy) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	var marked, sort, sorted string
	for i, query := range batch.QueuedQueries {
		if query.SQL != marked || s.sorts[i] != sort { // usually all have the same text
			marked, sort = query.SQL, s.sorts[i]
			sorted = withSort(marked, sort)
		}
		query.SQL = sorted
	}
	return s.DBTX.SendBatch(ctx, batch)
}

// withSort returns a list query with a sort.
func withSort(sql, sort string) string { return strings.ReplaceAll(sql, sortMark, "'"+sort+"'") }

// sorted returns the queries with a sort, or with one for each query in a batch.
func (s *Server) sorted(sorts ...string) *db.Queries {
	return db.New(sortedBy{postgres.Reads{DB: s.options.DB}, sorts})
}

// plannedByValues has Postgres plan each statement that returns rows with its values. That
// suits statements in which "$1 IS NULL OR …" turns a filter off, or whose index depends on
// the values. Each run costs the parsing and planning of the statement, about 0.2 ms.
type plannedByValues struct{ db.DBTX }

// Query runs a statement that returns rows.
func (p plannedByValues) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.DBTX.Query(ctx, sql, byValues(args)...)
}

// QueryRow runs a statement that returns one row.
func (p plannedByValues) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.DBTX.QueryRow(ctx, sql, byValues(args)...)
}

// byValues adds the mode of pgx without prepared statements. Only a prepared statement
// can have a plan that ignores the values.
func byValues(args []any) []any { return append([]any{pgx.QueryExecModeCacheDescribe}, args...) }
