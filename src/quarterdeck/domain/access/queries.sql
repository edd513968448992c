-- Read the tables of higher components, because every component checks its callers.

-- name: sessions_auth_state
-- The sessions that callers act for, in the field order of `model.CallerSession`. Few columns, because most requests
-- with a session's token run it.
select s.zone_id, s.id, s.status, s.expires_at, s.terminated_at
from rows(:batch as b, zone_id text, id text)
join agent_sessions s on s.zone_id = b.zone_id and s.id = b.id;

-- name: agents_auth_state
-- Status and registration time of the agents that callers act for, in the field order of `model.CallerAgent`. Few
-- columns, because most requests with an agent token run it.
select a.zone_id, a.id, a.status, a.created_at
from rows(:batch as b, zone_id text, id text)
join agents a on a.zone_id = b.zone_id and a.id = b.id;
