-- How much work there is and who does it, for whoever decides how many hosts there are to be.
--
-- Temporary queues (mailboxes, replies) are left out, and all but *queues* if those are given. Every count stops
-- at *bound* rows over all queues together, so that a look costs the same however full they are.

-- name: work :one
-- Ready messages and delayed ones that are due, running ones, those of them whose lease ran out, and since when the
-- one has been waiting that is first in line for longest. Nobody may be there to promote or reclaim: they wait all the same.
-- Of those at gates as many count as ready as their limits would let run: more hosts could do nothing for the others.
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
          FROM (SELECT 1 FROM atomic_ready WHERE queue_id IN (SELECT id FROM queue) LIMIT :bound + 1) AS capped)
       + (SELECT coalesce(sum(least(n,
                     CASE WHEN l.id IS NULL THEN n
                          WHEN NOT l.is_open THEN 0
                          ELSE greatest(coalesce(l.max_running - running_n, l.rate_starts, n), 0) END,
                     CASE WHEN r.id IS NULL THEN n
                          WHEN NOT r.is_open THEN 0
                          ELSE coalesce(r.max_running, n) END)), 0)
            FROM (SELECT limit_id, root_limit_id, count(*) AS n,
                         (SELECT count(*)
                            FROM atomic_admitted AS a
                            JOIN atomic_claim AS c ON c.message_id = a.message_id AND c.fence = a.fence
                           WHERE a.limit_id = capped.limit_id) AS running_n
                    FROM (SELECT limit_id, root_limit_id
                            FROM atomic_gated
                           WHERE queue_id IN (SELECT id FROM queue)
                           LIMIT :bound + 1) AS capped
                   GROUP BY limit_id, root_limit_id) AS waiting
            LEFT JOIN atomic_limit AS l ON l.id = waiting.limit_id
            LEFT JOIN atomic_limit AS r ON r.id = waiting.root_limit_id) AS ready,
       (SELECT count(*)
          FROM (SELECT 1
                  FROM atomic_delayed
                 WHERE due_ms <= (SELECT {now_ms}) AND queue_id IN (SELECT id FROM queue)
                 LIMIT :bound + 1) AS capped) AS due,
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
