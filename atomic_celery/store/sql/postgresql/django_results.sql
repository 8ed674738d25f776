-- The tables of django-celery-results, as that package has made them: rows that its models and its admin read.
--
-- No statement here but "hold" names a fence: what a holder leaves behind is written in the transaction that
-- settles its claim, and only if the settle found the fence (see "turn" in messages.sql).

-- name: record :exec
-- Record what tasks came to: the latest that is said of each.
INSERT INTO django_celery_results_taskresult AS known
       (task_id, status, content_type, content_encoding, result, traceback, meta,
        task_name, task_args, task_kwargs, worker, periodic_task_name, date_created, date_started, date_done)
SELECT task_id, status, content_type, content_encoding, result, traceback, meta,
       task_name, task_args, task_kwargs, worker, periodic_task_name,
       to_timestamp({now_ms} / 1000.0),
       CASE WHEN status = 'STARTED' THEN to_timestamp({now_ms} / 1000.0) END,
       to_timestamp({now_ms} / 1000.0)
  FROM json_to_recordset(:rows::json)
    AS item (task_id text, status text, content_type text, content_encoding text, result text, traceback text,
             meta text, task_name text, task_args text, task_kwargs text, worker text, periodic_task_name text)
 ORDER BY task_id
ON CONFLICT (task_id) DO UPDATE
   SET status = excluded.status, content_type = excluded.content_type,
       content_encoding = excluded.content_encoding, result = excluded.result, traceback = excluded.traceback,
       meta = excluded.meta, task_name = excluded.task_name, task_args = excluded.task_args,
       task_kwargs = excluded.task_kwargs, worker = excluded.worker,
       periodic_task_name = excluded.periodic_task_name,
       date_started = coalesce(excluded.date_started, known.date_started), date_done = excluded.date_done;

-- name: hold :one
-- Keep a claim from ending for as long as the transaction lasts; no row: it has ended.
WITH held AS MATERIALIZED (
    SELECT lease_until_ms
      FROM atomic_claim
     WHERE message_id = :id::bigint AND fence = :fence::bigint
       FOR KEY SHARE
)
SELECT 1 FROM held WHERE lease_until_ms > {now_ms};

-- name: open_counters :exec
-- Begin to count the parts of chords.
INSERT INTO django_celery_results_chordcounter (group_id, sub_tasks, count)
SELECT group_id, sub_tasks, count
  FROM json_to_recordset(:counters::json) AS item (group_id text, sub_tasks text, count integer);

-- name: grow_counter :exec
-- Count more parts of a chord.
UPDATE django_celery_results_chordcounter
   SET count = count + :more::integer, sub_tasks = (sub_tasks::jsonb || :sub_tasks::jsonb)::text
 WHERE group_id = :group_id;

-- name: count_parts :many
-- Count parts of chords that ended, each named once for each of its parts; return how many are left of each.
WITH ended AS MATERIALIZED (
    SELECT group_id, count(*) AS parts
      FROM json_array_elements_text(:group_ids::json) AS part (group_id)
     GROUP BY group_id
), counter AS MATERIALIZED (
    SELECT id, parts
      FROM django_celery_results_chordcounter
      JOIN ended USING (group_id)
     WHERE count > 0
     ORDER BY id
       FOR UPDATE OF django_celery_results_chordcounter
)
UPDATE django_celery_results_chordcounter AS known
   SET count = greatest(count - parts, 0)
  FROM counter
 WHERE known.id = counter.id
RETURNING group_id, count;

-- name: close_counters :exec
-- Forget chords whose end has been dealt with.
DELETE FROM django_celery_results_chordcounter
 WHERE group_id = ANY (ARRAY(SELECT json_array_elements_text(:group_ids::json)));
