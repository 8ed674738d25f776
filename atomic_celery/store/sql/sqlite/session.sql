-- What a connection sets up for itself.

-- name: open :exec
-- Somewhere to keep what the first statement of a block found for those after it.
CREATE TEMP TABLE settled (
    message_id integer PRIMARY KEY, queue_id integer, priority integer, position integer,
    fence integer, crashes integer, holder text, successor_id integer
);
CREATE TEMP TABLE picked (
    message_id integer PRIMARY KEY, queue_id integer, priority integer, position integer,
    fence integer, crashes integer
);
CREATE TEMP TABLE new (
    turn integer PRIMARY KEY, message_id integer, routed integer, message text
);
CREATE TEMP TABLE filling (group_id text, part text, place real);

-- name: lend :exec
-- The same on a connection of somebody else's, as far as publishing needs it; as often as one likes.
CREATE TEMP TABLE IF NOT EXISTS new (
    turn integer PRIMARY KEY, message_id integer, routed integer, message text
);

-- name: steer :exec
-- The same on a connection of somebody else's, as far as an operator's verbs need it; as often as one likes.
CREATE TEMP TABLE IF NOT EXISTS settled (
    message_id integer PRIMARY KEY, queue_id integer, priority integer, position integer,
    fence integer, crashes integer, holder text, successor_id integer
);
CREATE TEMP TABLE IF NOT EXISTS picked (
    message_id integer PRIMARY KEY, queue_id integer, priority integer, position integer,
    fence integer, crashes integer
);
