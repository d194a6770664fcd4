-- The worker of webhooks (internal/delivery). Transactions lock in this order: a webhook,
-- its deliveries, messages by id, and account_state.

-- name: DispatchAccounts :many
-- Returns accounts that have an enabled webhook, and whether one has not got the newest
-- events. With every, it returns only those, but of all accounts.
SELECT w.account_id, bool_or(w.after_sequence < s.last_sequence)::boolean AS has_new
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.status = 'enabled'
  AND NOT s.closed
  AND w.account_id > @after_id
  AND (@every::boolean OR w.account_id = ANY (@ids::bigint[]))
GROUP BY w.account_id
HAVING NOT @every OR bool_or(w.after_sequence < s.last_sequence)
ORDER BY w.account_id
LIMIT @page_size;

-- name: DrainWebhooks :many
-- Returns webhooks with deliveries that are due, and how many seconds the oldest has been.
SELECT account_id, id, is_failing, coalesce(extract(epoch FROM statement_timestamp() - due_at), 0)::float8 AS due_for
FROM (
    SELECT w.account_id, w.id, (w.failing_since IS NOT NULL)::boolean AS is_failing,
           (SELECT min(d.next_attempt_at) FROM webhook_deliveries AS d
            WHERE d.account_id = w.account_id AND d.webhook_id = w.id AND d.status = 'pending') AS due_at
    FROM webhooks AS w
    JOIN account_state AS s ON s.account_id = w.account_id
    WHERE (w.account_id, w.id) > (@after_account::bigint, @after_id::text)
      AND NOT s.closed
      AND w.status = 'enabled'
) AS found
WHERE due_at <= statement_timestamp()
ORDER BY account_id, id
LIMIT @page_size;

-- name: DispatchLock :many
-- Locks the enabled webhooks of an account.
SELECT id, types, after_sequence, (failing_since IS NOT NULL)::boolean AS is_failing
FROM webhooks
WHERE account_id = @account_id
  AND status = 'enabled'
ORDER BY id
LIMIT 100
FOR NO KEY UPDATE;

-- name: DispatchEvents :many
-- Returns the next events of the feed.
SELECT sequence, nonce, type, created_at
FROM events
WHERE account_id = @account_id
  AND sequence > @after_sequence
  AND sequence <= @last_sequence
ORDER BY sequence
LIMIT (SELECT @page_size::int);

-- name: DeliveriesInsert :exec
-- The account is that of account_state, so that Citus inserts on the shard.
INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
SELECT account_state.account_id, made.id, made.webhook_id, made.event_id, made.sequence, made.type, statement_timestamp()
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@webhook_ids::text[]) AS webhook_id, unnest(@event_ids::text[]) AS event_id,
             unnest(@sequences::bigint[]) AS sequence, unnest(@types::text[]) AS type) AS made
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: DispatchMove :exec
-- Notes which events the webhooks have got.
UPDATE webhooks
SET after_sequence = @after_sequence
WHERE account_id = @account_id
  AND after_sequence < @after_sequence
  AND id = ANY (@ids::text[]);

-- name: DrainWebhook :one
-- Returns what the worker must know of a webhook.
SELECT url, types, status, secret, coalesce(previous_until > statement_timestamp(), false)::boolean AS both_secrets, previous_secret
FROM webhooks
WHERE account_id = @account_id
  AND id = @id;

-- name: DeliveriesDue :many
-- Returns deliveries that are due at a webhook, the longest due first.
SELECT id, event_id, coalesce(sequence, 0)::bigint AS sequence, type, body, created_at, jsonb_array_length(attempts)::int AS attempts
FROM webhook_deliveries
WHERE account_id = @account_id
  AND webhook_id = @webhook_id
  AND status = 'pending'
  AND next_attempt_at <= statement_timestamp()
ORDER BY next_attempt_at
LIMIT (SELECT @page_size::int);

-- name: DeliveryEvents :many
-- Returns events by their numbers.
SELECT sequence, nonce, created_at, type, subject, data
FROM events
WHERE account_id = @account_id
  AND sequence = ANY (@sequences::bigint[])
