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
       AND (:queues::text IS NULL OR name IN (SELECT json_array_elements_text(:queues::json)))
), running AS (
    SELECT count(*) AS n, coalesce(sum(lapsed), 0) AS lapsed
      FROM (SELECT CASE WHEN lease_until_ms <= (SELECT {now_ms}) THEN 1 ELSE 0 END AS lapsed
              FROM atomic_claim
             WHERE queue_id IN (SELECT id FROM queue)
             LIMIT :bound + 1) AS capped
)
SELECT (SELECT count(*)
          FROM (SELECT FROM atomic_ready WHERE queue_id IN (SELECT id FROM queue)
                 UNION ALL
                SELECT FROM atomic_delayed
                 WHERE due_ms <= (SELECT {now_ms}) AND queue_id IN (SELECT id FROM queue)
                 LIMIT :bound + 1) AS capped) AS waiting,
       running.n, running.lapsed,
       (SELECT min(greatest(m.published_ms, m.due_ms))
          FROM queue
         CROSS JOIN generate_series(0, 9) AS lane (priority)
         CROSS JOIN LATERAL (SELECT r.message_id
                               FROM atomic_ready AS r
                              WHERE r.queue_id = queue.id AND r.priority = lane.priority
                              ORDER BY r.position
                              LIMIT 1) AS first
          JOIN atomic_message AS m ON m.id = first.message_id) AS ready_since_ms,
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
       coalesce(sum(greatest(slots - busy, 0)) FILTER (WHERE draining_ms IS NULL), 0)
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
    SELECT id, coalesce(:after::json ->> id::text, '') AS after
      FROM atomic_queue
     WHERE exclusive_to IS NULL AND NOT auto_delete AND expires_ms IS NULL
       AND (:queues::text IS NULL OR name IN (SELECT json_array_elements_text(:queues::json)))
), gate (queue_id, lane, limit_id, root_limit_id, again) AS (
    SELECT first.*
      FROM queue
     CROSS JOIN LATERAL (
           SELECT queue_id, lane, limit_id, root_limit_id, again
             FROM atomic_gated
            WHERE queue_id = queue.id AND atomic_gated.lane > queue.after
            ORDER BY lane
            LIMIT 1) AS first
    UNION ALL
    SELECT next.*
      FROM gate
     CROSS JOIN LATERAL (
           SELECT queue_id, lane, limit_id, root_limit_id, again
             FROM atomic_gated
            WHERE queue_id = gate.queue_id AND atomic_gated.lane > gate.lane
            ORDER BY lane
            LIMIT 1) AS next
), looked AS MATERIALIZED (
    SELECT * FROM gate LIMIT :gates  -- no more of the recursion is run than is read
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
           CASE WHEN NOT limits.is_open OR limits.closes_ms <= (SELECT {now_ms}) THEN 0 ELSE least(
               :bound::bigint,
               limits.max_running - coalesce(running.n, 0),
               limits.rate_starts - coalesce(started.n, 0)) END AS room,
           limits.quota - limits.started AS unbegun
      FROM limited
      JOIN atomic_limit AS limits ON limits.id = limited.id
      LEFT JOIN running ON running.limit_id = limits.id
      LEFT JOIN started ON started.limit_id = limits.id
), narrow AS (
    SELECT looked.*, by_task.room AS task_room, by_root.room AS root_room,
           least(:bound::bigint, by_task.room, by_root.room, CASE WHEN NOT looked.again THEN by_root.unbegun END) AS room
      FROM looked
      LEFT JOIN room AS by_task ON by_task.id = looked.limit_id
      LEFT JOIN room AS by_root ON by_root.id = looked.root_limit_id
)
SELECT queue_id, lane,
       CASE WHEN room <= 1 THEN greatest(0, room)  -- there is one at each gate
            ELSE (SELECT count(*)
                    FROM (SELECT FROM atomic_gated
                           WHERE queue_id = narrow.queue_id AND atomic_gated.lane = narrow.lane
                           LIMIT narrow.room) AS capped) END,
       limit_id, task_room, root_limit_id, root_room, (SELECT count(*) FROM looked)
  FROM narrow
 WHERE room > 0 OR (queue_id, lane) IN (SELECT queue_id, max(lane) FROM looked GROUP BY queue_id);
