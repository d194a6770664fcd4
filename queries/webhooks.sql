-- Webhooks and their deliveries, for the operations of the API. queries/delivery.sql has
-- the statements of the worker.

-- name: WebhooksLock :exec
-- Locks the number of webhooks of an account until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('webhooks', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: WebhookCount :one
-- Counts the webhooks of an account that the sweep has not deleted yet, and the live ones.
SELECT count(*) AS stored, count(*) FILTER (WHERE deleted_at IS NULL) AS live
FROM webhooks
WHERE account_id = @account_id;

-- name: WebhookCreate :one
-- Creates a webhook that receives the events from now on. Messages that wait are adapted to it if it
-- gets messages. No row means that the account is gone. Citus needs the alias.
INSERT INTO webhooks AS w (account_id, id, url, types, description, secret, after_sequence, unsettled_after)
SELECT account_state.account_id, @id, @url, @types::text[], sqlc.narg(description), @secret, account_state.last_sequence,
       CASE WHEN @types::text[] && '{*,message.queued}'::text[] THEN '' END
FROM account_state
WHERE account_state.account_id = @account_id
RETURNING w.id, w.url, w.types, w.description, w.status, w.disabled_reason, w.created_at;

-- name: WebhookList :many
-- Returns the webhooks of an account by id.
SELECT id, url, types, description, status, disabled_reason, created_at
FROM webhooks
WHERE account_id = @account_id
  AND deleted_at IS NULL
  AND id > @after_id
ORDER BY id
LIMIT (SELECT @page_size::int);

-- name: WebhookGet :one
SELECT id, url, types, description, status, disabled_reason, created_at
FROM webhooks
WHERE account_id = @account_id
  AND id = @id
  AND deleted_at IS NULL;

-- name: WebhookGetLocked :one
-- Returns a webhook and locks it until the transaction ends.
SELECT id, url, types, description, status, disabled_reason, after_sequence, created_at
FROM webhooks
WHERE account_id = @account_id
  AND id = @id
  AND deleted_at IS NULL
FOR NO KEY UPDATE;

-- name: WebhookUpdate :one
-- Changes a webhook. One that is disabled gets deliveries of the events up to now. One that
-- is enabled again receives the events from now on, unless it has not got those from before
-- it was disabled. A new URL has not failed yet. Messages are adapted to it if it begins or ends to
-- get them. The transaction must hold [WebhookGetLocked].
UPDATE webhooks
SET url = @url,
    types = @types::text[],
    description = sqlc.narg(description),
    status = @status,
    disabled_reason = sqlc.narg(disabled_reason),
    after_sequence = CASE WHEN webhooks.status = 'disabled' AND @status = 'enabled' AND (webhooks.until_sequence IS NULL OR webhooks.after_sequence >= webhooks.until_sequence)
        THEN account_state.last_sequence ELSE webhooks.after_sequence END,
    until_sequence = CASE WHEN webhooks.status = @status THEN webhooks.until_sequence WHEN @status = 'disabled' THEN account_state.last_sequence END,
    failures = CASE WHEN webhooks.status = @status AND webhooks.url = @url THEN webhooks.failures ELSE 0 END,
    retry_at = CASE WHEN webhooks.status = @status AND webhooks.url = @url THEN webhooks.retry_at END,
    failing_since = CASE WHEN webhooks.status = @status THEN webhooks.failing_since END,
    unsettled_after = CASE WHEN (webhooks.status = 'enabled' AND webhooks.types && '{*,message.queued}'::text[]) = (@status = 'enabled' AND @types && '{*,message.queued}'::text[])
        THEN webhooks.unsettled_after ELSE '' END
FROM account_state
WHERE webhooks.account_id = @account_id
  AND webhooks.id = @id
  AND account_state.account_id = @account_id
RETURNING webhooks.id, webhooks.url, webhooks.types, webhooks.description, webhooks.status, webhooks.disabled_reason, webhooks.created_at;

-- name: WebhookRetryNow :exec
-- Lets a request make the next attempt at a webhook that waits after failures. If a process
-- makes one now, another follows. Deliveries that the same transaction makes due afterwards
-- come first.
UPDATE webhooks
SET retry_at = statement_timestamp()
WHERE account_id = @account_id
  AND id = @id
  AND (retry_at > statement_timestamp() OR (failures >= 10 AND lease_until > statement_timestamp()));

-- name: WebhookDelete :exec
-- Marks a webhook as deleted. The sweep deletes its deliveries. Messages have been adapted to one
-- that does not subscribe, or are being adapted.
UPDATE webhooks
SET deleted_at = statement_timestamp(), status = 'disabled', disabled_reason = 'manual', until_sequence = after_sequence,
    unsettled_after = CASE WHEN status = 'enabled' AND types && '{*,message.queued}'::text[] THEN '' ELSE unsettled_after END
WHERE account_id = @account_id
  AND id = @id;

-- name: WebhookRotate :one
-- Replaces the secret, which signs too for the grace. The secret before it stops.
UPDATE webhooks
SET secret = @secret,
    previous_secret = CASE WHEN @grace_seconds::bigint > 0 THEN webhooks.secret END,
    previous_until  = statement_timestamp() + nullif(@grace_seconds, 0) * interval '1 second'
WHERE account_id = @account_id
  AND id = @id
  AND deleted_at IS NULL
RETURNING id, url, types, description, status, disabled_reason, created_at;

-- name: WebhookDeliveryList :many
-- Returns the deliveries of a webhook with some of the statuses, newest first. Each branch
-- reads one status in the order of the index.
SELECT id, event_id, type, status, attempts, next_attempt_at, created_at
FROM (
    (SELECT p.id, p.event_id, p.type, p.status, p.attempts, p.next_attempt_at, p.created_at
     FROM webhook_deliveries AS p
     WHERE p.account_id = @account_id AND p.webhook_id = @webhook_id AND p.status = 'pending' AND 'pending' = ANY (@statuses::text[]) AND p.id < @before_id
     ORDER BY p.id DESC
     LIMIT (SELECT @page_size::int))
    UNION ALL
    (SELECT s.id, s.event_id, s.type, s.status, s.attempts, s.next_attempt_at, s.created_at
     FROM webhook_deliveries AS s
     WHERE s.account_id = @account_id AND s.webhook_id = @webhook_id AND s.status = 'delivered' AND 'delivered' = ANY (@statuses) AND s.id < @before_id
     ORDER BY s.id DESC
     LIMIT (SELECT @page_size))
    UNION ALL
    (SELECT f.id, f.event_id, f.type, f.status, f.attempts, f.next_attempt_at, f.created_at
     FROM webhook_deliveries AS f
     WHERE f.account_id = @account_id AND f.webhook_id = @webhook_id AND f.status = 'failed' AND 'failed' = ANY (@statuses) AND f.id < @before_id
     ORDER BY f.id DESC
     LIMIT (SELECT @page_size))
) AS found
ORDER BY id DESC
LIMIT (SELECT @page_size);

-- name: WebhookDeliveryCount :one
-- For Prefer: count=exact.
SELECT count(*)
FROM webhook_deliveries
WHERE account_id = @account_id
  AND webhook_id = @webhook_id
  AND status = ANY (@statuses::text[]);

-- name: WebhookDeliveryGet :one
SELECT id, event_id, type, status, attempts, next_attempt_at, created_at
FROM webhook_deliveries
WHERE account_id = @account_id
  AND id = @id
  AND webhook_id = @webhook_id;

-- name: ReportDeliveries :many
-- Returns the newest deliveries from an id on, for the report on a client. Webhooks with one
-- description are left out: petstore trigger responds to their events.
SELECT d.id, d.webhook_id, d.type, d.status, d.attempts
FROM webhook_deliveries AS d
WHERE d.account_id = @account_id
  AND d.id >= @first_id
  AND NOT EXISTS (SELECT FROM webhooks AS w WHERE w.account_id = @account_id AND w.id = d.webhook_id AND w.description = @without::text)
ORDER BY d.id DESC
LIMIT 1000;

-- name: WebhookDeliveryCreateTest :one
-- Creates the delivery of a webhook.test event, which is due now. The body is a text, because
-- pgx sends bytes as bytea through a connection pooler.
INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, type, body, next_attempt_at)
VALUES (@account_id, @id, @webhook_id, @event_id, @type, CAST(@body::text AS json), statement_timestamp())
RETURNING id, event_id, type, status, attempts, next_attempt_at, created_at;

