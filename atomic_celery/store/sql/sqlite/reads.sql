-- What operators look at: numbers, never payloads, and nothing that the protocol depends on.
--
-- Every count stops at *bound* rows, so that a look costs the same at a thousand messages and at a hundred
-- million; one above it says "at least". Each statement is one snapshot: a message is counted once.

-- name: depths :many
-- How full each queue is, in the order of names.
WITH limited AS (
    SELECT queue_id, count(*) AS n
      FROM (SELECT queue_id FROM atomic_gated LIMIT :bound + 1) GROUP BY queue_id
), delayed AS (
    SELECT queue_id, count(*) AS n
      FROM (SELECT queue_id FROM atomic_delayed LIMIT :bound + 1) GROUP BY queue_id
), running AS (
    SELECT queue_id, count(*) AS n, count(*) FILTER (WHERE lease_until_ms <= {now_ms}) AS lapsed
      FROM (SELECT queue_id, lease_until_ms FROM atomic_claim LIMIT :bound + 1) GROUP BY queue_id
), dead AS (
    SELECT queue_id, count(*) AS n
      FROM (SELECT queue_id FROM atomic_dead LIMIT :bound + 1) GROUP BY queue_id
), waiting AS (
    SELECT queue_id, count(*) AS n FROM atomic_waiter WHERE until_ms > {now_ms} GROUP BY queue_id
)
SELECT q.id, q.name, q.exclusive_to IS NOT NULL OR q.auto_delete OR q.expires_ms IS NOT NULL,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_ready AS r WHERE r.queue_id = q.id LIMIT :bound + 1)) AS ready,
       coalesce(limited.n, 0) AS limited,
       coalesce(delayed.n, 0) AS delayed,
       coalesce(running.n, 0) AS running,
       coalesce(running.lapsed, 0) AS lapsed,
       coalesce(dead.n, 0) AS dead,
       coalesce(waiting.n, 0) AS waiting,
       (SELECT min((SELECT max(m.published_ms, coalesce(m.due_ms, 0))
                      FROM atomic_ready AS r
                      JOIN atomic_message AS m ON m.id = r.message_id
                     WHERE r.queue_id = q.id AND r.priority = lane.column1
                     ORDER BY r.position
                     LIMIT 1))
          FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS lane) AS ready_since_ms
  FROM atomic_queue AS q
  LEFT JOIN limited ON limited.queue_id = q.id
  LEFT JOIN delayed ON delayed.queue_id = q.id
  LEFT JOIN running ON running.queue_id = q.id
  LEFT JOIN dead ON dead.queue_id = q.id
  LEFT JOIN waiting ON waiting.queue_id = q.id
 ORDER BY q.name;

-- name: messages :many
-- Unfinished messages with everything but their payload, the newest first.
SELECT m.id, q.name AS queue, s.state, m.task_id, m.task_name, m.root_id, s.priority, s.fence, s.crashes,
       m.published_ms, s.due_ms, m.expires_ms, s.holder, h.name AS host, s.boot, s.claimed_ms, s.lease_until_ms,
       s.reason, s.buried_ms
  FROM (SELECT message_id, queue_id, 'ready' AS state, priority, fence, crashes,
               NULL AS due_ms, NULL AS holder, NULL AS boot, NULL AS claimed_ms, NULL AS lease_until_ms,
               NULL AS reason, NULL AS buried_ms
          FROM atomic_ready
        UNION ALL
        SELECT message_id, queue_id, 'limited', priority, fence, crashes,
               NULL, NULL, NULL, NULL, NULL,
               (SELECT group_concat(l.name, ' and ') FROM atomic_limit AS l
                 WHERE l.id IN (limit_id, root_limit_id)), NULL
          FROM atomic_gated
        UNION ALL
        SELECT message_id, queue_id, 'delayed', priority, fence, crashes,
               due_ms, NULL, NULL, NULL, NULL, NULL, NULL
          FROM atomic_delayed
        UNION ALL
        SELECT message_id, queue_id, 'running', priority, fence, crashes,
               NULL, holder, boot, claimed_ms, lease_until_ms, NULL, NULL
          FROM atomic_claim
        UNION ALL
        SELECT message_id, queue_id, 'dead', priority, fence, crashes,
               NULL, NULL, NULL, NULL, NULL, reason, buried_ms
          FROM atomic_dead) AS s
  JOIN atomic_message AS m ON m.id = s.message_id
  JOIN atomic_queue AS q ON q.id = s.queue_id
  LEFT JOIN atomic_host AS h ON h.id = s.holder
 WHERE (:id IS NULL OR s.message_id = :id)
   AND (:before IS NULL OR s.message_id < :before)
   AND (:state IS NULL OR s.state = :state)
   AND (:queue IS NULL OR q.name = :queue)
   AND (:task IS NULL OR m.task_name = :task)
   AND (:root IS NULL OR m.root_id = :root)
   AND (:text IS NULL OR instr(lower(m.payload), lower(:text)) > 0)
 ORDER BY s.message_id DESC
 LIMIT :limit;

