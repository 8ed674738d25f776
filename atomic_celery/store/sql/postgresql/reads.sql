-- What operators look at: numbers, never payloads, and nothing that the protocol depends on.
--
-- Every count stops at *bound* rows, so that a look costs the same at a thousand messages and at a hundred
-- million; one above it says "at least". Each statement is one snapshot: a message is counted once.

-- name: depths :many
-- How full each queue is, in the order of names.
WITH limited AS (
    SELECT queue_id, count(*) AS n
      FROM (SELECT queue_id FROM atomic_gated LIMIT :bound + 1) AS capped GROUP BY queue_id
), delayed AS (
    SELECT queue_id, count(*) AS n
      FROM (SELECT queue_id FROM atomic_delayed LIMIT :bound + 1) AS capped GROUP BY queue_id
), running AS (
    SELECT queue_id, count(*) AS n, count(*) FILTER (WHERE lease_until_ms <= {now_ms}) AS lapsed
      FROM (SELECT queue_id, lease_until_ms FROM atomic_claim LIMIT :bound + 1) AS capped GROUP BY queue_id
), dead AS (
    SELECT queue_id, count(*) AS n
      FROM (SELECT queue_id FROM atomic_dead LIMIT :bound + 1) AS capped GROUP BY queue_id
), waiting AS (
    SELECT queue_id, count(*) AS n FROM atomic_waiter WHERE until_ms > {now_ms} GROUP BY queue_id
)
SELECT q.id, q.name, q.exclusive_to IS NOT NULL OR q.auto_delete OR q.expires_ms IS NOT NULL,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_ready AS r WHERE r.queue_id = q.id LIMIT :bound + 1) AS capped) AS ready,
       coalesce(limited.n, 0) AS limited,
       coalesce(delayed.n, 0) AS delayed,
       coalesce(running.n, 0) AS running,
       coalesce(running.lapsed, 0) AS lapsed,
       coalesce(dead.n, 0) AS dead,
       coalesce(waiting.n, 0) AS waiting,
       (SELECT min(greatest(m.published_ms, m.due_ms))
          FROM generate_series(0, 9) AS lane (priority)
         CROSS JOIN LATERAL (SELECT r.message_id
                               FROM atomic_ready AS r
                              WHERE r.queue_id = q.id AND r.priority = lane.priority
                              ORDER BY r.position
                              LIMIT 1) AS first
          JOIN atomic_message AS m ON m.id = first.message_id) AS ready_since_ms
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
               NULL::bigint AS due_ms, NULL::text AS holder, NULL::text AS boot, NULL::bigint AS claimed_ms, NULL::bigint AS lease_until_ms,
               NULL::text AS reason, NULL::bigint AS buried_ms
          FROM atomic_ready
        UNION ALL
        SELECT message_id, queue_id, 'limited', priority, fence, crashes,
               NULL, NULL, NULL, NULL, NULL,
               (SELECT string_agg(l.name, ' and ' ORDER BY l.id) FROM atomic_limit AS l
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
 WHERE (:id::bigint IS NULL OR s.message_id = :id)
   AND (:before::bigint IS NULL OR s.message_id < :before)
   AND (:state::text IS NULL OR s.state = :state)
   AND (:queue::text IS NULL OR q.name = :queue)
   AND (:task::text IS NULL OR m.task_name = :task)
   AND (:root::text IS NULL OR m.root_id = :root)
   AND (:text::text IS NULL OR strpos(lower(m.payload), lower(:text)) > 0)
 ORDER BY s.message_id DESC
 LIMIT :limit;

-- name: scheduled :many
-- Delayed messages of some queues, the next due first.
SELECT m.id, q.name AS queue, 'delayed', m.task_id, m.task_name, m.root_id, d.priority, d.fence, d.crashes,
       m.published_ms, d.due_ms, m.expires_ms, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM atomic_delayed AS d
  JOIN atomic_message AS m ON m.id = d.message_id
  JOIN atomic_queue AS q ON q.id = d.queue_id
 WHERE d.queue_id IN (SELECT value::bigint FROM jsonb_array_elements_text(:queue_ids::jsonb))
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
    (SELECT id FROM atomic_message ORDER BY id LIMIT :sample)
    UNION
    (SELECT id FROM atomic_message ORDER BY id DESC LIMIT :sample)
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
          FROM (SELECT 1 FROM atomic_claim WHERE lease_until_ms <= (SELECT {now_ms} - :grace_ms) LIMIT :bound + 1) AS capped) AS lapsed,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_delayed WHERE due_ms <= (SELECT {now_ms} - :grace_ms) LIMIT :bound + 1) AS capped) AS due;

-- name: version :one
-- The version of the database itself.
SELECT current_setting('server_version');

-- name: connections :one
-- The room there is for connections, how much of it is used, and whether the server tidies up by itself.
SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
       current_setting('superuser_reserved_connections')::integer,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean,
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');

-- name: snapshots :many
-- Whoever has kept dead rows from being vacuumed for longer than *older_than_ms*, the oldest first.
SELECT 'session' AS kind, pid::text AS name, coalesce(state, 'unknown') AS state, application_name AS application,
       (extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint AS age_ms
  FROM pg_stat_activity
 WHERE datname = current_database()
   AND pid <> pg_backend_pid()
   AND backend_type = 'client backend'
   AND xact_start < clock_timestamp() - make_interval(secs => :older_than_ms / 1000.0)
UNION ALL
SELECT 'prepared transaction', gid, 'prepared', owner::text,
       (extract(epoch FROM clock_timestamp() - prepared) * 1000)::bigint
  FROM pg_prepared_xacts
 WHERE database = current_database()
   AND prepared < clock_timestamp() - make_interval(secs => :older_than_ms / 1000.0)
UNION ALL
SELECT 'replication slot', slot_name::text, 'inactive', coalesce(plugin::text, ''), NULL
  FROM pg_replication_slots
 WHERE NOT active
   AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
 ORDER BY age_ms DESC NULLS LAST
 LIMIT 20;

-- name: bloat :many
-- Dead rows of the tables as the server's statistics estimate them, and when each was last vacuumed.
SELECT s.relname, s.n_live_tup, s.n_dead_tup,
       (extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) * 1000)::bigint,
       coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false)
  FROM pg_stat_user_tables AS s
  JOIN pg_class AS c ON c.oid = s.relid
 WHERE s.relid = ANY (ARRAY['atomic_ready', 'atomic_gated', 'atomic_delayed', 'atomic_claim', 'atomic_dead', 'atomic_message',
                            'atomic_waiter', 'atomic_host']::regclass[])
 ORDER BY s.relname;