-- name: WebhookDeliveryRetry :one
-- Makes a delivery due now. No row means that the webhook has no such delivery. A row keeps
-- the last 49 attempts, so that retries do not make it grow without end.
UPDATE webhook_deliveries
SET status = 'pending',
    next_attempt_at = statement_timestamp(),
    attempts = CASE WHEN jsonb_array_length(attempts) > 49 THEN jsonb_path_query_array(attempts, '$[last - 48 to last]') ELSE attempts END
WHERE account_id = @account_id
  AND id = @id
  AND webhook_id = @webhook_id
RETURNING id, event_id, type, status, attempts, next_attempt_at, created_at;

-- name: ReplayEvents :many
-- Returns events of some types in a range of numbers; * means all types. The first and the last
-- of the range are returned whatever their type, because cursors name them.
SELECT sequence, nonce, type
FROM events
WHERE account_id = @account_id
  AND sequence >= @first
  AND sequence <= @last
  AND ('*' = ANY (@types::text[]) OR type = ANY (@types) OR sequence IN (@first, @last))
ORDER BY sequence
LIMIT (SELECT @page_size::int);

-- name: ReplayPending :one
-- Counts the pending deliveries of an account, up to a limit, without disabled webhooks as in
-- [SettleBacklog]. Of these, it returns the numbers of the events in a range that go to an enabled webhook.
-- A transaction that holds [WebhookGetLocked] is the only one that adds deliveries to it.
SELECT count(*) AS backlog,
       coalesce(array_agg(DISTINCT sequence) FILTER (WHERE webhook_id = @webhook_id AND sequence > @after_sequence::bigint AND sequence <= @last::bigint), '{}')::bigint[] AS sequences
