package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/postgres"
)

const (
	maxAccountName  = 100
	maxKeyExpiry    = 100 * 365 * day
	day             = 24 * time.Hour
	commandWait     = 30 * time.Second // for a connection, also past hosts that do not respond
	keyStatusInUse  = "in force"
	keyStatusEnded  = "revoked"
	keyStatusLapsed = "expired"
)

// keyArgument is the argument of rotate and revoke, for error messages.
const keyArgument = "the id or the prefix of one API key"

func (p *program) keyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "key",
		Short:   "Create, list, rotate and revoke API keys",
		Example: "  petstore key create --account acme --scope write",
	}, p.keyCreateCommand(), p.keyListCommand(), p.keyRotateCommand(), p.keyRevokeCommand())
}

// withDatabase runs an action on the database of DATABASE_URL, see [withDatabaseOf].
func (p *program) withDatabase(ctx context.Context, action func(context.Context, *postgres.DB) error) error {
	c, err := p.loadDatabaseConfig()
	if err != nil {
		return err
	}
	return withDatabaseOf(ctx, c.DatabaseURL, c.DBMaxConns, action)
}

// withDatabaseOf runs an action on the database of a URL. It returns an error if the
// schema does not fit this program or a connection pooler drops settings.
func withDatabaseOf(ctx context.Context, url string, maxConns int, action func(context.Context, *postgres.DB) error) error {
	database, err := postgres.Open(ctx, url, maxConns)
	if err != nil {
		return err
	}
	defer database.Close()
	database.WaitAtMost(commandWait)
	fit, err := checkDatabase(ctx, database)
	if err != nil {
		return err
	}
	if problem := fit.Problem(); problem != "" {
		return errors.New(problem)
	}
	return action(ctx, database)
}

func (p *program) keyCreateCommand() *cobra.Command {
	var accountName, expiresIn string
	name, scopeName := "default", "write"
	command := &cobra.Command{
		Use:   "create",
		Short: "Create an API key, and its account if it does not exist",
		Long: `Create creates an API key and prints only the key on stdout. It is shown only once:
the database keeps only its hash.`,
		Example: "  petstore key create --account acme --name ci --scope write --expires-in 90d",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if accountName == "" {
				return wrongUsage(cmd, "--account is required: name the account of the new key")
			}
			expiresAt, err := parseExpiry(expiresIn, time.Now())
			if err != nil {
				return wrongUsage(cmd, "%v", err)
			}
			scope, _ := auth.ParseScope(scopeName) // a choice
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				secret, err := createKey(ctx, database, accountName, auth.NewKey{Name: name, Scope: scope, ExpiresAt: expiresAt})
				if err != nil {
					return err
				}
				fmt.Fprintln(p.stdout, secret.Reveal())
				return nil
			})
		},
	}
	addTextFlag(command, &accountName, "account", nameRule, "the name of the account; created if it does not exist (required)")
	addTextFlag(command, &name, "name", nameRule, "a label for the key")
	addChoiceFlag(command, &scopeName, "scope", "read, write or admin", "read", "write", "admin")
	command.Flags().StringVar(&expiresIn, "expires-in", "", "how long the key is valid, such as 90d or 12h (default: forever)")
	completeFlag(command, "expires-in", "30d", "90d", "365d")
	return command
}

// nameRule is the rule for the names of accounts and keys.
var nameRule = textRule{fmt.Sprintf("must have 1 to %d characters, not only white space and no control characters", maxAccountName), isName}

// isName reports whether a name is valid for an account or a key, by the same rules
// as the API.
func isName(name string) bool {
	return utf8.ValidString(name) && utf8.RuneCountInString(name) <= maxAccountName &&
		strings.TrimSpace(name) != "" && !strings.ContainsFunc(name, unicode.IsControl)
}

// createKey creates a key, and its account if it does not exist, in one transaction.
func createKey(ctx context.Context, database *postgres.DB, name string, key auth.NewKey) (auth.Secret, error) {
	var secret auth.Secret
	err := transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
		if err := queries.KeyTableLockShared(ctx); err != nil {
			return err
		}
		owner, err := account.Ensure(ctx, queries, name)
		if err != nil {
			return err
		}
		key.AccountID = owner.ID
		_, secret, err = auth.Issue(ctx, queries, key)
		if errors.Is(err, auth.ErrTooManyKeys) {
			return fmt.Errorf("the account %q has %d live API keys, or %d in its list, which is the maximum; revoke one, which leaves the list after 30 days", name, auth.MaxKeys, auth.MaxStored)
		}
		return err
	})
	return secret, err
}

// parseExpiry parses a Go duration, or a number of days such as 90d.
func parseExpiry(text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no expiry
	}
	duration, err := parseDays(text)
	if err != nil || duration <= 0 || duration > maxKeyExpiry {
		return nil, fmt.Errorf("--expires-in must be a duration such as 90d or 12h, at most 100 years, but is %q", text)
	}
	expiresAt := now.Add(duration)
	return &expiresAt, nil
}

// parseDays parses a Go duration, or a number of days such as 90d. It limits a number of days to one
// more than [maxKeyExpiry] on both sides of 0, so that the duration does not overflow.
func parseDays(text string) (time.Duration, error) {
	days, isDays := strings.CutSuffix(text, "d")
	if !isDays {
		return time.ParseDuration(text)
	}
	number, err := strconv.Atoi(days)
	const limit = int(maxKeyExpiry/day) + 1
	return time.Duration(max(-limit, min(number, limit))) * day, err
}

