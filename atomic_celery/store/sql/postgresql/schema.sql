-- Which migrations a database has seen: two numbers in atomic_setting.

-- name: exists :one
-- Whether there are any tables at all.
SELECT to_regclass('atomic_setting') IS NOT NULL;

-- name: lock :one
-- Let one program at a time migrate; given back with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('atomic_schema', 0));

-- name: be_patient :exec
-- Let the statements of this transaction take as long as they take.
SET LOCAL statement_timeout = 0;

-- name: numbers :many
-- The last migration, and the least that a program must know to work on these tables.
SELECT name, value::bigint FROM atomic_setting WHERE name IN ('schema_version', 'schema_floor');

-- name: note :exec
-- Remember a number.
INSERT INTO atomic_setting (name, value) VALUES (:name, :number::text)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: clock :one
-- The database's time.
SELECT {now_ms};
