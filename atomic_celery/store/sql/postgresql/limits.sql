-- Limits that hold over all hosts: how many run, how many start in a time, whether anything may start.
--
-- A limited message waits in atomic_gated. Whoever admits it holds the rows of its limits until the claim is
-- committed, and counts under that lock, in a statement that began after it had them: so no two admissions count
-- the same room (I10). What counts as running is in atomic_claim itself: atomic_admitted only says which claims to
-- look for, and however a claim ends, it counts no more from then on.

-- name: find :many
-- The limits of these names, and whether it is long ago that they were in use.
SELECT name, id, max_running, rate_starts, rate_ms, used_ms < {now_ms} - :stale_ms
  FROM atomic_limit
 WHERE name = ANY (ARRAY(SELECT jsonb_array_elements_text(:names::jsonb)))
 ORDER BY id;

-- name: insert :exec
-- Make limits that there are not yet.
INSERT INTO atomic_limit (name, task, max_running, rate_starts, rate_ms, used_ms)
SELECT item.name, item.task, item.max_running, item.rate_starts, item.rate_ms, {now_ms}
  FROM jsonb_to_recordset(:limits::jsonb)
       AS item (name text, task text, max_running integer, rate_starts integer, rate_ms bigint)
 ORDER BY item.name
ON CONFLICT (name) DO NOTHING;

-- name: change :exec
-- Let a limit be what its task says now, and in use.
UPDATE atomic_limit
   SET max_running = :max_running::integer, rate_starts = :rate_starts::integer, rate_ms = :rate_ms::bigint,
       used_ms = {now_ms}
 WHERE name = :name;

-- name: change_task :many
-- Let every key of a task have the limits that the task says now; tell which had others.
UPDATE atomic_limit
   SET max_running = :max_running::integer, rate_starts = :rate_starts::integer, rate_ms = :rate_ms::bigint
 WHERE task = :task
   AND (max_running, rate_starts, rate_ms)
       IS DISTINCT FROM (:max_running::integer, :rate_starts::integer, :rate_ms::bigint)
RETURNING id;

-- name: tasks :many
-- Which tasks have limits.
SELECT DISTINCT task FROM atomic_limit WHERE task IS NOT NULL;

