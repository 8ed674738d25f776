-- The life of a message, in the order in which it is lived.
--
-- atomic_message holds what was published and never changes. Exactly one of atomic_ready, atomic_gated,
-- atomic_delayed, atomic_claim and atomic_dead names a message; which one does is its state (I1). One that is
-- limited has a lane, and wherever others become ready it goes to the gate (limits.sql). A move deletes the row
-- in one of them and inserts it into another in the same statement, and carries the fence along (I2).
--
-- What a holder says counts only while the claim has its fence and the lease has not run out (I3). The
-- claim is locked first and the clock read afterwards: a statement that had to wait for the lock must not
-- judge the lease by the time at which it began to wait.
--
-- "= ANY (ARRAY(SELECT …))" and LATERAL are there for the planner: whatever it believes about the size of
-- these tables, which go from empty to a million rows and back, each row is found by its key.

-- name: publish :one hot
-- Store one message that may be claimed at once, and wake one sleeper for it, or leave that for later.
-- No id: its task id is unfinished in that queue (I6), or the queue is gone, which the second column tells, or its
-- publisher's fence is not above all that it has stored (I11), which the last one tells.
WITH receipt AS (
    INSERT INTO atomic_publisher AS known (id, fence, at_ms)
    SELECT :publisher::text, :fence::bigint, {now_ms} WHERE :publisher::text IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET fence = excluded.fence, at_ms = excluded.at_ms
     WHERE known.fence < :below::bigint
    RETURNING id
), message AS (
    INSERT INTO atomic_message (queue_id, task_id, task_name, root_id, priority, payload,
                                published_ms, expires_ms, root_limit_id, again, lane)
    SELECT queue.id, :task_id::text, :task_name::text, :root_id::text, :priority::smallint, :payload::text,
           {now_ms}, :expires_ms::bigint, root.limit_id, :again::boolean,
           '0.' || root.limit_id || CASE WHEN :again::boolean THEN '+' ELSE '' END
      FROM atomic_queue AS queue
      LEFT JOIN LATERAL (SELECT limit_id FROM atomic_root WHERE id = :root_id::text LIMIT 1) AS root ON true
     WHERE queue.id = :queue_id::bigint AND (:publisher::text IS NULL OR EXISTS (SELECT FROM receipt))
    ON CONFLICT DO NOTHING
    RETURNING id, queue_id, priority, root_limit_id, lane
), ready AS (
    INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
    SELECT id, queue_id, priority, id, 0, 0 FROM message WHERE lane IS NULL
), gated AS (
    INSERT INTO atomic_gated (message_id, queue_id, lane, root_limit_id, priority, position, fence, crashes)
    SELECT id, queue_id, lane, root_limit_id, priority, id, 0, 0 FROM message WHERE lane IS NOT NULL
), woken AS (
    DELETE FROM atomic_waiter
     WHERE ctid = ANY (ARRAY(
               SELECT sleeper.ctid
                 FROM message
                CROSS JOIN LATERAL (
                      SELECT ctid FROM atomic_waiter
                       WHERE queue_id = message.queue_id AND until_ms > {now_ms} AND :wake::boolean
                       ORDER BY holder
                       LIMIT 1 FOR UPDATE SKIP LOCKED) AS sleeper))
    RETURNING holder
)
SELECT (SELECT id FROM message),
       EXISTS (SELECT FROM atomic_queue WHERE id = :queue_id::bigint),
       (SELECT count(pg_notify('atomic_' || left(encode(sha256(convert_to(holder, 'UTF8')), 'hex'), 32), '')) FROM woken),
       :publisher::text IS NULL OR EXISTS (SELECT FROM receipt);

