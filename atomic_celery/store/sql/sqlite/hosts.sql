-- The list of hosts, and the instances that are to take no more.
-- Every transaction that writes has the file to itself: of a claim and a drain one comes wholly before the other.

-- name: register :one
-- Enter a host, or take over the row of its earlier boot; say whether it is to drain at once.
-- Whoever was silent for so long is forgotten.
DELETE FROM atomic_host
 WHERE reported_ms < {now_ms} - :forgotten_ms
   AND id <> :id
   AND NOT EXISTS (SELECT 1 FROM atomic_claim AS c WHERE c.holder = atomic_host.id);
INSERT INTO atomic_host (id, boot, name, provider_id, machine, machine_boot, pid, pid_started, slots, busy,
                         labels, queues, versions, started_ms, reported_ms, poll_failures, draining_ms)
VALUES (:id, :boot, :name, :provider_id, :machine, :machine_boot, :pid, :pid_started, :slots, :busy,
        :labels, :queues, :versions, {now_ms}, {now_ms}, 0,
        (SELECT min(asked_ms) FROM atomic_drain WHERE instance IN (:id, :provider_id)))
ON CONFLICT (id) DO UPDATE
   SET boot = excluded.boot, name = excluded.name, provider_id = excluded.provider_id,
       machine = excluded.machine, machine_boot = excluded.machine_boot,
       pid = excluded.pid, pid_started = excluded.pid_started,
       slots = excluded.slots, busy = excluded.busy,
       labels = excluded.labels, queues = excluded.queues, versions = excluded.versions,
       started_ms = excluded.started_ms, reported_ms = excluded.reported_ms,
       poll_failures = 0, last_error = NULL, draining_ms = excluded.draining_ms, idle_since_ms = NULL
RETURNING draining_ms IS NOT NULL;

-- name: report :one
-- Say that a host lives and what it does; hear whether it is to drain. No row: the list knows nothing of it.
UPDATE atomic_host
   SET slots = :slots, busy = :busy, queues = :queues,
       poll_failures = :poll_failures, last_error = :last_error,
       reported_ms = {now_ms}, idle_since_ms = {now_ms} - :idle_ms,
       draining_ms = CASE WHEN :draining THEN coalesce(draining_ms, {now_ms}) ELSE draining_ms END
 WHERE id = :id
   AND boot = :boot
RETURNING draining_ms IS NOT NULL
       OR EXISTS (SELECT 1 FROM atomic_drain AS d WHERE d.instance IN (atomic_host.id, atomic_host.provider_id));

-- name: leave :exec
-- Take this boot of a host off the list; a later one stays.
DELETE FROM atomic_host WHERE id = :id AND boot = :boot;

-- name: forget :exec
-- Take a host off the list that is silent since long and holds nothing; none: it reports, holds something, or is gone.
DELETE FROM atomic_host
 WHERE id = :id
   AND reported_ms < {now_ms} - :silent_ms
   AND NOT EXISTS (SELECT 1 FROM atomic_claim AS c WHERE c.holder = atomic_host.id);

-- name: list :many
-- Every registered host.
SELECT id, boot, name, provider_id, machine, machine_boot, pid, pid_started, slots, busy, labels, queues, versions,
       started_ms, reported_ms, poll_failures, last_error, draining_ms, idle_since_ms
  FROM atomic_host
 ORDER BY name, id;

-- name: same_machine :many
-- The hosts of one boot of one machine.
SELECT id, boot, name, provider_id, machine, machine_boot, pid, pid_started, slots, busy, labels, queues, versions,
       started_ms, reported_ms, poll_failures, last_error, draining_ms, idle_since_ms
  FROM atomic_host
 WHERE machine = :machine
   AND machine_boot = :machine_boot
 ORDER BY id;

-- name: instance_of :one
-- The provider id of a host.
SELECT provider_id FROM atomic_host WHERE id = :id AND provider_id IS NOT NULL;

-- name: hold_drains :exec
-- The transaction holds the write lock already.
SELECT 1;

-- name: hold :many
-- The hosts of an instance; the transaction holds the write lock already.
SELECT id FROM atomic_host WHERE id = :instance OR provider_id = :instance ORDER BY id;

-- name: hold_instance :many
-- The hosts of an instance and those with these ids, which nobody else writes now; and which have been silent for so long.
SELECT id, reported_ms <= {now_ms} - :silent_ms
  FROM atomic_host
 WHERE id = :instance
    OR provider_id = :instance
    OR id IN (SELECT value FROM json_each(:host_ids))
 ORDER BY id;

