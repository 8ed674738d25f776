-- Limits that hold over all hosts: how many run, how many start in a time, whether anything may start.
--
-- A limited message waits in atomic_gated. Whoever admits it has the database's one write lock, so no two admissions
-- count the same room (I10). What counts as running is in atomic_claim itself: atomic_admitted only says which claims
-- to look for, and however a claim ends, it counts no more from then on.

-- name: find :many
-- The limits of these names, and whether it is long ago that they were in use.
SELECT name, id, max_running, rate_starts, rate_ms, used_ms < {now_ms} - :stale_ms
  FROM atomic_limit
 WHERE name IN (SELECT value FROM json_each(:names))
 ORDER BY id;

-- name: insert :exec
-- Make limits that there are not yet.
INSERT INTO atomic_limit (name, task, max_running, rate_starts, rate_ms, used_ms)
SELECT json_extract(value, '$.name'), json_extract(value, '$.task'), json_extract(value, '$.max_running'),
       json_extract(value, '$.rate_starts'), json_extract(value, '$.rate_ms'), {now_ms}
  FROM json_each(:limits)
 WHERE true
ON CONFLICT (name) DO NOTHING;

-- name: change :exec
-- Let a limit be what its task says now, and in use.
UPDATE atomic_limit
   SET max_running = :max_running, rate_starts = :rate_starts, rate_ms = :rate_ms, used_ms = {now_ms}
 WHERE name = :name;

-- name: change_task :many
-- Let every key of a task have the limits that the task says now; tell which had others.
UPDATE atomic_limit
   SET max_running = :max_running, rate_starts = :rate_starts, rate_ms = :rate_ms
 WHERE task = :task
   AND (max_running IS NOT :max_running OR rate_starts IS NOT :rate_starts OR rate_ms IS NOT :rate_ms)
RETURNING id;

-- name: tasks :many
-- Which tasks have limits.
SELECT DISTINCT task FROM atomic_limit WHERE task IS NOT NULL;

-- name: survey :many
-- What waits at the gates of some queues and might pass, and what else there is to know.
--   'gated'  message, priority, its limits, and how much room each of them has; lane; how many more may begin that
--            never did, by the budget of its root, where that asks for it
--   'ready'  how many messages of that priority are ready, up to :limit
--   'wait'   in how many milliseconds a rate that is used up has room again
--   'more'   the last lane that was looked at, where there are more
-- A lane is a queue and a pair of limits; of each only its first messages are looked at, and of lanes :window a queue.
-- Claims that are to end in the same transaction (:ending) count no more.
WITH RECURSIVE lane (queue_id, lane, turn) AS (
    SELECT queue.value,
           (SELECT min(gated.lane) FROM atomic_gated AS gated
             WHERE gated.queue_id = queue.value AND gated.lane > :after), 1
      FROM json_each(:queue_ids) AS queue
    UNION ALL
    SELECT lane.queue_id,
           (SELECT min(gated.lane) FROM atomic_gated AS gated
             WHERE gated.queue_id = lane.queue_id AND gated.lane > lane.lane), lane.turn + 1
      FROM lane
     WHERE lane.lane IS NOT NULL AND lane.turn < :window
), looked AS MATERIALIZED (
    SELECT lane.queue_id, lane.lane, lane.turn, head.limit_id, head.root_limit_id, head.again
      FROM lane
      JOIN atomic_gated AS head
        ON head.message_id = (SELECT message_id FROM atomic_gated AS first
                               WHERE first.queue_id = lane.queue_id AND first.lane = lane.lane
                               ORDER BY first.priority DESC, first.position
                               LIMIT 1)
     WHERE lane.lane IS NOT NULL
), counted AS MATERIALIZED (
    SELECT limits.id,
           CASE WHEN NOT limits.is_open OR coalesce(limits.closes_ms <= {now_ms}, 0) THEN 0 ELSE min(
               :limit,
               coalesce(limits.max_running - (
                   SELECT count(*)
                     FROM atomic_admitted AS admitted
                     JOIN atomic_claim AS claim
                       ON claim.message_id = admitted.message_id AND claim.fence = admitted.fence
                    WHERE admitted.limit_id = limits.id
                      AND claim.message_id NOT IN (SELECT value FROM json_each(:ending))), :limit),
               coalesce(limits.rate_starts - (
                   SELECT coalesce(sum(starts), 0)
                     FROM atomic_start
                    WHERE limit_id = limits.id AND at_ms > {now_ms} - limits.rate_ms), :limit)) END AS room,
           (SELECT min(at_ms) + limits.rate_ms - {now_ms}
              FROM atomic_start
             WHERE limit_id = limits.id AND at_ms > {now_ms} - limits.rate_ms) AS free_in_ms,
           limits.quota - limits.started AS unbegun
      FROM atomic_limit AS limits
     WHERE limits.id IN (SELECT limit_id FROM looked UNION SELECT root_limit_id FROM looked)
), passable AS MATERIALIZED (
    -- A limit that is gone is none, as elsewhere.
    SELECT looked.queue_id, looked.lane, by_task.id AS limit_id, by_root.id AS root_limit_id,
           coalesce(by_task.room, :limit) AS task_room, coalesce(by_root.room, :limit) AS root_room,
           CASE WHEN NOT looked.again THEN by_root.unbegun END AS unbegun
      FROM looked
      LEFT JOIN counted AS by_task ON by_task.id = looked.limit_id
      LEFT JOIN counted AS by_root ON by_root.id = looked.root_limit_id
     WHERE (by_task.id IS NULL OR by_task.room > 0) AND (by_root.id IS NULL OR by_root.room > 0)
       AND (looked.again OR coalesce(by_root.unbegun, 1) > 0)
)
SELECT 'gated', head.message_id, head.priority, passable.limit_id, passable.root_limit_id,
       passable.task_room, passable.root_room, passable.lane, passable.unbegun
  FROM passable
 CROSS JOIN atomic_gated AS head
    ON head.message_id IN (SELECT message_id FROM atomic_gated AS first
                            WHERE first.queue_id = passable.queue_id AND first.lane = passable.lane
                            ORDER BY first.priority DESC, first.position
                            LIMIT :limit)