-- name: scheduled :many
-- Delayed messages of some queues, the next due first.
SELECT m.id, q.name AS queue, 'delayed', m.task_id, m.task_name, m.root_id, d.priority, d.fence, d.crashes,
       m.published_ms, d.due_ms, m.expires_ms, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM atomic_delayed AS d
  JOIN atomic_message AS m ON m.id = d.message_id
  JOIN atomic_queue AS q ON q.id = d.queue_id
 WHERE d.queue_id IN (SELECT value FROM json_each(:queue_ids))
 ORDER BY d.due_ms, d.message_id
 LIMIT :limit;

-- name: payload :one
-- A message as it was published.
SELECT payload FROM atomic_message WHERE id = :id;

-- name: crashes :many
-- How often a message's holder died, the first time first.
SELECT fence, holder, reason, at_ms FROM atomic_crash WHERE message_id = :id ORDER BY fence;

-- name: write_probe :exec
-- A write that changes nothing, to learn whether the database still takes any.
UPDATE atomic_setting SET value = value WHERE name = 'schema_version';

-- name: ids_of_task :many
-- The messages of a task id, one a queue it was published to.
SELECT id FROM atomic_message WHERE task_id = :task_id ORDER BY id;

-- name: misplaced :many
-- Invariant I1, spot-checked on the *sample* oldest and newest messages, those that are not in exactly one state.
WITH sample AS (
    SELECT id FROM (SELECT id FROM atomic_message ORDER BY id LIMIT :sample)
    UNION
    SELECT id FROM (SELECT id FROM atomic_message ORDER BY id DESC LIMIT :sample)
), placed AS (
    SELECT s.id,
           (SELECT count(*) FROM atomic_ready AS r WHERE r.message_id = s.id) AS ready,
           (SELECT count(*) FROM atomic_gated AS g WHERE g.message_id = s.id) AS limited,
           (SELECT count(*) FROM atomic_delayed AS d WHERE d.message_id = s.id) AS delayed,
           (SELECT count(*) FROM atomic_claim AS c WHERE c.message_id = s.id) AS running,
           (SELECT count(*) FROM atomic_dead AS x WHERE x.message_id = s.id) AS dead
      FROM sample AS s
)
SELECT id, ready, limited, delayed, running, dead
  FROM placed
 WHERE ready + limited + delayed + running + dead <> 1
 ORDER BY id;

-- name: overdue :one
-- Work that somebody should have moved by now, leases and delays that ended more than *grace_ms* ago.
SELECT (SELECT count(*)
          FROM (SELECT 1 FROM atomic_claim WHERE lease_until_ms <= (SELECT {now_ms} - :grace_ms) LIMIT :bound + 1)) AS lapsed,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_delayed WHERE due_ms <= (SELECT {now_ms} - :grace_ms) LIMIT :bound + 1)) AS due;

-- name: version :one
-- The version of the database itself.
SELECT sqlite_version();

-- name: journal :one
-- How it keeps transactions; anything but "wal" makes readers and writers wait for each other.
PRAGMA journal_mode;
