-- How far each periodic task of a beat has come. Every statement that writes is run in a transaction that
-- holds the beat's term, so one at a time and only by whoever leads.

-- name: load :many
-- Everything that is known of a beat's entries.
SELECT entry, fingerprint, last_run_ms, total_runs FROM atomic_schedule WHERE beat = :beat;

-- name: enter :exec
-- Let entries begin, or begin anew, where they are said to stand.
INSERT INTO atomic_schedule (beat, entry, fingerprint, last_run_ms, total_runs)
SELECT :beat, entry->>0, entry->>1, (entry->>2)::bigint, (entry->>3)::bigint
  FROM json_array_elements(:entries::json) AS entry
ON CONFLICT (beat, entry) DO UPDATE
   SET fingerprint = excluded.fingerprint,
       last_run_ms = excluded.last_run_ms,
       total_runs = excluded.total_runs;

-- name: forget_others :exec
-- Forget the entries that the schedule does not have any more.
DELETE FROM atomic_schedule
 WHERE beat = :beat
   AND entry NOT IN (SELECT json_array_elements_text(:entries::json));

-- name: advance :exec
-- Note runs, or that runs were passed over, of the entries that still stand where the caller believes them to.
UPDATE atomic_schedule
   SET last_run_ms = (move->>3)::bigint,
       total_runs = (move->>4)::bigint
  FROM json_array_elements(:moves::json) AS move
 WHERE beat = :beat
   AND entry = move->>0
   AND last_run_ms = (move->>1)::bigint
   AND total_runs = (move->>2)::bigint;