-- name: publish_many :many hot
-- Store messages, each ready or delayed by its due time, and wake a sleeper for each: somebody has to know by
-- when a delayed one must be promoted.
-- One row for each, in order; no id: its task id is unfinished in that queue (I6), or its key is taken (I9). All
-- or none: not when a queue is gone, which the second column tells for each, nor when the publisher's fence is not above
-- all that it has stored (I11), which the last one tells.
WITH receipt AS (
    INSERT INTO atomic_publisher AS known (id, fence, at_ms)
    SELECT :publisher::text, :fence::bigint, {now_ms} WHERE :publisher::text IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET fence = excluded.fence, at_ms = excluded.at_ms
     WHERE known.fence < :below::bigint
    RETURNING id
), new AS MATERIALIZED (
    SELECT nextval('atomic_message_id_seq') AS id, item.*, queue.id IS NOT NULL AS routed,
           root.limit_id AS root_limit_id,
           CASE WHEN item.limit_id IS NOT NULL OR root.limit_id IS NOT NULL OR item.unique_until = 'queued'
                THEN coalesce(item.limit_id, 0) || '.' || coalesce(root.limit_id, 0)
                     || CASE WHEN item.again AND root.limit_id IS NOT NULL THEN '+' ELSE '' END END AS lane
      FROM ROWS FROM (json_to_recordset(:messages::json) AS (
               queue_id bigint, task_id text, task_name text, root_id text, priority smallint,
               payload text, due_ms bigint, expires_ms bigint, limit_id bigint, unique_key text,
               unique_until text, again boolean))
           WITH ORDINALITY AS item (queue_id, task_id, task_name, root_id, priority, payload, due_ms,
                                   expires_ms, limit_id, unique_key, unique_until, again, turn)
      LEFT JOIN LATERAL (SELECT id FROM atomic_queue WHERE id = item.queue_id LIMIT 1) AS queue ON true
      LEFT JOIN LATERAL (SELECT limit_id FROM atomic_root WHERE id = item.root_id LIMIT 1) AS root ON true
), message AS (
    INSERT INTO atomic_message (id, queue_id, task_id, task_name, root_id, priority, payload, published_ms,
                                due_ms, expires_ms, limit_id, root_limit_id, again, lane, unique_key, unique_until)
    SELECT id, queue_id, task_id, task_name, root_id, priority, payload, {now_ms},
           due_ms, expires_ms, limit_id, root_limit_id, again, lane, unique_key, unique_until
      FROM new
     WHERE (SELECT bool_and(routed) FROM new) AND (:publisher::text IS NULL OR EXISTS (SELECT FROM receipt))
     ORDER BY turn
    ON CONFLICT DO NOTHING
    RETURNING id, queue_id, priority, due_ms, limit_id, root_limit_id, lane
), delayed AS (
    INSERT INTO atomic_delayed (message_id, queue_id, priority, due_ms, fence, crashes)
    SELECT id, queue_id, priority, due_ms, 0, 0 FROM message WHERE due_ms > {now_ms}
    RETURNING message_id
), ready AS (
    INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
    SELECT id, queue_id, priority, id, 0, 0
      FROM message
     WHERE lane IS NULL AND id NOT IN (SELECT message_id FROM delayed)
    RETURNING queue_id
), gated AS (
    INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
    SELECT id, queue_id, lane, limit_id, root_limit_id, priority, id, 0, 0
      FROM message
     WHERE lane IS NOT NULL AND id NOT IN (SELECT message_id FROM delayed)
), woken AS (
    DELETE FROM atomic_waiter
     WHERE ctid = ANY (ARRAY(
               SELECT sleeper.ctid
                 FROM (SELECT queue_id, count(*) AS messages FROM message GROUP BY queue_id) AS arrived
                CROSS JOIN LATERAL (
                      SELECT ctid FROM atomic_waiter
                       WHERE queue_id = arrived.queue_id AND until_ms > {now_ms} AND :wake::boolean
                       ORDER BY holder
                       LIMIT arrived.messages FOR UPDATE SKIP LOCKED) AS sleeper))
    RETURNING holder
)
SELECT message.id, new.routed,
       (SELECT count(pg_notify('atomic_' || left(encode(sha256(convert_to(holder, 'UTF8')), 'hex'), 32), '')) FROM woken),
       :publisher::text IS NULL OR EXISTS (SELECT FROM receipt)
  FROM new
  LEFT JOIN message USING (id)
 ORDER BY new.turn;

-- name: forget_publishers :exec
-- Drop the receipts of publishers that have published nothing for so long that none of them asks again.
DELETE FROM atomic_publisher WHERE at_ms < {now_ms} - :age_ms::bigint;

