-- What tasks came to, who waits for it, and chords.
--
-- No statement here but "record_held" names a fence: what a holder leaves behind is written in the transaction that
-- settles its claim, and only if the settle found the fence (see "turn" in messages.sql).

-- name: record :one
-- Record what tasks came to, and wake who waits for it. One that succeeded stays as it is; with *unbegun*, one that has begun, too.
-- Who waits is locked by nobody for long, and a ring more or less does not matter: a row that is locked is passed over.
WITH new AS MATERIALIZED (
    SELECT task_id, status, meta, keep_ms, status IN ('SUCCESS', 'FAILURE', 'REVOKED') AS final
      FROM json_to_recordset(:outcomes::json) AS item (task_id text, status text, meta text, keep_ms bigint)
), recorded AS (
    INSERT INTO atomic_result (task_id, status, meta, stored_ms, expires_ms)
    SELECT task_id, status, meta, {now_ms}, {now_ms} + keep_ms FROM new ORDER BY task_id
    ON CONFLICT (task_id) DO UPDATE
       SET status = excluded.status, meta = excluded.meta,
           stored_ms = excluded.stored_ms, expires_ms = excluded.expires_ms
     WHERE atomic_result.status <> 'SUCCESS'
       AND (NOT :unbegun::boolean OR atomic_result.status IN ('PENDING', 'RECEIVED', 'RETRY', 'REJECTED'))
), served AS (
    DELETE FROM atomic_watcher
     WHERE ctid = ANY (ARRAY(
               SELECT ctid FROM atomic_watcher
                WHERE task_id = ANY (ARRAY(SELECT task_id FROM new WHERE final))
                  FOR UPDATE SKIP LOCKED))
    RETURNING listener
), woken AS (
    SELECT listener FROM served
     UNION
    SELECT listener FROM atomic_watcher WHERE task_id = ANY (ARRAY(SELECT task_id FROM new WHERE NOT final))
)
SELECT count(pg_notify('atomic_' || left(encode(sha256(convert_to(listener, 'UTF8')), 'hex'), 32), '')) FROM woken;

-- name: record_large :one
-- The same for one outcome that is too large to be taken out of a list.
WITH recorded AS (
    INSERT INTO atomic_result (task_id, status, meta, stored_ms, expires_ms)
    VALUES (:task_id::text, :status::text, :meta::text, {now_ms}, {now_ms} + :keep_ms::bigint)
    ON CONFLICT (task_id) DO UPDATE
       SET status = excluded.status, meta = excluded.meta,
           stored_ms = excluded.stored_ms, expires_ms = excluded.expires_ms
     WHERE atomic_result.status <> 'SUCCESS'
), served AS (
    DELETE FROM atomic_watcher
     WHERE ctid = ANY (ARRAY(
               SELECT ctid FROM atomic_watcher
                WHERE task_id = :task_id::text AND :status::text IN ('SUCCESS', 'FAILURE', 'REVOKED')
                  FOR UPDATE SKIP LOCKED))
), woken AS (
    SELECT DISTINCT listener FROM atomic_watcher WHERE task_id = :task_id::text
)
SELECT count(pg_notify('atomic_' || left(encode(sha256(convert_to(listener, 'UTF8')), 'hex'), 32), '')) FROM woken;

-- name: record_held :one
-- Record how far a task has come, while its claim still holds; no row: it does not, and nothing was recorded.
WITH held AS MATERIALIZED (
    SELECT lease_until_ms
      FROM atomic_claim
     WHERE message_id = :id::bigint AND fence = :fence::bigint
       FOR KEY SHARE
), live AS MATERIALIZED (
    SELECT FROM held WHERE lease_until_ms > {now_ms}
), recorded AS (
    INSERT INTO atomic_result (task_id, status, meta, stored_ms, expires_ms)
    SELECT :task_id::text, :status::text, :meta::text, {now_ms}, {now_ms} + :keep_ms::bigint FROM live
    ON CONFLICT (task_id) DO UPDATE
       SET status = excluded.status, meta = excluded.meta,
           stored_ms = excluded.stored_ms, expires_ms = excluded.expires_ms
     WHERE atomic_result.status <> 'SUCCESS'
), woken AS (
    SELECT DISTINCT listener FROM atomic_watcher WHERE task_id = :task_id::text AND EXISTS (SELECT FROM live)
)
SELECT (SELECT count(pg_notify('atomic_' || left(encode(sha256(convert_to(listener, 'UTF8')), 'hex'), 32), ''))
          FROM woken)
  FROM live;

-- name: watch :exec
-- Let *listener* be woken when one of these tasks comes to something.
INSERT INTO atomic_watcher (task_id, listener, until_ms)
SELECT DISTINCT task_id, :listener, {now_ms} + :for_ms::bigint
  FROM json_array_elements_text(:task_ids::json) AS task (task_id)
 ORDER BY task_id
ON CONFLICT (task_id, listener) DO UPDATE SET until_ms = excluded.until_ms;

-- name: unwatch :exec
-- Wait for these no more.
DELETE FROM atomic_watcher
 WHERE ctid = ANY (ARRAY(
           SELECT ctid FROM atomic_watcher
            WHERE listener = :listener
              AND task_id = ANY (ARRAY(SELECT json_array_elements_text(:task_ids::json)))
              FOR UPDATE SKIP LOCKED));