-- name: survey :many hot
-- What waits at the gates of some queues and might pass, as it looks without a lock; and what else there is to know.
--   'gated'  message, priority, its limits, and how much room each of them has; lane; how many more may begin that
--            never did, by the budget of its root, where that asks for it
--   'ready'  how many messages of that priority are ready, up to :limit
--   'wait'   in how many milliseconds a rate that is used up has room again
--   'more'   the last lane that was looked at, where there are more
-- A lane is a queue and a pair of limits; of each only its first messages are looked at, and of lanes :window a queue.
-- Claims that are to end in the same transaction (:ending) count no more.
WITH RECURSIVE lane (queue_id, lane, turn) AS (
    SELECT queue::bigint,
           (SELECT gated.lane FROM atomic_gated AS gated
             WHERE gated.queue_id = queue::bigint AND gated.lane > :after::text
             ORDER BY gated.lane LIMIT 1), 1
      FROM jsonb_array_elements(:queue_ids::jsonb) AS queue
    UNION ALL
    SELECT lane.queue_id,
           (SELECT gated.lane FROM atomic_gated AS gated
             WHERE gated.queue_id = lane.queue_id AND gated.lane > lane.lane
             ORDER BY gated.lane LIMIT 1), lane.turn + 1
      FROM lane
     WHERE lane.lane IS NOT NULL AND lane.turn < :window::integer
), looked AS MATERIALIZED (
    SELECT lane.queue_id, lane.lane, lane.turn, head.limit_id, head.root_limit_id, head.again
      FROM lane
     CROSS JOIN LATERAL (
           SELECT limit_id, root_limit_id, again
             FROM atomic_gated
            WHERE queue_id = lane.queue_id AND atomic_gated.lane = lane.lane
            ORDER BY priority DESC, position
            LIMIT 1) AS head
     WHERE lane.lane IS NOT NULL
), counted AS MATERIALIZED (
    SELECT named.id,
           CASE WHEN NOT limits.is_open OR limits.closes_ms <= {now_ms} THEN 0 ELSE least(
               :limit::bigint,
               CASE WHEN limits.max_running IS NOT NULL THEN limits.max_running - (
                   SELECT count(*)
                     FROM atomic_admitted AS admitted
                     JOIN atomic_claim AS claim
                       ON claim.message_id = admitted.message_id AND claim.fence = admitted.fence
                    WHERE admitted.limit_id = named.id
                      AND claim.message_id <> ALL (ARRAY(SELECT jsonb_array_elements(:ending::jsonb)::bigint))) END,
               CASE WHEN limits.rate_starts IS NOT NULL THEN limits.rate_starts - (
                   SELECT coalesce(sum(starts), 0)
                     FROM atomic_start
                    WHERE limit_id = named.id AND at_ms > {now_ms} - limits.rate_ms) END) END AS room,
           CASE WHEN limits.rate_starts IS NOT NULL THEN (
               SELECT min(at_ms) + limits.rate_ms - {now_ms}
                 FROM atomic_start
                WHERE limit_id = named.id AND at_ms > {now_ms} - limits.rate_ms) END AS free_in_ms,
           limits.quota - limits.started AS unbegun
      FROM (SELECT limit_id AS id FROM looked UNION SELECT root_limit_id FROM looked) AS named
     CROSS JOIN LATERAL (SELECT * FROM atomic_limit WHERE id = named.id LIMIT 1) AS limits
), passable AS MATERIALIZED (
    -- A limit that is gone is none: a root without messages may be forgotten while somebody publishes one of it.
    SELECT looked.queue_id, looked.lane, by_task.id AS limit_id, by_root.id AS root_limit_id,
           coalesce(by_task.room, :limit::bigint) AS task_room, coalesce(by_root.room, :limit::bigint) AS root_room,
           CASE WHEN NOT looked.again THEN by_root.unbegun END AS unbegun
      FROM looked
      LEFT JOIN counted AS by_task ON by_task.id = looked.limit_id
      LEFT JOIN counted AS by_root ON by_root.id = looked.root_limit_id
     WHERE (by_task.id IS NULL OR by_task.room > 0) AND (by_root.id IS NULL OR by_root.room > 0)
       AND (looked.again OR coalesce(by_root.unbegun, 1) > 0)
)
SELECT 'gated', head.message_id, head.priority::bigint, passable.limit_id, passable.root_limit_id,
       passable.task_room, passable.root_room, passable.lane, passable.unbegun
  FROM passable
 CROSS JOIN LATERAL (
       SELECT message_id, priority, position
         FROM atomic_gated
        WHERE queue_id = passable.queue_id AND atomic_gated.lane = passable.lane
        ORDER BY priority DESC, position
        LIMIT least(:limit::bigint, passable.task_room, passable.root_room, passable.unbegun)) AS head
UNION ALL
SELECT 'ready', NULL, priority, least(count(*), :limit::bigint), NULL, NULL, NULL, NULL, NULL
  FROM (SELECT (lane->>1)::bigint AS priority
          FROM jsonb_array_elements(:lanes::jsonb) AS lane
         CROSS JOIN LATERAL (
               SELECT FROM atomic_ready
                WHERE queue_id = (lane->>0)::bigint AND priority = (lane->>1)::smallint
                  AND position > (lane->>2)::bigint
                LIMIT :limit::integer) AS each) AS ready
 GROUP BY priority
UNION ALL
SELECT 'wait', min(free_in_ms), NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM counted WHERE room <= 0 AND free_in_ms IS NOT NULL HAVING count(*) > 0
UNION ALL
SELECT 'more', NULL, NULL, NULL, NULL, NULL, NULL, min(lane), NULL
  FROM looked WHERE turn = :window::integer HAVING count(*) > 0;

-- name: hold :many hot
-- Hold limits for an admission; those that somebody else holds just now are left to them.
SELECT id
  FROM atomic_limit
 WHERE id = ANY (ARRAY(SELECT jsonb_array_elements(:limit_ids::jsonb)::bigint))
 ORDER BY id
   FOR NO KEY UPDATE SKIP LOCKED;

