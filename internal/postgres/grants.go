package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// servingPrivileges are exactly the tables and columns that the statements in
// queries/ read and write; TestServingPrivileges compares them. GRANT … ON ALL TABLES and
// default privileges would grant too much, and a grant in a migration would have to name an
// unknown role. UPDATE on a column includes locking the row. Identity columns need no privilege on their sequences.
var servingPrivileges = strings.Split(`SELECT (account_id, closed, reset_at, last_sequence, last_nonce, last_event_at, last_category_id, last_pet_id, last_order_id, last_message_id) ON account_state
INSERT (account_id) ON account_state
UPDATE (closed, reset_at, last_sequence, last_nonce, last_event_at, last_category_id, last_pet_id, last_order_id, last_message_id) ON account_state
DELETE ON account_state
SELECT (id, kind, parent_id, name, sample_id, sample, created_at, expires_at, deleted_at) ON accounts
INSERT (kind, parent_id, name, sample_id, sample, expires_at) ON accounts
UPDATE (name, deleted_at) ON accounts
DELETE ON accounts
SELECT (account_id, api_key_id, last_used_at) ON api_key_uses
INSERT (account_id, api_key_id, last_used_at) ON api_key_uses
UPDATE (last_used_at) ON api_key_uses
DELETE ON api_key_uses
SELECT (id, account_id, name, scope, prefix, secret_sha256, previous_sha256, previous_until, created_at, expires_at, revoked_at) ON api_keys
INSERT (account_id, name, scope, prefix, secret_sha256, expires_at) ON api_keys
UPDATE (prefix, secret_sha256, previous_sha256, previous_until, revoked_at) ON api_keys
DELETE ON api_keys
SELECT (account_id, id, name, name_key, description) ON categories
INSERT (account_id, id, name, name_key, description) ON categories
UPDATE (name, name_key, description) ON categories
DELETE ON categories
SELECT (account_id, sequence, created_at, nonce, type, subject, data) ON events
INSERT (account_id, sequence, created_at, nonce, type, subject, data) ON events
DELETE ON events
SELECT (account_id, first_number, last_number, bytes, dropped) ON exchange_logs
INSERT (account_id, first_number, last_number) ON exchange_logs
UPDATE (first_number, last_number, bytes, dropped) ON exchange_logs
DELETE ON exchange_logs
SELECT (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages) ON exchanges
INSERT (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault, messages) ON exchanges
DELETE ON exchanges
SELECT (version_id, is_applied) ON goose_db_version
SELECT (account_id, api_key_id, key, fingerprint, status, location, body, created_at) ON idempotency_keys
INSERT (account_id, api_key_id, key, fingerprint, status, location, body, created_at) ON idempotency_keys
DELETE ON idempotency_keys
SELECT (account_id, pet_id, quantity, held, low) ON inventory
INSERT (account_id, pet_id, quantity, held) ON inventory
UPDATE (quantity, held) ON inventory
DELETE ON inventory
SELECT (account_id, id, message, status, created_at) ON messages
INSERT (account_id, id, message, status) ON messages
UPDATE (status, created_at) ON messages
DELETE ON messages
SELECT (account_id, id, pet_id, quantity, ship_date, complete) ON orders
INSERT (account_id, id, pet_id, quantity, ship_date, complete) ON orders
UPDATE (ship_date, complete) ON orders
DELETE ON orders
SELECT (account_id, id, category_id, name, name_key, status) ON pets
INSERT (account_id, id, category_id, name, name_key, status) ON pets
UPDATE (category_id, name, name_key, status) ON pets
DELETE ON pets
SELECT (account_id, id, position, operation, effect, status, delay_ms, close_when, first, probability, seed, matched) ON sandbox_faults
INSERT (account_id, position, operation, effect, status, delay_ms, close_when, first, probability, seed) ON sandbox_faults
UPDATE (id, matched) ON sandbox_faults
DELETE ON sandbox_faults
SELECT (purpose, secret) ON signing_keys
SELECT (account_id, id, webhook_id, event_id, sequence, type, body, status, attempts, next_attempt_at, created_at) ON webhook_deliveries
INSERT (account_id, id, webhook_id, event_id, sequence, type, body, next_attempt_at) ON webhook_deliveries
UPDATE (status, attempts, next_attempt_at) ON webhook_deliveries
DELETE ON webhook_deliveries
SELECT (account_id, id, url, types, description, status, disabled_reason, secret, previous_secret, previous_until, after_sequence, until_sequence, lease, lease_until, failures, failing_since, retry_at, slow_until, unsettled_after, created_at, deleted_at) ON webhooks
INSERT (account_id, id, url, types, description, secret, after_sequence, unsettled_after) ON webhooks
UPDATE (url, types, description, status, disabled_reason, secret, previous_secret, previous_until, after_sequence, until_sequence, lease, lease_until, failures, failing_since, retry_at, slow_until, unsettled_after, deleted_at) ON webhooks
DELETE ON webhooks`, "\n")

