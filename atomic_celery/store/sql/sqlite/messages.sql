-- The life of a message, in the order in which it is lived.
--
-- atomic_message holds what was published and never changes. Exactly one of atomic_ready, atomic_gated,
-- atomic_delayed, atomic_claim and atomic_dead names a message; which one does is its state (I1). One that is
-- limited has a lane, and wherever others become ready it goes to the gate (limits.sql). A move deletes the row
-- in one of them and inserts it into another in the same transaction, and carries the fence along (I2).
--
-- What a holder says counts only while the claim has its fence and the lease has not run out (I3).
-- A block of several statements holds the database's one write lock from the first to the last, so
-- nothing changes between them. "settled", "picked" and "new" are scratch tables of the connection.

-- name: publish :one
-- Store one message that may be claimed at once.
-- No id: its task id is unfinished in that queue (I6), or the queue is gone; the second column tells which.
INSERT INTO atomic_message (queue_id, task_id, task_name, root_id, priority, payload,
                            published_ms, expires_ms, root_limit_id, again, lane)
SELECT queue.id, :task_id, :task_name, :root_id, :priority, :payload, {now_ms}, :expires_ms,
       root.limit_id, :again, '0.' || root.limit_id || CASE WHEN :again THEN '+' ELSE '' END
  FROM atomic_queue AS queue
  LEFT JOIN atomic_root AS root ON root.id = :root_id
 WHERE queue.id = :queue_id
ON CONFLICT DO NOTHING;
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT id, queue_id, priority, id, 0, 0
  FROM atomic_message
 WHERE changes() = 1 AND id = last_insert_rowid();
SELECT CASE changes() WHEN 1 THEN last_insert_rowid() END,
       EXISTS (SELECT 1 FROM atomic_queue WHERE id = :queue_id);
-- Only now, because changes() and the last row are those of the last statement: what was ready just now, and is limited.
INSERT INTO atomic_gated (message_id, queue_id, lane, root_limit_id, priority, position, fence, crashes)
SELECT message.id, message.queue_id, message.lane, message.root_limit_id, message.priority, message.id, 0, 0
  FROM atomic_message AS message
  JOIN atomic_ready AS ready ON ready.message_id = message.id
 WHERE message.id = last_insert_rowid() AND message.lane IS NOT NULL;
DELETE FROM atomic_ready
 WHERE message_id = last_insert_rowid()
   AND message_id IN (SELECT message_id FROM atomic_gated);

-- name: publish_many :many
-- Store messages, each ready or delayed by its due time.
-- One row for each, in order; no id: its task id is unfinished in that queue (I6), or its key is taken (I9). All
-- or none: when a queue is gone, nothing is stored, and the second column tells for whom it is.
DELETE FROM new;
INSERT INTO new (turn, message_id, routed, message)
SELECT item.key, item.key + 1 + coalesce(
           (SELECT seq FROM sqlite_sequence WHERE name = 'atomic_message'), 0),
       queue.id IS NOT NULL, item.value
  FROM json_each(:messages) AS item
  LEFT JOIN atomic_queue AS queue ON queue.id = json_extract(item.value, '$.queue_id');
INSERT INTO atomic_message (id, queue_id, task_id, task_name, root_id, priority, payload, published_ms, due_ms,
                            expires_ms, limit_id, root_limit_id, again, lane, unique_key, unique_until)
SELECT message_id, json_extract(message, '$.queue_id'), json_extract(message, '$.task_id'),
       json_extract(message, '$.task_name'), json_extract(message, '$.root_id'),
       json_extract(message, '$.priority'), json_extract(message, '$.payload'),
       {now_ms}, json_extract(message, '$.due_ms'), json_extract(message, '$.expires_ms'),
       json_extract(message, '$.limit_id'), root.limit_id, json_extract(message, '$.again'),
       CASE WHEN json_extract(message, '$.limit_id') IS NOT NULL OR root.limit_id IS NOT NULL
                 OR json_extract(message, '$.unique_until') = 'queued'
            THEN coalesce(json_extract(message, '$.limit_id'), 0) || '.' || coalesce(root.limit_id, 0)
                 || CASE WHEN json_extract(message, '$.again') AND root.limit_id IS NOT NULL THEN '+' ELSE '' END END,
       json_extract(message, '$.unique_key'), json_extract(message, '$.unique_until')
  FROM new
  LEFT JOIN atomic_root AS root ON root.id = json_extract(message, '$.root_id')
 WHERE (SELECT min(routed) FROM new)
 ORDER BY turn