-- name: unname :one hot
-- Free the task id and the key of a held message for its successor, and say which it has already.
WITH held AS MATERIALIZED (
    SELECT message_id, successor_id
      FROM atomic_claim
     WHERE message_id = :id::bigint AND fence = :fence::bigint
       FOR UPDATE
), unnamed AS (
    UPDATE atomic_message SET task_id = NULL, unique_key = NULL, unique_until = NULL
     WHERE id = ANY (ARRAY(SELECT message_id FROM held WHERE successor_id IS NULL))
)
SELECT successor_id FROM held;

-- name: unfinished :one
-- Find the unfinished message of a task id in a queue.
SELECT id FROM atomic_message WHERE task_id = :task_id::text AND queue_id = :queue_id::bigint;

-- name: succeed :exec hot
-- Note who comes after a held message; none noted means that it is lost.
UPDATE atomic_claim
   SET successor_id = :successor_id::bigint
 WHERE message_id = :id::bigint
   AND fence = :fence::bigint
   AND lease_until_ms > {now_ms};

-- name: turn :many hot
-- Complete what a holder has finished, and claim what it may start next.
-- Completed: its fence holds and its lease has not run out; the message is gone with its claim (I4).
-- Claimed: up to :limit, lane by lane, first in first out; each with the next fence and a lease (I2).
-- A draining host gets none: the drain waits for the lock on the host's row, or is seen behind it (I5).
-- A last row without an id: something waits at a gate in these queues, each of which has a lane of priority 0.
WITH finished AS MATERIALIZED (
    SELECT claim.message_id, claim.lease_until_ms
      FROM jsonb_array_elements(:completed::jsonb) AS held
     CROSS JOIN LATERAL (
           SELECT message_id, lease_until_ms
             FROM atomic_claim
            WHERE message_id = (held->>0)::bigint AND fence = (held->>1)::bigint
              FOR UPDATE) AS claim
), settled AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM finished WHERE lease_until_ms > {now_ms}))
    RETURNING message_id
), done AS (
    DELETE FROM atomic_message WHERE id = ANY (ARRAY(SELECT message_id FROM settled))
), forgotten AS (
    DELETE FROM atomic_crash WHERE message_id = ANY (ARRAY(SELECT message_id FROM settled))
), picked AS MATERIALIZED (
    -- Read lane after lane and stopped at the limit: only what is claimed gets locked.
    SELECT ready.at
      FROM jsonb_array_elements(:lanes::jsonb) AS lane
     CROSS JOIN LATERAL (
           SELECT ctid AS at
             FROM atomic_ready
            WHERE queue_id = (lane->>0)::bigint
              AND priority = (lane->>1)::smallint
              AND position > (lane->>2)::bigint
            ORDER BY position
            LIMIT :limit::integer
              FOR UPDATE SKIP LOCKED) AS ready
     LIMIT :limit::integer
), host AS MATERIALIZED (
    SELECT draining_ms
      FROM atomic_host
     WHERE id = :holder::text AND boot = :boot::text AND draining_ms IS NULL
       AND EXISTS (SELECT FROM picked)
       FOR KEY SHARE
), taken AS (
    DELETE FROM atomic_ready
     WHERE ctid = ANY (ARRAY(
               SELECT at FROM picked WHERE NOT :is_host::boolean OR EXISTS (SELECT FROM host)))
    RETURNING message_id, queue_id, priority, position, fence + 1 AS fence, crashes
), claimed AS (
    INSERT INTO atomic_claim (message_id, queue_id, priority, position, fence, crashes,
                              holder, boot, claimed_ms, lease_until_ms)
    SELECT message_id, queue_id, priority, position, fence, crashes,
           :holder::text, :boot::text, {now_ms}, {now_ms} + :lease_ms::bigint
      FROM taken
)
SELECT message_id AS id, NULL::bigint AS fence, NULL::bigint AS queue_id, NULL::smallint AS priority,
       NULL::text AS payload, NULL::integer AS crashes, NULL::text AS task_id,
       NULL::boolean AS revoked, NULL::boolean AS expired, NULL::bigint AS position,
       NULL::bigint AS waited_ms
  FROM settled
