-- What happened to the fleet; the last so many.

-- name: record :exec
-- Add an event and drop those that are too many.
INSERT INTO atomic_fleet_event (at_ms, kind, host, instance, root, detail)
VALUES ({now_ms}, :kind, :host, :instance, :root, :detail);
DELETE FROM atomic_fleet_event
 WHERE id <= (SELECT id FROM atomic_fleet_event ORDER BY id DESC LIMIT 1 OFFSET :kept);

-- name: list :many
-- Up to *limit* events older than *before*, the latest first.
SELECT id, at_ms, kind, host, instance, root, detail
  FROM atomic_fleet_event
 WHERE (:before IS NULL OR id < :before)
   AND (:kind IS NULL OR kind = :kind)
   AND (:host IS NULL OR host = :host)
   AND (:instance IS NULL OR instance = :instance)
   AND (:root IS NULL OR root = :root)
 ORDER BY id DESC
 LIMIT :limit;