ON CONFLICT DO NOTHING;
INSERT INTO atomic_delayed (message_id, queue_id, priority, due_ms, fence, crashes)
SELECT id, queue_id, priority, due_ms, 0, 0
  FROM atomic_message
 WHERE id IN (SELECT message_id FROM new) AND due_ms > {now_ms};
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT id, queue_id, priority, id, 0, 0
  FROM atomic_message
 WHERE id IN (SELECT message_id FROM new) AND id NOT IN (SELECT message_id FROM atomic_delayed)
   AND lane IS NULL;
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT id, queue_id, lane, limit_id, root_limit_id, priority, id, 0, 0
  FROM atomic_message
 WHERE id IN (SELECT message_id FROM new) AND id NOT IN (SELECT message_id FROM atomic_delayed)
   AND lane IS NOT NULL;
SELECT message.id, new.routed
  FROM new
  LEFT JOIN atomic_message AS message ON message.id = new.message_id
 ORDER BY new.turn;

-- name: forget_publishers :exec
-- Drop the receipts of publishers that have published nothing for so long that none of them asks again.
DELETE FROM atomic_publisher WHERE at_ms < {now_ms} - :age_ms;

-- name: unname :one
-- Free the task id and the key of a held message for its successor, and say which it has already.
UPDATE atomic_message SET task_id = NULL, unique_key = NULL, unique_until = NULL
 WHERE id IN (SELECT message_id FROM atomic_claim
               WHERE message_id = :id AND fence = :fence AND successor_id IS NULL);
SELECT successor_id FROM atomic_claim WHERE message_id = :id AND fence = :fence;

-- name: unfinished :one
-- Find the unfinished message of a task id in a queue.
SELECT id FROM atomic_message WHERE task_id = :task_id AND queue_id = :queue_id;

-- name: succeed :exec
-- Note who comes after a held message; none noted means that it is lost.
UPDATE atomic_claim
   SET successor_id = :successor_id
 WHERE message_id = :id
   AND fence = :fence
   AND lease_until_ms > {now_ms};

-- name: turn :many
-- Complete what a holder has finished, and claim what it may start next.
-- Completed: its fence holds and its lease has not run out; the message is gone with its claim (I4).
-- Claimed: up to :limit, lane by lane, first in first out; each with the next fence and a lease (I2).
-- A draining host gets none (I5).
-- A last row without an id: something waits at a gate in these queues, each of which has a lane of priority 0.
DELETE FROM settled;
DELETE FROM picked;
INSERT INTO settled (message_id)
SELECT claim.message_id
  FROM json_each(:completed) AS held
  JOIN atomic_claim AS claim
    ON claim.message_id = json_extract(held.value, '$[0]')
   AND claim.fence = json_extract(held.value, '$[1]')
 WHERE claim.lease_until_ms > {now_ms};
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_message WHERE id IN (SELECT message_id FROM settled);
DELETE FROM atomic_crash WHERE message_id IN (SELECT message_id FROM settled);
-- CROSS JOIN keeps the order of the lanes, the index that within one: it stops at the limit.
INSERT INTO picked (message_id, queue_id, priority, position, fence, crashes)
SELECT ready.message_id, ready.queue_id, ready.priority, ready.position, ready.fence + 1, ready.crashes
  FROM json_each(:lanes) AS lane
 CROSS JOIN atomic_ready AS ready INDEXED BY atomic_ready_lane
    ON ready.queue_id = json_extract(lane.value, '$[0]')
   AND ready.priority = json_extract(lane.value, '$[1]')
   AND ready.position > json_extract(lane.value, '$[2]')
 WHERE NOT :is_host
    OR EXISTS (SELECT 1 FROM atomic_host
                WHERE id = :holder AND boot = :boot AND draining_ms IS NULL)
 LIMIT :limit;
