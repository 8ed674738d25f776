-- Which migrations a database has seen: two numbers in atomic_setting.

-- name: exists :one
-- Whether there are any tables at all.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'atomic_setting';

-- name: lock :one
-- The transaction holds the write lock already.
SELECT 1;

-- name: be_patient :exec
-- Nothing hurries a statement here.
SELECT 1;

-- name: numbers :many
-- The last migration, and the least that a program must know to work on these tables.
SELECT name, CAST(value AS INTEGER) FROM atomic_setting
 WHERE name IN ('schema_version', 'schema_floor');

-- name: note :exec
-- Remember a number.
INSERT INTO atomic_setting (name, value) VALUES (:name, CAST(:number AS TEXT))
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: clock :one
-- The database's time.
SELECT {now_ms};
