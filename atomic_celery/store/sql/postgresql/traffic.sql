-- What the fleet has done: counts by minute, shard, kind and duration. Written with the hosts' reports.
--
-- Rows are inserted in the order of the key: two sessions that meet wait for each other, never in a circle.

-- name: add :exec
-- Count what a host has ended since its last report, in this minute.
WITH this AS MATERIALIZED (SELECT {now_ms} / 60000 * 60000 AS begun_ms)
INSERT INTO atomic_traffic (grain_s, begun_ms, shard, kind, band, count, total_ms)
SELECT 60, this.begun_ms, :shard, item.kind, item.band, item.count, item.total_ms
  FROM this
 CROSS JOIN json_to_recordset(:samples::json) AS item (kind text, band smallint, count bigint, total_ms bigint)
 ORDER BY item.kind, item.band
ON CONFLICT (grain_s, begun_ms, shard, kind, band) DO UPDATE
   SET count = atomic_traffic.count + excluded.count, total_ms = atomic_traffic.total_ms + excluded.total_ms;

-- name: clock :one
-- The time, to which the borders of spans are aligned.
SELECT {now_ms};

-- name: fold :exec
-- Add the rows of one grain that began before then to those of a coarser one. What another session folds at this
-- moment is its affair.
WITH old AS (
    DELETE FROM atomic_traffic
     WHERE ctid = ANY (ARRAY(
               SELECT ctid
                 FROM atomic_traffic
                WHERE grain_s = :grain_s AND begun_ms < :before_ms
                  FOR UPDATE SKIP LOCKED))
    RETURNING begun_ms, kind, band, count, total_ms
)
INSERT INTO atomic_traffic (grain_s, begun_ms, shard, kind, band, count, total_ms)
SELECT :into_s, begun_ms / (:into_s * 1000) * (:into_s * 1000), 0, kind, band, sum(count), sum(total_ms)
  FROM old
 GROUP BY 2, kind, band
 ORDER BY 2, kind, band
ON CONFLICT (grain_s, begun_ms, shard, kind, band) DO UPDATE
   SET count = atomic_traffic.count + excluded.count, total_ms = atomic_traffic.total_ms + excluded.total_ms;

-- name: drop :exec
-- Drop what began before then.
DELETE FROM atomic_traffic WHERE begun_ms < :before_ms;

-- name: read :many
-- What was counted since each of some times, whatever its grain, in spans of a width, the oldest first.
SELECT wanted.turn, begun_ms / wanted.width_ms * wanted.width_ms AS begins_ms, kind, band,
       sum(count)::bigint, sum(total_ms)::bigint
  FROM ROWS FROM (json_to_recordset(:wanted::json) AS (since_ms bigint, width_ms bigint))
       WITH ORDINALITY AS wanted (since_ms, width_ms, turn)
  JOIN atomic_traffic ON begun_ms >= wanted.since_ms
 GROUP BY wanted.turn, begins_ms, kind, band
 ORDER BY wanted.turn, begins_ms, kind, band;
