package gate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/singleflight"

	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

const (
	// readinessTimeout bounds how long /readyz waits for the database, well within
	// the timeouts of probes.
	readinessTimeout = 2 * time.Second

	// readinessInterval is the shortest time between two checks of the database.
	readinessInterval = time.Second
)

// health is the body of a successful response of /livez or /readyz.
type health struct {
	Status string            `json:"status"`
	Checks map[string]string `json:"checks,omitempty"`
}

// getLiveness responds with 200 while the process runs.
func (g *Gate) getLiveness(c *gin.Context) error {
	c.Header("Cache-Control", "no-store")
	return httpjson.Write(c.Writer, health{Status: "ok"})
}

// readinessChecks lists the checks in their order.
var readinessChecks = []string{"shutdown", "database", "schema", "partitions"}

// getReadiness responds with 200 if the database responds, the schema fits, events
// has a partition for new rows and no shutdown has begun. /readyz needs no key, so all
// probes share one check of the database a second.
func (g *Gate) getReadiness(c *gin.Context) error {
	c.Header("Cache-Control", "no-store")
	checks := map[string]string{"database": "ok", "schema": "ok", "partitions": "ok", "shutdown": "ok"}
	unready := func(check, state, message string) error {
		g.options.Metrics.SetReady(false)
		checks[check] = state
		for _, later := range readinessChecks[slices.Index(readinessChecks, check)+1:] {
			checks[later] = "unknown"
		}
		if check == "schema" {
			requestOf(c).cause = errors.New(message)
		}
		p := ErrUnavailable.WithMessage(message)
		p.Checks = checks
		return p
	}
	var schema schemaState
	var err error
	if !g.shuttingDown.Load() {
		schema, err = g.checkSchema(c.Request.Context())
	}
	switch {
	case g.shuttingDown.Load():
		return unready("shutdown", "in progress", "The server is shutting down. Use another one.")
	case errors.Is(err, context.Canceled): // the client has left, which says nothing about the database
		return errClientGone
	case err != nil:
		requestOf(c).cause = err
		return unready("database", "unavailable", "The database does not respond. Retry after the time in Retry-After.")
	case schema.fit == postgres.SchemaBehind:
		return unready("schema", string(schema.fit), "The database schema is behind. Run `petstore migrate up`.")
	case schema.fit == postgres.SchemaAhead:
		return unready("schema", string(schema.fit), "The database schema no longer supports this release. Start the release that has migrated it.")
	case schema.fit == postgres.SchemaDenied:
		return unready("schema", string(schema.fit), "The database role of the server lacks privileges. Run `petstore migrate up` as the owner with PETSTORE_SERVING_ROLE.")
	case schema.missing != nil:
		requestOf(c).cause = schema.missing
		return unready("partitions", "missing", "The table events has no partition for new rows, and the server cannot create it. The log of the server says why.")
	default:
		g.options.Metrics.SetReady(true)
		return httpjson.Write(c.Writer, health{Status: "ok", Checks: checks})
	}
}

// schemaState is the state of the schema of the database.
type schemaState struct {
	fit     postgres.SchemaFit
	missing error // why events has no partition for new rows; nil: it has one, or the schema does not fit
}

// readSchema reads the state of the schema. It creates the partitions of events that are
// missing.
func (g *Gate) readSchema(ctx context.Context) (state schemaState, err error) {
	if state.fit, err = g.schemaFit(ctx); err != nil || state.fit != postgres.SchemaFits {
		return state, err
	}
	fit, err := g.options.DB.EventsFit(ctx, 0)
	if err != nil || fit {
		return state, err
	}
	failed := g.options.DB.MaintainEvents(ctx)
	fit, err = g.options.DB.EventsFit(ctx, 0)
	if fit || err != nil && failed == nil {
		return state, err
	}
	state.missing = cmp.Or(failed, postgres.ErrNoPartition)
	return state, nil
}

// schemaFit reports whether the schema fits and the role has its privileges. It looks for them
// until it has found all.
func (g *Gate) schemaFit(ctx context.Context) (postgres.SchemaFit, error) {
	fit, err := g.options.DB.SchemaFit(ctx)
	if err != nil || fit != postgres.SchemaFits || g.schema.granted {
		return fit, err
	}
	missing, err := g.options.DB.MissingPrivileges(ctx)
	if len(missing) > 0 {
		return postgres.SchemaDenied, nil
	}
	g.schema.granted = err == nil
	return fit, err
}

// schemaChecks has the latest check of the schema. Only the function that runs uses it.
type schemaChecks struct {
	running singleflight.Group
	began   time.Time
	state   schemaState
	err     error
	granted bool // whether the role had all privileges
}

// checkSchema returns the result of a check that began at most a readinessInterval ago. A
// check continues after the end of the request that began it, because others may wait for
// it. The error comes from the database or the context.
func (g *Gate) checkSchema(ctx context.Context) (schemaState, error) {
	latest := &g.schema
	done := latest.running.DoChan("", func() (any, error) {
		if now := g.options.Now(); now.Sub(latest.began) >= readinessInterval {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readinessTimeout)
			defer cancel()
			latest.began = now
			latest.state, latest.err = g.readSchema(ctx)
		}
		return latest.state, latest.err
	})
	select {
	case result := <-done:
		return result.Val.(schemaState), result.Err //nolint:forcetypeassert // see above
	case <-ctx.Done():
		return schemaState{}, ctx.Err()
	}
}
