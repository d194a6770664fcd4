package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// servingPrivileges are exactly the tables and columns that the statements in
// queries/ read and write; TestServingPrivileges compares them. GRANT … ON ALL TABLES and
// default privileges would grant too much, and a grant in a migration would have to name an
// unknown role. UPDATE on a column includes locking the row. Identity columns need no privilege on their sequences.
var servingPrivileges = []struct{ table, privileges string }{
	{"account_state", "SELECT (account_id, closed, reset_at, last_sequence, last_nonce, last_event_at, last_category_id, last_pet_id, last_order_id, last_message_id), " +
		"INSERT (account_id), " +
		"UPDATE (closed, reset_at, last_sequence, last_nonce, last_event_at, last_category_id, last_pet_id, last_order_id, last_message_id), " +
		"DELETE"},
	{
		"accounts",
		"SELECT (id, kind, parent_id, name, sample_id, sample, created_at, expires_at, deleted_at), " +
			"INSERT (kind, parent_id, name, sample_id, sample, expires_at), " +
			"UPDATE (name, deleted_at), " +
			"DELETE",
	},
	{"api_key_uses", "SELECT (account_id, api_key_id, last_used_at), INSERT (account_id, api_key_id, last_used_at), UPDATE (last_used_at), DELETE"},
	{
		"api_keys",
		"SELECT (id, account_id, name, scope, prefix, secret_sha256, previous_sha256, previous_until, created_at, expires_at, revoked_at), " +
			"INSERT (account_id, name, scope, prefix, secret_sha256, expires_at), " +
			"UPDATE (prefix, secret_sha256, previous_sha256, previous_until, revoked_at), " +
			"DELETE",
	},
	{
		"categories",
		"SELECT (account_id, id, name, name_key, description), " +
			"INSERT (account_id, id, name, name_key, description), " +
			"UPDATE (name, name_key, description), " +
			"DELETE",
	},
	{
		"events",
		"SELECT (account_id, sequence, created_at, nonce, type, subject, data), " +
			"INSERT (account_id, sequence, created_at, nonce, type, subject, data), " +
			"DELETE",
	},
	{"exchange_logs", "SELECT (account_id, first_number, last_number, bytes, dropped), INSERT (account_id), UPDATE (first_number, last_number, bytes, dropped), DELETE"},
	{
		"exchanges",
		"SELECT (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages), " +
			"INSERT (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages), " +
			"DELETE",
	},
	{"goose_db_version", "SELECT (version_id, is_applied)"},
	{
		"idempotency_keys",
		"SELECT (account_id, api_key_id, key, fingerprint, status, location, body, created_at), " +
			"INSERT (account_id, api_key_id, key, fingerprint, status, location, body, created_at), " +
			"DELETE",
	},
	{"inventory", "SELECT (account_id, pet_id, quantity, held, low), INSERT (account_id, pet_id, quantity, held), UPDATE (quantity, held), DELETE"},
	{"messages", "SELECT (account_id, id, message, status, created_at), INSERT (account_id, id, message, status), UPDATE (status), DELETE"},
	{
		"orders",
		"SELECT (account_id, id, pet_id, quantity, ship_date, complete), " +
			"INSERT (account_id, id, pet_id, quantity, ship_date, complete), " +
			"UPDATE (ship_date, complete), " +
			"DELETE",
	},
	{
		"pets",
		"SELECT (account_id, id, category_id, name, name_key, status), " +
			"INSERT (account_id, id, category_id, name, name_key, status), " +
			"UPDATE (category_id, name, name_key, status), " +
			"DELETE",
	},
	{
		"sandbox_faults",
		"SELECT (account_id, id, position, operation, effect, status, delay_ms, close_when, first, probability, seed, matched), " +
			"INSERT (account_id, position, operation, effect, status, delay_ms, close_when, first, probability, seed), " +
			"UPDATE (matched), " +
			"DELETE",
	},
	{"signing_keys", "SELECT (purpose, secret)"},
	{
		"webhook_deliveries",
		"SELECT (account_id, id, webhook_id, event_id, sequence, type, body, status, attempts, next_attempt_at, created_at), " +
			"INSERT (account_id, id, webhook_id, event_id, sequence, type, body, next_attempt_at), " +
			"UPDATE (status, attempts, next_attempt_at), " +
			"DELETE",
	},
	{
		"webhooks",
		"SELECT (account_id, id, url, types, description, status, disabled_reason, secret, previous_secret, previous_until, after_sequence, until_sequence, lease, lease_until, failures, failing_since, retry_at, slow_until, unsettled_after, created_at, deleted_at), " +
			"INSERT (account_id, id, url, types, description, secret, after_sequence), " +
			"UPDATE (url, types, description, status, disabled_reason, secret, previous_secret, previous_until, after_sequence, until_sequence, lease, lease_until, failures, failing_since, retry_at, slow_until, unsettled_after, deleted_at), " +
			"DELETE",
	},
}

// formerPrivileges are privileges, such as "SELECT (name) ON pets", that only queries of the
// last release need. Its programs run until a deployment replaces them.
var formerPrivileges []string