UNION ALL
SELECT taken.message_id, taken.fence, taken.queue_id, taken.priority, message.payload, taken.crashes,
       message.task_id,
       EXISTS (SELECT FROM atomic_revoked
                WHERE task_id = message.task_id AND until_ms > {now_ms}),
       coalesce(message.expires_ms <= {now_ms}, false), taken.position,
       CASE WHEN taken.fence = 1 THEN {now_ms} - greatest(message.published_ms, message.due_ms) END
  FROM taken
 CROSS JOIN LATERAL (
       SELECT payload, task_id, published_ms, due_ms, expires_ms
         FROM atomic_message WHERE id = taken.message_id LIMIT 1
       ) AS message
UNION ALL
(SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
   FROM jsonb_array_elements(:lanes::jsonb) AS place
  CROSS JOIN LATERAL (SELECT FROM atomic_gated WHERE queue_id = (place->>0)::bigint LIMIT 1) AS waiting
  WHERE (place->>1)::smallint = 0
  LIMIT 1);

-- name: take :many hot
-- Remove and return up to :limit messages of consumers that do not acknowledge: at most once.
WITH picked AS MATERIALIZED (
    SELECT ready.at
      FROM jsonb_array_elements(:queue_ids::jsonb) AS queue
     CROSS JOIN LATERAL (
           SELECT ctid AS at
             FROM atomic_ready
            WHERE queue_id = queue::bigint
            ORDER BY priority DESC, position
            LIMIT :limit::integer
              FOR UPDATE SKIP LOCKED) AS ready
     LIMIT :limit::integer
), taken AS (
    DELETE FROM atomic_ready WHERE ctid = ANY (ARRAY(SELECT at FROM picked))
    RETURNING message_id, queue_id, priority, position, fence + 1 AS fence, crashes
), removed AS (
    DELETE FROM atomic_message WHERE id = ANY (ARRAY(SELECT message_id FROM taken))
    RETURNING id, payload, task_id, expires_ms
), forgotten AS (
    DELETE FROM atomic_crash WHERE message_id = ANY (ARRAY(SELECT message_id FROM taken))
)
SELECT taken.message_id, taken.fence, taken.queue_id, taken.priority, removed.payload, taken.crashes,
       removed.task_id,
       EXISTS (SELECT FROM atomic_revoked
                WHERE task_id = removed.task_id AND until_ms > {now_ms}),
       coalesce(removed.expires_ms <= {now_ms}, false), taken.position
  FROM taken
  JOIN removed ON removed.id = taken.message_id;

-- name: renew :many hot
-- Push out the leases that still hold, and say for each whether it was: renewed, unconfirmed or lost.
-- A claim that somebody is about to settle is not waited for: it is unconfirmed. One that is not there,
-- has another fence or has run out is lost, and never revived.
WITH held AS MATERIALIZED (
    SELECT (pair->>0)::bigint AS message_id, (pair->>1)::bigint AS fence
      FROM jsonb_array_elements(:held::jsonb) AS pair
), locked AS MATERIALIZED (
    SELECT claim.message_id, claim.lease_until_ms
      FROM held
     CROSS JOIN LATERAL (
           SELECT message_id, lease_until_ms
             FROM atomic_claim
            WHERE message_id = held.message_id AND fence = held.fence
              AND holder = :holder::text AND boot = :boot::text
              FOR NO KEY UPDATE SKIP LOCKED) AS claim
), renewed AS (
    UPDATE atomic_claim
       SET lease_until_ms = {now_ms} + :lease_ms::bigint
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM locked WHERE lease_until_ms > {now_ms}))
    RETURNING message_id
)
SELECT held.message_id,
       CASE WHEN renewed.message_id IS NOT NULL THEN 'renewed'
            WHEN locked.message_id IS NULL AND seen.message_id IS NOT NULL THEN 'unconfirmed'
            ELSE 'lost'
       END
  FROM held
  LEFT JOIN renewed USING (message_id)
  LEFT JOIN locked USING (message_id)
  LEFT JOIN LATERAL (
       SELECT message_id
         FROM atomic_claim
        WHERE message_id = held.message_id AND fence = held.fence
          AND holder = :holder::text AND boot = :boot::text
          AND lease_until_ms > {now_ms}
        LIMIT 1) AS seen ON true;

