-- What tasks came to, and chords. Who waits for a result looks at the database's change counter.
--
-- No statement here but "record_held" names a fence: what a holder leaves behind is written in the transaction that
-- settles its claim, and only if the settle found the fence (see "turn" in messages.sql). "filling" is a scratch table.

-- name: record :exec
-- Record what tasks came to. One that succeeded stays as it is; with *unbegun*, one that has begun, too.
INSERT INTO atomic_result (task_id, status, meta, stored_ms, expires_ms)
SELECT json_extract(value, '$.task_id'), json_extract(value, '$.status'), json_extract(value, '$.meta'),
       {now_ms}, {now_ms} + json_extract(value, '$.keep_ms')
  FROM json_each(:outcomes)
 WHERE true
ON CONFLICT (task_id) DO UPDATE
   SET status = excluded.status, meta = excluded.meta,
       stored_ms = excluded.stored_ms, expires_ms = excluded.expires_ms
 WHERE atomic_result.status <> 'SUCCESS'
   AND (NOT :unbegun OR atomic_result.status IN ('PENDING', 'RECEIVED', 'RETRY', 'REJECTED'));

-- name: record_large :exec
-- The same for one outcome that is too large to be taken out of a list.
INSERT INTO atomic_result (task_id, status, meta, stored_ms, expires_ms)
VALUES (:task_id, :status, :meta, {now_ms}, {now_ms} + :keep_ms)
ON CONFLICT (task_id) DO UPDATE
   SET status = excluded.status, meta = excluded.meta,
       stored_ms = excluded.stored_ms, expires_ms = excluded.expires_ms
 WHERE atomic_result.status <> 'SUCCESS';

-- name: record_held :one
-- Record how far a task has come, while its claim still holds; no row: it does not, and nothing was recorded.
INSERT INTO atomic_result (task_id, status, meta, stored_ms, expires_ms)
SELECT :task_id, :status, :meta, {now_ms}, {now_ms} + :keep_ms
  FROM atomic_claim
 WHERE message_id = :id AND fence = :fence AND lease_until_ms > {now_ms}
ON CONFLICT (task_id) DO UPDATE
   SET status = excluded.status, meta = excluded.meta,
       stored_ms = excluded.stored_ms, expires_ms = excluded.expires_ms
 WHERE atomic_result.status <> 'SUCCESS';
SELECT 0 FROM atomic_claim WHERE message_id = :id AND fence = :fence AND lease_until_ms > {now_ms};

-- name: get_many :many
-- Read what tasks came to; tasks of which nothing is known have no row.
SELECT task_id, status, meta
  FROM atomic_result
 WHERE task_id IN (SELECT value FROM json_each(:task_ids))
   AND (status IN ('SUCCESS', 'FAILURE', 'REVOKED') OR NOT :final)
   AND (expires_ms IS NULL OR expires_ms > {now_ms});

-- name: forget :exec
-- Remove what a task came to.
DELETE FROM atomic_result WHERE task_id = :task_id;

-- name: save_group :exec
-- Keep a group's result.
INSERT INTO atomic_group (group_id, result, expires_ms)
VALUES (:group_id, :result, {now_ms} + :keep_ms)
ON CONFLICT (group_id) DO UPDATE SET result = excluded.result, expires_ms = excluded.expires_ms;

-- name: get_group :one
-- Read a group's result.
SELECT result FROM atomic_group
 WHERE group_id = :group_id AND (expires_ms IS NULL OR expires_ms > {now_ms});

-- name: forget_group :exec
-- Remove a group's result.
DELETE FROM atomic_group WHERE group_id = :group_id;

