-- How far each periodic task of a beat has come. Every statement that writes is run in a transaction that
-- holds the beat's term, so one at a time and only by whoever leads.

-- name: load :many
-- Everything that is known of a beat's entries.
SELECT entry, fingerprint, last_run_ms, total_runs FROM atomic_schedule WHERE beat = :beat;

-- name: enter :exec
-- Let entries begin, or begin anew, where they are said to stand.
INSERT INTO atomic_schedule (beat, entry, fingerprint, last_run_ms, total_runs)
SELECT :beat, json_extract(value, '$[0]'), json_extract(value, '$[1]'),
       json_extract(value, '$[2]'), json_extract(value, '$[3]')
  FROM json_each(:entries)
 WHERE true
ON CONFLICT (beat, entry) DO UPDATE
   SET fingerprint = excluded.fingerprint,
       last_run_ms = excluded.last_run_ms,
       total_runs = excluded.total_runs;

-- name: forget_others :exec
-- Forget the entries that the schedule does not have any more.
DELETE FROM atomic_schedule
 WHERE beat = :beat
   AND entry NOT IN (SELECT value FROM json_each(:entries));

-- name: advance :exec
-- Note runs, or that runs were passed over, of the entries that still stand where the caller believes them to.
UPDATE atomic_schedule
   SET last_run_ms = json_extract(move.value, '$[3]'),
       total_runs = json_extract(move.value, '$[4]')
  FROM json_each(:moves) AS move
 WHERE beat = :beat
   AND entry = json_extract(move.value, '$[0]')
   AND last_run_ms = json_extract(move.value, '$[1]')
   AND total_runs = json_extract(move.value, '$[2]');
