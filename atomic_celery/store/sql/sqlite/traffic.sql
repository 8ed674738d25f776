-- What the fleet has done: counts by minute, shard, kind and duration. Written with the hosts' reports.

-- name: add :exec
-- Count what a host has ended since its last report, in this minute.
INSERT INTO atomic_traffic (grain_s, begun_ms, shard, kind, band, count, total_ms)
SELECT 60, {now_ms} / 60000 * 60000, :shard, json_extract(value, '$.kind'), json_extract(value, '$.band'),
       json_extract(value, '$.count'), json_extract(value, '$.total_ms')
  FROM json_each(:samples)
 WHERE true
ON CONFLICT (grain_s, begun_ms, shard, kind, band) DO UPDATE
   SET count = atomic_traffic.count + excluded.count, total_ms = atomic_traffic.total_ms + excluded.total_ms;

-- name: clock :one
-- The time, to which the borders of spans are aligned.
SELECT {now_ms};

-- name: fold :exec
-- Add the rows of one grain that began before then to those of a coarser one.
INSERT INTO atomic_traffic (grain_s, begun_ms, shard, kind, band, count, total_ms)
SELECT :into_s, begun_ms / (:into_s * 1000) * (:into_s * 1000), 0, kind, band, sum(count), sum(total_ms)
  FROM atomic_traffic
 WHERE grain_s = :grain_s AND begun_ms < :before_ms
 GROUP BY 2, kind, band
ON CONFLICT (grain_s, begun_ms, shard, kind, band) DO UPDATE
   SET count = atomic_traffic.count + excluded.count, total_ms = atomic_traffic.total_ms + excluded.total_ms;
DELETE FROM atomic_traffic WHERE grain_s = :grain_s AND begun_ms < :before_ms;

-- name: drop :exec
-- Drop what began before then.
DELETE FROM atomic_traffic WHERE begun_ms < :before_ms;

-- name: read :many
-- What was counted since each of some times, whatever its grain, in spans of a width, the oldest first.
SELECT wanted.key + 1 AS turn,
       begun_ms / json_extract(wanted.value, '$.width_ms') * json_extract(wanted.value, '$.width_ms') AS begins_ms,
       kind, band, sum(count), sum(total_ms)
  FROM json_each(:wanted) AS wanted
  JOIN atomic_traffic ON begun_ms >= json_extract(wanted.value, '$.since_ms')
 GROUP BY turn, begins_ms, kind, band
 ORDER BY turn, begins_ms, kind, band;
