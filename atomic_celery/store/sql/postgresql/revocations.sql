-- Task ids that must not run any more, remembered for a while.

-- name: add :exec
-- Remember task ids for *keep_ms*; those remembered already, for the longer of the two. The outdated go.
WITH outdated AS (
    SELECT task_id
      FROM atomic_revoked
     WHERE until_ms <= {now_ms}
       FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM atomic_revoked
     USING outdated
     WHERE atomic_revoked.task_id = outdated.task_id
       AND atomic_revoked.task_id NOT IN (SELECT json_array_elements_text(:task_ids::json))
)
INSERT INTO atomic_revoked (task_id, at_ms, until_ms)
SELECT DISTINCT value, {now_ms}, {now_ms} + :keep_ms
  FROM json_array_elements_text(:task_ids::json)
 ORDER BY value
ON CONFLICT (task_id) DO UPDATE
   SET until_ms = greatest(atomic_revoked.until_ms, excluded.until_ms);

-- name: contains :many
-- Which of these task ids are revoked.
SELECT task_id
  FROM atomic_revoked
 WHERE task_id IN (SELECT json_array_elements_text(:task_ids::json))
   AND until_ms > {now_ms};

-- name: starting_with :many
-- Everything revoked that begins with a prefix.
SELECT task_id
  FROM atomic_revoked
 WHERE starts_with(task_id, :prefix)
   AND until_ms > {now_ms};
