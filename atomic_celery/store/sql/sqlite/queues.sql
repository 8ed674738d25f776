-- Queues and what routes to them. Nobody says that he sleeps: every commit wakes everybody.
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
-- Say that queues are in use; tell which of them there still are.
UPDATE atomic_queue
   SET used_ms = {now_ms}
 WHERE id IN (SELECT value FROM json_each(:queue_ids))
RETURNING id;

-- name: expired :many
-- Queues that nobody has used for as long as they may live without, and since when.
SELECT id, used_ms
  FROM atomic_queue
 WHERE used_ms + expires_ms <= {now_ms}
    OR ((exclusive_to IS NOT NULL OR auto_delete) AND used_ms + :abandoned_ms <= {now_ms});

-- name: hold_expired :many
-- The same among these; the transaction holds the write lock already.
SELECT id, name
  FROM atomic_queue
 WHERE id IN (SELECT value FROM json_each(:queue_ids))
   AND (used_ms + expires_ms <= {now_ms}
        OR ((exclusive_to IS NOT NULL OR auto_delete) AND used_ms + :abandoned_ms <= {now_ms}))
 ORDER BY id;

-- name: hold :one
-- A queue by its name; the transaction holds the write lock already.
SELECT id FROM atomic_queue WHERE name = :name;

-- name: consumed :one
-- Whether a queue has a consumer: one that runs its messages, or a host that reports it.
SELECT EXISTS (SELECT 1 FROM atomic_claim WHERE queue_id = :queue_id AND lease_until_ms > {now_ms})
    OR EXISTS (SELECT 1
                 FROM atomic_host AS h, json_each(h.queues) AS consumed
                WHERE h.reported_ms > {now_ms} - :stale_ms AND consumed.value = :name);

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
-- Remove the messages of a queue that wait, ready, at gates or delayed, none younger than *newest*.
SELECT (SELECT count(*) FROM atomic_ready WHERE queue_id = :queue_id AND message_id <= :newest)
     + (SELECT count(*) FROM atomic_gated WHERE queue_id = :queue_id AND message_id <= :newest)
     + (SELECT count(*) FROM atomic_delayed WHERE queue_id = :queue_id AND message_id <= :newest);
DELETE FROM atomic_crash
 WHERE message_id IN (SELECT message_id FROM atomic_ready WHERE queue_id = :queue_id
                       UNION ALL SELECT message_id FROM atomic_gated WHERE queue_id = :queue_id
                       UNION ALL SELECT message_id FROM atomic_delayed WHERE queue_id = :queue_id)
   AND message_id <= :newest;
DELETE FROM atomic_message
 WHERE id IN (SELECT message_id FROM atomic_ready WHERE queue_id = :queue_id
               UNION ALL SELECT message_id FROM atomic_gated WHERE queue_id = :queue_id
               UNION ALL SELECT message_id FROM atomic_delayed WHERE queue_id = :queue_id)
   AND id <= :newest;
DELETE FROM atomic_ready WHERE queue_id = :queue_id AND message_id <= :newest;
DELETE FROM atomic_gated WHERE queue_id = :queue_id AND message_id <= :newest;
DELETE FROM atomic_delayed WHERE queue_id = :queue_id AND message_id <= :newest;

-- name: empty :one
-- Remove every message from queues, whoever holds them.
-- unfenced: the queue goes, and every claim in it ends with it; its holder finds it lost.
SELECT count(*)
  FROM (SELECT message_id FROM atomic_ready WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
        UNION ALL SELECT message_id FROM atomic_gated WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
        UNION ALL SELECT message_id FROM atomic_delayed WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
        UNION ALL SELECT message_id FROM atomic_claim WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
        UNION ALL SELECT message_id FROM atomic_dead WHERE queue_id IN (SELECT value FROM json_each(:queue_ids)));
DELETE FROM atomic_crash
 WHERE message_id IN (SELECT message_id FROM atomic_ready WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
                       UNION ALL SELECT message_id FROM atomic_gated WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
                       UNION ALL SELECT message_id FROM atomic_delayed WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
                       UNION ALL SELECT message_id FROM atomic_claim WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
                       UNION ALL SELECT message_id FROM atomic_dead WHERE queue_id IN (SELECT value FROM json_each(:queue_ids)));
DELETE FROM atomic_message
 WHERE id IN (SELECT message_id FROM atomic_ready WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
               UNION ALL SELECT message_id FROM atomic_gated WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
               UNION ALL SELECT message_id FROM atomic_delayed WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
               UNION ALL SELECT message_id FROM atomic_claim WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
               UNION ALL SELECT message_id FROM atomic_dead WHERE queue_id IN (SELECT value FROM json_each(:queue_ids)));
DELETE FROM atomic_ready WHERE queue_id IN (SELECT value FROM json_each(:queue_ids));
DELETE FROM atomic_gated WHERE queue_id IN (SELECT value FROM json_each(:queue_ids));
DELETE FROM atomic_delayed WHERE queue_id IN (SELECT value FROM json_each(:queue_ids));
DELETE FROM atomic_claim WHERE queue_id IN (SELECT value FROM json_each(:queue_ids));
DELETE FROM atomic_dead WHERE queue_id IN (SELECT value FROM json_each(:queue_ids));

-- name: drop :exec
-- Remove queues that are empty, with their bindings.
DELETE FROM atomic_binding WHERE queue_id IN (SELECT value FROM json_each(:queue_ids));
DELETE FROM atomic_queue WHERE id IN (SELECT value FROM json_each(:queue_ids));

-- name: exchange_type :one
-- How an exchange routes.
SELECT type FROM atomic_exchange WHERE name = :name;

-- name: declare_exchange :exec
-- Make an exchange, or change how it routes.
INSERT INTO atomic_exchange (name, type) VALUES (:name, :type)
ON CONFLICT (name) DO UPDATE SET type = excluded.type;

-- name: delete_exchange :exec
-- Remove an exchange and its bindings.
DELETE FROM atomic_binding WHERE exchange = :name;
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
 WHERE :exchange IS NULL OR b.exchange = :exchange
 ORDER BY b.exchange, q.name, b.routing_key;
