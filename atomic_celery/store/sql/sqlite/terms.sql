-- Who leads, and until when: one row for each name, with a fence that grows by one with every term.
--
-- A term is free once it ran out or was handed over; also when the clock is behind the term's last renewal,
-- which only a clock that was set back can be: otherwise nobody could lead until it has caught up.

-- name: look :one
-- Say who leads, under which fence, for how many milliseconds more, and whether anybody may begin a term.
SELECT holder, fence, lease_until_ms - {now_ms}, lease_until_ms <= {now_ms} OR renewed_ms > {now_ms}
  FROM atomic_term
 WHERE name = :name;

-- name: list :many
-- Every term that ever was, with the time that is left of it.
SELECT name, holder, fence, begun_ms, renewed_ms, lease_until_ms - {now_ms} FROM atomic_term ORDER BY name;

-- name: begin :one
-- Begin a term with the next fence. No row: somebody else's lasts.
INSERT INTO atomic_term AS term (name, holder, fence, begun_ms, renewed_ms, lease_until_ms)
VALUES (:name, :holder, 1, {now_ms}, {now_ms}, {now_ms} + :lease_ms)
ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder,
       fence = term.fence + 1,
       begun_ms = {now_ms},
       renewed_ms = {now_ms},
       lease_until_ms = {now_ms} + :lease_ms
 WHERE term.lease_until_ms <= {now_ms} OR term.renewed_ms > {now_ms}
RETURNING fence;

-- name: renew :exec
-- Push out a term that lasts. None: the fence moved on, or it ran out first.
UPDATE atomic_term
   SET renewed_ms = {now_ms},
       lease_until_ms = {now_ms} + :lease_ms
 WHERE name = :name
   AND fence = :fence
   AND lease_until_ms > {now_ms};

-- name: hold :one
-- Make sure that a term lasts, inside a transaction, which holds the only write lock. No row: it is over.
SELECT fence FROM atomic_term WHERE name = :name AND fence = :fence AND lease_until_ms > {now_ms};

-- name: hand_over :exec
-- End a term now, so that anybody may begin the next.
UPDATE atomic_term
   SET lease_until_ms = min(lease_until_ms, {now_ms})
 WHERE name = :name
   AND fence = :fence;
