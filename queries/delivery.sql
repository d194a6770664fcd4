-- The worker of webhooks (internal/delivery). Within the order of package account, transactions
-- lock in this one: a webhook, its deliveries, messages by id, and account_state.

-- name: DispatchAccounts :many
-- Returns accounts with a webhook that has not got all events, their payers, and the number of these
-- events. A disabled webhook gets the events from before. With every, it looks at all accounts, and
-- otherwise at some.
SELECT w.account_id, coalesce(a.parent_id, a.id)::bigint AS payer_id, max(least(s.last_sequence, w.until_sequence) - w.after_sequence)::bigint AS undispatched
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
JOIN accounts AS a ON a.id = w.account_id
WHERE (w.status = 'enabled' OR w.after_sequence < w.until_sequence)
  AND NOT s.closed
  AND w.account_id > @after_id
  AND (@every::boolean OR w.account_id = ANY (@ids::bigint[]))
GROUP BY w.account_id, a.id, a.parent_id
HAVING max(least(s.last_sequence, w.until_sequence) - w.after_sequence) > 0
ORDER BY w.account_id
LIMIT @page_size;

-- name: DispatchAccountsOf :many
-- Returns which of some accounts have a webhook to dispatch to, even if it has got all events. The plan
-- of [DispatchAccounts] would read the webhooks of all accounts.
SELECT w.account_id, coalesce(a.parent_id, a.id)::bigint AS payer_id, max(least(s.last_sequence, w.until_sequence) - w.after_sequence)::bigint AS undispatched
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
JOIN accounts AS a ON a.id = w.account_id
WHERE (w.status = 'enabled' OR w.after_sequence < w.until_sequence)
  AND NOT s.closed
  AND w.account_id = ANY (@ids::bigint[])
GROUP BY w.account_id, a.id, a.parent_id;

-- name: AccountsAfter :many
-- Returns accounts by id.
SELECT id
FROM accounts
WHERE id > @after_id
  AND deleted_at IS NULL
ORDER BY id
LIMIT @page_size;

-- name: DrainWebhooks :many
-- Returns webhooks with deliveries that are due, how many seconds the oldest has been, and
-- whether a process can claim the webhook. is_ahead: its lease or pause ends later than any
-- can. With every, it looks at all accounts. Otherwise each table needs the condition, or Citus
-- asks all nodes. With >= too, a join skips the accounts before. Otherwise PostgreSQL reads the
-- index for each of them, from its webhooks up to the position.
SELECT account_id, id, payer_id, is_failing, is_slow, is_free, is_ahead, coalesce(extract(epoch FROM statement_timestamp() - due_at), 0)::float8 AS due_for
FROM (
    SELECT w.account_id, w.id, coalesce(a.parent_id, a.id)::bigint AS payer_id, (w.failing_since IS NOT NULL)::boolean AS is_failing,
           (coalesce(w.slow_until > statement_timestamp(), false) OR w.failing_since IS NOT NULL)::boolean AS is_slow,
           (coalesce(w.lease_until <= statement_timestamp(), true) AND coalesce(w.retry_at <= statement_timestamp(), true))::boolean AS is_free,
           coalesce(greatest(w.lease_until, w.retry_at) > statement_timestamp() + interval '2 minutes', false)::boolean AS is_ahead,
           (SELECT min(d.next_attempt_at) FROM webhook_deliveries AS d
            WHERE d.account_id = w.account_id AND d.webhook_id = w.id AND d.status = 'pending'
              AND (@every::boolean OR d.account_id = ANY (@ids::bigint[]))) AS due_at
    FROM webhooks AS w
    JOIN account_state AS s ON s.account_id = w.account_id
    JOIN accounts AS a ON a.id = w.account_id
    WHERE (w.account_id, w.id) > (@after_account::bigint, @after_id::text)
      AND w.account_id >= @after_account
      AND (@every::boolean OR w.account_id = ANY (@ids::bigint[]))
      AND (@every::boolean OR s.account_id = ANY (@ids::bigint[]))
      AND NOT s.closed
      AND w.status = 'enabled'
) AS found
WHERE due_at <= statement_timestamp()
ORDER BY account_id, id
LIMIT @page_size;

