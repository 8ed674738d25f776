-- What happened to the fleet; the last so many.

-- name: record :exec
-- Add an event and drop those that are too many. What another session drops at this moment is its affair.
WITH surplus AS (
    SELECT id
      FROM atomic_fleet_event
     WHERE id <= (SELECT id FROM atomic_fleet_event ORDER BY id DESC OFFSET :kept - 1 LIMIT 1)
       FOR UPDATE SKIP LOCKED
), dropped AS (
    DELETE FROM atomic_fleet_event USING surplus WHERE atomic_fleet_event.id = surplus.id
)
INSERT INTO atomic_fleet_event (at_ms, kind, host, instance, root, detail)
VALUES ({now_ms}, :kind, :host, :instance, :root, :detail);

-- name: list :many
-- Up to *limit* events older than *before*, the latest first.
SELECT id, at_ms, kind, host, instance, root, detail
  FROM atomic_fleet_event
 WHERE (:before::bigint IS NULL OR id < :before)
   AND (:kind::text IS NULL OR kind = :kind)
   AND (:host::text IS NULL OR host = :host)
   AND (:instance::text IS NULL OR instance = :instance)
   AND (:root::text IS NULL OR root = :root)
 ORDER BY id DESC
 LIMIT :limit;