// servingSequences are the sequences that queries read explicitly.
var servingSequences = []string{"categories_id_seq", "pets_id_seq", "orders_id_seq"}

// servingFunctions are the functions that queries call and not every role may.
var servingFunctions = []string{"maintain_events()"}

// largeObjects are the functions that create large objects, which nothing would delete.
// Every role may call them by default, and only a superuser can change that.
const largeObjects = "pg_catalog.lo_create(oid), pg_catalog.lo_creat(integer), pg_catalog.lo_from_bytea(oid, bytea)"

// ServingPrivileges describes the privileges that [Migrations.GrantServing] grants. The
// text changes when they do.
func ServingPrivileges() string {
	return fmt.Sprint(servingPrivileges, formerPrivileges, servingSequences, servingFunctions, largeObjects)
}

// grantLock is the advisory lock of a transaction that grants. Two concurrent ones
// would change the same catalog rows, and one would fail.
const grantLock = 0x70657473746f7265 // "petstore"

// ErrLaterSchema means that a later release has migrated the schema and knows its privileges.
var ErrLaterSchema = errors.New("the schema is of a later release, which grants the privileges")

// GrantServing grants a role the privileges that serve and the commands account, key and
// sandbox need, column by column. It revokes all its other privileges on tables,
// sequences and the schema. It also revokes from all roles the right to create objects in
// the schema and temporary tables. No other role may call the functions of the service. As a superuser, it also revokes the creation of large
// objects. On a distributed database it grants INSERT on all columns, because the
// coordinator of Citus sends their defaults to the workers. The role must exist. It must not
// be a superuser or inherit from the role that migrates, because it could then change the
// schema anyway.
//
// If the schema is newer than this program, GrantServing changes nothing and returns
// [ErrLaterSchema], because a later release may need other privileges.
func (m *Migrations) GrantServing(ctx context.Context, role string) error {
	version, err := m.Version(ctx)
	switch {
	case err != nil:
		return err
	case version > latestVersion:
		return ErrLaterSchema
	}
	distributed, err := m.isDistributed(ctx)
	if err != nil {
		return err
	}
	return m.transact(ctx, "granting", func(tx *sql.Tx) error {
		if err := grantServing(ctx, tx, role, distributed); err != nil {
			return fmt.Errorf("postgres: granting to the role %q: %w", role, err)
		}
		return nil
	})
}

func grantServing(ctx context.Context, tx *sql.Tx, role string, distributed bool) error {
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", grantLock); err != nil {
		return err
	}
	var database, schema string
	var powerful, isSuperuser bool
	err := tx.QueryRowContext(ctx, `
		SELECT current_database(), current_schema(), rolsuper OR pg_has_role(oid, current_user, 'MEMBER'),
		       current_setting('is_superuser')::boolean
		FROM pg_roles
		WHERE rolname = $1`, role).Scan(&database, &schema, &powerful, &isSuperuser)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return errors.New("it does not exist; create it with CREATE ROLE")
	case err != nil:
		return err
	case powerful:
		return errors.New("it can change the schema: it is a superuser or inherits from the role that migrates; use another role")
	}
	database, schema, role = quote(database), quote(schema), quote(role)
	statements := []string{
		"REVOKE TEMPORARY ON DATABASE " + database + " FROM PUBLIC, " + role,
		"REVOKE CREATE ON SCHEMA " + schema + " FROM PUBLIC, " + role,
		"REVOKE ALL ON ALL TABLES IN SCHEMA " + schema + " FROM " + role,
		"REVOKE ALL ON ALL SEQUENCES IN SCHEMA " + schema + " FROM " + role,
		"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA " + schema + " FROM " + role,
		"GRANT USAGE ON SCHEMA " + schema + " TO " + role,
	}
	for _, on := range servingPrivileges {
		statements = append(statements, "GRANT "+on.privileges+" ON "+schema+"."+on.table+" TO "+role)
		if distributed && strings.Contains(on.privileges, "INSERT (") {
			statements = append(statements, "GRANT INSERT ON "+schema+"."+on.table+" TO "+role)
		}
	}
	for _, privilege := range formerPrivileges {
		columns, table, _ := strings.Cut(privilege, " ON ")
		statements = append(statements, "GRANT "+columns+" ON "+schema+"."+table+" TO "+role)
	}
	for _, sequence := range servingSequences {
		statements = append(statements, "GRANT USAGE ON SEQUENCE "+schema+"."+sequence+" TO "+role)
	}
	for _, function := range servingFunctions {
		// pg_restore --no-privileges leaves the default: every role may call it.
		statements = append(statements, "REVOKE EXECUTE ON FUNCTION "+schema+"."+function+" FROM PUBLIC",
			"GRANT EXECUTE ON FUNCTION "+schema+"."+function+" TO "+role)
	}
	if isSuperuser {
		statements = append(statements, "REVOKE EXECUTE ON FUNCTION "+largeObjects+" FROM PUBLIC, "+role)
	}
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