-- name: DispatchLock :many
-- Locks the webhooks of an account to dispatch to, except those that somebody else has
-- locked. is_free: a process can claim the webhook.
SELECT id, types, after_sequence, until_sequence, (status = 'enabled')::boolean AS is_enabled,
       (coalesce(slow_until > statement_timestamp(), false) OR failing_since IS NOT NULL)::boolean AS is_slow,
       (coalesce(lease_until <= statement_timestamp(), true) AND coalesce(retry_at <= statement_timestamp(), true))::boolean AS is_free
FROM webhooks
WHERE account_id = @account_id
  AND (status = 'enabled' OR after_sequence < until_sequence)
ORDER BY id
LIMIT 100
FOR NO KEY UPDATE SKIP LOCKED;

-- name: DispatchEnd :one
-- Returns the end of the feed of an account, and how many webhooks there are to dispatch to.
SELECT s.last_sequence, (SELECT count(*) FROM webhooks AS w WHERE w.account_id = @account_id AND (w.status = 'enabled' OR w.after_sequence < w.until_sequence)) AS webhooks
FROM account_state AS s
WHERE s.account_id = @account_id
  AND NOT s.closed;

-- name: DispatchEvents :many
-- Returns the next events of the feed.
SELECT sequence, nonce, type, extract(epoch FROM statement_timestamp() - created_at)::float8 AS age
FROM events
WHERE account_id = @account_id
  AND sequence > @after_sequence
  AND sequence <= @last_sequence
ORDER BY sequence
LIMIT (SELECT @page_size::int);

-- name: DeliveriesInsert :exec
-- The account comes from account_state, so that Citus inserts on the shard.
INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, next_attempt_at)
SELECT account_state.account_id, made.id, made.webhook_id, made.event_id, made.sequence, made.type, statement_timestamp()
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@webhook_ids::text[]) AS webhook_id, unnest(@event_ids::text[]) AS event_id,
             unnest(@sequences::bigint[]) AS sequence, unnest(@types::text[]) AS type) AS made
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: DispatchMove :exec
-- Notes which events the webhooks have got.
UPDATE webhooks
SET after_sequence = least(@after_sequence, until_sequence)
WHERE account_id = @account_id
  AND after_sequence < @after_sequence
  AND id = ANY (@ids::text[]);

-- name: WebhookClaim :one
-- Claims a webhook for a process, and returns the number of its lease and the time when a pause
-- before it ended. No row means that another process delivers, or that nobody may at present. With
-- takes_over, it also claims a webhook whose lease has run out.
UPDATE webhooks AS w
SET lease = w.lease + 1, lease_until = statement_timestamp() + interval '15 seconds'
FROM account_state AS s
WHERE w.account_id = @account_id
  AND w.id = @id
  AND s.account_id = @account_id
  AND NOT s.closed
  AND w.status = 'enabled'
  AND (w.lease_until IS NULL OR @takes_over::boolean AND w.lease_until <= statement_timestamp())
  AND (w.retry_at IS NULL OR w.retry_at <= statement_timestamp())
RETURNING w.lease, w.retry_at;

-- name: WebhooksRenew :many
-- Renews leases of webhooks of an account that a process still has, and returns these
-- webhooks. It skips those that somebody else has locked, because the others cannot wait.
-- [WebhookRenew] follows for these.
UPDATE webhooks
SET lease_until = statement_timestamp() + interval '15 seconds'
FROM (
    SELECT w.id
    FROM (SELECT unnest(@ids::text[]) AS id, unnest(@leases::bigint[]) AS lease) AS mine
    JOIN webhooks AS w ON w.id = mine.id AND w.lease = mine.lease
    WHERE w.account_id = @account_id
      AND w.lease_until IS NOT NULL
    FOR NO KEY UPDATE OF w SKIP LOCKED
) AS held
WHERE webhooks.account_id = @account_id
  AND webhooks.id = held.id