FROM (
    SELECT of_one.webhook_id, of_one.sequence
    FROM webhooks AS w
    CROSS JOIN LATERAL (
        SELECT d.webhook_id, d.sequence
        FROM webhook_deliveries AS d
        WHERE d.account_id = @account_id AND d.webhook_id = w.id AND d.status = 'pending'
        LIMIT (SELECT @most::int)) AS of_one
    WHERE w.account_id = @account_id
      AND (w.status = 'enabled' OR w.deleted_at IS NOT NULL)
    LIMIT (SELECT @most)
) AS pending;

-- name: WebhooksToSweep :many
-- Returns webhooks of all accounts, and whether one has deliveries from before a time. The index finds
-- them by their ids, which begin with the time of a process. Its clock may be wrong, so the time of
-- the database decides too. All deliveries of a deleted webhook go, once the worker needs them no more.
SELECT account_id, id, (deleted_at IS NOT NULL AND unsettled_after IS NULL)::boolean AS is_gone, EXISTS (
    SELECT FROM webhook_deliveries AS d
    WHERE d.account_id = webhooks.account_id AND d.webhook_id = webhooks.id AND d.status IN ('pending', 'delivered', 'failed') AND d.id < @before_id AND d.created_at < @before) AS has_old,
    secret, previous_secret, coalesce(previous_until <= statement_timestamp(), false)::boolean AS previous_is_over
FROM webhooks
WHERE (account_id, id) > (@after_account::bigint, @after_id::text)
ORDER BY account_id, id
LIMIT @page_size;

-- name: WebhookReseal :exec
-- Replaces the stored forms of the secrets of a webhook, unless they have changed.
UPDATE webhooks
SET secret = @secret,
    previous_secret = sqlc.narg(previous_secret),
    previous_until  = CASE WHEN sqlc.narg(previous_secret)::bytea IS NOT NULL THEN webhooks.previous_until END
WHERE account_id = @account_id
  AND id = @id
  AND webhooks.secret = @old_secret
  AND webhooks.previous_secret IS NOT DISTINCT FROM sqlc.narg(old_previous_secret);

-- name: WebhookSweepDeliveries :execrows
-- Deletes a batch of the deliveries of a webhook from before a time, as in [WebhooksToSweep].
DELETE FROM webhook_deliveries
WHERE webhook_deliveries.account_id = @account_id
  AND webhook_deliveries.webhook_id = @webhook_id
  AND webhook_deliveries.status = @status
  AND webhook_deliveries.created_at < @before
  AND webhook_deliveries.id <= (SELECT max(batch.id) FROM (
      SELECT d.id FROM webhook_deliveries AS d
      WHERE d.account_id = @account_id AND d.webhook_id = @webhook_id AND d.status = @status AND d.id < @before_id AND d.created_at < @before
      ORDER BY d.id LIMIT @batch_size) AS batch);

-- name: WebhookForget :execrows
-- Deletes the row of a deleted webhook, whose deliveries are gone.
DELETE FROM webhooks
WHERE webhooks.account_id = @account_id
  AND webhooks.id = @id
  AND webhooks.deleted_at IS NOT NULL
  AND webhooks.unsettled_after IS NULL
  AND NOT EXISTS (SELECT FROM webhook_deliveries AS d WHERE d.account_id = @account_id AND d.webhook_id = @id);

-- name: StoreDeleteWebhookDeliveries :execrows
-- Deletes a batch of the deliveries of an account that is being deleted.
DELETE FROM webhook_deliveries
WHERE webhook_deliveries.account_id = @account_id
  AND webhook_deliveries.id <= (SELECT max(batch.id) FROM (SELECT d.id FROM webhook_deliveries AS d WHERE d.account_id = @account_id ORDER BY d.id LIMIT @batch_size) AS batch);

-- name: StoreDeleteWebhooks :execrows
-- Deletes a batch of the webhooks of an account that is being deleted. Their deliveries are
-- gone.
DELETE FROM webhooks
WHERE webhooks.account_id = @account_id
  AND webhooks.id = ANY (ARRAY(SELECT w.id FROM webhooks AS w WHERE w.account_id = @account_id ORDER BY w.id LIMIT @batch_size));