-- name: release :many hot
-- Give messages back: ready at once, first in line again, with the fence they had and no crash counted.
-- One that is limited waits at its gate again; one that has a successor is only removed.
WITH held AS MATERIALIZED (
    SELECT claim.message_id, claim.lease_until_ms
      FROM jsonb_array_elements(:held::jsonb) AS pair
     CROSS JOIN LATERAL (
           SELECT message_id, lease_until_ms
             FROM atomic_claim
            WHERE message_id = (pair->>0)::bigint AND fence = (pair->>1)::bigint
              FOR UPDATE) AS claim
), released AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM held WHERE lease_until_ms > {now_ms}))
    RETURNING message_id, queue_id, priority, position, fence, crashes, successor_id
), returned AS MATERIALIZED (
    SELECT released.*, message.lane, message.limit_id, message.root_limit_id
      FROM released
     CROSS JOIN LATERAL (
           SELECT lane, limit_id, root_limit_id FROM atomic_message WHERE id = released.message_id LIMIT 1) AS message
     WHERE successor_id IS NULL
), ready AS (
    INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, priority, position, fence, crashes FROM returned WHERE lane IS NULL
), gated AS (
    INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
           limit_id, root_limit_id, priority, position, fence, crashes
      FROM returned WHERE lane IS NOT NULL
), removed AS (
    DELETE FROM atomic_message
     WHERE id = ANY (ARRAY(SELECT message_id FROM released WHERE successor_id IS NOT NULL))
), forgotten AS (
    DELETE FROM atomic_crash
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM released WHERE successor_id IS NOT NULL))
)
SELECT message_id, queue_id FROM released;

-- name: delay :many hot
-- End a claim and let its message wait for :due_ms. One that has a successor is only removed.
WITH held AS MATERIALIZED (
    SELECT message_id, lease_until_ms
      FROM atomic_claim
     WHERE message_id = :id::bigint AND fence = :fence::bigint
       FOR UPDATE
), released AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM held WHERE lease_until_ms > {now_ms}))
    RETURNING message_id, queue_id, priority, fence, crashes, successor_id
), delayed AS (
    INSERT INTO atomic_delayed (message_id, queue_id, priority, due_ms, fence, crashes)
    SELECT message_id, queue_id, priority, :due_ms::bigint, fence, crashes
      FROM released WHERE successor_id IS NULL
), removed AS (
    DELETE FROM atomic_message
     WHERE id = ANY (ARRAY(SELECT message_id FROM released WHERE successor_id IS NOT NULL))
), forgotten AS (
    DELETE FROM atomic_crash
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM released WHERE successor_id IS NOT NULL))
)
SELECT message_id FROM released;

-- name: crash :many hot
-- End claims whose process died: ready at once, at their gate again if they are limited, or buried when that was
-- once too often; who is buried gives its key free. One that has a successor is only removed. :lease says which count: live (the holder itself reports it),
-- lapsed (the lease ran out), any (its holder is proven dead).
WITH held AS MATERIALIZED (
    SELECT claim.message_id, claim.lease_until_ms
      FROM jsonb_array_elements(:held::jsonb) AS pair
     CROSS JOIN LATERAL (
           SELECT message_id, lease_until_ms
             FROM atomic_claim
            WHERE message_id = (pair->>0)::bigint AND fence = (pair->>1)::bigint
              FOR UPDATE) AS claim
), crashed AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(
               SELECT message_id FROM held
                WHERE :lease::text = 'any' OR (lease_until_ms > {now_ms}) = (:lease::text = 'live')))
    RETURNING message_id, queue_id, priority, position, fence, crashes + 1 AS crashes, holder,
              successor_id, crashes + 1 >= :max_crashes::integer AS buried
), returned AS MATERIALIZED (
    SELECT crashed.*, message.lane, message.limit_id, message.root_limit_id
      FROM crashed
     CROSS JOIN LATERAL (
           SELECT lane, limit_id, root_limit_id FROM atomic_message WHERE id = crashed.message_id LIMIT 1) AS message
     WHERE successor_id IS NULL AND NOT buried
), ready AS (
    INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, priority, position, fence, crashes FROM returned WHERE lane IS NULL
), gated AS (
    INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
           limit_id, root_limit_id, priority, position, fence, crashes
      FROM returned WHERE lane IS NOT NULL
), freed AS (
    UPDATE atomic_message SET unique_key = NULL, unique_until = NULL
     WHERE id = ANY (ARRAY(SELECT message_id FROM crashed WHERE successor_id IS NULL AND buried))
       AND unique_key IS NOT NULL
), dead AS (
    INSERT INTO atomic_dead (message_id, queue_id, priority, fence, crashes, reason, buried_ms)
    SELECT message_id, queue_id, priority, fence, crashes, :reason::text, {now_ms}
      FROM crashed WHERE successor_id IS NULL AND buried
), history AS (
    INSERT INTO atomic_crash (message_id, fence, holder, reason, at_ms)
    SELECT message_id, fence, holder, :reason::text, {now_ms}
      FROM crashed WHERE successor_id IS NULL
), removed AS (
    DELETE FROM atomic_message
     WHERE id = ANY (ARRAY(SELECT message_id FROM crashed WHERE successor_id IS NOT NULL))
), forgotten AS (
    DELETE FROM atomic_crash
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM crashed WHERE successor_id IS NOT NULL))
)
SELECT crashed.message_id, crashed.fence, crashed.crashes, crashed.buried, message.task_id,
       message.task_name, crashed.holder, message.root_id, crashed.queue_id
  FROM crashed
 CROSS JOIN LATERAL (
       SELECT task_id, task_name, root_id FROM atomic_message WHERE id = crashed.message_id LIMIT 1) AS message
 WHERE crashed.successor_id IS NULL;

