-- The tables of django-celery-results, as that package has made them: rows that its models and its admin read.
--
-- No statement here but "hold" names a fence: what a holder leaves behind is written in the transaction that
-- settles its claim, and only if the settle found the fence (see "turn" in messages.sql).
-- Django keeps times as text, in UTC or the project's time zone; :zone is the modifier that makes the latter.

-- name: record :exec
-- Record what tasks came to: the latest that is said of each.
INSERT INTO django_celery_results_taskresult
       (task_id, status, content_type, content_encoding, result, traceback, meta,
        task_name, task_args, task_kwargs, worker, periodic_task_name, date_created, date_started, date_done)
SELECT json_extract(value, '$.task_id'), json_extract(value, '$.status'), json_extract(value, '$.content_type'),
       json_extract(value, '$.content_encoding'), json_extract(value, '$.result'),
       json_extract(value, '$.traceback'), json_extract(value, '$.meta'), json_extract(value, '$.task_name'),
       json_extract(value, '$.task_args'), json_extract(value, '$.task_kwargs'), json_extract(value, '$.worker'),
       json_extract(value, '$.periodic_task_name'),
       strftime('%Y-%m-%d %H:%M:%f', {now_ms} / 1000.0, 'unixepoch', :zone),
       CASE WHEN json_extract(value, '$.status') = 'STARTED'
            THEN strftime('%Y-%m-%d %H:%M:%f', {now_ms} / 1000.0, 'unixepoch', :zone) END,
       strftime('%Y-%m-%d %H:%M:%f', {now_ms} / 1000.0, 'unixepoch', :zone)
  FROM json_each(:rows)
 WHERE true
ON CONFLICT (task_id) DO UPDATE
   SET status = excluded.status, content_type = excluded.content_type,
       content_encoding = excluded.content_encoding, result = excluded.result, traceback = excluded.traceback,
       meta = excluded.meta, task_name = excluded.task_name, task_args = excluded.task_args,
       task_kwargs = excluded.task_kwargs, worker = excluded.worker,
       periodic_task_name = excluded.periodic_task_name,
       date_started = coalesce(excluded.date_started, date_started), date_done = excluded.date_done;

-- name: hold :one
-- Keep a claim from ending for as long as the transaction lasts; no row: it has ended.
SELECT 1 FROM atomic_claim WHERE message_id = :id AND fence = :fence AND lease_until_ms > {now_ms};

-- name: open_counters :exec
-- Begin to count the parts of chords.
INSERT INTO django_celery_results_chordcounter (group_id, sub_tasks, count)
SELECT json_extract(value, '$.group_id'), json_extract(value, '$.sub_tasks'), json_extract(value, '$.count')
  FROM json_each(:counters);

-- name: grow_counter :exec
-- Count more parts of a chord.
UPDATE django_celery_results_chordcounter
   SET count = count + :more,
       sub_tasks = (SELECT json_group_array(json(part.value))
                      FROM (SELECT value FROM json_each(sub_tasks)
                            UNION ALL
                            SELECT value FROM json_each(:sub_tasks)) AS part)
 WHERE group_id = :group_id;

-- name: count_parts :many
-- Count parts of chords that ended, each named once for each of its parts; return how many are left of each.
UPDATE django_celery_results_chordcounter
   SET count = max(count - (SELECT count(*) FROM json_each(:group_ids) WHERE value = group_id), 0)
 WHERE group_id IN (SELECT value FROM json_each(:group_ids)) AND count > 0
RETURNING group_id, count;

-- name: close_counters :exec
-- Forget chords whose end has been dealt with.
DELETE FROM django_celery_results_chordcounter WHERE group_id IN (SELECT value FROM json_each(:group_ids));