-- name: get_many :many
-- Read what tasks came to; tasks of which nothing is known have no row.
SELECT task_id, status, meta
  FROM atomic_result
 WHERE task_id = ANY (ARRAY(SELECT json_array_elements_text(:task_ids::json)))
   AND (status IN ('SUCCESS', 'FAILURE', 'REVOKED') OR NOT :final::boolean)
   AND (expires_ms IS NULL OR expires_ms > {now_ms});

-- name: forget :exec
-- Remove what a task came to.
DELETE FROM atomic_result WHERE task_id = :task_id;

-- name: save_group :exec
-- Keep a group's result.
INSERT INTO atomic_group (group_id, result, expires_ms)
VALUES (:group_id, :result, {now_ms} + :keep_ms::bigint)
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
INSERT INTO atomic_chord AS chord (group_id, size, grown, finisher, finished, expires_ms)
VALUES (:group_id, :size::integer, :more::integer, :finisher::text, false, {now_ms} + :keep_ms::bigint)
ON CONFLICT (group_id) DO UPDATE
   SET size = coalesce(excluded.size, chord.size),
       grown = chord.grown + excluded.grown,
       finisher = coalesce(excluded.finisher, chord.finisher),
       finished = coalesce(chord.counted >= coalesce(excluded.size, chord.size) + chord.grown + excluded.grown
                           AND coalesce(excluded.finisher, chord.finisher) IS NOT NULL, false),
       expires_ms = excluded.expires_ms
 WHERE NOT chord.finished
RETURNING finished, finisher;

-- name: count_parts :many
-- Count parts of chords that ended, each once; return what finishes the chords that this made full.
WITH counted AS (
    INSERT INTO atomic_chord_part (group_id, part, place, status, result)
    SELECT group_id, part, place, status, result
      FROM json_to_recordset(:parts::json)
        AS item (group_id text, part text, place double precision, status text, result text)
     ORDER BY group_id, part, place
    ON CONFLICT (group_id, part, place) DO NOTHING
    RETURNING group_id
), chord AS (
    INSERT INTO atomic_chord AS chord (group_id, counted, expires_ms)
    SELECT group_id, count(*), {now_ms} + max(keep_ms)
      FROM counted
      LEFT JOIN (SELECT group_id, max(keep_ms) AS keep_ms
                   FROM json_to_recordset(:parts::json) AS item (group_id text, keep_ms bigint)
                  GROUP BY group_id) AS kept USING (group_id)
     GROUP BY group_id
     ORDER BY group_id
    ON CONFLICT (group_id) DO UPDATE
       SET counted = chord.counted + excluded.counted,
           finished = chord.finished
                      OR coalesce(chord.counted + excluded.counted >= chord.size + chord.grown
                                  AND chord.finisher IS NOT NULL, false),
           expires_ms = excluded.expires_ms
    RETURNING group_id, size + grown AS size, counted, finisher, finished
)
SELECT group_id, finisher
  FROM chord
 WHERE finished
   AND counted - (SELECT count(*) FROM counted WHERE counted.group_id = chord.group_id) < size;

-- name: chord_parts :many
-- Read the parts of a full chord in the order of its header; none once it is closed.
SELECT part.part, part.status, part.result
  FROM atomic_chord_part AS part
  JOIN atomic_chord AS chord USING (group_id)
 WHERE group_id = :group_id AND chord.finished
 ORDER BY part.place, part.part;

-- name: close_chords :exec
-- Remove chords and their parts.
WITH parts AS (
    DELETE FROM atomic_chord_part
     WHERE group_id = ANY (ARRAY(SELECT json_array_elements_text(:group_ids::json)))
)
DELETE FROM atomic_chord WHERE group_id = ANY (ARRAY(SELECT json_array_elements_text(:group_ids::json)));

-- name: expire :one
-- Remove up to :limit of each that were to be kept until now; return how many that were, at most.
WITH results AS (
    DELETE FROM atomic_result
     WHERE task_id = ANY (ARRAY(SELECT task_id FROM atomic_result WHERE expires_ms <= {now_ms}
                                 LIMIT :limit FOR UPDATE SKIP LOCKED))
    RETURNING task_id
), groups AS (
    DELETE FROM atomic_group
     WHERE group_id = ANY (ARRAY(SELECT group_id FROM atomic_group WHERE expires_ms <= {now_ms}
                                  LIMIT :limit FOR UPDATE SKIP LOCKED))
    RETURNING group_id
), chords AS (
    DELETE FROM atomic_chord
     WHERE group_id = ANY (ARRAY(SELECT group_id FROM atomic_chord WHERE expires_ms <= {now_ms}
                                  LIMIT :limit FOR UPDATE SKIP LOCKED))
    RETURNING group_id
), parts AS (
    DELETE FROM atomic_chord_part WHERE group_id = ANY (ARRAY(SELECT group_id FROM chords))
), watchers AS (
    DELETE FROM atomic_watcher
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM atomic_watcher WHERE until_ms <= {now_ms}
                              LIMIT :limit FOR UPDATE SKIP LOCKED))
)
SELECT greatest((SELECT count(*) FROM results), (SELECT count(*) FROM groups), (SELECT count(*) FROM chords));