// formerPrivileges are privileges that only queries of the last release need. Its programs
// run until a deployment replaces them.
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
// sandbox need, column by column, and the right to connect. It revokes all its other privileges on tables,
// sequences and the schema. It also revokes from PUBLIC the rights to create objects in
// the schema and temporary tables, and to call maintain_events. As a superuser, it also
// revokes the creation of large objects. On a distributed database it grants INSERT on all
// columns, because the coordinator of Citus sends their defaults to the workers. The role
// must exist. It must not be a superuser or inherit from the role that migrates, because it
// could then change the schema anyway.
//
// If the schema is newer than this program, GrantServing changes nothing and returns
// [ErrLaterSchema], because a later release may need other privileges.
func (m *Migrations) GrantServing(ctx context.Context, role string) error {
	later, err := m.Later(ctx)
	switch {
	case err != nil:
		return err
	case later > 0:
		return ErrLaterSchema
	}
	if err := m.CheckServing(ctx, role); err != nil {
		return err
	}
	distributed, err := m.isDistributed(ctx)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error { return grantServing(ctx, tx, role, distributed) })
	return wrapGrant(role, err)
}

// CheckServing returns an error if [Migrations.GrantServing] would reject the role.
func (m *Migrations) CheckServing(ctx context.Context, role string) error {
	var powerful bool
	err := m.pool.QueryRow(ctx, "SELECT rolsuper OR pg_has_role(oid, current_user, 'MEMBER') FROM pg_roles WHERE rolname = $1", role).Scan(&powerful)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = errors.New("it does not exist; create it with CREATE ROLE")
	case powerful:
		err = errors.New("it can change the schema: it is a superuser or inherits from the role that migrates; use another role")
	}
	return wrapGrant(role, err)
}

func wrapGrant(role string, err error) error {
	if err != nil {
		return fmt.Errorf("postgres: granting to the role %q: %w", role, err)
	}
	return nil
}

func grantServing(ctx context.Context, tx pgx.Tx, role string, distributed bool) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", grantLock); err != nil {
		return err
	}
	var database, schema string
	var isSuperuser bool
	err := tx.QueryRow(ctx, "SELECT current_database(), current_schema(), current_setting('is_superuser')::boolean").Scan(&database, &schema, &isSuperuser)
	if err != nil {
		return err
	}
	database, schema, role = quote(database), quote(schema), quote(role)
	statements := []string{
		"REVOKE TEMPORARY ON DATABASE " + database + " FROM PUBLIC, " + role,
		"GRANT CONNECT ON DATABASE " + database + " TO " + role, // PUBLIC may have lost it
		"REVOKE CREATE ON SCHEMA " + schema + " FROM PUBLIC, " + role,
		"REVOKE ALL ON ALL TABLES IN SCHEMA " + schema + " FROM " + role,
		"REVOKE ALL ON ALL SEQUENCES IN SCHEMA " + schema + " FROM " + role,
		"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA " + schema + " FROM " + role,
		"GRANT USAGE ON SCHEMA " + schema + " TO " + role,
	}
	byTable := map[string][]string{}
	for _, one := range slices.Concat(servingPrivileges, formerPrivileges) {
		privilege, table, _ := strings.Cut(one, " ON ")
		if distributed && strings.HasPrefix(privilege, "INSERT") {
			privilege = "INSERT"
		}
		byTable[table] = append(byTable[table], privilege)
	}
	for _, table := range slices.Sorted(maps.Keys(byTable)) {
		statements = append(statements, "GRANT "+strings.Join(byTable[table], ", ")+" ON "+schema+"."+table+" TO "+role)
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
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