DELETE FROM atomic_ready WHERE message_id IN (SELECT message_id FROM picked);
INSERT INTO atomic_claim (message_id, queue_id, priority, position, fence, crashes,
                          holder, boot, claimed_ms, lease_until_ms)
SELECT message_id, queue_id, priority, position, fence, crashes,
       :holder, :boot, {now_ms}, {now_ms} + :lease_ms
  FROM picked;
SELECT message_id AS id, NULL AS fence, NULL AS queue_id, NULL AS priority, NULL AS payload,
       NULL AS crashes, NULL AS task_id, NULL AS revoked, NULL AS expired, NULL AS position,
       NULL AS waited_ms
  FROM settled
UNION ALL
SELECT picked.message_id, picked.fence, picked.queue_id, picked.priority, message.payload,
       picked.crashes, message.task_id,
       EXISTS (SELECT 1 FROM atomic_revoked
                WHERE task_id = message.task_id AND until_ms > {now_ms}),
       coalesce(message.expires_ms <= {now_ms}, 0), picked.position,
       CASE WHEN picked.fence = 1
            THEN {now_ms} - max(message.published_ms, coalesce(message.due_ms, 0)) END
  FROM picked
  JOIN atomic_message AS message ON message.id = picked.message_id
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
 WHERE EXISTS (SELECT 1
                 FROM json_each(:lanes) AS lane
                WHERE json_extract(lane.value, '$[1]') = 0
                  AND EXISTS (SELECT 1 FROM atomic_gated WHERE queue_id = json_extract(lane.value, '$[0]')));

-- name: take :many
-- Remove and return up to :limit messages of consumers that do not acknowledge: at most once.
DELETE FROM picked;
INSERT INTO picked (message_id, queue_id, priority, position, fence, crashes)
SELECT message_id, queue_id, priority, position, fence + 1, crashes
  FROM atomic_ready
 WHERE queue_id IN (SELECT value FROM json_each(:queue_ids))
 ORDER BY priority DESC, position
 LIMIT :limit;
DELETE FROM atomic_ready WHERE message_id IN (SELECT message_id FROM picked);
SELECT picked.message_id, picked.fence, picked.queue_id, picked.priority, message.payload,
       picked.crashes, message.task_id,
       EXISTS (SELECT 1 FROM atomic_revoked
                WHERE task_id = message.task_id AND until_ms > {now_ms}),
       coalesce(message.expires_ms <= {now_ms}, 0), picked.position
  FROM picked
  JOIN atomic_message AS message ON message.id = picked.message_id;
DELETE FROM atomic_message WHERE id IN (SELECT message_id FROM picked);
DELETE FROM atomic_crash WHERE message_id IN (SELECT message_id FROM picked);

-- name: renew :many
-- Push out the leases that still hold, and say for each whether it was: renewed or lost.
-- One that is not there, has another fence or has run out is lost, and never revived.
DELETE FROM settled;
INSERT INTO settled (message_id)
SELECT claim.message_id
  FROM json_each(:held) AS pair
  JOIN atomic_claim AS claim
    ON claim.message_id = json_extract(pair.value, '$[0]')
   AND claim.fence = json_extract(pair.value, '$[1]')
 WHERE claim.holder = :holder AND claim.boot = :boot AND claim.lease_until_ms > {now_ms};
UPDATE atomic_claim
   SET lease_until_ms = {now_ms} + :lease_ms
 WHERE message_id IN (SELECT message_id FROM settled);
SELECT json_extract(pair.value, '$[0]'),
       CASE WHEN settled.message_id IS NOT NULL THEN 'renewed' ELSE 'lost' END
  FROM json_each(:held) AS pair
  LEFT JOIN settled ON settled.message_id = json_extract(pair.value, '$[0]');