LIMIT (SELECT @page_size::int);

-- name: DrainRest :one
-- Returns whether a webhook still has deliveries that are due.
SELECT (w.failing_since IS NOT NULL)::boolean AS is_failing, (w.status = 'enabled' AND EXISTS (
    SELECT FROM webhook_deliveries AS d
    WHERE d.account_id = @account_id AND d.webhook_id = @id AND d.status = 'pending' AND d.next_attempt_at <= statement_timestamp()))::boolean AS has_more
FROM webhooks AS w
WHERE w.account_id = @account_id
  AND w.id = @id;

-- name: WebhookLock :one
-- Locks a webhook, so that the results of its deliveries are recorded one transaction after
-- the other.
SELECT status, types, after_sequence, unsettled_after, failing_since, statement_timestamp()::timestamptz AS now, coalesce(failing_since <= statement_timestamp() - interval '5 days', false)::boolean AS is_given_up
FROM webhooks
WHERE account_id = @account_id
  AND id = @id
FOR NO KEY UPDATE;

-- name: DeliveriesRecord :exec
-- Adds attempts to deliveries, with the time of the next attempt, or never. Only a pending delivery has a next attempt. A condition on the
-- status would let the planner read all pending deliveries through their index.
UPDATE webhook_deliveries
SET attempts = webhook_deliveries.attempts || made.attempt,
    status = made.status,
    next_attempt_at = nullif(made.next_at, @never::timestamptz)
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@attempts::text[])::jsonb AS attempt,
             unnest(@statuses::text[]) AS status, unnest(@next_ats::timestamptz[]) AS next_at) AS made
WHERE webhook_deliveries.account_id = @account_id
  AND webhook_deliveries.id = made.id
  AND webhook_deliveries.id = ANY (@ids::text[])
  AND webhook_deliveries.next_attempt_at IS NOT NULL;

-- name: WebhookFails :exec
-- Notes that the attempts at a webhook begin to fail.
UPDATE webhooks
SET failing_since = statement_timestamp()
WHERE account_id = @account_id
  AND id = @id
  AND failing_since IS NULL;

-- name: WebhookSucceeds :exec
-- Notes that an attempt at a webhook has succeeded.
UPDATE webhooks
SET failing_since = NULL
WHERE account_id = @account_id
  AND id = @id
  AND failing_since IS NOT NULL;

-- name: WebhookDisable :exec
-- Disables a webhook that does not accept events.
UPDATE webhooks
SET status = 'disabled', disabled_reason = @reason, unsettled_after = ''
WHERE account_id = @account_id
  AND id = @id
  AND status = 'enabled';

-- name: WebhooksToSettle :many
-- Returns webhooks to which messages that wait must be adapted.
SELECT w.account_id, w.id
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.unsettled_after IS NOT NULL
  AND (w.account_id, w.id) > (@after_account::bigint, @after_id::text)
  AND NOT s.closed
ORDER BY w.account_id, w.id
LIMIT @page_size;

-- name: WebhookSettle :exec
-- Notes up to which message those that wait have been adapted to a webhook; NULL: to the
-- last one.
UPDATE webhooks
SET unsettled_after = sqlc.narg(after_id)
WHERE account_id = @account_id
  AND id = @id;

-- name: MessagesQueued :many
-- Returns messages that wait.
SELECT id
FROM messages
WHERE account_id = @account_id
  AND status = 'queued'
  AND id > @after_id
ORDER BY id
LIMIT (SELECT @page_size::int);

-- name: MessagesHeld :many
-- Returns which events of messages a webhook has accepted, or is still to get.
SELECT sequence::bigint AS sequence
FROM webhook_deliveries
WHERE account_id = @account_id
  AND type = 'message.queued'
  AND sequence = ANY (@sequences::bigint[])
  AND webhook_id = @webhook_id
  AND (status <> 'failed' OR attempts @? '$[*] ? (@.httpStatus >= 200 && @.httpStatus < 300)')
GROUP BY sequence
LIMIT (SELECT @page_size::int);