UNION ALL
SELECT 'ready', NULL, json_extract(lane.value, '$[1]'),
       sum((SELECT count(*)
              FROM (SELECT 1 FROM atomic_ready
                     WHERE queue_id = json_extract(lane.value, '$[0]')
                       AND priority = json_extract(lane.value, '$[1]')
                       AND position > json_extract(lane.value, '$[2]')
                     LIMIT :limit))), NULL, NULL, NULL, NULL, NULL
  FROM json_each(:lanes) AS lane
 GROUP BY json_extract(lane.value, '$[1]')
UNION ALL
SELECT 'wait', min(free_in_ms), NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM counted WHERE room <= 0 AND free_in_ms IS NOT NULL HAVING count(*) > 0
UNION ALL
SELECT 'more', NULL, NULL, NULL, NULL, NULL, NULL, min(lane), NULL
  FROM looked WHERE turn = :window HAVING count(*) > 0;

-- name: hold :many
-- The limits that are there; the transaction holds the write lock already.
SELECT id FROM atomic_limit WHERE id IN (SELECT value FROM json_each(:limit_ids)) ORDER BY id;

-- name: admit :many
-- Claim messages at gates, in that order, as far as each of their limits has room now.
DELETE FROM picked;
INSERT INTO picked (message_id, queue_id, priority, position, fence, crashes)
WITH counted AS MATERIALIZED (
    SELECT limits.id,
           CASE WHEN NOT limits.is_open OR coalesce(limits.closes_ms <= {now_ms}, 0) THEN 0 ELSE min(
               :limit,
               coalesce(limits.max_running - (
                   SELECT count(*)
                     FROM atomic_admitted AS admitted
                     JOIN atomic_claim AS claim
                       ON claim.message_id = admitted.message_id AND claim.fence = admitted.fence
                    WHERE admitted.limit_id = limits.id), :limit),
               coalesce(limits.rate_starts - (
                   SELECT coalesce(sum(starts), 0)
                     FROM atomic_start
                    WHERE limit_id = limits.id AND at_ms > {now_ms} - limits.rate_ms), :limit)) END AS room,
           limits.quota - limits.started AS unbegun
      FROM atomic_limit AS limits
     WHERE limits.id IN (SELECT value FROM json_each(:limit_ids))
), found AS (
    SELECT gated.*,
           row_number() OVER (PARTITION BY limit_id ORDER BY item.key) AS of_task,
           row_number() OVER (PARTITION BY root_limit_id ORDER BY item.key) AS of_root,
           row_number() OVER (PARTITION BY root_limit_id, again ORDER BY item.key) AS of_its_kind
      FROM json_each(:message_ids) AS item
      JOIN atomic_gated AS gated ON gated.message_id = item.value
)
SELECT found.message_id, found.queue_id, found.priority, found.position, found.fence + 1, found.crashes
  FROM found
  LEFT JOIN counted AS by_task ON by_task.id = found.limit_id
  LEFT JOIN counted AS by_root ON by_root.id = found.root_limit_id
 WHERE coalesce(found.of_task <= by_task.room,
                NOT EXISTS (SELECT 1 FROM atomic_limit WHERE id = found.limit_id))
   AND coalesce(found.of_root <= by_root.room,
                NOT EXISTS (SELECT 1 FROM atomic_limit WHERE id = found.root_limit_id))
   AND (found.again OR by_root.unbegun IS NULL OR found.of_its_kind <= by_root.unbegun)
   AND (NOT :is_host
        OR EXISTS (SELECT 1 FROM atomic_host
                    WHERE id = :holder AND boot = :boot AND draining_ms IS NULL));
DELETE FROM atomic_admitted
 WHERE limit_id IN (SELECT value FROM json_each(:limit_ids))
   AND NOT EXISTS (SELECT 1 FROM atomic_claim AS claim
                    WHERE claim.message_id = atomic_admitted.message_id AND claim.fence = atomic_admitted.fence);
