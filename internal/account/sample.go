package account

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/seed"
)

// Limits of samples.
const (
	// MaxSamples is the maximum number of samples of an account, without the built-in ones.
	MaxSamples = 20
	// MaxStoredSamples is the maximum number of samples of an account with deleted ones that
	// are still stored, because sandboxes return to them.
	MaxStoredSamples = 40
)

// The built-in samples, which every account has.
const (
	SampleShop  = "shop"  // the shop of [seed.Fill] with [seed.ShopPets] pets
	SampleEmpty = "empty" // nothing
)

// builtIn has the names of the accounts of the built-in samples. Raise the version with every
// change of the data. Then servers of both versions create sandboxes with their own data, and
// existing sandboxes return to what they have started as.
var builtIn = map[string]string{SampleShop: "shop 1", SampleEmpty: "empty 1"}

var (
	// ErrNoSample means that the account has no sample with the name.
	ErrNoSample = errors.New("account: there is no such sample")
	// ErrSampleExists means that the account has a sample with the name.
	ErrSampleExists = errors.New("account: the sample exists")
	// ErrTooManySamples means that the account has [MaxSamples] samples, or
	// [MaxStoredSamples] with the deleted ones.
	ErrTooManySamples = errors.New("account: too many samples of the account")
	// ErrNoSandbox means that the sandbox to save has ended.
	ErrNoSandbox = errors.New("account: the sandbox has ended")
)