-- name: release :many
-- Give messages back: ready at once, first in line again, with the fence they had and no crash counted.
-- One that is limited waits at its gate again; one that has a successor is only removed.
DELETE FROM settled;
INSERT INTO settled (message_id, queue_id, priority, position, fence, crashes, successor_id)
SELECT claim.message_id, claim.queue_id, claim.priority, claim.position, claim.fence, claim.crashes,
       claim.successor_id
  FROM json_each(:held) AS pair
  JOIN atomic_claim AS claim
    ON claim.message_id = json_extract(pair.value, '$[0]')
   AND claim.fence = json_extract(pair.value, '$[1]')
 WHERE claim.lease_until_ms > {now_ms};
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT settled.message_id, settled.queue_id,
       CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
       message.limit_id, message.root_limit_id, settled.priority, settled.position, settled.fence, settled.crashes
  FROM settled
  JOIN atomic_message AS message ON message.id = settled.message_id
 WHERE message.lane IS NOT NULL AND settled.successor_id IS NULL;
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT message_id, queue_id, priority, position, fence, crashes
  FROM settled WHERE successor_id IS NULL AND message_id NOT IN (SELECT message_id FROM atomic_gated);
DELETE FROM atomic_message
 WHERE id IN (SELECT message_id FROM settled WHERE successor_id IS NOT NULL);
DELETE FROM atomic_crash
 WHERE message_id IN (SELECT message_id FROM settled WHERE successor_id IS NOT NULL);
SELECT message_id, queue_id FROM settled;

-- name: delay :many
-- End a claim and let its message wait for :due_ms. One that has a successor is only removed.
DELETE FROM settled;
INSERT INTO settled (message_id, queue_id, priority, fence, crashes, successor_id)
SELECT message_id, queue_id, priority, fence, crashes, successor_id
  FROM atomic_claim
 WHERE message_id = :id AND fence = :fence AND lease_until_ms > {now_ms};
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
INSERT INTO atomic_delayed (message_id, queue_id, priority, due_ms, fence, crashes)
SELECT message_id, queue_id, priority, :due_ms, fence, crashes
  FROM settled WHERE successor_id IS NULL;
DELETE FROM atomic_message
 WHERE id IN (SELECT message_id FROM settled WHERE successor_id IS NOT NULL);
DELETE FROM atomic_crash
 WHERE message_id IN (SELECT message_id FROM settled WHERE successor_id IS NOT NULL);
SELECT message_id FROM settled;

-- name: crash :many
-- End claims whose process died: ready at once, at their gate again if they are limited, or buried when that was
-- once too often; who is buried gives its key free. One that has a successor is only removed. :lease says which count: live (the holder itself reports it),
-- lapsed (the lease ran out), any (its holder is proven dead).
DELETE FROM settled;
INSERT INTO settled (message_id, queue_id, priority, position, fence, crashes, holder, successor_id)
SELECT claim.message_id, claim.queue_id, claim.priority, claim.position, claim.fence,
       claim.crashes + 1, claim.holder, claim.successor_id
  FROM json_each(:held) AS pair
  JOIN atomic_claim AS claim
    ON claim.message_id = json_extract(pair.value, '$[0]')
   AND claim.fence = json_extract(pair.value, '$[1]')
 WHERE :lease = 'any' OR (claim.lease_until_ms > {now_ms}) = (:lease = 'live');
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT settled.message_id, settled.queue_id,
       CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
       message.limit_id, message.root_limit_id, settled.priority, settled.position, settled.fence, settled.crashes
  FROM settled
  JOIN atomic_message AS message ON message.id = settled.message_id
 WHERE message.lane IS NOT NULL AND settled.successor_id IS NULL AND settled.crashes < :max_crashes;
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT message_id, queue_id, priority, position, fence, crashes
  FROM settled
 WHERE successor_id IS NULL AND crashes < :max_crashes AND message_id NOT IN (SELECT message_id FROM atomic_gated);
