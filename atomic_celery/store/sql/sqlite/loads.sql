-- How much work there is and who does it, for whoever decides how many hosts there are to be.
--
-- Temporary queues (mailboxes, replies) are left out, and all but *queues* if those are given. Every count stops
-- at *bound* rows over all queues together, and each look at gates at so many of them, so that a look costs the
-- same however full they are.

-- name: work :one
-- Ready messages together with delayed ones that are due, running ones, those of them whose lease ran out, and since
-- when the one has been waiting that is first in line for longest. Nobody may be there to promote or reclaim: they wait
-- all the same.
WITH queue AS (
    SELECT id
      FROM atomic_queue
     WHERE exclusive_to IS NULL AND NOT auto_delete AND expires_ms IS NULL
       AND (:queues IS NULL OR name IN (SELECT value FROM json_each(:queues)))
), running AS (
    SELECT count(*) AS n, coalesce(sum(lapsed), 0) AS lapsed
      FROM (SELECT CASE WHEN lease_until_ms <= (SELECT {now_ms}) THEN 1 ELSE 0 END AS lapsed
              FROM atomic_claim
             WHERE queue_id IN (SELECT id FROM queue)
             LIMIT :bound + 1) AS capped
)
SELECT (SELECT count(*)
          FROM (SELECT 1 FROM atomic_ready WHERE queue_id IN (SELECT id FROM queue)
                 UNION ALL
                SELECT 1 FROM atomic_delayed
                 WHERE due_ms <= (SELECT {now_ms}) AND queue_id IN (SELECT id FROM queue)
                 LIMIT :bound + 1) AS capped) AS waiting,
       running.n, running.lapsed,
       (SELECT min((SELECT max(m.published_ms, coalesce(m.due_ms, 0))
                      FROM atomic_ready AS r
                      JOIN atomic_message AS m ON m.id = r.message_id
                     WHERE r.queue_id = queue.id AND r.priority = lane.column1
                     ORDER BY r.position
                     LIMIT 1))
          FROM queue
         CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS lane) AS ready_since_ms,
       (SELECT due_ms
          FROM atomic_delayed
         WHERE due_ms <= (SELECT {now_ms}) AND queue_id IN (SELECT id FROM queue)
         ORDER BY due_ms
         LIMIT 1) AS due_since_ms,
       {now_ms} AS now_ms
  FROM running;

-- name: slots :one
-- Hosts that reported lately, how many of their slots run something, and how many are free on those that take more.
SELECT count(*), coalesce(sum(busy), 0),
       coalesce(sum(CASE WHEN draining_ms IS NULL AND slots > busy THEN slots - busy ELSE 0 END), 0)
  FROM atomic_host
 WHERE reported_ms > (SELECT {now_ms} - :stale_ms);

-- name: holders :many
-- Everybody who holds a message, also under a lease that ran out and that nobody has reclaimed yet.
SELECT DISTINCT holder FROM atomic_claim;

-- name: gated :many
-- What waits at the next :gates gates after those that were looked at (:after: the last lane of each queue): of each
-- that has room its queue and lane, how many messages (no more than *bound*, or than might pass), and its two limits
-- with how much room each of them has. The last one of each queue is always there. Each row also says at how many
-- was looked.
WITH RECURSIVE queue AS (
    SELECT id, coalesce((SELECT seen.value
                           FROM json_each(:after) AS seen
                          WHERE seen.key = CAST(atomic_queue.id AS text)), '') AS after
      FROM atomic_queue
     WHERE exclusive_to IS NULL AND NOT auto_delete AND expires_ms IS NULL
       AND (:queues IS NULL OR name IN (SELECT value FROM json_each(:queues)))
), lane (queue_id, lane) AS (
    SELECT queue.id,
           (SELECT min(gated.lane) FROM atomic_gated AS gated
             WHERE gated.queue_id = queue.id AND gated.lane > queue.after) AS first
      FROM queue
     WHERE first IS NOT NULL
    UNION ALL
    SELECT lane.queue_id,
           (SELECT min(gated.lane) FROM atomic_gated AS gated
             WHERE gated.queue_id = lane.queue_id AND gated.lane > lane.lane) AS next
      FROM lane
     WHERE next IS NOT NULL
     LIMIT :gates
), looked AS MATERIALIZED (
    SELECT lane.queue_id, lane.lane, head.limit_id, head.root_limit_id, head.again
      FROM lane
      JOIN atomic_gated AS head
        ON head.message_id = (SELECT message_id FROM atomic_gated AS first
                               WHERE first.queue_id = lane.queue_id AND first.lane = lane.lane
                               LIMIT 1)
), limited (id) AS MATERIALIZED (
    SELECT limit_id FROM looked WHERE limit_id IS NOT NULL
     UNION
    SELECT root_limit_id FROM looked WHERE root_limit_id IS NOT NULL
), running AS MATERIALIZED (
    SELECT admitted.limit_id, count(*) AS n
      FROM limited
      JOIN atomic_admitted AS admitted ON admitted.limit_id = limited.id
      JOIN atomic_claim AS claim ON claim.message_id = admitted.message_id AND claim.fence = admitted.fence
     GROUP BY admitted.limit_id
), started AS MATERIALIZED (
    SELECT limits.id AS limit_id, sum(start.starts) AS n
      FROM limited
      JOIN atomic_limit AS limits ON limits.id = limited.id
      JOIN atomic_start AS start ON start.limit_id = limits.id AND start.at_ms > (SELECT {now_ms}) - limits.rate_ms
     GROUP BY limits.id
), room AS MATERIALIZED (
    SELECT limits.id,
           CASE WHEN NOT limits.is_open OR coalesce(limits.closes_ms <= (SELECT {now_ms}), 0) THEN 0 ELSE min(
               :bound,
               coalesce(limits.max_running - coalesce(running.n, 0), :bound),
               coalesce(limits.rate_starts - coalesce(started.n, 0), :bound)) END AS room,
           limits.quota - limits.started AS unbegun
      FROM limited
      JOIN atomic_limit AS limits ON limits.id = limited.id
      LEFT JOIN running ON running.limit_id = limits.id
      LEFT JOIN started ON started.limit_id = limits.id
), narrow AS (
    SELECT looked.*, by_task.room AS task_room, by_root.room AS root_room,
           min(:bound, coalesce(by_task.room, :bound), coalesce(by_root.room, :bound),
               CASE WHEN looked.again THEN :bound ELSE coalesce(by_root.unbegun, :bound) END) AS room
      FROM looked
      LEFT JOIN room AS by_task ON by_task.id = looked.limit_id
      LEFT JOIN room AS by_root ON by_root.id = looked.root_limit_id
)
SELECT queue_id, lane,
       CASE WHEN room <= 1 THEN max(0, room)  -- there is one at each gate
            ELSE min(room, (SELECT count(*)
                              FROM (SELECT 1 FROM atomic_gated
                                     WHERE queue_id = narrow.queue_id AND atomic_gated.lane = narrow.lane
                                     LIMIT :bound))) END,
       limit_id, task_room, root_limit_id, root_room, (SELECT count(*) FROM looked)
  FROM narrow
 WHERE room > 0 OR (queue_id, lane) IN (SELECT queue_id, max(lane) FROM looked GROUP BY queue_id);