-- name: admit :many hot
-- Claim messages at gates, in that order, as far as each of their limits has room now. The limits are held.
WITH held AS MATERIALIZED (
    SELECT limits.*
      FROM jsonb_array_elements(:limit_ids::jsonb) AS given
     CROSS JOIN LATERAL (SELECT * FROM atomic_limit WHERE id = given::bigint LIMIT 1) AS limits
), counted AS MATERIALIZED (
    SELECT id,
           CASE WHEN NOT is_open OR closes_ms <= {now_ms} THEN 0 ELSE least(
               :limit::bigint,
               CASE WHEN max_running IS NOT NULL THEN max_running - (
                   SELECT count(*)
                     FROM atomic_admitted AS admitted
                     JOIN atomic_claim AS claim
                       ON claim.message_id = admitted.message_id AND claim.fence = admitted.fence
                    WHERE admitted.limit_id = held.id) END,
               CASE WHEN rate_starts IS NOT NULL THEN rate_starts - (
                   SELECT coalesce(sum(starts), 0)
                     FROM atomic_start
                    WHERE limit_id = held.id AND at_ms > {now_ms} - rate_ms) END) END AS room,
           quota - started AS unbegun
      FROM held
), found AS MATERIALIZED (
    SELECT gated.*, item.turn
      FROM jsonb_array_elements(:message_ids::jsonb) WITH ORDINALITY AS item (id, turn)
     CROSS JOIN LATERAL (
           SELECT message_id, limit_id, root_limit_id, again
             FROM atomic_gated WHERE message_id = item.id::bigint FOR UPDATE SKIP LOCKED) AS gated
), passing AS (
    SELECT found.message_id
      FROM (SELECT *, row_number() OVER (PARTITION BY limit_id ORDER BY turn) AS of_task,
                   row_number() OVER (PARTITION BY root_limit_id ORDER BY turn) AS of_root,
                   row_number() OVER (PARTITION BY root_limit_id, again ORDER BY turn) AS of_its_kind
              FROM found) AS found
      LEFT JOIN counted AS by_task ON by_task.id = found.limit_id
      LEFT JOIN counted AS by_root ON by_root.id = found.root_limit_id
     WHERE coalesce(found.of_task <= by_task.room,
                    NOT EXISTS (SELECT FROM atomic_limit WHERE id = found.limit_id))
       AND coalesce(found.of_root <= by_root.room,
                    NOT EXISTS (SELECT FROM atomic_limit WHERE id = found.root_limit_id))
       AND (found.again OR by_root.unbegun IS NULL OR found.of_its_kind <= by_root.unbegun)
), host AS MATERIALIZED (
    SELECT draining_ms
      FROM atomic_host
     WHERE id = :holder::text AND boot = :boot::text AND draining_ms IS NULL
       FOR KEY SHARE
), taken AS (
    DELETE FROM atomic_gated
     WHERE message_id = ANY (ARRAY(
               SELECT message_id FROM passing WHERE NOT :is_host::boolean OR EXISTS (SELECT FROM host)))
    RETURNING message_id, queue_id, limit_id, root_limit_id, priority, position, fence + 1 AS fence, crashes, again
), clock AS MATERIALIZED (
    SELECT {now_ms} AS now_ms  -- once: a start that were noted as earlier than its claim would let the next in too early
), claimed AS (
    INSERT INTO atomic_claim (message_id, queue_id, priority, position, fence, crashes,
                              holder, boot, claimed_ms, lease_until_ms)
    SELECT message_id, queue_id, priority, position, fence, crashes,
           :holder::text, :boot::text, (SELECT now_ms FROM clock), (SELECT now_ms FROM clock) + :lease_ms::bigint
      FROM taken
), counting AS MATERIALIZED (
    SELECT held.id, held.rate_ms, taken.message_id, taken.fence, taken.again
      FROM taken
      JOIN held ON held.id IN (taken.limit_id, taken.root_limit_id)
), over AS (
    DELETE FROM atomic_admitted AS admitted
     USING held
     WHERE admitted.limit_id = held.id
       AND NOT EXISTS (SELECT FROM atomic_claim AS claim
                        WHERE claim.message_id = admitted.message_id AND claim.fence = admitted.fence)
), admitted AS (
    INSERT INTO atomic_admitted (limit_id, message_id, fence) SELECT id, message_id, fence FROM counting
), past AS (
    DELETE FROM atomic_start
     USING held
     WHERE atomic_start.limit_id = held.id AND atomic_start.at_ms <= {now_ms} - held.rate_ms
), started AS (
    INSERT INTO atomic_start (limit_id, at_ms, starts)
    SELECT id, (((SELECT now_ms FROM clock) - 1) / greatest(rate_ms / 1000, 1) + 1) * greatest(rate_ms / 1000, 1),
           count(*)
      FROM counting
     WHERE rate_ms IS NOT NULL
     GROUP BY id, rate_ms
    ON CONFLICT (limit_id, at_ms) DO UPDATE SET starts = atomic_start.starts + excluded.starts
), noted AS (
    UPDATE atomic_limit AS limits
       SET started = limits.started + (SELECT count(*) FROM counting WHERE counting.id = limits.id AND NOT again),
           used_ms = {now_ms}
     WHERE limits.id = ANY (ARRAY(SELECT id FROM counting))
), keyless AS (
    UPDATE atomic_message
       SET unique_key = NULL, unique_until = NULL,
           lane = CASE WHEN limit_id IS NOT NULL OR root_limit_id IS NOT NULL THEN lane END
     WHERE id = ANY (ARRAY(SELECT message_id FROM taken)) AND unique_until = 'queued'
)
SELECT taken.message_id, taken.fence, taken.queue_id, taken.priority, message.payload, taken.crashes,
       message.task_id,
       EXISTS (SELECT FROM atomic_revoked
                WHERE task_id = message.task_id AND until_ms > {now_ms})
       OR EXISTS (SELECT FROM atomic_root
                   WHERE limit_id = taken.root_limit_id AND state = 'cancelled'),
       coalesce(message.expires_ms <= {now_ms}, false), taken.position,
       CASE WHEN taken.fence = 1 THEN {now_ms} - greatest(message.published_ms, message.due_ms) END,
       taken.limit_id, taken.root_limit_id
  FROM taken
 CROSS JOIN LATERAL (
       SELECT payload, task_id, published_ms, due_ms, expires_ms
         FROM atomic_message WHERE id = taken.message_id LIMIT 1
       ) AS message;