UPDATE atomic_message SET unique_key = NULL, unique_until = NULL
 WHERE id IN (SELECT message_id FROM settled WHERE successor_id IS NULL AND crashes >= :max_crashes)
   AND unique_key IS NOT NULL;
INSERT INTO atomic_dead (message_id, queue_id, priority, fence, crashes, reason, buried_ms)
SELECT message_id, queue_id, priority, fence, crashes, :reason, {now_ms}
  FROM settled WHERE successor_id IS NULL AND crashes >= :max_crashes;
INSERT INTO atomic_crash (message_id, fence, holder, reason, at_ms)
SELECT message_id, fence, holder, :reason, {now_ms}
  FROM settled WHERE successor_id IS NULL;
DELETE FROM atomic_message
 WHERE id IN (SELECT message_id FROM settled WHERE successor_id IS NOT NULL);
DELETE FROM atomic_crash
 WHERE message_id IN (SELECT message_id FROM settled WHERE successor_id IS NOT NULL);
SELECT settled.message_id, settled.fence, settled.crashes, settled.crashes >= :max_crashes,
       message.task_id, message.task_name, settled.holder, message.root_id, settled.queue_id
  FROM settled
  JOIN atomic_message AS message ON message.id = settled.message_id
 WHERE settled.successor_id IS NULL;

-- name: lapsed :many
-- Find claims whose lease ran out. One machine's hosts look often enough and cheaply enough without turns.
SELECT message_id, fence
  FROM atomic_claim
 WHERE lease_until_ms <= {now_ms}
 LIMIT :limit;

-- name: held_by :many
-- Find the claims of one boot of one holder.
SELECT message_id, fence
  FROM atomic_claim
 WHERE holder = :holder AND boot = :boot
 ORDER BY message_id;

-- name: promote :many
-- Make delayed messages that are due ready, behind what is ready already; limited ones wait at their gates.
-- Rows: queue and how many; last, without a queue, how long until the next one is due.
DELETE FROM picked;
INSERT INTO picked (message_id, queue_id, priority, fence, crashes)
SELECT message_id, queue_id, priority, fence, crashes
  FROM atomic_delayed
 WHERE due_ms <= {now_ms}
 ORDER BY due_ms
 LIMIT :limit;
UPDATE picked SET position = place.turn + (
           SELECT seq FROM sqlite_sequence WHERE name = 'atomic_message')
  FROM (SELECT delayed.message_id, row_number() OVER (ORDER BY delayed.due_ms, delayed.message_id) AS turn
          FROM picked JOIN atomic_delayed AS delayed USING (message_id)) AS place
 WHERE place.message_id = picked.message_id;
UPDATE sqlite_sequence SET seq = seq + (SELECT count(*) FROM picked) WHERE name = 'atomic_message';
DELETE FROM atomic_delayed WHERE message_id IN (SELECT message_id FROM picked);
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT picked.message_id, picked.queue_id,
       CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
       message.limit_id, message.root_limit_id, picked.priority, picked.position, picked.fence, picked.crashes
  FROM picked
  JOIN atomic_message AS message ON message.id = picked.message_id
 WHERE message.lane IS NOT NULL;
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT message_id, queue_id, priority, position, fence, crashes
  FROM picked
 WHERE message_id NOT IN (SELECT message_id FROM atomic_gated);
SELECT queue_id, count(*) AS moved, NULL AS next_ms FROM picked GROUP BY queue_id
UNION ALL
SELECT NULL, 0, (SELECT min(due_ms) - {now_ms} FROM atomic_delayed WHERE due_ms > {now_ms});

-- name: hasten :many
-- Let delayed messages be due now, whenever they were.
UPDATE atomic_delayed
   SET due_ms = {now_ms}
 WHERE message_id IN (SELECT value FROM json_each(:ids))
RETURNING message_id;

