package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
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
	"petstore/internal/postgres"
)

const maxSandboxNameLength = 100

// The bytes of stores, copied or deleted, that the cost of an expensive request includes, and the number
// that count as one more request. The reset of a sandbox with the sample shop is included.
const (
	includedLoad   = 2560 << 10
	loadedPerToken = 100 << 10
)

// chargeLoad charges the caller for the size of the stores that a request has copied or deleted, also if it
// failed then. One that failed before, such as without a place, costs as much as a cheap request.
func (s *Server) chargeLoad(c *gin.Context, size int64, err error) {
	if err != nil && size == 0 {
		s.gate.Refund(c)
		return
	}
	s.gate.Charge(c, int((size-includedLoad)/loadedPerToken))
}

// Sandbox is the Sandbox schema of the spec.
type Sandbox struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Sample    string     `json:"sample"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt"`
}

// SandboxWithKey is the SandboxWithKey schema of the spec.
type SandboxWithKey struct {
	Sandbox

	APIKey KeyWithSecret `json:"apiKey"`
}

// sandboxFrom returns the representation of a sandbox.
func sandboxFrom(row db.SandboxListRow) Sandbox {
	return Sandbox{ID: account.PublicID(row.ID, true), Name: row.Name, Sample: row.Sample, CreatedAt: row.CreatedAt.UTC(), ExpiresAt: inUTC(row.ExpiresAt)}
}

// NewSandboxFrom returns the representation of a new sandbox.
func NewSandboxFrom(made account.Created) SandboxWithKey {
	return SandboxWithKey{sandboxFrom(db.SandboxListRow(made.Sandbox)), newAPIKeyFrom(made.Key, made.Secret)}
}

// listSandboxes lists the live sandboxes of the caller's account by id. A sandbox has
// none.
func (s *Server) listSandboxes(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, byIDOnly)
	return writePage(s, c, params, p, list[db.SandboxListRow, Sandbox]{
		find: func(ctx context.Context) ([]db.SandboxListRow, error) {
			return s.reads.SandboxList(ctx, db.SandboxListParams{ParentID: p.account, AfterID: p.after.ID, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			count, err := s.reads.SandboxCount(ctx, p.account)
			return count.Live, err
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
	var size int64
	made, err := transact(s, c, s.gate.Limits.Loads, func(ctx context.Context, queries *db.Queries) (account.Created, error) {
		if gate.Caller(c).IsSandbox() {
			return account.Created{}, errNestedSandbox
		}
		made, err := account.CreateSandbox(ctx, queries, params)
		size = made.Size
		return made, err
	})
	s.chargeLoad(c, size, err)
	if err != nil {
		return err
	}
	sandbox := NewSandboxFrom(made)
	gate.Record(c, "sandbox_created", slog.String("target_account_id", sandbox.ID))
	return writeNew(c, "/sandboxes/"+sandbox.ID, sandbox)
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
	if at, now := params.ExpiresAt, s.options.Now(); at != nil && (at.Before(now.Add(account.MinExpiry)) || at.After(now.Add(account.MaxExpiry))) {
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

func (s *Server) getSandbox(c *gin.Context, id string) error {
	row, err := s.sandboxOf(c, id)
	if err != nil {
		return err
	}
	return httpjson.WriteUntagged(c.Writer, c.Request, sandboxFrom(db.SandboxListRow(row)))
}

// resetSandbox returns a sandbox to its sample. It reads no body, and is safe to
// repeat without an Idempotency-Key.
func (s *Server) resetSandbox(c *gin.Context, id string) error {
	var size int64
	accountID, err := s.changeSandbox(c, id, s.gate.Limits.Loads, func(ctx context.Context, queries *db.Queries, accountID int64) (err error) {
		size, err = account.Reset(ctx, queries, accountID)
		return err
	})
	s.chargeLoad(c, size, err)
	if err != nil {
		return err
	}
	s.announceEvents(accountID)
	gate.Record(c, "sandbox_reset", slog.String("target_account_id", account.PublicID(accountID, true)))
	c.Status(http.StatusNoContent)
	return nil
}

// deleteSandbox deletes a sandbox. This process forgets its keys before it responds, and
// the others within a second.
func (s *Server) deleteSandbox(c *gin.Context, id string) error {
	accountID, err := s.changeSandbox(c, id, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries, accountID int64) error {
		deleted, err := account.Delete(ctx, queries, accountID)
		if err == nil && !deleted {
			err = errSandboxNotFound // deleted concurrently
		}
		return err
	})
	if err != nil {
		return s.confirmGone(c, err, errSandboxNotFound)
	}
	s.options.Verifier.ForgetAccount(accountID)
	s.announceEvents(accountID)
	gate.Record(c, "sandbox_deleted", slog.String("target_account_id", account.PublicID(accountID, true)))
	c.Status(http.StatusNoContent)
	return nil
}

// changeSandbox runs a change of the sandbox that an id in the path names in a transaction,
// and returns the account of the sandbox. The change counts in a pool.
func (s *Server) changeSandbox(c *gin.Context, id string, pool *admission.Pool, change func(context.Context, *db.Queries, int64) error) (accountID int64, err error) {
	if err := checkUntagged(c.Request); err != nil {
		return 0, err
	}
	row, err := s.sandboxOf(c, id)
	if err != nil {
		return 0, err
	}
	leave, err := s.gate.Enter(c, pool)
	if err != nil {
		return 0, err
	}
	defer leave()
	_, err = transactAt(s, c, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, change(ctx, db.New(tx), row.ID)
	})
	// A change may replace the fault rules or start their counts again. After an error, the
	// transaction may have committed.
	s.faults.Forget(row.ID)
	if errors.Is(err, account.ErrClosed) {
		err = errSandboxNotFound // deleted concurrently
	}
	return row.ID, err
}

// currentSandbox is the id that names the sandbox of the API key.
const currentSandbox = "current"

// readSandboxID reads the parameter sandboxId of the path.
func readSandboxID(c *gin.Context, params *httpjson.Params) string {
	id := c.Param("sandboxId")
	if _, ok := account.ParseSandboxID(id); !ok && id != currentSandbox {
		params.Reject("sandboxId", "invalid_format", "`sandboxId` must be `current` or the id of a sandbox, such as `sbx_42`.")
	}
	return id
}

// sandboxOf returns the live sandbox that an id in the path names, as [readSandboxID]
// returns it. The key of the request must be one of the sandbox or of its parent. The
// error is [errSandboxNotFound], or [errNotASandbox] if the id is current and the key
// is not one of a sandbox.
func (s *Server) sandboxOf(c *gin.Context, id string) (db.SandboxGetRow, error) {
	caller := gate.Caller(c)
	wanted := db.SandboxGetParams{ParentID: caller.Payer()}
	switch {
	case id != currentSandbox:
		wanted.ID, _ = account.ParseSandboxID(id) // 0 names no account
	case !caller.IsSandbox():
		return db.SandboxGetRow{}, errNotASandbox
	default:
		wanted.ID = caller.AccountID
	}
	if caller.IsSandbox() && wanted.ID != caller.AccountID {
		return db.SandboxGetRow{}, errSandboxNotFound
	}
	ctx := c.Request.Context()
	row, err := s.reads.SandboxGet(ctx, wanted)
	if errors.Is(err, pgx.ErrNoRows) && wanted.ID == caller.AccountID { // the key works, so a replica without it is behind
		err = cmp.Or(postgres.ReaderOf(ctx).Require(postgres.Position{}), err)
	}
	return row, orNotFound(err, errSandboxNotFound)
}
