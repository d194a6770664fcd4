package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

const maxSandboxNameLength = 100

// sandbox is the Sandbox schema of the spec.
type sandbox struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Sample    string     `json:"sample"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt"`
}

// sandboxWithKey is the SandboxWithKey schema of the spec.
type sandboxWithKey struct {
	sandbox

	APIKey apiKeyWithSecret `json:"apiKey"`
}

func sandboxFrom(row db.SandboxListRow) sandbox {
	return sandbox{ID: account.PublicID(row.ID, true), Name: row.Name, Sample: row.Sample, CreatedAt: row.CreatedAt.UTC(), ExpiresAt: inUTC(row.ExpiresAt)}
}

// listSandboxes lists the live sandboxes of the caller's account by id. A sandbox has
// none.
func (s *Server) listSandboxes(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, byIDOnly)
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.SandboxListRow, sandbox]{
		find: func(ctx context.Context) ([]db.SandboxListRow, error) {
			return s.reads.SandboxList(ctx, db.SandboxListParams{ParentID: p.account, AfterID: p.after.ID, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.reads.SandboxCount(ctx, p.account)
		},
		item:     sandboxFrom,
		cursorOf: func(row db.SandboxListRow) httpjson.Position { return httpjson.Position{ID: row.ID} },
	})
}

// createSandbox creates a sandbox and its key.
func (s *Server) createSandbox(c *gin.Context) error {
	in := s.decode(c, secret, readOnly("id", "createdAt", "apiKey"))
	params, err := s.newSandboxParams(in, gate.Caller(c))
	if err != nil {
		return err
	}
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	made, err := transactIn(s, c, s.gate.Limits.Loads, func(ctx context.Context, queries *db.Queries) (account.Created, error) {
		if gate.Caller(c).IsSandbox() {
			return account.Created{}, errNestedSandbox
		}
		made, err := account.CreateSandbox(ctx, queries, params)
		switch {
		case errors.Is(err, account.ErrTooManySandboxes):
			err = errTooManySandboxes
		case errors.Is(err, account.ErrNoSample):
			err = errUnknownSample
		}
		return made, storeError(err)
	})
	if err != nil {
		return err
	}
	gate.Record(c, sandboxEvent(eventSandboxCreated, made.Sandbox.ID))
	sandbox := sandboxFrom(db.SandboxListRow(made.Sandbox))
	return writeNew(c, "/sandboxes/"+sandbox.ID, sandboxWithKey{sandbox, newAPIKeyFrom(made.Key, made.Secret)})
}

// newSandboxParams reads the fields of a new sandbox. Its key expires no later than the
// key of its creator. The error is [errExpiryBeyondCreator] or a violation.
func (s *Server) newSandboxParams(in *input, creator auth.Identity) (account.NewSandbox, error) {
	params := account.NewSandbox{
		ParentID: creator.AccountID, Name: account.DefaultName, Sample: account.SampleShop, Expiry: account.DefaultExpiry, NotAfter: creator.ExpiresAt,
	}
	name := in.Name(maxSandboxNameLength)
	sample := readSampleName(in, "sample")
	params.ExpiresAt = in.Time("expiresAt")
	if at, now := params.ExpiresAt, s.now(); at != nil && (at.Before(now.Add(account.MinExpiry)) || at.After(now.Add(account.MaxExpiry))) {
		in.Reject("expiresAt", "out_of_range", "must be a minute to seven days from now.")
	}
	if err := in.Err(); err != nil {
		return params, err
	}
	if name != nil {
		params.Name = *name
	}
	if sample != nil {
		params.Sample = *sample
	}
	if params.ExpiresAt != nil {
		return params, checkExpiry(params.ExpiresAt, creator)
	}
	return params, nil
}

func (s *Server) getSandbox(c *gin.Context) error {
	params := readParams(c)
	id := readSandboxID(c, params)
	if err := params.Err(); err != nil {
		return err
	}
	row, err := s.sandboxOf(c, id)
	if err != nil {
		return err
	}
	c.Header("Cache-Control", "private, no-store")
	return httpjson.WriteUntagged(c.Writer, c.Request, sandboxFrom(db.SandboxListRow(row)))
}

// resetSandbox returns a sandbox to its sample. It reads no body, and is safe to
// repeat without an Idempotency-Key.
func (s *Server) resetSandbox(c *gin.Context) error {
	return s.changeSandbox(c, s.gate.Limits.Loads, eventSandboxReset, account.Reset)
}

// deleteSandbox deletes a sandbox. This process forgets its keys before it responds, and
// the others within a second.
func (s *Server) deleteSandbox(c *gin.Context) error {
	var accountID int64
	err := s.changeSandbox(c, s.gate.Limits.Locks, eventSandboxDeleted, func(ctx context.Context, queries *db.Queries, id int64) error {
		accountID = id
		deleted, err := account.Delete(ctx, queries, id)
		if err == nil && !deleted {
			err = errSandboxNotFound // deleted concurrently
		}
		return err
	})
	if err == nil {
		s.verifier.ForgetAccount(accountID)
	}
	return err
}

// changeSandbox runs a change of the sandbox in the path in a transaction, records the
// event and sends a 204. The change counts in a pool. It runs when the writes to the sandbox
// before it have ended.
func (s *Server) changeSandbox(c *gin.Context, pool *admission.Pool[int64], event string, change func(context.Context, *db.Queries, int64) error) error {
	params := readParams(c)
	id := readSandboxID(c, params)
	if err := params.Err(); err != nil {
		return err
	}
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	row, err := s.sandboxOf(c, id)
	if err != nil {
		return err
	}
	payer := gate.Caller(c).Payer()
	if err := pool.Take(c.Request.Context(), payer, 1); err != nil {
		return err
	}
	defer pool.Give(payer, 1)
	_, err = transactAt(s, c, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, change(ctx, db.New(tx), row.ID)
	})
	s.faults.Forget(row.ID) // a reset starts their counts again
	switch {
	case errors.Is(err, account.ErrClosed):
		return errSandboxNotFound // deleted concurrently
	case err != nil:
		return err
	}
	s.announceEvents(row.ID)
	gate.Record(c, sandboxEvent(event, row.ID))
	c.Status(http.StatusNoContent)
	return nil
}
