-- How a sleeping consumer is woken: it sees that somebody else has committed.

-- name: changed :one
-- A number that is another one once any other connection, of whatever process, has committed.
PRAGMA data_version;
