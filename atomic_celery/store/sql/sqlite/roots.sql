-- Roots: workflows that somebody declared, steered, or published a great many messages of.
--
-- atomic_root says what was asked for; its row in atomic_limit, what that comes to for whoever admits its messages.
-- "apply" makes the second follow the first, and belongs to every change, in the same transaction.

-- name: insert_limit :one
-- Make the limit of a root that there is not yet; no row when there is.
INSERT INTO atomic_limit (name, used_ms) VALUES ('root ' || :id, {now_ms})
ON CONFLICT (name) DO NOTHING
RETURNING id;

-- name: insert :exec
-- Make a root; from now on its messages go through its gate.
INSERT INTO atomic_root (id, limit_id, declared, state, resumed_ms, created_ms, changed_ms)
VALUES (:id, :limit_id, false, 'running', {now_ms}, {now_ms}, {now_ms});

-- name: hold :one
-- A root, held until this transaction ends.
SELECT limit_id, state FROM atomic_root WHERE id = :id;

-- name: set :exec
-- Let a root be what is said of it, and declared from now on.
UPDATE atomic_root
   SET declared = 1, max_running = :max_running, budget_children = :children,
       budget_cost = :cost, budget_tokens = :tokens, budget_ms = :duration_ms,
       warn_at_percent = :warn_at_percent, labels = coalesce(:labels, labels),
       told_percent = 0, changed_ms = {now_ms}
 WHERE id = :id;

-- name: turn :exec
-- Let a root be in another state; the time that it did not run does not count.
UPDATE atomic_root
   SET state = :state, changed_ms = {now_ms},
       ran_ms = CASE WHEN resumed_ms IS NULL THEN ran_ms ELSE ran_ms + {now_ms} - resumed_ms END,
       resumed_ms = CASE WHEN :state = 'running' THEN {now_ms} END,
       cancel_until_ms = CASE WHEN :state = 'cancelled' THEN {now_ms} + :grace_ms END
 WHERE id = :id;

-- name: apply :exec
-- Let a root's limit be what the root says now. What is cancelled passes at once: it comes out as revoked.
UPDATE atomic_limit AS l
   SET max_running = CASE WHEN r.state <> 'cancelled' THEN r.max_running END,
       quota = CASE WHEN r.state <> 'cancelled' THEN r.budget_children END,
       is_open = r.state = 'cancelled' OR (
           r.state = 'running'
           AND (r.budget_cost IS NULL OR r.spent_cost < r.budget_cost)
           AND (r.budget_tokens IS NULL OR r.spent_tokens < r.budget_tokens)),
       closes_ms = CASE WHEN r.state = 'running' THEN r.resumed_ms + r.budget_ms - r.ran_ms END
  FROM atomic_root AS r
 WHERE r.id = :id AND l.id = r.limit_id;

-- name: adopt :many
-- Let messages of a root that were published before it had a row wait at its gate; up to :limit, tell how many.
DELETE FROM settled;
INSERT INTO settled (message_id)
SELECT id FROM atomic_message
 WHERE root_id = :id AND root_id <> task_id AND root_limit_id IS NULL
UNION ALL
SELECT id FROM atomic_message WHERE task_id = :id AND root_id = :id AND root_limit_id IS NULL
 LIMIT :limit;
UPDATE settled
   SET fence = CASE WHEN EXISTS (SELECT 1 FROM atomic_message WHERE id = settled.message_id AND again) THEN 1
                    ELSE coalesce((SELECT fence FROM atomic_claim WHERE message_id = settled.message_id),
                                  (SELECT fence FROM atomic_ready WHERE message_id = settled.message_id),
                                  (SELECT fence FROM atomic_gated WHERE message_id = settled.message_id),
                                  (SELECT fence FROM atomic_delayed WHERE message_id = settled.message_id),
                                  (SELECT fence FROM atomic_dead WHERE message_id = settled.message_id)) END;
UPDATE atomic_message
   SET root_limit_id = :limit_id,
       lane = coalesce(limit_id, 0) || '.' || :limit_id || CASE WHEN again THEN '+' ELSE '' END
 WHERE id IN (SELECT message_id FROM settled);