func (p *program) keyListCommand() *cobra.Command {
	return listCommand(p, listing[listedKey]{
		short:     "List the API keys of an account",
		example:   "  petstore key list --account acme\n  petstore key list --account acme --json",
		resources: "keys",
		fields:    "the fields of the API and status",
		header:    "ID\tPREFIX\tNAME\tSCOPE\tCREATED\tLAST USED\tEXPIRES\tSTATUS",
		row: func(key listedKey) string {
			return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s", key.ID, key.Prefix, key.Name, key.Scope,
				formatTime(&key.CreatedAt, ""), formatTime(key.LastUsedAt, "never"), formatTime(key.ExpiresAt, "never"), key.Status)
		},
		read: listKeys,
	})
}

func listKeys(ctx context.Context, queries *db.Queries, accountID int64) (all []listedKey, err error) {
	keys, err := queries.APIKeyList(ctx, db.APIKeyListParams{AccountID: accountID, PageSize: auth.MaxStored})
	now := time.Now()
	for _, key := range keys {
		all = append(all, listKey(key, now))
	}
	return all, err
}

// listedKey is an API key in the output of --json. It has the fields of the API, and a
// status.
type listedKey struct {
	api.Key

	Status string `json:"status"`
}

func listKey(key db.APIKeyListRow, now time.Time) listedKey {
	listed := listedKey{api.KeyFrom(key), keyStatusInUse}
	switch {
	case key.RevokedAt != nil:
		listed.Status = keyStatusEnded
	case key.ExpiresAt != nil && !now.Before(*key.ExpiresAt):
		listed.Status = keyStatusLapsed
	}
	return listed
}

func (p *program) keyRotateCommand() *cobra.Command {
	var grace time.Duration
	command := &cobra.Command{
		Use:   "rotate ID|PREFIX",
		Short: "Give an API key a new secret",
		Long: `Rotate gives an API key, identified by its id or prefix, a new secret and prints
only the secret on stdout. It is shown only once. The old secret keeps working for
the grace period. Without one it stops within a second on every server.`,
		Example: "  petstore key rotate petstore_4fTq2LxZ --grace 10m",
		Args:    oneArgument(keyArgument),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				key, err := findKey(ctx, db.New(database), args[0])
				if err != nil {
					return err
				}
				return p.rotateKey(ctx, database, key, grace)
			})
		},
	}
	rule := fmt.Sprintf("must be 0s to %.0fh in whole seconds", auth.MaxGrace.Hours())
	parse := func(text string) (time.Duration, bool) {
		parsed, err := time.ParseDuration(text)
		return parsed, err == nil && parsed >= 0 && parsed <= auth.MaxGrace && parsed%time.Second == 0
	}
	command.Flags().Var(&checkedFlag[time.Duration]{&grace, "duration", rule, parse}, "grace", "how long the old secret keeps working, such as 10m; at most 24h")
	completeFlag(command, "grace", "10m", "1h", "24h")
	return command
}

func (p *program) rotateKey(ctx context.Context, database *postgres.DB, key db.APIKeyFindRow, grace time.Duration) error {
	secret, err := postgres.Transact(ctx, database, func(ctx context.Context, tx pgx.Tx) (auth.Secret, error) {
		rotated, secret, err := auth.Rotate(ctx, db.New(tx), key.AccountID, key.ID, grace)
		if err == nil && rotated.ExpiresAt != nil && !time.Now().Before(*rotated.ExpiresAt) {
			err = fmt.Errorf("the API key %d %s (%s) has expired, and a new secret would not work; create another key with petstore key create", key.ID, key.Prefix, key.Name)
		}
		return secret, err
	})
	if errors.Is(err, auth.ErrNoKey) {
		return fmt.Errorf("the API key %d %s (%s) is revoked", key.ID, key.Prefix, key.Name)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, secret.Reveal())
	return nil
}

// findKey returns the key with an id or a prefix. The error says that there is none, or that there are
// several.
func findKey(ctx context.Context, queries *db.Queries, argument string) (key db.APIKeyFindRow, err error) {
	var named db.APIKeyFindParams
	if id, err := strconv.ParseInt(argument, 10, 64); err == nil {
		named.ID = &id
	} else {
		named.Prefix = &argument
	}
	keys, err := queries.APIKeyFind(ctx, named)
	switch {
	case err != nil:
		return key, err
	case len(keys) == 0:
		return key, fmt.Errorf("there is no API key with the id or prefix %q", argument)
	case len(keys) > 1: // several may have the same prefix
		return key, fmt.Errorf("%d API keys have the prefix %q; name one by its id", len(keys), argument)
	default:
		return keys[0], nil
	}
}

func (p *program) keyRevokeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "revoke ID|PREFIX",
		Short: "Revoke an API key within a second on every server",
		Long: `Revoke revokes an API key, identified by its id or prefix, within a second on
every server. Revoking it again changes nothing. If several keys have the prefix, name
one by its id.`,
		Example: "  petstore key revoke petstore_4fTq2LxZ",
		Args:    oneArgument(keyArgument),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				queries := db.New(database)
				key, err := findKey(ctx, queries, args[0])
				if err != nil {
					return err
				}
				// Without a row, it was already revoked, or its account was deleted meanwhile.
				if _, err := queries.APIKeyRevokeOwn(ctx, db.APIKeyRevokeOwnParams{ID: key.ID, AccountID: key.AccountID}); err != nil && !errors.Is(err, pgx.ErrNoRows) {
					return err
				}
				// The revocation of a key that was already revoked may be on the
				// primary only.
				if err := queries.StandbyAwaitHere(ctx); err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "revoked key %d %s (%s)\n", key.ID, key.Prefix, key.Name)
				return nil
			})
		},
	}
	return command
}
