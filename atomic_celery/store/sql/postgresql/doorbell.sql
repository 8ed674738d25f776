-- How a sleeping consumer is woken. Every holder listens on a channel of its own:
--     'atomic_' || left(encode(sha256(convert_to(holder, 'UTF8')), 'hex'), 32)
-- at most 57 bytes with the longest prefix. `doorbell.channel` computes the same name.

-- name: listen :exec
-- LISTEN takes no parameter: the name goes in as text, and consists of a-z, 0-9 and _ only.
LISTEN {channel};
