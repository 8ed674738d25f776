-- Looking for messages among very many: each look reads at most a window of them, the newest first.

-- name: search :many
-- Those of the newest *window* messages before one that match; in each row first how many were looked at, and down
-- to which id. One row without a message when none matches.
WITH candidate AS (
    SELECT *
      FROM (
        SELECT message_id, queue_id, 'ready' AS state, priority, fence, crashes,
               NULL AS due_ms, NULL AS holder, NULL AS boot, NULL AS claimed_ms, NULL AS lease_until_ms, NULL AS reason, NULL AS buried_ms
          FROM atomic_ready
        UNION ALL
        SELECT message_id, queue_id, 'limited' AS state, priority, fence, crashes,
               NULL AS due_ms, NULL AS holder, NULL AS boot, NULL AS claimed_ms, NULL AS lease_until_ms,
               (SELECT group_concat(l.name, ' and ') FROM atomic_limit AS l
                 WHERE l.id IN (limit_id, root_limit_id)) AS reason, NULL AS buried_ms
          FROM atomic_gated
        UNION ALL
        SELECT message_id, queue_id, 'delayed' AS state, priority, fence, crashes,
               due_ms, NULL AS holder, NULL AS boot, NULL AS claimed_ms, NULL AS lease_until_ms, NULL AS reason, NULL AS buried_ms
          FROM atomic_delayed
        UNION ALL
        SELECT message_id, queue_id, 'running' AS state, priority, fence, crashes,
               NULL AS due_ms, holder, boot, claimed_ms, lease_until_ms, NULL AS reason, NULL AS buried_ms
          FROM atomic_claim
        UNION ALL
        SELECT message_id, queue_id, 'dead' AS state, priority, fence, crashes,
               NULL AS due_ms, NULL AS holder, NULL AS boot, NULL AS claimed_ms, NULL AS lease_until_ms, reason, buried_ms
          FROM atomic_dead) AS s
     WHERE (:before IS NULL OR message_id < :before)
       AND (:state IS NULL OR state = :state)
     ORDER BY message_id DESC
     LIMIT :window
)
SELECT seen.looked_at, seen.down_to, found.*
  FROM (SELECT count(*) AS looked_at, min(message_id) AS down_to FROM candidate) AS seen
  LEFT JOIN (
       SELECT m.id, q.name AS queue, s.state, m.task_id, m.task_name, m.root_id, s.priority, s.fence, s.crashes,
              m.published_ms, s.due_ms, m.expires_ms, s.holder, h.name AS host, s.boot, s.claimed_ms,
              s.lease_until_ms, s.reason, s.buried_ms
         FROM candidate AS s
         JOIN atomic_message AS m ON m.id = s.message_id
         JOIN atomic_queue AS q ON q.id = s.queue_id
         LEFT JOIN atomic_host AS h ON h.id = s.holder
        WHERE (:queue IS NULL OR q.name = :queue)
          AND (:task IS NULL OR m.task_name = :task)
          AND (:root IS NULL OR m.root_id = :root)
          AND (:text IS NULL OR instr(lower(m.payload), lower(:text)) > 0)
        ORDER BY s.message_id DESC
        LIMIT :limit) AS found ON 1
 ORDER BY found.id DESC;

-- name: held_by :many
-- What some holders hold, the one that was claimed first first.
SELECT c.holder, c.message_id, m.task_id, m.task_name, q.name, c.fence, c.claimed_ms, c.lease_until_ms
  FROM atomic_claim AS c
  JOIN atomic_message AS m ON m.id = c.message_id
  JOIN atomic_queue AS q ON q.id = c.queue_id
 WHERE c.holder IN (SELECT value FROM json_each(:host_ids))
 ORDER BY c.holder, c.claimed_ms, c.message_id
 LIMIT :limit;

-- name: family :many
-- The newest unfinished messages of a root, its own among them, with the task that sent each.
SELECT m.id, m.task_id, m.task_name, json_extract(m.payload, '$.headers.parent_id') AS parent_id,
       CASE WHEN c.message_id IS NOT NULL THEN 'running'
            WHEN x.message_id IS NOT NULL THEN 'dead'
            WHEN d.message_id IS NOT NULL THEN 'delayed'
            WHEN g.message_id IS NOT NULL THEN 'limited' ELSE 'ready' END AS state
  FROM (SELECT id, task_id, task_name, payload
          FROM (SELECT id, task_id, task_name, payload
                  FROM atomic_message
                 WHERE root_id = :root_id AND root_id <> task_id
                 ORDER BY id DESC
                 LIMIT :limit) AS child
        UNION ALL
        SELECT id, task_id, task_name, payload FROM atomic_message WHERE task_id = :root_id AND root_id = :root_id) AS m
  LEFT JOIN atomic_claim AS c ON c.message_id = m.id
  LEFT JOIN atomic_dead AS x ON x.message_id = m.id
  LEFT JOIN atomic_delayed AS d ON d.message_id = m.id
  LEFT JOIN atomic_gated AS g ON g.message_id = m.id
 ORDER BY m.id DESC;