-- name: regate :many
-- Send a held message to the gate of a limit that its publisher did not know: no crash is counted.
WITH held AS MATERIALIZED (
    SELECT message_id, lease_until_ms
      FROM atomic_claim
     WHERE message_id = :id::bigint AND fence = :fence::bigint AND successor_id IS NULL
       FOR UPDATE
), released AS (
    DELETE FROM atomic_claim
     WHERE message_id = ANY (ARRAY(SELECT message_id FROM held WHERE lease_until_ms > {now_ms}))
    RETURNING message_id, queue_id, priority, position, fence, crashes
), message AS (
    UPDATE atomic_message
       SET limit_id = :limit_id::bigint, lane = :limit_id::bigint || '.' || coalesce(root_limit_id, 0)
     WHERE id = ANY (ARRAY(SELECT message_id FROM released))
    RETURNING id, lane, root_limit_id
)
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT released.message_id, queue_id,
       CASE WHEN message.root_limit_id IS NOT NULL THEN message.lane || '+' ELSE message.lane END,
       :limit_id::bigint, message.root_limit_id, priority, position, fence, crashes
  FROM released
  JOIN message ON message.id = released.message_id
RETURNING message_id;

-- name: sleepers :many
-- The queues that somebody sleeps over and at whose gates messages wait under one of these limits.
SELECT queue_id
  FROM (SELECT DISTINCT queue_id FROM atomic_waiter WHERE until_ms > {now_ms}) AS waiter
 WHERE EXISTS (SELECT FROM atomic_gated
                WHERE queue_id = waiter.queue_id
                  AND limit_id = ANY (ARRAY(SELECT jsonb_array_elements(:limit_ids::jsonb)::bigint)))
    OR EXISTS (SELECT FROM atomic_gated
                WHERE queue_id = waiter.queue_id
                  AND root_limit_id = ANY (ARRAY(SELECT jsonb_array_elements(:limit_ids::jsonb)::bigint)));

-- name: key_holders :many
-- Which tasks hold these keys.
SELECT unique_key, task_id
  FROM atomic_message
 WHERE unique_key = ANY (ARRAY(SELECT jsonb_array_elements_text(:keys::jsonb)));

-- name: hurry :exec
-- Wait no longer for a lock, for the rest of the transaction.
SELECT set_config('lock_timeout', :wait_ms::text, true);

-- name: expire :one
-- Drop limits of tasks that no message has had for so long; a publisher says in time that it is about to use one.
WITH unused AS (
    SELECT id
      FROM atomic_limit
     WHERE task IS NOT NULL AND used_ms < {now_ms} - :unused_ms
       AND NOT EXISTS (SELECT FROM atomic_message WHERE limit_id = atomic_limit.id)
     LIMIT :limit
       FOR UPDATE SKIP LOCKED
), admitted AS (
    DELETE FROM atomic_admitted WHERE limit_id = ANY (ARRAY(SELECT id FROM unused))
), started AS (
    DELETE FROM atomic_start WHERE limit_id = ANY (ARRAY(SELECT id FROM unused))
), dropped AS (
    DELETE FROM atomic_limit WHERE id = ANY (ARRAY(SELECT id FROM unused))
    RETURNING id
)
SELECT count(*) FROM dropped;
