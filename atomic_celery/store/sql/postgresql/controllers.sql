-- What a fleet controller knows from tick to tick. Every write is made in a transaction that holds its term.

-- name: load :one
-- What was remembered, when that was, what was decided then.
SELECT memory, ticked_ms, plan FROM atomic_controller WHERE name = :name;

-- name: keep :exec
-- Remember.
INSERT INTO atomic_controller (name, ticked_ms, memory, plan)
VALUES (:name, {now_ms}, :memory, :plan)
ON CONFLICT (name) DO UPDATE
   SET ticked_ms = excluded.ticked_ms, memory = excluded.memory, plan = excluded.plan;

-- name: remember :exec
-- Change what is remembered in the middle of a tick.
UPDATE atomic_controller SET memory = :memory WHERE name = :name;

-- name: sample :exec
-- Note how many hosts there are and ought to be, and how many instances are listed: the most in each minute.
-- Drop what is too old.
DELETE FROM atomic_fleet_sample WHERE at_ms < {now_ms} - :kept_ms;
INSERT INTO atomic_fleet_sample (at_ms, desired_hosts, hosts, instances)
VALUES ({now_ms} / 60000 * 60000, :desired_hosts, :hosts, :instances)
ON CONFLICT (at_ms) DO UPDATE
   SET desired_hosts = greatest(atomic_fleet_sample.desired_hosts, excluded.desired_hosts),
       hosts = greatest(atomic_fleet_sample.hosts, excluded.hosts),
       instances = greatest(coalesce(atomic_fleet_sample.instances, excluded.instances),
                       coalesce(excluded.instances, atomic_fleet_sample.instances));

-- name: sizes :many
-- The most that there were, or were to be, in each span of a width since some time, the first first.
SELECT at_ms / CAST(:width_ms AS bigint) * CAST(:width_ms AS bigint) AS begins_ms, max(desired_hosts), max(hosts), max(instances)
  FROM atomic_fleet_sample
 WHERE at_ms >= :since_ms
 GROUP BY begins_ms
 ORDER BY begins_ms;
