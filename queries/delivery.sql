-- The worker of webhooks (internal/delivery). Transactions lock in this order: a webhook,
-- its deliveries, messages by id, and account_state.

-- name: DispatchAccounts :many
-- Returns accounts that have an enabled webhook, and the number of events that one of them
-- has not got. With every, it returns only those with such events, but of all accounts.
SELECT w.account_id, max(s.last_sequence - w.after_sequence)::bigint AS undispatched
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.status = 'enabled'
  AND NOT s.closed
  AND w.account_id > @after_id
  AND (@every::boolean OR w.account_id = ANY (@ids::bigint[]))
GROUP BY w.account_id
HAVING NOT @every OR max(s.last_sequence - w.after_sequence) > 0
ORDER BY w.account_id
LIMIT @page_size;

-- name: DrainWebhooks :many
-- Returns webhooks with deliveries that are due, and how many seconds the oldest has been.
SELECT account_id, id, is_failing, is_slow, coalesce(extract(epoch FROM statement_timestamp() - due_at), 0)::float8 AS due_for
FROM (
    SELECT w.account_id, w.id, (w.failing_since IS NOT NULL)::boolean AS is_failing, (coalesce(w.slow_until > statement_timestamp(), false) OR w.failing_since IS NOT NULL)::boolean AS is_slow,
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
-- Locks the enabled webhooks of an account, except those that somebody else has locked.
SELECT id, types, after_sequence, (coalesce(slow_until > statement_timestamp(), false) OR failing_since IS NOT NULL)::boolean AS is_slow
FROM webhooks
WHERE account_id = @account_id
  AND status = 'enabled'
ORDER BY id
LIMIT 100
FOR NO KEY UPDATE SKIP LOCKED;

-- name: DispatchEnd :one
-- Returns the end of the feed of an account, and how many enabled webhooks it has.
SELECT s.last_sequence, (SELECT count(*) FROM webhooks AS w WHERE w.account_id = @account_id AND w.status = 'enabled') AS enabled
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
SELECT w.url, w.types, w.status, w.secret, coalesce(w.previous_until > statement_timestamp(), false)::boolean AS both_secrets, w.previous_secret,
       (coalesce(w.slow_until > statement_timestamp(), false) OR w.failing_since IS NOT NULL)::boolean AS is_slow
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.account_id = @account_id
  AND s.account_id = @account_id
  AND w.id = @id
  AND NOT s.closed;

-- name: DeliveriesDue :many
-- Returns deliveries that are due at a webhook, the longest due first.
SELECT id, event_id, coalesce(sequence, 0)::bigint AS sequence, type, body, jsonb_array_length(attempts)::int AS attempts,
       extract(epoch FROM statement_timestamp() - created_at)::float8 AS waited, statement_timestamp()::timestamptz AS now
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
SELECT (coalesce(w.slow_until > statement_timestamp(), false) OR w.failing_since IS NOT NULL)::boolean AS is_slow, (w.status = 'enabled' AND EXISTS (
    SELECT FROM webhook_deliveries AS d
    WHERE d.account_id = @account_id AND d.webhook_id = @id AND d.status = 'pending' AND d.next_attempt_at <= statement_timestamp()))::boolean AS has_more
FROM webhooks AS w
JOIN account_state AS s ON s.account_id = w.account_id
WHERE w.account_id = @account_id
  AND s.account_id = @account_id
  AND w.id = @id
  AND NOT s.closed;

-- name: WebhookLock :one
-- Locks a webhook, so that the results of its deliveries are recorded one transaction after
-- the other. A webhook is given up if it has failed for 5 days, of which the last failure is
-- not older than 2. Attempts of a delivery are at most a day apart. So after a time without
-- events, the next event has its ten attempts.
SELECT status, types, after_sequence, unsettled_after, (failing_since IS NOT NULL)::boolean AS is_failing, statement_timestamp()::timestamptz AS now,
       coalesce(slow_until > statement_timestamp() + interval '5 minutes', false)::boolean AS is_known_slow,
       coalesce(failing_since <= statement_timestamp() - interval '5 days' AND failed_at > statement_timestamp() - interval '2 days', false)::boolean AS is_given_up
FROM webhooks
WHERE account_id = @account_id
  AND id = @id
FOR NO KEY UPDATE;

-- name: DeliveriesRecord :exec
-- Adds attempts to deliveries, with the time of the next attempt, or never. Only a pending
-- delivery has a next attempt. A condition on the status would let the planner read all
-- pending deliveries through their index. A delivery with other attempts before has had this
-- one recorded: COMMIT was lost, or another process has sent it too.
UPDATE webhook_deliveries
SET attempts = webhook_deliveries.attempts || made.attempt,
    status = made.status,
    next_attempt_at = nullif(made.next_at, @never::timestamptz)
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@attempts::text[])::jsonb AS attempt, unnest(@befores::int[]) AS before,
             unnest(@statuses::text[]) AS status, unnest(@next_ats::timestamptz[]) AS next_at) AS made