UPDATE atomic_gated
   SET root_limit_id = :limit_id,
       lane = coalesce(limit_id, 0) || '.' || :limit_id
              || CASE WHEN (SELECT fence FROM settled WHERE message_id = atomic_gated.message_id) > 0
                      THEN '+' ELSE '' END
 WHERE message_id IN (SELECT message_id FROM settled);
INSERT INTO atomic_gated (message_id, queue_id, lane, limit_id, root_limit_id, priority, position, fence, crashes)
SELECT ready.message_id, ready.queue_id,
       CASE WHEN settled.fence > 0 THEN rtrim(message.lane, '+') || '+' ELSE message.lane END,
       message.limit_id, :limit_id, ready.priority, ready.position, ready.fence, ready.crashes
  FROM settled
  JOIN atomic_ready AS ready ON ready.message_id = settled.message_id
  JOIN atomic_message AS message ON message.id = settled.message_id;
DELETE FROM atomic_ready WHERE message_id IN (SELECT message_id FROM settled);
INSERT INTO atomic_admitted (limit_id, message_id, fence)
SELECT :limit_id, message_id, fence
  FROM atomic_claim WHERE message_id IN (SELECT message_id FROM settled)
ON CONFLICT DO NOTHING;
UPDATE atomic_limit
   SET started = started + (SELECT count(*) FROM settled WHERE fence > 0)
 WHERE id = :limit_id;
SELECT count(*) FROM settled;

-- name: count_in :exec
-- Count the claims that there are already of a root's messages: one may have been granted while they were adopted.
INSERT INTO atomic_admitted (limit_id, message_id, fence)
SELECT message.root_limit_id, claim.message_id, claim.fence
  FROM (SELECT id, root_limit_id FROM atomic_message WHERE root_id = :id AND root_id <> task_id
         UNION ALL
        SELECT id, root_limit_id FROM atomic_message WHERE task_id = :id AND root_id = :id) AS message
  JOIN atomic_claim AS claim ON claim.message_id = message.id
 WHERE message.root_limit_id IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: spend :one
-- Add to what a root has spent, on behalf of a message that is held; no row when it is held no more.
UPDATE atomic_root SET spent_cost = spent_cost + :cost, spent_tokens = spent_tokens + :tokens
 WHERE limit_id = (SELECT message.root_limit_id FROM atomic_claim AS claim
                    JOIN atomic_message AS message ON message.id = claim.message_id
                   WHERE claim.message_id = :message_id AND claim.fence = :fence AND claim.lease_until_ms > {now_ms});
SELECT root.id FROM atomic_claim AS claim
  JOIN atomic_message AS message ON message.id = claim.message_id
  LEFT JOIN atomic_root AS root ON root.limit_id = message.root_limit_id
 WHERE claim.message_id = :message_id AND claim.fence = :fence AND claim.lease_until_ms > {now_ms};