-- name: describe_chord :one
-- Say how many parts a chord has, that there are more, or what finishes it; parts may have been counted already.
-- No row: it is full already. Else whether this made it full, and what finishes it.
INSERT INTO atomic_chord (group_id, size, grown, finisher, finished, expires_ms)
VALUES (:group_id, :size, :more, :finisher, false, {now_ms} + :keep_ms)
ON CONFLICT (group_id) DO UPDATE
   SET size = coalesce(excluded.size, atomic_chord.size),
       grown = atomic_chord.grown + excluded.grown,
       finisher = coalesce(excluded.finisher, atomic_chord.finisher),
       finished = coalesce(atomic_chord.counted
                               >= coalesce(excluded.size, atomic_chord.size) + atomic_chord.grown + excluded.grown
                           AND coalesce(excluded.finisher, atomic_chord.finisher) IS NOT NULL, false),
       expires_ms = excluded.expires_ms
 WHERE NOT atomic_chord.finished
RETURNING finished, finisher;

-- name: count_parts :many
-- Count parts of chords that ended, each once; return what finishes the chords that this made full.
DELETE FROM filling;
INSERT INTO filling (group_id, part, place)
SELECT DISTINCT json_extract(value, '$.group_id'), json_extract(value, '$.part'), json_extract(value, '$.place')
  FROM json_each(:parts) AS item
 WHERE NOT EXISTS (SELECT 1 FROM atomic_chord_part AS known
                    WHERE known.group_id = json_extract(item.value, '$.group_id')
                      AND known.part = json_extract(item.value, '$.part')
                      AND known.place = json_extract(item.value, '$.place'));
INSERT INTO atomic_chord_part (group_id, part, place, status, result)
SELECT json_extract(value, '$.group_id'), json_extract(value, '$.part'), json_extract(value, '$.place'),
       json_extract(value, '$.status'), json_extract(value, '$.result')
  FROM json_each(:parts)
 WHERE true
ON CONFLICT (group_id, part, place) DO NOTHING;
INSERT INTO atomic_chord (group_id, counted, expires_ms)
SELECT filling.group_id, count(*),
       {now_ms} + (SELECT max(json_extract(value, '$.keep_ms')) FROM json_each(:parts)
                    WHERE json_extract(value, '$.group_id') = filling.group_id)
  FROM filling
 GROUP BY filling.group_id
ON CONFLICT (group_id) DO UPDATE
   SET counted = atomic_chord.counted + excluded.counted,
       finished = atomic_chord.finished
                  OR coalesce(atomic_chord.counted + excluded.counted >= atomic_chord.size + atomic_chord.grown
                              AND atomic_chord.finisher IS NOT NULL, false),
       expires_ms = excluded.expires_ms;
SELECT group_id, finisher
  FROM atomic_chord AS chord
 WHERE group_id IN (SELECT group_id FROM filling)
   AND finished
   AND counted - (SELECT count(*) FROM filling WHERE filling.group_id = chord.group_id) < size + grown;

-- name: chord_parts :many
-- Read the parts of a full chord in the order of its header; none once it is closed.
SELECT part.part, part.status, part.result
  FROM atomic_chord_part AS part
  JOIN atomic_chord AS chord USING (group_id)
 WHERE group_id = :group_id AND chord.finished
 ORDER BY part.place, part.part;

-- name: close_chords :exec
-- Remove chords and their parts.
DELETE FROM atomic_chord_part WHERE group_id IN (SELECT value FROM json_each(:group_ids));
DELETE FROM atomic_chord WHERE group_id IN (SELECT value FROM json_each(:group_ids));

-- name: expire :one
-- Remove up to :limit results, and all else, that were to be kept until now; return how many results that were.
DELETE FROM atomic_group WHERE expires_ms <= {now_ms};
DELETE FROM atomic_chord_part WHERE group_id IN (SELECT group_id FROM atomic_chord WHERE expires_ms <= {now_ms});
DELETE FROM atomic_chord WHERE expires_ms <= {now_ms};
DELETE FROM atomic_result
 WHERE task_id IN (SELECT task_id FROM atomic_result WHERE expires_ms <= {now_ms} LIMIT :limit);
SELECT changes();
