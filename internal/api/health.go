package api

import (
	"context"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
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
func (s *Server) getLiveness(c *gin.Context) error {
	c.Header("Cache-Control", "no-store")
	return httpjson.Write(c.Writer, health{Status: "ok"})
}

// getReadiness responds with 200 if the database responds, the schema is current
// and no shutdown has begun. /readyz needs no key, so all probes share one check
// of the database a second.
func (s *Server) getReadiness(c *gin.Context) error {
	c.Header("Cache-Control", "no-store")
	checks := map[string]string{"database": "ok", "schema": "ok", "shutdown": "ok"}
	unready := func(check, state, message string) error {
		checks[check] = state
		p := errUnavailable.WithMessage(message)
		p.Checks = checks
		return p
	}
	var current bool
	var err error
	if !s.shuttingDown.Load() {
		current, err = s.schema.check(c.Request.Context())
	}
	switch {
	case s.shuttingDown.Load():
		return unready("shutdown", "in progress", "The server is shutting down. Use another one.")
	case err != nil:
		c.Set(causeKey, err)
		checks["schema"] = "unknown"
		return unready("database", "unavailable", "The database does not respond. Retry after the time in Retry-After.")
	case !current:
		return unready("schema", "behind", "The database schema is behind. Run `petstore migrate up`.")
	default:
		return httpjson.Write(c.Writer, health{Status: "ok", Checks: checks})
	}
}

// schemaChecks checks whether the schema of the database is current, at most once per
// readinessInterval.
type schemaChecks struct {
	query func(context.Context) (bool, error)
	now   func() time.Time

	mu     sync.Mutex
	latest *schemaCheck // nil before the first
}

// schemaCheck is one query of the database.
type schemaCheck struct {
	began   time.Time
	done    chan struct{} // closed when the result is known
	current bool
	err     error
}

// check returns the result of a check that began at most a readinessInterval ago.
// The error comes from the database or the context.
func (s *schemaChecks) check(ctx context.Context) (current bool, err error) {
	latest := s.join(ctx)
	select {
	case <-latest.done:
		return latest.current, latest.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// join returns the latest check, or begins one if that is too old. A check continues
// after the end of the request that began it, because others may wait for it.
func (s *schemaChecks) join(ctx context.Context) *schemaCheck {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.latest != nil && (!s.latest.isDone() || now.Sub(s.latest.began) < readinessInterval) {
		return s.latest
	}
	started := &schemaCheck{began: now, done: make(chan struct{})}
	s.latest = started
	go func() {
		defer close(started.done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readinessTimeout)
		defer cancel()
		started.current, started.err = s.query(ctx)
	}()
	return started
}

func (c *schemaCheck) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