-- name: lapsed :many hot
-- Find claims whose lease ran out, at most once a second over the whole fleet.
-- A claim that somebody has locked is in the middle of a write: left for the next turn.
WITH turn AS (
    UPDATE atomic_setting SET value = {now_ms}::text
     WHERE ctid = ANY (ARRAY(
               SELECT ctid FROM atomic_setting
                WHERE name = 'reclaimed_ms' AND abs({now_ms} - value::bigint) >= 1000
                  FOR UPDATE SKIP LOCKED))
    RETURNING name
)
SELECT message_id, fence
  FROM atomic_claim
 WHERE EXISTS (SELECT FROM turn) AND lease_until_ms <= {now_ms}
 LIMIT :limit::integer
   FOR UPDATE SKIP LOCKED;

-- name: held_by :many
-- Find the claims of one boot of one holder.
SELECT message_id, fence
  FROM atomic_claim
 WHERE holder = :holder::text AND boot = :boot::text
 ORDER BY message_id;

-- name: promote :many hot
-- Make delayed messages that are due ready, behind what is ready already; limited ones wait at their gates.
-- Rows: queue and how many; last, without a queue, how long until the next one is due.
WITH due AS MATERIALIZED (
    SELECT message_id
      FROM atomic_delayed
     WHERE due_ms <= (SELECT {now_ms})
     ORDER BY due_ms
     LIMIT :limit::integer
       FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM atomic_delayed WHERE message_id = ANY (ARRAY(SELECT message_id FROM due))
    RETURNING message_id, queue_id, priority, due_ms, fence, crashes
), returned AS MATERIALIZED (
    SELECT in_order.*, nextval('atomic_message_id_seq') AS position,
           message.lane, message.limit_id, message.root_limit_id
      FROM (SELECT * FROM moved ORDER BY due_ms, message_id) AS in_order
     CROSS JOIN LATERAL (
           SELECT lane, limit_id, root_limit_id FROM atomic_message WHERE id = in_order.message_id LIMIT 1) AS message
), ready AS (
    INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, priority, position, fence, crashes FROM returned WHERE lane IS NULL
), gated AS (
    INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
           limit_id, root_limit_id, priority, position, fence, crashes
      FROM returned WHERE lane IS NOT NULL
)
SELECT queue_id, count(*) AS moved, NULL::bigint AS next_ms FROM returned GROUP BY queue_id
UNION ALL
SELECT NULL, 0, (SELECT due_ms - {now_ms}
                   FROM atomic_delayed
                  WHERE due_ms > (SELECT {now_ms})
                  ORDER BY due_ms LIMIT 1);

-- name: hasten :many
-- Let delayed messages be due now, whenever they were.
UPDATE atomic_delayed
   SET due_ms = {now_ms}
 WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
RETURNING message_id;