-- name: bury :many
-- Put messages aside for an operator, whoever holds them: a holder loses its lease by this.
-- One that has a successor is left alone; it goes when it settles. Whoever is buried gives its key free.
-- unfenced: an operator's word stands above a holder's.
DELETE FROM settled;
INSERT INTO settled (message_id, queue_id, priority, fence, crashes)
SELECT message_id, queue_id, priority, fence, crashes FROM atomic_claim
 WHERE message_id IN (SELECT value FROM json_each(:ids)) AND successor_id IS NULL
UNION ALL
SELECT message_id, queue_id, priority, fence, crashes FROM atomic_gated
 WHERE message_id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT message_id, queue_id, priority, fence, crashes FROM atomic_ready
 WHERE message_id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT message_id, queue_id, priority, fence, crashes FROM atomic_delayed
 WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_gated WHERE message_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_ready WHERE message_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_delayed WHERE message_id IN (SELECT message_id FROM settled);
UPDATE atomic_message SET unique_key = NULL, unique_until = NULL
 WHERE id IN (SELECT message_id FROM settled) AND unique_key IS NOT NULL;
INSERT INTO atomic_dead (message_id, queue_id, priority, fence, crashes, reason, buried_ms, told)
SELECT message_id, queue_id, priority, fence, crashes, :reason, {now_ms}, true FROM settled;
SELECT message_id FROM settled;

-- name: untold :one
-- Find a message that was buried for its crashes while nobody could store its task's failure.
SELECT message_id, atomic_dead.fence, crashes, task_id, task_name
  FROM atomic_dead
  JOIN atomic_message ON id = message_id
 WHERE NOT told
 ORDER BY message_id
 LIMIT 1;

-- name: tell :exec
-- Note that the failure of a buried message's task is stored, in the transaction that stores it.
UPDATE atomic_dead SET told = true WHERE message_id = :id AND fence = :fence;

-- name: requeue :many
-- Make messages ready again, behind what is ready already and with no crash counted: dead or delayed ones,
-- and those that somebody holds, who loses the lease by this. Limited ones wait at their gates; those that do so
-- already, and one that has a successor, are left alone.
-- unfenced: an operator's word stands above a holder's.
DELETE FROM settled;
INSERT INTO settled (message_id, queue_id, priority, fence)
SELECT message_id, queue_id, priority, fence FROM atomic_claim
 WHERE message_id IN (SELECT value FROM json_each(:ids)) AND successor_id IS NULL
UNION ALL
SELECT message_id, queue_id, priority, fence FROM atomic_delayed
 WHERE message_id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT message_id, queue_id, priority, fence FROM atomic_dead
 WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_delayed WHERE message_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_dead WHERE message_id IN (SELECT message_id FROM settled);
UPDATE settled SET position = place.turn + (
           SELECT seq FROM sqlite_sequence WHERE name = 'atomic_message')
  FROM (SELECT message_id, row_number() OVER (ORDER BY message_id) AS turn FROM settled) AS place
 WHERE place.message_id = settled.message_id;
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT settled.message_id, settled.queue_id,
       CASE WHEN fence > 0 AND root_limit_id IS NOT NULL THEN rtrim(lane, '+') || '+' ELSE lane END,
       message.limit_id, message.root_limit_id, settled.priority, settled.position, settled.fence, 0
  FROM settled
  JOIN atomic_message AS message ON message.id = settled.message_id
 WHERE message.lane IS NOT NULL;
INSERT INTO atomic_ready (message_id, queue_id, priority, position, fence, crashes)
SELECT message_id, queue_id, priority, position, fence, 0
  FROM settled
 WHERE message_id NOT IN (SELECT message_id FROM atomic_gated);
UPDATE sqlite_sequence SET seq = seq + (SELECT count(*) FROM settled) WHERE name = 'atomic_message';
SELECT message_id, queue_id FROM settled;

-- name: delete :many
-- Remove messages for good, whatever their state: a holder loses its lease by this.
-- unfenced: an operator's word stands above a holder's.
DELETE FROM atomic_claim WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_gated WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_ready WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_delayed WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_dead WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_crash WHERE message_id IN (SELECT value FROM json_each(:ids));
DELETE FROM atomic_message WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id;