INSERT INTO atomic_admitted (limit_id, message_id, fence)
SELECT limits.id, picked.message_id, picked.fence
  FROM picked
  JOIN atomic_gated AS gated ON gated.message_id = picked.message_id
  JOIN atomic_limit AS limits ON limits.id IN (gated.limit_id, gated.root_limit_id);
-- The claims before their starts: no start is noted for an earlier moment than its claim, and so none is forgotten early.
INSERT INTO atomic_claim (message_id, queue_id, priority, position, fence, crashes,
                          holder, boot, claimed_ms, lease_until_ms)
SELECT message_id, queue_id, priority, position, fence, crashes,
       :holder, :boot, {now_ms}, {now_ms} + :lease_ms
  FROM picked;
DELETE FROM atomic_start
 WHERE limit_id IN (SELECT value FROM json_each(:limit_ids))
   AND at_ms <= {now_ms} - (SELECT rate_ms FROM atomic_limit WHERE id = atomic_start.limit_id);
INSERT INTO atomic_start (limit_id, at_ms, starts)
SELECT limits.id, (({now_ms} - 1) / max(limits.rate_ms / 1000, 1) + 1) * max(limits.rate_ms / 1000, 1), count(*)
  FROM picked
  JOIN atomic_gated AS gated ON gated.message_id = picked.message_id
  JOIN atomic_limit AS limits ON limits.id IN (gated.limit_id, gated.root_limit_id)
 WHERE limits.rate_ms IS NOT NULL
 GROUP BY limits.id
ON CONFLICT (limit_id, at_ms) DO UPDATE SET starts = atomic_start.starts + excluded.starts;
UPDATE atomic_limit
   SET used_ms = {now_ms},
       started = started + (SELECT count(*)
                              FROM picked
                              JOIN atomic_gated AS gated ON gated.message_id = picked.message_id
                             WHERE NOT gated.again AND atomic_limit.id IN (gated.limit_id, gated.root_limit_id))
 WHERE id IN (SELECT value FROM json_each(:limit_ids));
DELETE FROM atomic_gated WHERE message_id IN (SELECT message_id FROM picked);
UPDATE atomic_message
   SET unique_key = NULL, unique_until = NULL,
       lane = CASE WHEN limit_id IS NOT NULL OR root_limit_id IS NOT NULL THEN lane END
 WHERE id IN (SELECT message_id FROM picked) AND unique_until = 'queued';
SELECT picked.message_id, picked.fence, picked.queue_id, picked.priority, message.payload,
       picked.crashes, message.task_id,
       EXISTS (SELECT 1 FROM atomic_revoked
                WHERE task_id = message.task_id AND until_ms > {now_ms})
       OR EXISTS (SELECT 1 FROM atomic_root
                   WHERE limit_id = message.root_limit_id AND state = 'cancelled'),
       coalesce(message.expires_ms <= {now_ms}, 0), picked.position,
       CASE WHEN picked.fence = 1
            THEN {now_ms} - max(message.published_ms, coalesce(message.due_ms, 0)) END,
       message.limit_id, message.root_limit_id
  FROM picked
  JOIN atomic_message AS message ON message.id = picked.message_id;

-- name: regate :many
-- Send a held message to the gate of a limit that its publisher did not know: no crash is counted.
DELETE FROM settled;
INSERT INTO settled (message_id, queue_id, priority, position, fence, crashes)
SELECT message_id, queue_id, priority, position, fence, crashes
  FROM atomic_claim
 WHERE message_id = :id AND fence = :fence AND successor_id IS NULL AND lease_until_ms > {now_ms};
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
UPDATE atomic_message
   SET limit_id = :limit_id, lane = :limit_id || '.' || coalesce(root_limit_id, 0)
 WHERE id IN (SELECT message_id FROM settled);
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT settled.message_id, settled.queue_id,
       CASE WHEN message.root_limit_id IS NOT NULL THEN message.lane || '+' ELSE message.lane END,
       message.limit_id, message.root_limit_id, settled.priority, settled.position, settled.fence, settled.crashes
  FROM settled
  JOIN atomic_message AS message ON message.id = settled.message_id;
SELECT message_id FROM settled;

-- name: sleepers :many
-- Nobody has to be woken: every commit is seen.
SELECT NULL WHERE :limit_ids IS NULL;

-- name: key_holders :many
-- Which tasks hold these keys.
SELECT unique_key, task_id
  FROM atomic_message
 WHERE unique_key IN (SELECT value FROM json_each(:keys));

-- name: expire :one
-- Drop limits of tasks that no message has had for so long.
DELETE FROM settled;
INSERT INTO settled (message_id)
SELECT id
  FROM atomic_limit
 WHERE task IS NOT NULL AND used_ms < {now_ms} - :unused_ms
   AND NOT EXISTS (SELECT 1 FROM atomic_message WHERE limit_id = atomic_limit.id)
 LIMIT :limit;
DELETE FROM atomic_admitted WHERE limit_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_start WHERE limit_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_limit WHERE id IN (SELECT message_id FROM settled);
SELECT count(*) FROM settled;
