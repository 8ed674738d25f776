-- Task ids that must not run any more, remembered for a while.

-- name: add :exec
-- Remember task ids for *keep_ms*; those remembered already, for the longer of the two. The outdated go.
DELETE FROM atomic_revoked WHERE until_ms <= {now_ms};
INSERT INTO atomic_revoked (task_id, at_ms, until_ms)
SELECT DISTINCT value, {now_ms}, {now_ms} + :keep_ms
  FROM json_each(:task_ids)
 WHERE true
ON CONFLICT (task_id) DO UPDATE
   SET until_ms = max(atomic_revoked.until_ms, excluded.until_ms);

-- name: contains :many
-- Which of these task ids are revoked.
SELECT task_id
  FROM atomic_revoked
 WHERE task_id IN (SELECT value FROM json_each(:task_ids))
   AND until_ms > {now_ms};

-- name: starting_with :many
-- Everything revoked that begins with a prefix.
SELECT task_id
  FROM atomic_revoked
 WHERE substr(task_id, 1, length(:prefix)) = :prefix
   AND until_ms > {now_ms};
