-- Queues, what routes to them, and who sleeps until something arrives in one.
--
-- A queue that cannot be deleted by itself is written once. One that can (it expires, is exclusive or
-- deletes itself) says in used_ms when somebody last used it; whoever uses it says so again and again.

-- name: get :one
-- A queue by its name.
SELECT name, exclusive_to, auto_delete, expires_ms, message_ttl_ms, max_priority,
       dead_letter_exchange, dead_letter_routing_key, arguments, id
  FROM atomic_queue
 WHERE name = :name;

-- name: insert :one
-- Make a queue; no row when somebody else has made it meanwhile.
INSERT INTO atomic_queue (name, exclusive_to, auto_delete, expires_ms, message_ttl_ms, max_priority,
                          dead_letter_exchange, dead_letter_routing_key, arguments, used_ms)
VALUES (:name, :exclusive_to, :auto_delete, :expires_ms, :message_ttl_ms, :max_priority,
        :dead_letter_exchange, :dead_letter_routing_key, :arguments, {now_ms})
ON CONFLICT (name) DO NOTHING
RETURNING name, exclusive_to, auto_delete, expires_ms, message_ttl_ms, max_priority,
          dead_letter_exchange, dead_letter_routing_key, arguments, id;

-- name: touch :many
-- Say that queues are in use; tell which of them there still are. A row that somebody else has locked
-- is being touched or deleted at this moment: waiting for it would gain nothing.
WITH mine AS (
    SELECT id
      FROM atomic_queue
     WHERE id IN (SELECT value::bigint FROM json_array_elements_text(:queue_ids::json))
       FOR NO KEY UPDATE SKIP LOCKED
), touched AS (
    UPDATE atomic_queue SET used_ms = {now_ms} FROM mine WHERE atomic_queue.id = mine.id
)
SELECT id
  FROM atomic_queue
 WHERE id IN (SELECT value::bigint FROM json_array_elements_text(:queue_ids::json));

-- name: expired :many
-- Queues that nobody has used for as long as they may live without, and since when.
-- A consumer that sleeps over a queue uses it.
SELECT q.id, q.used_ms
  FROM atomic_queue AS q
 WHERE (q.used_ms + q.expires_ms <= {now_ms}
        OR ((q.exclusive_to IS NOT NULL OR q.auto_delete) AND q.used_ms + :abandoned_ms <= {now_ms}))
   AND NOT EXISTS (SELECT 1 FROM atomic_waiter AS w WHERE w.queue_id = q.id AND w.until_ms > {now_ms});

-- name: hold_expired :many
-- The same among these, held against being touched until this transaction ends; those in use now are left out.
SELECT q.id, q.name
  FROM atomic_queue AS q
 WHERE q.id IN (SELECT value::bigint FROM json_array_elements_text(:queue_ids::json))
   AND (q.used_ms + q.expires_ms <= {now_ms}
        OR ((q.exclusive_to IS NOT NULL OR q.auto_delete) AND q.used_ms + :abandoned_ms <= {now_ms}))
   AND NOT EXISTS (SELECT 1 FROM atomic_waiter AS w WHERE w.queue_id = q.id AND w.until_ms > {now_ms})
 ORDER BY q.id
   FOR UPDATE OF q SKIP LOCKED;

-- name: hold :one
-- A queue by its name, held until this transaction ends.
SELECT id FROM atomic_queue WHERE name = :name FOR UPDATE;

-- name: consumed :one
-- Whether a queue has a consumer: one that sleeps, one that runs its messages, or a host that reports it.
SELECT EXISTS (SELECT 1 FROM atomic_waiter WHERE queue_id = :queue_id AND until_ms > {now_ms})
    OR EXISTS (SELECT 1 FROM atomic_claim WHERE queue_id = :queue_id AND lease_until_ms > {now_ms})
    OR EXISTS (SELECT 1
                 FROM atomic_host AS h, json_array_elements_text(h.queues::json) AS consumed (name)
                WHERE h.reported_ms > {now_ms} - :stale_ms AND consumed.name = :name);