-- name: holds_claims :one
-- Whether any of these hosts holds a message, also under a lease that ran out and nobody has reclaimed yet.
SELECT EXISTS (SELECT 1
                 FROM atomic_claim
                WHERE holder IN (SELECT value FROM json_each(:host_ids)));

-- name: keep_drain :exec
-- Remember that an instance takes no more. One that is remembered already stays as it is.
INSERT INTO atomic_drain (instance, reason, asked_by, asked_ms)
VALUES (:instance, :reason, :asked_by, {now_ms})
ON CONFLICT (instance) DO NOTHING;

-- name: tie_drains :exec
-- Remember on which instance the hosts are that are drained by their own ids, as they do not know its name: their drains
-- end with its.
UPDATE atomic_drain SET on_instance = :instance WHERE instance <> :instance AND instance IN (SELECT value FROM json_each(:host_ids));

-- name: mark_draining :exec
-- Let the hosts of an instance claim nothing from the end of this transaction on.
UPDATE atomic_host
   SET draining_ms = coalesce(draining_ms, {now_ms})
 WHERE id = :instance
    OR provider_id = :instance;

-- name: tied_to :one
-- The instance that a host is drained with.
SELECT on_instance FROM atomic_drain WHERE instance = :host_id AND on_instance IS NOT NULL;

-- name: forget_drain :many
-- Forget that an instance takes no more, with the hosts on it that do not know its name, unless it is being removed.
DELETE FROM atomic_drain
 WHERE (instance IN (:instance, :host_id) OR on_instance = :instance)
   AND removing_ms IS NULL
RETURNING instance;

-- name: unmark_draining :exec
-- Let the hosts of these instances claim again, unless another drain concerns them.
UPDATE atomic_host
   SET draining_ms = NULL
 WHERE (id IN (SELECT value FROM json_each(:instances))
        OR provider_id IN (SELECT value FROM json_each(:instances)))
   AND NOT EXISTS (SELECT 1 FROM atomic_drain AS d WHERE d.instance IN (atomic_host.id, atomic_host.provider_id));

-- name: drains :many
-- The instances that take no more.
SELECT instance, reason, asked_by, asked_ms, missed_listings, removing_ms, on_instance
  FROM atomic_drain
 ORDER BY asked_ms, instance;

-- name: drain_along :exec
-- Drain these hosts by their own ids, as they do not know its name, with an instance that takes no more.
INSERT INTO atomic_drain (instance, reason, asked_by, asked_ms, on_instance)
SELECT host.value, along.reason, along.asked_by, {now_ms}, along.instance
  FROM atomic_drain AS along
 CROSS JOIN json_each(:host_ids) AS host
 WHERE along.instance = :instance
ON CONFLICT (instance) DO UPDATE SET on_instance = excluded.on_instance;

-- name: begin_removal :many
-- Note that an instance that takes no more is being removed: no drain of that kind is taken back. Return what is drained
-- with it.
UPDATE atomic_drain
   SET removing_ms = coalesce(removing_ms, {now_ms})
 WHERE instance = :instance OR on_instance = :instance
RETURNING instance;

-- name: listed :exec
-- Start anew to count the listings that these instances are missing from.
UPDATE atomic_drain SET missed_listings = 0 WHERE missed_listings > 0 AND instance IN (SELECT value FROM json_each(:instances));

-- name: not_listed :many
-- Count a listing that these instances are missing from, or start anew where a host on one has reported lately: it is
-- still there, whatever the provider says. Return how many in a row each has been missing from.
UPDATE atomic_drain
   SET missed_listings = CASE WHEN EXISTS (SELECT 1
                                             FROM atomic_host AS h
                                            WHERE (h.id = atomic_drain.instance OR h.provider_id = atomic_drain.instance
                                                   OR h.id IN (SELECT tied.instance
                                                                 FROM atomic_drain AS tied
                                                                WHERE tied.on_instance = atomic_drain.instance))
                                              AND h.reported_ms > {now_ms} - :silent_ms)
                              THEN 0 ELSE missed_listings + 1 END
 WHERE instance IN (SELECT value FROM json_each(:instances))
RETURNING instance, missed_listings;

-- name: forget_removed :many
-- Forget that an instance takes no more, with the hosts on it that did not know its name: it is gone.
DELETE FROM atomic_drain WHERE instance = :instance OR on_instance = :instance RETURNING instance;