WHERE webhook_deliveries.account_id = @account_id
  AND webhook_deliveries.id = made.id
  AND webhook_deliveries.id = ANY (@ids::text[])
  AND webhook_deliveries.next_attempt_at IS NOT NULL
  AND jsonb_array_length(webhook_deliveries.attempts) = made.before;

-- name: DeliveriesPostpone :exec
-- Lets deliveries wait for a process that has the key of the secret. It counts no attempt.
UPDATE webhook_deliveries
SET next_attempt_at = statement_timestamp() + interval '1 minute'
WHERE account_id = @account_id
  AND id = ANY (@ids::text[])
  AND next_attempt_at IS NOT NULL;

-- name: WebhookHealth :exec
-- Notes whether the attempts at a webhook fail, and until when it counts as slow. The time is
-- that of [WebhookLock], and lately is 2 days before. Citus allows no function of the time in
-- CASE.
UPDATE webhooks
SET slow_until = greatest(slow_until, sqlc.narg(slow_until)::timestamptz),
    failed_at = CASE WHEN @failed::boolean THEN sqlc.arg(at)::timestamptz ELSE failed_at END,
    failing_since = CASE
        WHEN @succeeded::boolean THEN NULL
        WHEN NOT @failed::boolean THEN failing_since
        WHEN failing_since IS NOT NULL AND failed_at > sqlc.arg(lately)::timestamptz THEN failing_since
        ELSE sqlc.arg(at)
    END
WHERE account_id = @account_id
  AND id = @id;

-- name: WebhooksFailing :one
-- Counts the enabled webhooks that fail.
SELECT count(*)
FROM webhooks
WHERE status = 'enabled'
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

-- name: Clock :one
-- Returns the time of the database.
SELECT statement_timestamp()::timestamptz AS now;

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
-- It waits for no lock of a job that somebody ends or adds at this moment.
UPDATE river_job
SET attempted_at = statement_timestamp()
WHERE id IN (SELECT live.id FROM river_job AS live WHERE live.id = ANY (@ids::bigint[]) AND live.state = 'running' FOR NO KEY UPDATE SKIP LOCKED);

-- name: JobsRescue :exec
-- Ends jobs whose process has not noted for 15 seconds that it is alive. The sweep adds new
-- ones. If the process lives after all, it finds that its job has ended.
UPDATE river_job
SET state = 'discarded', finalized_at = statement_timestamp()
WHERE kind = 'webhook_drain'
  AND state = 'running'
  AND attempted_at < statement_timestamp() - interval '15 seconds';

-- name: JobsLive :many
-- Returns webhooks that have a job.
SELECT (args->>'webhookId')::text AS webhook_id
FROM river_job
WHERE kind = 'webhook_drain'
  AND state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
LIMIT @page_size;