-- name: MessagesLock :many
-- Locks messages, in the order of their ids.
SELECT id, message, created_at
FROM messages
WHERE account_id = @account_id
  AND id = ANY (@ids::text[])
  AND status = 'queued'
ORDER BY id
LIMIT (SELECT @page_size::int)
FOR NO KEY UPDATE;

-- name: MessageVotes :many
-- Returns how many webhooks have accepted messages, are still to get them, and have refused
-- them. The best delivery of a webhook counts. A manual retry makes a delivery pending that
-- was accepted, so its attempts tell. Only webhooks that subscribe count, unless they have
-- accepted. is_ahead: a webhook that subscribes has not got as far as the message.
SELECT m.id::text AS id,
       EXISTS (
           SELECT FROM webhooks AS s
           WHERE s.account_id = @account_id AND s.status = 'enabled' AND s.types && '{*,message.queued}'::text[]
             AND (s.after_sequence < m.sequence OR s.unsettled_after < m.id))::boolean AS is_ahead,
       count(*) FILTER (WHERE v.best = 3) AS accepted,
       count(*) FILTER (WHERE v.best = 2 AND w.status = 'enabled' AND w.types && '{*,message.queued}'::text[]) AS pending,
       count(*) FILTER (WHERE v.best = 1 AND w.status = 'enabled' AND w.types && '{*,message.queued}'::text[]
                          AND (w.unsettled_after IS NULL OR w.unsettled_after >= m.id)) AS failed
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@sequences::bigint[]) AS sequence) AS m
LEFT JOIN (
    SELECT d.sequence, d.webhook_id,
           max(CASE WHEN d.status = 'delivered' OR d.attempts @? '$[*] ? (@.httpStatus >= 200 && @.httpStatus < 300)' THEN 3
                    WHEN d.status = 'pending' THEN 2 ELSE 1 END) AS best
    FROM webhook_deliveries AS d
    WHERE d.account_id = @account_id
      AND d.type = 'message.queued'
      AND d.sequence = ANY (@sequences::bigint[])
    GROUP BY d.sequence, d.webhook_id) AS v ON v.sequence = m.sequence
LEFT JOIN webhooks AS w ON w.account_id = @account_id AND w.id = v.webhook_id
GROUP BY m.id, m.sequence
LIMIT (SELECT @page_size::int);

-- name: MessagesUpdate :exec
UPDATE messages
SET status = made.status
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@statuses::text[]) AS status) AS made
WHERE messages.account_id = @account_id
  AND messages.id = made.id;

-- name: MessagesExpired :many
-- Returns queued messages whose ids are before one, of all accounts, oldest first, and
-- whether a webhook subscribes to them.
SELECT m.account_id, m.id, EXISTS (
    SELECT FROM webhooks AS w
    WHERE w.account_id = m.account_id AND w.status = 'enabled' AND w.types && '{*,message.queued}'::text[])::boolean AS has_subscriber
FROM messages AS m
JOIN account_state AS s ON s.account_id = m.account_id
WHERE m.status = 'queued'
  AND m.id < @before_id
  AND (m.id, m.account_id) > (@after_id::text, @after_account::bigint)
  AND NOT s.closed
ORDER BY m.id, m.account_id
LIMIT @page_size;

-- name: MessageEvents :many
-- Returns the events of messages.
SELECT subject, sequence, nonce
FROM events
WHERE account_id = @account_id
  AND type = 'message.queued'
  AND subject = ANY (@subjects::text[])
LIMIT (SELECT @page_size::int);

-- name: JobsTouch :exec
-- Notes that the process of jobs is alive.
UPDATE river_job
SET attempted_at = statement_timestamp()
WHERE id = ANY (@ids::bigint[])
  AND state = 'running';

-- name: JobsRescue :execrows
-- Makes jobs available again whose process has not noted for 10 seconds that it is alive.
UPDATE river_job
SET state = 'available', scheduled_at = statement_timestamp()
WHERE kind = 'webhook_drain'
  AND state = 'running'
  AND attempted_at < statement_timestamp() - interval '10 seconds';