-- name: filled :one
-- Whether a queue has a message, in whatever state.
SELECT EXISTS (SELECT 1 FROM atomic_ready WHERE queue_id = :queue_id)
    OR EXISTS (SELECT 1 FROM atomic_gated WHERE queue_id = :queue_id)
    OR EXISTS (SELECT 1 FROM atomic_delayed WHERE queue_id = :queue_id)
    OR EXISTS (SELECT 1 FROM atomic_claim WHERE queue_id = :queue_id)
    OR EXISTS (SELECT 1 FROM atomic_dead WHERE queue_id = :queue_id);

-- name: size :one
-- How many messages are ready in a queue or wait at a gate of it; counting stops at *bound*.
SELECT count(*)
  FROM (SELECT 1
          FROM atomic_ready
         WHERE queue_id = (SELECT id FROM atomic_queue WHERE name = :name)
         UNION ALL
        SELECT 1
          FROM atomic_gated
         WHERE queue_id = (SELECT id FROM atomic_queue WHERE name = :name)
         LIMIT :bound) AS counted;

-- name: newest :one
-- The last message that was published before now.
SELECT max(id) FROM atomic_message;

-- name: purge :one
-- Remove up to *limit* ready messages of a queue, as many at gates and as many delayed, none younger than *newest*.
WITH ready AS (
    SELECT message_id
      FROM atomic_ready
     WHERE queue_id = :queue_id AND message_id <= :newest
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
), gated AS (
    SELECT message_id
      FROM atomic_gated
     WHERE queue_id = :queue_id AND message_id <= :newest
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
), delayed AS (
    SELECT message_id
      FROM atomic_delayed
     WHERE queue_id = :queue_id AND message_id <= :newest
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM atomic_ready USING ready WHERE atomic_ready.message_id = ready.message_id
    RETURNING atomic_ready.message_id
), gone_gated AS (
    DELETE FROM atomic_gated USING gated WHERE atomic_gated.message_id = gated.message_id
    RETURNING atomic_gated.message_id
), gone_delayed AS (
    DELETE FROM atomic_delayed USING delayed WHERE atomic_delayed.message_id = delayed.message_id
    RETURNING atomic_delayed.message_id
), removed AS (
    SELECT message_id FROM gone UNION ALL SELECT message_id FROM gone_gated
     UNION ALL SELECT message_id FROM gone_delayed
), crash AS (
    DELETE FROM atomic_crash USING removed WHERE atomic_crash.message_id = removed.message_id
), message AS (
    DELETE FROM atomic_message USING removed WHERE atomic_message.id = removed.message_id
)
SELECT count(*) FROM removed;

-- name: empty :one
-- Remove every message from queues, whoever holds them, however long it takes.
-- unfenced: the queue goes, and every claim in it ends with it; its holder finds it lost.
SET LOCAL statement_timeout = 0;
WITH doomed AS (
    SELECT value::bigint AS queue_id FROM json_array_elements_text(:queue_ids::json)
), ready AS (
    DELETE FROM atomic_ready USING doomed WHERE atomic_ready.queue_id = doomed.queue_id RETURNING message_id
), gated AS (
    DELETE FROM atomic_gated USING doomed WHERE atomic_gated.queue_id = doomed.queue_id RETURNING message_id
), delayed AS (
    DELETE FROM atomic_delayed USING doomed WHERE atomic_delayed.queue_id = doomed.queue_id RETURNING message_id
), claim AS (
    DELETE FROM atomic_claim USING doomed WHERE atomic_claim.queue_id = doomed.queue_id RETURNING message_id
), dead AS (
    DELETE FROM atomic_dead USING doomed WHERE atomic_dead.queue_id = doomed.queue_id RETURNING message_id
), removed AS (
    SELECT message_id FROM ready UNION ALL SELECT message_id FROM gated
     UNION ALL SELECT message_id FROM delayed UNION ALL SELECT message_id FROM claim UNION ALL SELECT message_id FROM dead
), crash AS (
    DELETE FROM atomic_crash USING removed WHERE atomic_crash.message_id = removed.message_id
), message AS (
    DELETE FROM atomic_message USING removed WHERE atomic_message.id = removed.message_id
)
SELECT count(*) FROM removed;

