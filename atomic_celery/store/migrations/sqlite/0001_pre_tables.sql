-- Every table. A message's row never changes; which of ready, delayed, claim and dead names it is its state.
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
    expires_ms   integer
);
CREATE UNIQUE INDEX atomic_message_task ON atomic_message (task_id, queue_id) WHERE task_id IS NOT NULL;

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

CREATE TABLE atomic_dead (
    message_id integer PRIMARY KEY,
    queue_id   integer NOT NULL,
    priority   integer NOT NULL,
    fence      integer NOT NULL CONSTRAINT atomic_dead_fence CHECK (fence >= 0),
    crashes    integer NOT NULL,
    reason     text NOT NULL,
    buried_ms  integer NOT NULL
);

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
    removing_ms     integer
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

-- How many hosts there were to be, and were, once a minute; the last seven days.
CREATE TABLE atomic_fleet_sample (
    at_ms         integer PRIMARY KEY,
    desired_hosts integer NOT NULL,
    hosts         integer NOT NULL,
    instances     integer NOT NULL,
    demand        integer NOT NULL,
    queue_depth   integer NOT NULL,
    running       integer NOT NULL,
    busy_slots    integer NOT NULL,
    idle_slots    integer NOT NULL
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
