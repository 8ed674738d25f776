-- Every table. A message's row never changes; which of ready, gated, delayed, claim and dead names it is its state.
-- Times are milliseconds since 1970 by the database's clock.

CREATE TABLE atomic_setting (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO atomic_setting (name, value) VALUES ('reclaimed_ms', '0');

CREATE TABLE atomic_queue (
    id                      integer PRIMARY KEY AUTOINCREMENT,
    name                    text NOT NULL CONSTRAINT atomic_queue_name UNIQUE,
    exclusive_to            text,
    auto_delete             boolean NOT NULL DEFAULT 0,
    expires_ms              integer,
    message_ttl_ms          integer,
    max_priority            integer,
    dead_letter_exchange    text,
    dead_letter_routing_key text,
    used_ms                 integer NOT NULL,
    arguments               text NOT NULL DEFAULT '{}'
);

CREATE TABLE atomic_exchange (
    name text PRIMARY KEY,
    type text NOT NULL
);

CREATE TABLE atomic_binding (
    exchange    text NOT NULL,
    routing_key text NOT NULL,
    pattern     text NOT NULL,
    queue_id    integer NOT NULL,
    PRIMARY KEY (exchange, routing_key, pattern, queue_id)
);
CREATE INDEX atomic_binding_queue ON atomic_binding (queue_id);

CREATE TABLE atomic_message (
    id           integer PRIMARY KEY AUTOINCREMENT,
    queue_id     integer NOT NULL,
    task_id      text,
    task_name    text,
    root_id      text,
    priority     integer NOT NULL CONSTRAINT atomic_message_priority CHECK (priority BETWEEN 0 AND 9),
    payload      text NOT NULL,
    published_ms integer NOT NULL,
    due_ms       integer,
    expires_ms   integer,
    -- What is limited; null in nearly all.
    limit_id      integer,
    root_limit_id integer,
    lane          text,
    -- Whether it goes on with a task that began as another message: its root counts both as one child.
    again         boolean NOT NULL DEFAULT 0,
    unique_key    text,
    unique_until  text CONSTRAINT atomic_message_unique_until CHECK (unique_until IN ('queued', 'unfinished'))
);
CREATE UNIQUE INDEX atomic_message_task ON atomic_message (task_id, queue_id) WHERE task_id IS NOT NULL;
CREATE UNIQUE INDEX atomic_message_unique ON atomic_message (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX atomic_message_limit ON atomic_message (limit_id) WHERE limit_id IS NOT NULL;
CREATE INDEX atomic_message_later ON atomic_message (root_limit_id)
 WHERE root_limit_id IS NOT NULL AND (again OR due_ms IS NOT NULL);
CREATE INDEX atomic_message_again ON atomic_message (root_limit_id) WHERE root_limit_id IS NOT NULL AND again;
CREATE INDEX atomic_message_child ON atomic_message (root_id, id) WHERE root_id <> task_id;

-- The highest fence under which each publisher has stored something; empty here, where no answer gets lost.
CREATE TABLE atomic_publisher (
    id    text PRIMARY KEY,
    fence integer NOT NULL CONSTRAINT atomic_publisher_fence CHECK (fence > 0),
    at_ms integer NOT NULL
);

CREATE TABLE atomic_ready (
    message_id integer PRIMARY KEY,
    queue_id   integer NOT NULL,
    priority   integer NOT NULL,
    position   integer NOT NULL,
    fence      integer NOT NULL CONSTRAINT atomic_ready_fence CHECK (fence >= 0),
    crashes    integer NOT NULL
);
CREATE INDEX atomic_ready_lane ON atomic_ready (queue_id, priority DESC, position);

CREATE TABLE atomic_delayed (
    message_id integer PRIMARY KEY,
    queue_id   integer NOT NULL,
    priority   integer NOT NULL,
    due_ms     integer NOT NULL,
    fence      integer NOT NULL CONSTRAINT atomic_delayed_fence CHECK (fence >= 0),
    crashes    integer NOT NULL
);
CREATE INDEX atomic_delayed_due ON atomic_delayed (due_ms);

CREATE TABLE atomic_claim (
    message_id     integer PRIMARY KEY,
    queue_id       integer NOT NULL,
    priority       integer NOT NULL,
    position       integer NOT NULL,
    fence          integer NOT NULL CONSTRAINT atomic_claim_fence CHECK (fence > 0),
    crashes        integer NOT NULL,
    holder         text NOT NULL,
    boot           text NOT NULL,
    claimed_ms     integer NOT NULL,
    lease_until_ms integer NOT NULL,
    successor_id   integer
);

-- What waits at a gate: limits of its task, or its root, say when it may be claimed. "lane" names the two limits,
-- and a child of a root that has begun once has a lane with a plus: it needs no second place in the root's budget.
CREATE TABLE atomic_gated (
    message_id    integer PRIMARY KEY,
    queue_id      integer NOT NULL,
    lane          text NOT NULL,
    limit_id      integer,
    root_limit_id integer,
    priority      integer NOT NULL,
    position      integer NOT NULL,
    fence         integer NOT NULL CONSTRAINT atomic_gated_fence CHECK (fence >= 0),
    crashes       integer NOT NULL,
    again         boolean GENERATED ALWAYS AS (substr(lane, -1) = '+') STORED
);
CREATE INDEX atomic_gated_lane ON atomic_gated (queue_id, lane, priority DESC, position);
CREATE INDEX atomic_gated_limit ON atomic_gated (limit_id, queue_id) WHERE limit_id IS NOT NULL;
CREATE INDEX atomic_gated_root ON atomic_gated (root_limit_id, queue_id) WHERE root_limit_id IS NOT NULL;
CREATE INDEX atomic_gated_again ON atomic_gated (root_limit_id) WHERE again;

-- What holds over all hosts, for a task, one key of a task, or a root. Whoever admits a message holds the row.
CREATE TABLE atomic_limit (
    id          integer PRIMARY KEY AUTOINCREMENT,
    name        text NOT NULL CONSTRAINT atomic_limit_name UNIQUE,
    task        text,
    max_running integer CONSTRAINT atomic_limit_running CHECK (max_running > 0),
    rate_starts integer CONSTRAINT atomic_limit_rate CHECK (rate_starts > 0),
    rate_ms     integer CONSTRAINT atomic_limit_per CHECK (rate_ms > 0),
    quota       integer,
    started     integer NOT NULL DEFAULT 0,
    is_open     boolean NOT NULL DEFAULT 1,
    closes_ms   integer,
    used_ms     integer NOT NULL
);
CREATE INDEX atomic_limit_task ON atomic_limit (task) WHERE task IS NOT NULL;

-- Which claims count against a limit. A row whose claim is over counts for nothing; the next admission removes it.
CREATE TABLE atomic_admitted (
    limit_id   integer NOT NULL,
    message_id integer NOT NULL,
    fence      integer NOT NULL,
    PRIMARY KEY (limit_id, message_id, fence)
);

-- How many starts a rate has seen, and when, to the thousandth part of its period.
CREATE TABLE atomic_start (
    limit_id integer NOT NULL,
    at_ms    integer NOT NULL,
    starts   integer NOT NULL,
    PRIMARY KEY (limit_id, at_ms)
);

-- Workflows that somebody declared, steered, or published a great many messages of: others have no row.
CREATE TABLE atomic_root (
    id              text PRIMARY KEY,
    limit_id        integer NOT NULL CONSTRAINT atomic_root_limit UNIQUE,
    declared        boolean NOT NULL,
    state           text NOT NULL CONSTRAINT atomic_root_state CHECK (state IN ('running', 'paused', 'cancelled')),
    labels          text NOT NULL DEFAULT '{}',
    max_running     integer,
    budget_children integer,
    budget_cost     real,
    budget_tokens   integer,
    budget_ms       integer,
    warn_at_percent integer NOT NULL DEFAULT 80,
    told_percent    integer NOT NULL DEFAULT 0,
    spent_cost      real NOT NULL DEFAULT 0,
    spent_tokens    integer NOT NULL DEFAULT 0,
    ran_ms          integer NOT NULL DEFAULT 0,
    resumed_ms      integer,
    created_ms      integer NOT NULL,
    changed_ms      integer NOT NULL,
    cancel_until_ms integer
);
CREATE INDEX atomic_root_created ON atomic_root (created_ms, id);
CREATE INDEX atomic_root_cancelled ON atomic_root (limit_id) WHERE state = 'cancelled';
CREATE INDEX atomic_root_watched ON atomic_root (id) WHERE told_percent < 100 AND declared;

CREATE TABLE atomic_dead (
    message_id integer PRIMARY KEY,
    queue_id   integer NOT NULL,
    priority   integer NOT NULL,
    fence      integer NOT NULL CONSTRAINT atomic_dead_fence CHECK (fence >= 0),
    crashes    integer NOT NULL,
    reason     text NOT NULL,
    buried_ms  integer NOT NULL,
    told       integer NOT NULL DEFAULT 0 -- whether its task's failure was stored, for those who wait for it
);
CREATE INDEX atomic_dead_untold ON atomic_dead (message_id) WHERE NOT told;

CREATE TABLE atomic_crash (
    message_id integer NOT NULL,
    fence      integer NOT NULL,
    holder     text NOT NULL,
    reason     text NOT NULL,
    at_ms      integer NOT NULL,
    PRIMARY KEY (message_id, fence)
);

-- Who sleeps until a message arrives; nothing is lost with it but a few milliseconds.
CREATE TABLE atomic_waiter (
    queue_id integer NOT NULL,
    holder   text NOT NULL,
    until_ms integer NOT NULL,
    PRIMARY KEY (queue_id, holder)
);

CREATE TABLE atomic_revoked (
    task_id  text PRIMARY KEY,
    at_ms    integer NOT NULL,
    until_ms integer NOT NULL
);

CREATE TABLE atomic_host (
    id            text PRIMARY KEY,
    boot          text NOT NULL,
    name          text NOT NULL,
    provider_id   text,
    machine       text NOT NULL,
    machine_boot  text NOT NULL,
    pid           integer NOT NULL,
    pid_started   text NOT NULL,
    slots         integer NOT NULL,
    busy          integer NOT NULL,
    labels        text NOT NULL,
    queues        text NOT NULL,
    versions      text NOT NULL,
    started_ms    integer NOT NULL,
    reported_ms   integer NOT NULL,
    poll_failures integer NOT NULL,
    last_error    text,
    draining_ms   integer,
    idle_since_ms integer
);

CREATE TABLE atomic_drain (
    instance        text PRIMARY KEY,
    reason          text NOT NULL,
    asked_by        text NOT NULL,
    asked_ms        integer NOT NULL,
    missed_listings integer NOT NULL DEFAULT 0,
    removing_ms     integer,
    on_instance     text
);

CREATE TABLE atomic_fleet_event (
    id       integer PRIMARY KEY AUTOINCREMENT,
    at_ms    integer NOT NULL,
    kind     text NOT NULL,
    host     text,
    instance text,
    root     text,
    detail   text
);

-- What ended, by minute and duration: minutes of the last hour, quarters of an hour of the last day, two hours of the
-- last week. Bounded by its key; hosts add to it with their reports.
CREATE TABLE atomic_traffic (
    grain_s  integer NOT NULL,
    begun_ms integer NOT NULL,
    shard    integer NOT NULL,
    kind     text NOT NULL,
    band     integer NOT NULL,
    count    integer NOT NULL,
    total_ms integer NOT NULL,
    PRIMARY KEY (grain_s, begun_ms, shard, kind, band)
) WITHOUT ROWID;

-- Who leads: one row for each name, kept when nobody does, so that its fence never goes down.
CREATE TABLE atomic_term (
    name           text PRIMARY KEY,
    holder         text NOT NULL,
    fence          integer NOT NULL CONSTRAINT atomic_term_fence CHECK (fence > 0),
    begun_ms       integer NOT NULL,
    renewed_ms     integer NOT NULL,
    lease_until_ms integer NOT NULL
);

-- What the fleet controller remembers from tick to tick, whoever leads, and what it decided last; written under a term.
CREATE TABLE atomic_controller (
    name      text PRIMARY KEY,
    ticked_ms integer NOT NULL,
    memory    text NOT NULL,
    plan      text NOT NULL
);

-- How many hosts there were to be, and were, at most in each minute; the last seven days.
CREATE TABLE atomic_fleet_sample (
    at_ms         integer PRIMARY KEY,
    desired_hosts integer NOT NULL,
    hosts         integer NOT NULL,
    instances     integer
);

-- How far each periodic task has come; written under a term only, a tick together with its message.
CREATE TABLE atomic_schedule (
    beat        text NOT NULL,
    entry       text NOT NULL,
    fingerprint text NOT NULL,
    last_run_ms integer NOT NULL,
    total_runs  integer NOT NULL,
    PRIMARY KEY (beat, entry)
);

-- What tasks came to. "meta" is Celery's own record of it, as JSON or as the project's serializer writes it.
CREATE TABLE atomic_result (
    task_id    text PRIMARY KEY,
    status     text NOT NULL,
    meta       text NOT NULL,
    stored_ms  integer NOT NULL,
    expires_ms integer
);
CREATE INDEX atomic_result_expires ON atomic_result (expires_ms) WHERE expires_ms IS NOT NULL;

CREATE TABLE atomic_group (
    group_id   text PRIMARY KEY,
    result     text NOT NULL,
    expires_ms integer
);

-- A chord counts the parts that ended; the one that makes it full publishes its finisher, once. It has size + grown
-- parts: those of its header, and those that its parts added.
CREATE TABLE atomic_chord (
    group_id   text PRIMARY KEY,
    size       integer,
    grown      integer NOT NULL DEFAULT 0,
    counted    integer NOT NULL DEFAULT 0,
    finisher   text,
    finished   integer NOT NULL DEFAULT 0,
    expires_ms integer
);

CREATE TABLE atomic_chord_part (
    group_id text NOT NULL,
    part     text NOT NULL,
    place    real NOT NULL,
    status   text NOT NULL,
    result   text NOT NULL,
    PRIMARY KEY (group_id, part, place)
);