-- name: drop :exec
-- Remove queues that are empty, with their bindings and waiters.
WITH doomed AS (
    SELECT value::bigint AS queue_id FROM json_array_elements_text(:queue_ids::json)
), waiter AS (
    DELETE FROM atomic_waiter USING doomed WHERE atomic_waiter.queue_id = doomed.queue_id
), binding AS (
    DELETE FROM atomic_binding USING doomed WHERE atomic_binding.queue_id = doomed.queue_id
)
DELETE FROM atomic_queue USING doomed WHERE atomic_queue.id = doomed.queue_id;

-- name: exchange_type :one
-- How an exchange routes.
SELECT type FROM atomic_exchange WHERE name = :name;

-- name: declare_exchange :exec
-- Make an exchange, or change how it routes.
INSERT INTO atomic_exchange (name, type) VALUES (:name, :type)
ON CONFLICT (name) DO UPDATE SET type = excluded.type;

-- name: delete_exchange :exec
-- Remove an exchange and its bindings.
WITH binding AS (
    DELETE FROM atomic_binding WHERE exchange = :name
)
DELETE FROM atomic_exchange WHERE name = :name;

-- name: bind :exec
-- Route messages of an exchange to a queue; nothing happens when they are already.
INSERT INTO atomic_binding (exchange, routing_key, pattern, queue_id)
SELECT :exchange, :routing_key, :pattern, id FROM atomic_queue WHERE name = :queue
ON CONFLICT DO NOTHING;

-- name: unbind :exec
-- Route them there no longer.
DELETE FROM atomic_binding
 WHERE exchange = :exchange
   AND routing_key = :routing_key
   AND pattern = :pattern
   AND queue_id = (SELECT id FROM atomic_queue WHERE name = :queue);

-- name: bindings :many
-- The bindings of one exchange, or of all.
SELECT b.exchange, b.routing_key, b.pattern, q.name
  FROM atomic_binding AS b
  JOIN atomic_queue AS q ON q.id = b.queue_id
 WHERE :exchange::text IS NULL OR b.exchange = :exchange
 ORDER BY b.exchange, q.name, b.routing_key;

-- name: arm :exec hot
-- Say that a consumer is going to sleep until a message arrives in one of these queues.
INSERT INTO atomic_waiter (queue_id, holder, until_ms)
SELECT value::bigint, :holder, {now_ms} + :for_ms FROM json_array_elements_text(:queue_ids::json)
ON CONFLICT (queue_id, holder) DO UPDATE SET until_ms = excluded.until_ms;

-- name: disarm :exec hot
-- It sleeps no more.
DELETE FROM atomic_waiter WHERE holder = :holder;

-- name: ring :one hot
-- Wake up to *count* of the consumers that sleep over these queues, each but once; say how many.
WITH picked AS (
    SELECT queue_id, holder
      FROM atomic_waiter
     WHERE queue_id IN (SELECT value::bigint FROM json_array_elements_text(:queue_ids::json))
       AND until_ms > {now_ms}
     ORDER BY holder
     LIMIT :count
       FOR UPDATE SKIP LOCKED
), woken AS (
    DELETE FROM atomic_waiter AS w
     USING picked
     WHERE w.queue_id = picked.queue_id AND w.holder = picked.holder
    RETURNING w.holder
)
SELECT count(pg_notify('atomic_' || left(encode(sha256(convert_to(holder, 'UTF8')), 'hex'), 32), ''))
  FROM (SELECT DISTINCT holder FROM woken) AS sleeper;