RETURNING webhooks.id;

-- name: WebhookRenew :execrows
-- Renews the lease of a webhook that a process still has. It waits for the lock.
UPDATE webhooks
SET lease_until = statement_timestamp() + interval '15 seconds'
WHERE account_id = @account_id
  AND id = @id
  AND lease = @lease
  AND lease_until IS NOT NULL;

-- name: WebhookShorten :exec
-- Shortens a lease, which its process can still renew.
UPDATE webhooks
SET lease_until = statement_timestamp() + interval '15 seconds'
WHERE account_id = @account_id
  AND id = @id
  AND lease_until > statement_timestamp() + interval '2 minutes';

-- name: WebhookRelease :execrows
-- Ends the lease of a process. No row means that it has lost the lease.
UPDATE webhooks
SET lease_until = NULL
WHERE account_id = @account_id
  AND id = @id
  AND lease = @lease;

-- name: WebhookTarget :one
-- Returns what a process must know of a webhook that it has claimed.
SELECT w.url, w.secret, coalesce(w.previous_until > statement_timestamp(), false)::boolean AS both_secrets, w.previous_secret, w.failures,
       (coalesce(w.slow_until > statement_timestamp(), false) OR w.failing_since IS NOT NULL)::boolean AS is_slow
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.account_id = @account_id
  AND s.account_id = @account_id
  AND w.id = @id
  AND w.lease = @lease
  AND w.status = 'enabled'
  AND NOT s.closed;

-- name: DeliveriesDue :many
-- Returns deliveries that are due at a webhook, the longest due first. A page begins after
-- the last delivery of the page before. So it does not read the entries of the index again
-- that the page before has left behind.
SELECT id, event_id, coalesce(sequence, 0)::bigint AS sequence, type, body, jsonb_array_length(attempts)::int AS attempts, coalesce(next_attempt_at, created_at)::timestamptz AS due_at,
       extract(epoch FROM statement_timestamp() - created_at)::float8 AS waited, statement_timestamp()::timestamptz AS now
FROM webhook_deliveries
WHERE account_id = @account_id
  AND webhook_id = @webhook_id
  AND status = 'pending'
  AND next_attempt_at <= statement_timestamp()
  AND (next_attempt_at, id) > (@after_time::timestamptz, @after_id::text)
ORDER BY next_attempt_at, id
LIMIT (SELECT @page_size::int);

-- name: DeliveryEvents :many
-- Returns events by their numbers. LIMIT makes the planner look up each number. With ANY, it would
-- read all events of the account, if it expects few.
SELECT e.sequence, e.created_at, e.nonce, e.type, e.subject, e.data
FROM (SELECT unnest((SELECT @sequences::bigint[])) AS sequence) AS wanted
CROSS JOIN LATERAL (
    SELECT events.sequence, events.created_at, events.nonce, events.type, events.subject, events.data
    FROM events
    WHERE events.account_id = @account_id
      AND events.sequence = wanted.sequence
    LIMIT 1
) AS e
LIMIT (SELECT @page_size::int);

-- name: WebhookDue :one
-- Returns whether a process can claim a webhook that has deliveries that are due.
SELECT coalesce(a.parent_id, a.id)::bigint AS payer_id, (coalesce(w.slow_until > statement_timestamp(), false) OR w.failing_since IS NOT NULL)::boolean AS is_slow,
       (w.status = 'enabled' AND coalesce(w.lease_until <= statement_timestamp(), true) AND coalesce(w.retry_at <= statement_timestamp(), true) AND EXISTS (
           SELECT FROM webhook_deliveries AS d
           WHERE d.account_id = @account_id AND d.webhook_id = @id AND d.status = 'pending' AND d.next_attempt_at <= statement_timestamp()))::boolean AS is_due
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
JOIN accounts AS a ON a.id = w.account_id
WHERE w.account_id = @account_id
  AND s.account_id = @account_id
  AND w.id = @id
  AND NOT s.closed;