-- name: list :many
-- Roots, the latest first; counts of what waits stop at *bound*. *exact*: those of what has begun before did not, from
-- which it is told how many have finished.
SELECT r.id, CASE WHEN r.state <> 'running' THEN r.state
            WHEN NOT l.is_open OR l.closes_ms <= {now_ms} OR l.started >= l.quota THEN 'budget_exceeded'
            ELSE 'running' END AS state, r.declared, r.labels, r.max_running,
       (SELECT count(*)
          FROM atomic_admitted AS a
          JOIN atomic_claim AS c ON c.message_id = a.message_id AND c.fence = a.fence
         WHERE a.limit_id = r.limit_id) AS running,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_gated WHERE root_limit_id = r.limit_id LIMIT :bound + 1) AS capped) AS waiting,
       l.started,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_gated WHERE root_limit_id = r.limit_id AND again LIMIT :bound + 1) AS capped) AS waiting_again,
       (SELECT count(*)
          FROM (SELECT id FROM atomic_message WHERE root_limit_id = r.limit_id AND again LIMIT :bound + 1) AS capped
          JOIN atomic_delayed AS d ON d.message_id = capped.id) AS retrying,
       (SELECT count(*)
          FROM (SELECT id FROM atomic_message
                 WHERE root_limit_id = r.limit_id AND (again OR due_ms IS NOT NULL)
                 LIMIT :bound + 1) AS later
          JOIN atomic_delayed AS d ON d.message_id = later.id) AS delayed,
       r.budget_children, r.budget_cost, r.budget_tokens, r.budget_ms, r.warn_at_percent,
       r.spent_cost, r.spent_tokens, r.ran_ms + CASE WHEN r.resumed_ms IS NULL THEN 0 ELSE {now_ms} - r.resumed_ms END AS ran_ms, r.created_ms, r.changed_ms, r.cancel_until_ms,
       NOT EXISTS (SELECT 1 FROM atomic_gated WHERE root_limit_id = r.limit_id AND again LIMIT 1 OFFSET :bound)
       AND NOT EXISTS (SELECT 1 FROM atomic_message WHERE root_limit_id = r.limit_id AND again LIMIT 1 OFFSET :bound) AS exact
  FROM atomic_root AS r
  JOIN atomic_limit AS l ON l.id = r.limit_id
 WHERE (:before_ms IS NULL OR (r.created_ms, r.id) < (:before_ms, :before_id))
   AND (:state IS NULL OR CASE WHEN r.state <> 'running' THEN r.state
            WHEN NOT l.is_open OR l.closes_ms <= {now_ms} OR l.started >= l.quota THEN 'budget_exceeded'
            ELSE 'running' END = :state)
 ORDER BY r.created_ms DESC, r.id DESC
 LIMIT :limit;

-- name: in_use :one
-- Of the latest roots: how many run, with a message that is unfinished, how many are paused, and how many were looked at.
SELECT count(*) FILTER (WHERE state = 'running' AND (
           EXISTS (SELECT 1 FROM atomic_message WHERE root_id = latest.id AND root_id <> task_id)
           OR EXISTS (SELECT 1 FROM atomic_message WHERE task_id = latest.id))) AS running,
       count(*) FILTER (WHERE state = 'paused') AS paused,
       count(*) AS looked_at
  FROM (SELECT id, state FROM atomic_root ORDER BY created_ms DESC, id DESC LIMIT :bound + 1) AS latest;

-- name: view :one
-- One root.
SELECT r.id, CASE WHEN r.state <> 'running' THEN r.state
            WHEN NOT l.is_open OR l.closes_ms <= {now_ms} OR l.started >= l.quota THEN 'budget_exceeded'
            ELSE 'running' END AS state, r.declared, r.labels, r.max_running,
       (SELECT count(*)
          FROM atomic_admitted AS a
          JOIN atomic_claim AS c ON c.message_id = a.message_id AND c.fence = a.fence
         WHERE a.limit_id = r.limit_id) AS running,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_gated WHERE root_limit_id = r.limit_id LIMIT :bound + 1) AS capped) AS waiting,
       l.started,
       (SELECT count(*)
          FROM (SELECT 1 FROM atomic_gated WHERE root_limit_id = r.limit_id AND again LIMIT :bound + 1) AS capped) AS waiting_again,
       (SELECT count(*)
          FROM (SELECT id FROM atomic_message WHERE root_limit_id = r.limit_id AND again LIMIT :bound + 1) AS capped
          JOIN atomic_delayed AS d ON d.message_id = capped.id) AS retrying,
       (SELECT count(*)
          FROM (SELECT id FROM atomic_message
                 WHERE root_limit_id = r.limit_id AND (again OR due_ms IS NOT NULL)
                 LIMIT :bound + 1) AS later
          JOIN atomic_delayed AS d ON d.message_id = later.id) AS delayed,
       r.budget_children, r.budget_cost, r.budget_tokens, r.budget_ms, r.warn_at_percent,
       r.spent_cost, r.spent_tokens, r.ran_ms + CASE WHEN r.resumed_ms IS NULL THEN 0 ELSE {now_ms} - r.resumed_ms END AS ran_ms, r.created_ms, r.changed_ms, r.cancel_until_ms,
       NOT EXISTS (SELECT 1 FROM atomic_gated WHERE root_limit_id = r.limit_id AND again LIMIT 1 OFFSET :bound)
       AND NOT EXISTS (SELECT 1 FROM atomic_message WHERE root_limit_id = r.limit_id AND again LIMIT 1 OFFSET :bound) AS exact
  FROM atomic_root AS r
  JOIN atomic_limit AS l ON l.id = r.limit_id
 WHERE r.id = :id;

