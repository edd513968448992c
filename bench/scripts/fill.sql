-- Fills a zone with sessions, as after long use: half of them live, half terminated, each with its events, its counters
-- and its positions in the log. The ids have the normal form and sort before all new ones.

-- name: fill_sessions
-- Odd sessions are terminated, so that the zone stays below its limit during the measurement.
insert into agent_sessions (id, zone_id, application_id, parent_id, root_id, session_sid, kind, status, depth,
    capabilities, metadata, ttl_seconds, limits, spawned_at, expires_at, suspended_at, terminated_at,
    termination_reason, created_at, updated_at)
with recursive n (i) as (select cast(:first as bigint) union all select i + 1 from n where i < cast(:last as bigint))
select '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), cast(:zone as text),
    cast(:application as text), null, '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), 'local',
    'instance', case when i % 2 = 0 then 'active' else 'terminated' end, 0, cast(:capabilities as text),
    cast(:metadata as text), 86400, cast(:limits as text), now_ms(), now_ms() + 86400000, null,
    case when i % 2 = 0 then null else now_ms() end, case when i % 2 = 0 then null else 'requested' end, now_ms(), now_ms()
from n;

-- name: fill_spawned
-- One spawn event per session.
insert into events (pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at)
with recursive n (i) as (select cast(:first as bigint) union all select i + 1 from n where i < cast(:last as bigint))
select h.pos + 1 + i - cast(:first as bigint), '00000000-0000-7000-9000-' || substr(cast(1000000000000 + i as text), 2),
    cast(:zone as text), 'session.spawn', '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2),
    'local', null, 'active', cast(:data as text), null, now_ms()
from n join log_head h on h.id = 1;

-- name: fill_ended
-- One more event per terminated session. Runs after `fill_head` has moved past the spawn events.
insert into events (pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at)
with recursive n (i) as (select cast(:first as bigint) union all select i + 1 from n where i < cast(:last as bigint))
select h.pos + 1 + (i - cast(:first as bigint)) / 2,
    '00000000-0000-7000-a000-' || substr(cast(1000000000000 + i as text), 2), cast(:zone as text), 'session.terminate',
    '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), 'local', 'active', 'terminated',
    '{"reason":"requested"}', null, now_ms()
from n join log_head h on h.id = 1 where i % 2 = 1;

-- name: fill_head
-- The log has no gaps: its head moves by the number of appended events.
update log_head set pos = pos + :count where id = 1;

-- name: fill_trees
-- Only live roots: the tree of a terminated root is not counted.
insert into admission_counts (zone_id, scope, key, live, ever)
with recursive n (i) as (select cast(:first as bigint) union all select i + 1 from n where i < cast(:last as bigint))
select cast(:zone as text), 'tree', '00000000-0000-7000-8000-' || substr(cast(1000000000000 + i as text), 2), 1, 1
from n where i % 2 = 0;

-- name: fill_counts
-- The counters of the zone and its application.
insert into admission_counts (zone_id, scope, key, live, ever)
values (cast(:zone as text), 'zone', '', cast(:live as bigint), cast(:ever as bigint)),
       (cast(:zone as text), 'application', cast(:application as text), cast(:live as bigint), cast(:ever as bigint))
on conflict (zone_id, scope, key)
do update set live = admission_counts.live + excluded.live, ever = admission_counts.ever + excluded.ever;