-- name: WebhookLock :one
-- Locks a webhook, so that the results of its deliveries are recorded one transaction after
-- the other.
SELECT url, status, types, after_sequence, unsettled_after, lease, failures, failing_since, retry_at, slow_until, statement_timestamp()::timestamptz AS now
FROM webhooks
WHERE account_id = @account_id
  AND id = @id
FOR NO KEY UPDATE;

-- name: DeliveriesRecord :many
-- Adds attempts to deliveries, with the time of the next attempt, or never, and returns the ids of
-- these deliveries. Only a pending delivery has a next attempt. A condition on the status would
-- let the planner read all pending deliveries through their index. With LIMIT, it expects one attempt,
-- and looks up its delivery. Otherwise it may read all deliveries of an account. A delivery with
-- other attempts before has had this one recorded: COMMIT was lost, or another process has sent it
-- too. A delivery that was due later than this attempt was retried by a request meanwhile. Unless
-- it is delivered, it stays due.
UPDATE webhook_deliveries
SET attempts = webhook_deliveries.attempts || made.attempt,
    status = CASE WHEN made.status <> 'delivered' AND webhook_deliveries.next_attempt_at > made.due_at THEN 'pending' ELSE made.status END,
    next_attempt_at = CASE WHEN made.status <> 'delivered' AND webhook_deliveries.next_attempt_at > made.due_at THEN webhook_deliveries.next_attempt_at
        ELSE nullif(made.next_at, @never::timestamptz) END
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@attempts::text[])::jsonb AS attempt, unnest(@befores::int[]) AS before, unnest(@due_ats::timestamptz[]) AS due_at,
             unnest(@statuses::text[]) AS status, unnest(@next_ats::timestamptz[]) AS next_at
      LIMIT (SELECT cardinality(@ids))) AS made
WHERE webhook_deliveries.account_id = @account_id
  AND webhook_deliveries.id = made.id
  AND webhook_deliveries.id = ANY (@ids::text[])
  AND webhook_deliveries.next_attempt_at IS NOT NULL
  AND jsonb_array_length(webhook_deliveries.attempts) = made.before
RETURNING webhook_deliveries.id;

-- name: DeliveriesExpired :many
-- Returns deliveries that have been due for an hour at a webhook which fails, and are from before a
-- time, as in [WebhooksToSweep]. Those that a request has just made due get their attempts first.
SELECT id, event_id, coalesce(sequence, 0)::bigint AS sequence, type, jsonb_array_length(attempts)::int AS attempts, coalesce(next_attempt_at, created_at)::timestamptz AS due_at
FROM webhook_deliveries
WHERE account_id = @account_id
  AND webhook_id = @webhook_id
  AND status = 'pending'
  AND next_attempt_at <= statement_timestamp() - interval '1 hour'
  AND id < @before_id
  AND created_at < @before
ORDER BY next_attempt_at, id
LIMIT (SELECT @page_size::int);

-- name: WebhookHealth :exec
-- Notes the state of a webhook after some attempts. The transaction must hold [WebhookLock].
UPDATE webhooks
SET failures = @failures,
    failing_since = sqlc.narg(failing_since),
    retry_at = sqlc.narg(retry_at),
    slow_until = sqlc.narg(slow_until)
WHERE account_id = @account_id
  AND id = @id;

-- name: WebhooksFailing :one
-- Counts the enabled webhooks that fail, without accounts that are being deleted.
SELECT count(*)
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.status = 'enabled'
  AND w.failing_since IS NOT NULL
  AND NOT s.closed;

