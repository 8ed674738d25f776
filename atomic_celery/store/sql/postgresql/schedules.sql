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
-- Note a run, or that runs were passed over, if the entry still stands where the caller believes it to.
UPDATE atomic_schedule
   SET last_run_ms = :last_run_ms,
       total_runs = :total_runs
 WHERE beat = :beat
   AND entry = :entry
   AND last_run_ms = :last_run_before_ms
   AND total_runs = :total_runs_before;