// sampleName matches the names of samples.
var sampleName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,49}$`)

// IsSampleName reports whether a sample can have the name.
func IsSampleName(name string) bool { return sampleName.MatchString(name) }

// BuiltInSamples returns the names of the built-in samples.
func BuiltInSamples() []string { return slices.Sorted(maps.Keys(builtIn)) }

// IsBuiltIn reports whether a sample with the name is built in.
func IsBuiltIn(name string) bool { return builtIn[name] != "" }

// Sample is a sample of an account, and the Sample schema of the spec. A built-in one has no time.
type Sample struct {
	Name      string     `json:"name"`
	BuiltIn   bool       `json:"builtIn"`
	CreatedAt *time.Time `json:"createdAt,omitempty"`
}

// Samples returns the samples of an account and the built-in ones by name.
func Samples(ctx context.Context, queries *db.Queries, accountID int64) ([]Sample, error) {
	rows, err := queries.SampleList(ctx, accountID)
	if err != nil {
		return nil, err
	}
	var all []Sample
	for name := range builtIn {
		all = append(all, Sample{Name: name, BuiltIn: true})
	}
	for _, row := range rows {
		all = append(all, SampleFrom(db.SampleGetRow(row)))
	}
	slices.SortFunc(all, func(a, b Sample) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// SampleFrom returns a sample that is not built in.
func SampleFrom(row db.SampleGetRow) Sample {
	at := row.CreatedAt.UTC()
	return Sample{Name: row.Name, CreatedAt: &at}
}

// NewSample describes a sample to save.
type NewSample struct {
	ParentID  int64
	Name      string // [IsSampleName]
	SandboxID int64  // a live sandbox of the parent
}

// SaveSample saves the store of a sandbox as it is between two writes. The queries must run in
// a transaction, which must roll back after an error. The error is [ErrSampleExists],
// [ErrTooManySamples], [ErrNoSandbox], [ErrClosed] or a database error. The size is the bytes that were
// copied, also when the copy failed.
func SaveSample(ctx context.Context, queries *db.Queries, sample NewSample) (made db.SampleGetRow, size int64, err error) {
	if err := queries.SandboxesLock(ctx, sample.ParentID); err != nil {
		return made, 0, savingError(err)
	}
	if err := checkSample(ctx, queries, sample); err != nil {
		return made, 0, err
	}
	if err := Enter(ctx, queries, sample.SandboxID, false); err != nil {
		if errors.Is(err, ErrClosed) {
			err = ErrNoSandbox
		}
		return made, 0, savingError(err)
	}
	if made, err = createSample(ctx, queries, &sample.ParentID, sample.Name); err != nil {
		return made, 0, savingError(err)
	}
	if size, err = copyStore(ctx, queries, sample.SandboxID, made.ID); err != nil {
		return made, size, savingError(err)
	}
	return made, size, nil
}

func savingError(err error) error { return fmt.Errorf("account: saving the sample: %w", err) }

// checkSample returns an error if an account cannot have a new sample.
func checkSample(ctx context.Context, queries *db.Queries, sample NewSample) error {
	if err := checkOpen(ctx, queries, sample.ParentID); err != nil {
		return err
	}
	_, err := queries.SampleGet(ctx, db.SampleGetParams{ParentID: &sample.ParentID, Name: sample.Name})
	if err == nil || IsBuiltIn(sample.Name) {
		return ErrSampleExists
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return savingError(err)
	}
	count, err := queries.SampleCount(ctx, sample.ParentID)
	if err != nil {
		return savingError(err)
	}
	if count.Live >= MaxSamples || count.Stored >= MaxStoredSamples {
		return ErrTooManySamples
	}
	return nil
}

// createSample creates a sample with an empty store. A built-in one has no parent.
func createSample(ctx context.Context, queries *db.Queries, parent *int64, name string) (db.SampleGetRow, error) {
	row, err := queries.SampleCreate(ctx, db.SampleCreateParams{ParentID: parent, Name: name})
	if err != nil {
		return db.SampleGetRow{}, err
	}
	return db.SampleGetRow(row), queries.AccountStateEnsure(ctx, row.ID)
}

// findSample returns the account of a sample, and keeps the sample from being deleted. The
// first use of a built-in one in a database creates it. The error is [ErrNoSample] or a
// database error.
func findSample(ctx context.Context, queries *db.Queries, parentID int64, name string) (id int64, err error) {
	wanted := db.SampleGetParams{ParentID: &parentID, Name: name}
	if IsBuiltIn(name) {
		wanted = db.SampleGetParams{Name: builtIn[name]}
	}
	row, err := queries.SampleGet(ctx, wanted)
	if errors.Is(err, pgx.ErrNoRows) && IsBuiltIn(name) {
		row, err = createBuiltIn(ctx, queries, name, wanted)
	}
	if err == nil {
		err = Enter(ctx, queries, row.ID, false)
	}
	if errors.Is(err, pgx.ErrNoRows) || errors.Is(err, ErrClosed) {
		return 0, ErrNoSample
	}
	return row.ID, err
}

// createBuiltIn creates a built-in sample, unless another transaction has done it meanwhile.
func createBuiltIn(ctx context.Context, queries *db.Queries, name string, wanted db.SampleGetParams) (row db.SampleGetRow, err error) {
	if err := queries.BuiltInSamplesLock(ctx); err != nil {
		return row, err
	}
	if row, err = queries.SampleGet(ctx, wanted); !errors.Is(err, pgx.ErrNoRows) {
		return row, err
	}
	if row, err = createSample(ctx, queries, nil, wanted.Name); err != nil || name != SampleShop {
		return row, err
	}
	return row, seed.Fill(ctx, queries, row.ID, seed.ShopPets, nil)
}

// copies returns the copy of a query, whose parameters have another type than others.
func copies[Params ~struct{ AccountID, SourceID int64 }](query func(context.Context, Params) error) func(ctx context.Context, from, to int64) error {
	return func(ctx context.Context, from, to int64) error {
		return query(ctx, Params{SourceID: from, AccountID: to})
	}
}

// copyStore copies a store to an empty one, with its newest ids, and returns its size. The transaction must
// hold the lock of a store that can change.
func copyStore(ctx context.Context, queries *db.Queries, from, to int64) (size int64, err error) {
	if size, err = copyRows(ctx, queries, from, to); err == nil {
		err = copyNewestIDs(ctx, queries, from, to)
	}
	return size, err
}

// copyRows copies the rows of a store to one that is empty or has only messages, and returns the size of
// the store.
func copyRows(ctx context.Context, queries *db.Queries, from, to int64) (size int64, err error) {
	if size, err = queries.StoreSize(ctx, from); err != nil {
		return 0, err
	}
	for _, copyTable := range []func(context.Context, int64, int64) error{
		copies(queries.StoreCopyCategories), copies(queries.StoreCopyPets), copies(queries.StoreCopyInventory),
		copies(queries.StoreCopyOrders), copies(queries.StoreCopyMessages),
	} {
		if err := copyTable(ctx, from, to); err != nil {
			return size, err
		}
	}
	return size, nil
}

// copyNewestIDs copies the newest ids of a store. It locks the feed, so it comes after everything that locks
// rows of the store.
func copyNewestIDs(ctx context.Context, queries *db.Queries, from, to int64) error {
	newest, err := queries.StoreNewestIDs(ctx, from)
	if err != nil {
		return err
	}
	return queries.StoreSetNewestIDs(ctx, db.StoreSetNewestIDsParams{
		AccountID: to, LastCategoryID: newest.LastCategoryID, LastPetID: newest.LastPetID,
		LastOrderID: newest.LastOrderID, LastMessageID: newest.LastMessageID,
	})
}