-- name: WebhookDisable :one
-- Disables a webhook that does not accept events. It gets deliveries of the events up to now.
UPDATE webhooks
SET status = 'disabled', disabled_reason = @reason, unsettled_after = '', until_sequence = account_state.last_sequence
FROM account_state
WHERE webhooks.account_id = @account_id
  AND webhooks.id = @id
  AND webhooks.status = 'enabled'
  AND account_state.account_id = @account_id
RETURNING webhooks.id, webhooks.types, webhooks.status, webhooks.disabled_reason, webhooks.created_at;

-- name: WebhooksToSettle :many
-- Returns webhooks to which messages that wait must be adapted. With every, it looks at all
-- accounts. The reason for >= is in [DrainWebhooks].
SELECT w.account_id, w.id, coalesce(a.parent_id, a.id)::bigint AS payer_id
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
JOIN accounts AS a ON a.id = w.account_id
WHERE w.unsettled_after IS NOT NULL
  AND (w.account_id, w.id) > (@after_account::bigint, @after_id::text)
  AND w.account_id >= @after_account
  AND (@every::boolean OR w.account_id = ANY (@ids::bigint[]))
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
-- Returns which events of messages a webhook has accepted, or is still to get. OFFSET makes the planner
-- look up the deliveries of each event, instead of all deliveries of the webhook.
SELECT DISTINCT wanted.sequence::bigint AS sequence
FROM (SELECT unnest((SELECT @sequences::bigint[])) AS sequence) AS wanted
CROSS JOIN LATERAL (
    SELECT d.webhook_id, d.status, d.attempts
    FROM webhook_deliveries AS d
    WHERE d.account_id = @account_id
      AND d.type = 'message.queued'
      AND d.sequence = wanted.sequence
    OFFSET 0
) AS made
WHERE made.webhook_id = @webhook_id::text
  AND (made.status <> 'failed' OR made.attempts @? '$[*] ? (@.httpStatus >= 200 && @.httpStatus < 300)')
LIMIT (SELECT @page_size::int);

-- name: SettleBacklog :one
-- Counts the pending deliveries of an account, up to a limit. The deliveries of a disabled webhook
-- can stay pending for 30 days, so they count only if the webhook is deleted.
SELECT count(*)
FROM (
    SELECT
    FROM webhooks AS w
    CROSS JOIN LATERAL (
        SELECT
        FROM webhook_deliveries AS d
        WHERE d.account_id = @account_id AND d.webhook_id = w.id AND d.status = 'pending'
        LIMIT (SELECT @most::int)) AS of_one
    WHERE w.account_id = @account_id
      AND (w.status = 'enabled' OR w.deleted_at IS NOT NULL)
    LIMIT (SELECT @most)
) AS pending;

-- name: MessagesLock :many
-- Locks messages, in the order of their ids. LIMIT makes the planner look up each. With ANY, it would
-- read all messages of the account that wait, if it expects few.
SELECT m.id, m.message, m.created_at
FROM (SELECT unnest((SELECT @ids::text[])) COLLATE "C" AS id ORDER BY id) AS wanted
CROSS JOIN LATERAL (
    SELECT messages.id, messages.message, messages.created_at
    FROM messages
    WHERE messages.account_id = @account_id
      AND messages.id = wanted.id
      AND messages.status = 'queued'
    LIMIT 1
    FOR NO KEY UPDATE
) AS m
LIMIT (SELECT @page_size::int);

-- name: MessageVotes :many
-- Returns how many webhooks have accepted messages, are still to get them, and have refused
-- them. The best delivery of a webhook counts. A manual retry makes a delivery pending that
-- was accepted, so its attempts tell. Only webhooks that subscribe count, unless they have
-- accepted. is_ahead: a webhook that subscribes has not got as far as the message. OFFSET as in
-- [MessagesHeld].
SELECT m.id::text AS id,
       coalesce(behind.sequence < m.sequence OR behind.id < m.id, false)::boolean AS is_ahead,
       count(*) FILTER (WHERE v.best = 3) AS accepted,
       count(*) FILTER (WHERE v.best = 2 AND w.status = 'enabled' AND w.types && '{*,message.queued}'::text[]) AS pending,
       count(*) FILTER (WHERE v.best = 1 AND w.status = 'enabled' AND w.types && '{*,message.queued}'::text[]
                          AND (w.unsettled_after IS NULL OR w.unsettled_after >= m.id)) AS failed