-- name: unfinished :one
-- How many messages of a root are unfinished in each state, the root's own among them; counting stops at *bound*.
SELECT count(*) AS unfinished,
       coalesce(sum(CASE WHEN c.message_id IS NOT NULL THEN 1 ELSE 0 END), 0) AS running,
       coalesce(sum(CASE WHEN d.message_id IS NOT NULL THEN 1 ELSE 0 END), 0) AS delayed,
       coalesce(sum(CASE WHEN x.message_id IS NOT NULL THEN 1 ELSE 0 END), 0) AS dead
  FROM (SELECT id FROM (SELECT id FROM atomic_message WHERE root_id = :id AND root_id <> task_id LIMIT :bound) AS child
         UNION ALL
        SELECT id FROM atomic_message WHERE task_id = :id AND root_id = :id) AS m
  LEFT JOIN atomic_claim AS c ON c.message_id = m.id
  LEFT JOIN atomic_delayed AS d ON d.message_id = m.id
  LEFT JOIN atomic_dead AS x ON x.message_id = m.id;

-- name: cancelled_here :many
-- What a holder holds of cancelled roots, and whether the time to end by themselves is over.
SELECT c.message_id, c.fence, r.cancel_until_ms <= {now_ms}
  FROM atomic_root AS r
  JOIN atomic_admitted AS a ON a.limit_id = r.limit_id
  JOIN atomic_claim AS c ON c.message_id = a.message_id AND c.fence = a.fence
 WHERE r.state = 'cancelled' AND c.holder = :holder AND c.boot = :boot
   AND r.changed_ms > {now_ms} - :cancelled_within_ms;

-- name: reached :many
-- Roots that have come to a part of their budget, in percent, that nobody was told of.
SELECT id, CASE WHEN percent >= 100 THEN 100 ELSE warn_at_percent END
  FROM (SELECT r.id, r.warn_at_percent, r.told_percent, max(
               coalesce(100.0 * l.started / nullif(r.budget_children, 0), 0),
               coalesce(100.0 * r.spent_cost / nullif(r.budget_cost, 0), 0),
               coalesce(100.0 * r.spent_tokens / nullif(r.budget_tokens, 0), 0),
               coalesce(100.0 * (r.ran_ms + coalesce({now_ms} - r.resumed_ms, 0)) / nullif(r.budget_ms, 0), 0)) AS percent
          FROM atomic_root AS r
          JOIN atomic_limit AS l ON l.id = r.limit_id
         WHERE r.declared AND r.told_percent < 100) AS spent
 WHERE percent >= 100 OR (percent >= warn_at_percent AND told_percent = 0);

-- name: tell :one
-- Note that somebody is told of it; no row when somebody was before.
UPDATE atomic_root SET told_percent = :percent WHERE id = :id AND told_percent < :percent RETURNING id;

-- name: forget :one
-- Drop roots that nobody declared and that have no message left.
DELETE FROM settled;
INSERT INTO settled (message_id)
SELECT limit_id
  FROM atomic_root
 WHERE NOT declared AND state = 'running' AND changed_ms < {now_ms} - :unused_ms
   AND NOT EXISTS (SELECT 1 FROM atomic_message WHERE root_id = atomic_root.id AND root_id <> task_id)
   AND NOT EXISTS (SELECT 1 FROM atomic_message WHERE task_id = atomic_root.id)
 LIMIT :limit;
DELETE FROM atomic_admitted WHERE limit_id IN (SELECT message_id FROM settled);
DELETE FROM atomic_limit WHERE id IN (SELECT message_id FROM settled);
DELETE FROM atomic_root WHERE limit_id IN (SELECT message_id FROM settled);
SELECT count(*) FROM settled;
