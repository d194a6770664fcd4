package api

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

const sampleNameRule = "must have 1 to 50 lowercase letters, digits and hyphens, and must not begin with a hyphen."

// readSampleName reads a field with the name of a sample; nil: it is absent or invalid.
func readSampleName(in *input, field string) *string {
	name := in.Text(field, 0, math.MaxInt)
	if name != nil && !account.IsSampleName(*name) {
		in.Reject(field, "invalid_format", sampleNameRule)
		return nil
	}
	return name
}

// readSamplePath reads the name in the path.
func readSamplePath(c *gin.Context) (name string, err error) {
	params := readParams(c)
	if name = c.Param("name"); !account.IsSampleName(name) {
		params.Reject("name", "invalid_format", "`name` "+sampleNameRule)
	}
	return name, params.Err()
}

// listSamples lists the samples of the caller's account and the built-in ones by name.
func (s *Server) listSamples(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, byNameOnly)
	return writePage(s, c, params, p, list[account.Sample, account.Sample]{
		find: func(ctx context.Context) ([]account.Sample, error) {
			all, err := account.Samples(ctx, s.reads, p.account)
			return slices.DeleteFunc(all, func(one account.Sample) bool { return one.Name <= p.after.Key }), err
		},
		count: func(ctx context.Context) (int64, error) {
			all, err := account.Samples(ctx, s.reads, p.account)
			return int64(len(all)), err
		},
		item:     func(one account.Sample) account.Sample { return one },
		cursorOf: func(one account.Sample) httpjson.Position { return httpjson.Position{Key: one.Name} },
	})
}

// saveSample saves the store of a sandbox.
func (s *Server) saveSample(c *gin.Context) error {
	in := s.decode(c, required("name", "from"), readOnly("builtIn", "createdAt"))
	name, from := readSampleName(in, "name"), in.Text("from", 0, math.MaxInt)
	var id int64
	if from != nil {
		var ok bool
		if id, ok = account.ParseSandboxID(*from); !ok {
			in.Reject("from", "invalid_format", "must be the id of a sandbox, such as `sbx_42`.")
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	var size int64
	row, err := transact(s, c, s.gate.Limits.Loads, func(ctx context.Context, queries *db.Queries) (db.SampleGetRow, error) {
		caller := gate.Caller(c)
		if caller.IsSandbox() {
			return db.SampleGetRow{}, errNestedSandbox
		}
		if _, err := queries.SandboxGet(ctx, db.SandboxGetParams{ParentID: caller.AccountID, ID: id}); err != nil {
			return db.SampleGetRow{}, orNotFound(err, errUnknownSandbox)
		}
		row, copied, err := account.SaveSample(ctx, queries, account.NewSample{ParentID: caller.AccountID, Name: *name, SandboxID: id})
		size = copied
		return row, err
	})
	s.chargeLoad(c, size, err)
	if err != nil {
		return err
	}
	gate.Record(c, "sample_saved", slog.String("target_sample", row.Name))
	return writeNew(c, samplesPath+"/"+row.Name, account.SampleFrom(row))
}

// getSample sends a sample.
func (s *Server) getSample(c *gin.Context) error {
	name, err := readSamplePath(c)
	if err != nil {
		return err
	}
	found := account.Sample{Name: name, BuiltIn: true}
	if !account.IsBuiltIn(name) {
		row, err := s.reads.SampleGet(c.Request.Context(), db.SampleGetParams{ParentID: new(gate.Caller(c).AccountID), Name: name})
		if err != nil {
			return orNotFound(err, errSampleNotFound)
		}
		found = account.SampleFrom(row)
	}
	return httpjson.WriteUntagged(c.Writer, c.Request, found)
}

// deleteSample deletes a sample. Sandboxes that have started as it still return to it.
func (s *Server) deleteSample(c *gin.Context) error {
	name, err := readSamplePath(c)
	if err != nil {
		return err
	}
	_, err = transact(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (bool, error) {
		if account.IsBuiltIn(name) {
			return false, errBuiltInSample
		}
		row, err := queries.SampleGet(ctx, db.SampleGetParams{ParentID: new(gate.Caller(c).AccountID), Name: name})
		if err != nil {
			return false, orNotFound(err, errSampleNotFound)
		}
		deleted, err := account.Delete(ctx, queries, row.ID)
		if err == nil && !deleted {
			err = errSampleNotFound // deleted concurrently
		}
		return deleted, err
	})
	if err != nil {
		return s.confirmGone(c, err, errSampleNotFound)
	}
	gate.Record(c, "sample_deleted", slog.String("target_sample", name))
	c.Status(http.StatusNoContent)
	return nil
}