FROM (SELECT unnest((SELECT @ids::text[])) AS id, unnest((SELECT @sequences::bigint[])) AS sequence) AS m
CROSS JOIN (
    SELECT min(s.after_sequence) AS sequence, min(s.unsettled_after) AS id
    FROM webhooks AS s
    WHERE s.account_id = @account_id AND s.status = 'enabled' AND s.types && '{*,message.queued}'::text[]) AS behind
LEFT JOIN LATERAL (
    SELECT d.webhook_id,
           max(CASE WHEN d.status = 'delivered' OR d.attempts @? '$[*] ? (@.httpStatus >= 200 && @.httpStatus < 300)' THEN 3
                    WHEN d.status = 'pending' THEN 2 ELSE 1 END) AS best
    FROM (
        SELECT made.webhook_id, made.status, made.attempts
        FROM webhook_deliveries AS made
        WHERE made.account_id = @account_id
          AND made.type = 'message.queued'
          AND made.sequence = m.sequence
        OFFSET 0) AS d
    GROUP BY d.webhook_id) AS v ON true
LEFT JOIN webhooks AS w ON w.account_id = @account_id AND w.id = v.webhook_id
GROUP BY m.id, m.sequence, behind.sequence, behind.id
LIMIT (SELECT @page_size::int);

-- name: MessagesUpdate :exec
UPDATE messages
SET status = made.status
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@statuses::text[]) AS status) AS made
WHERE messages.account_id = @account_id
  AND messages.id = made.id;

-- name: MessagesExpired :many
-- Returns queued messages from before a time, of all accounts, oldest first, and whether a
-- webhook subscribes to them. The caller leaves out samples and accounts that are being deleted. A
-- condition on them would be no limit: the statement would read all their messages before any other.
SELECT m.account_id, m.id, m.created_at, coalesce(a.parent_id, a.id)::bigint AS payer_id, (a.kind = 'sample')::boolean AS is_sample, s.closed, EXISTS (
    SELECT FROM webhooks AS w
    WHERE w.account_id = m.account_id AND w.status = 'enabled' AND w.types && '{*,message.queued}'::text[])::boolean AS has_subscriber
FROM messages AS m
JOIN account_state AS s ON s.account_id = m.account_id
JOIN accounts AS a ON a.id = m.account_id
WHERE m.status = 'queued'
  AND m.created_at < @before
  AND (m.created_at, m.account_id, m.id) > (@after_time::timestamptz, @after_account::bigint, @after_id::text)
ORDER BY m.created_at, m.account_id, m.id
LIMIT @page_size;

-- name: MessagesKeep :exec
-- Lets messages of a sample wait forever, so that [MessagesExpired] returns them only once.
UPDATE messages
SET created_at = 'infinity'
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::text[])));

-- name: Clock :one
-- Returns the time of the database.
SELECT statement_timestamp()::timestamptz AS now;

-- name: MessageEvents :many
-- Returns the newest events of messages. After a reset, a message of a sandbox can have the id of
-- an earlier one. OFFSET as in [MessagesHeld].
SELECT DISTINCT ON (e.subject) e.subject, e.sequence, e.nonce
FROM (SELECT unnest((SELECT @subjects::text[])) AS subject) AS wanted
CROSS JOIN LATERAL (
    SELECT events.subject, events.sequence, events.nonce
    FROM events
    WHERE events.account_id = @account_id
      AND events.type = 'message.queued'
      AND events.subject = wanted.subject
    OFFSET 0
) AS e
ORDER BY e.subject, e.sequence DESC
LIMIT (SELECT @page_size::int);