-- name: bury :many
-- Put messages aside for an operator, whoever holds them: a holder loses its lease by this.
-- One that has a successor is left alone; it goes when it settles. Whoever is buried gives its key free.
-- unfenced: an operator's word stands above a holder's.
WITH claimed AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
       AND successor_id IS NULL
    RETURNING message_id, queue_id, priority, fence, crashes
), gated AS (
    DELETE FROM atomic_gated
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id, queue_id, priority, fence, crashes
), ready AS (
    DELETE FROM atomic_ready
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id, queue_id, priority, fence, crashes
), delayed AS (
    DELETE FROM atomic_delayed
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id, queue_id, priority, fence, crashes
), buried AS (
    SELECT * FROM claimed UNION ALL SELECT * FROM gated UNION ALL SELECT * FROM ready UNION ALL SELECT * FROM delayed
), freed AS (
    UPDATE atomic_message SET unique_key = NULL, unique_until = NULL
     WHERE id = ANY (ARRAY(SELECT message_id FROM buried)) AND unique_key IS NOT NULL
)
INSERT INTO atomic_dead (message_id, queue_id, priority, fence, crashes, reason, buried_ms, told)
SELECT message_id, queue_id, priority, fence, crashes, :reason::text, {now_ms}, true
  FROM buried
RETURNING message_id;

-- name: untold :one
-- Find a message that was buried for its crashes while nobody could store its task's failure, and keep others from it.
SELECT message_id, atomic_dead.fence, crashes, task_id, task_name
  FROM atomic_dead
  JOIN atomic_message ON id = message_id
 WHERE NOT told
 ORDER BY message_id
 LIMIT 1
   FOR UPDATE OF atomic_dead SKIP LOCKED;

-- name: tell :exec
-- Note that the failure of a buried message's task is stored, in the transaction that stores it.
UPDATE atomic_dead SET told = true WHERE message_id = :id::bigint AND fence = :fence::bigint;

-- name: requeue :many
-- Make messages ready again, behind what is ready already and with no crash counted: dead or delayed ones,
-- and those that somebody holds, who loses the lease by this. Limited ones wait at their gates; those that do so
-- already, and one that has a successor, are left alone.
-- unfenced: an operator's word stands above a holder's.
WITH claimed AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
       AND successor_id IS NULL
    RETURNING message_id, queue_id, priority, fence
), delayed AS (
    DELETE FROM atomic_delayed
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id, queue_id, priority, fence
), dead AS (
    DELETE FROM atomic_dead
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id, queue_id, priority, fence
), returned AS MATERIALIZED (
    SELECT requeued.*, nextval('atomic_message_id_seq') AS position,
           message.lane, message.limit_id, message.root_limit_id
      FROM (SELECT * FROM (SELECT * FROM claimed UNION ALL SELECT * FROM delayed UNION ALL SELECT * FROM dead) AS found
             ORDER BY message_id) AS requeued
     CROSS JOIN LATERAL (
           SELECT lane, limit_id, root_limit_id FROM atomic_message WHERE id = requeued.message_id LIMIT 1) AS message
), ready AS (
    INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, priority, position, fence, 0 FROM returned WHERE lane IS NULL
), gated AS (
    INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
    SELECT message_id, queue_id, CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
           limit_id, root_limit_id, priority, position, fence, 0
      FROM returned WHERE lane IS NOT NULL
)
SELECT message_id, queue_id FROM returned;

-- name: delete :many
-- Remove messages for good, whatever their state: a holder loses its lease by this.
-- unfenced: an operator's word stands above a holder's.
WITH claimed AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id
), ready AS (
    DELETE FROM atomic_ready
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id
), delayed AS (
    DELETE FROM atomic_delayed
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id
), dead AS (
    DELETE FROM atomic_dead
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id
), gated AS (
    DELETE FROM atomic_gated
     WHERE message_id = ANY (ARRAY(SELECT id::bigint FROM jsonb_array_elements_text(:ids::jsonb) AS id))
    RETURNING message_id
), found AS (
    SELECT message_id FROM claimed UNION ALL SELECT message_id FROM ready UNION ALL SELECT message_id FROM gated
    UNION ALL SELECT message_id FROM delayed UNION ALL SELECT message_id FROM dead
), forgotten AS (
    DELETE FROM atomic_crash WHERE message_id = ANY (ARRAY(SELECT message_id FROM found))
)
DELETE FROM atomic_message WHERE id = ANY (ARRAY(SELECT message_id FROM found))
RETURNING id;
