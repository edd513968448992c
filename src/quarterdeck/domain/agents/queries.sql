-- The row of an agent, and beside it what is heard of it, together in the order of `model.Agent`.
-- columns: zone_id, id, name, model, description, capabilities, max_concurrent_tasks, heartbeat_interval_seconds
-- columns: stale_threshold_seconds, coordinator_enabled, launcher, labels, pool, status, status_reason, draining
-- columns: look_at, terminated_at, created_by, created_at, updated_at
--
-- columns pulse: status, held, current_task_id, progress_percent, current_step, memory_mb, cpu_percent
-- columns pulse: last_seen_at, kept_at
--
-- A heartbeat as it is kept, in the order of `model.Heartbeat`.
-- columns heartbeat: id, zone_id, agent_id, status, current_task_id, progress_percent, memory_mb, cpu_percent
-- columns heartbeat: last_seen_at, next_expected_at, metadata_json

-- name: agents_auth_state
-- What became of the agents that callers speak for, and since when they are who they are. Narrow: every operation in a
-- workspace may ask it.
select a.zone_id, a.id, a.status, a.created_at
from rows(:batch as b, zone_id text, id text)
join agents a on a.zone_id = b.zone_id and a.id = b.id;

-- name: agents_contact_state
-- How those stand who wait for work, in the order of `model.Waiting`. Narrow: it is asked of all of them again and again.
select a.zone_id, a.id, a.status, a.draining, a.stale_threshold_seconds, p.last_seen_at
from rows(:batch as b, zone_id text, id text)
join agents a on a.zone_id = b.zone_id and a.id = b.id
join agent_pulses p on p.zone_id = b.zone_id and p.agent_id = b.id;

-- name: agents_get
-- Gathered, and made to travel with whatever else a batch reads first.
select columns(a), columns(p as pulse)
from rows(:batch as b, zone_id text, id text)
join agents a on a.zone_id = b.zone_id and a.id = b.id
join agent_pulses p on p.zone_id = a.zone_id and p.agent_id = a.id;

-- name: agent_pulses_lock
-- In order of the primary key, so that heartbeats, which take no other lock, and whoever holds a zone's never wait for
-- each other in a ring. What decides is read after it.
select p.agent_id
from agent_pulses p
where (p.zone_id, p.agent_id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text))
order by p.zone_id, p.agent_id
for update;

-- name: agents_page
-- planned: each time
-- In the order of the primary key. A filter that is null matches all; every one of them stands before the limit.
-- (`nullif` keeps the planner from looking for the pulses of the whole zone at each agent of it; unlike `coalesce` it
-- leaks nothing, so that row-level security lets the index be searched by it.)
select columns(a), columns(p as pulse)
from agents a
join agent_pulses p on p.zone_id = nullif(a.zone_id, '') and p.agent_id = a.id
where a.zone_id = :zone_id
  and (cast(:after as text) is null or a.id > cast(:after as text))
  and (cast(:enabled as bigint) is null or a.coordinator_enabled = cast(:enabled as bigint))
  and (cast(:status as text) is null
       or case when a.status = 'IDLE' and p.held > 0 then 'WORKING' else a.status end = cast(:status as text))
  and (cast(:capability as text) is null or exists (
      select 1
      from agent_capabilities c
      where c.zone_id = nullif(a.zone_id, '') and c.capability = cast(:capability as text) and c.agent_id = a.id))
order by a.id
limit :limit;

-- name: agents_insert
-- Under the zone's lock, under which alone agents come to be, so only those that are not there are written.
insert into agents (zone_id, id, name, model, description, capabilities, max_concurrent_tasks,
    heartbeat_interval_seconds, stale_threshold_seconds, coordinator_enabled, launcher, labels, pool, status,
    status_reason, draining, look_at, terminated_at, created_by, created_at, updated_at)
select columns(b)
from rows(:batch as b, zone_id text, id text, name text, model text, description text, capabilities text,
    max_concurrent_tasks bigint, heartbeat_interval_seconds bigint, stale_threshold_seconds bigint,
    coordinator_enabled smallint, launcher text, labels text, pool text, status text, status_reason text,
    draining smallint, look_at bigint, terminated_at bigint, created_by text, created_at bigint, updated_at bigint);

-- name: agents_update
-- What is said of them anew. The guard names where each may come from, as it was read under the zone's lock; what did
-- not move is not in the answer. (`coalesce` keeps the planner from the index of those that are in error.)
update agents
set name = b.called, model = b.thinks_with, description = b.told, capabilities = b.can, max_concurrent_tasks = b.most,
    heartbeat_interval_seconds = b.beats, stale_threshold_seconds = b.silent, coordinator_enabled = b.enabled,
    launcher = b.launched_by, labels = b.labelled, pool = b.pooled, status = b.becomes, status_reason = b.why,
    draining = b.drains, look_at = b.looked_at, terminated_at = b.ended_at, created_by = b.made_by,
    created_at = b.made_at, updated_at = b.changed_at
from rows(:batch as b, zone text, agent text, was text, called text, thinks_with text, told text, can text,
    most bigint, beats bigint, silent bigint, enabled smallint, launched_by text, labelled text, pooled text,
    becomes text, why text, drains smallint, looked_at bigint, ended_at bigint, made_by text, made_at bigint,
    changed_at bigint)
where zone_id = b.zone and id = b.agent and coalesce(status, '') = b.was
returning id;

-- name: agents_update_status
-- How they stand, and when to look again: narrow, because whoever looks writes many, and nearly always only the latter.
update agents
set status = b.becomes, status_reason = b.why, draining = b.drains, look_at = b.looked_at, terminated_at = b.ended_at,
    updated_at = b.changed_at
from rows(:batch as b, zone text, agent text, was text, becomes text, why text, drains smallint, looked_at bigint,
    ended_at bigint, changed_at bigint)
where zone_id = b.zone and id = b.agent and coalesce(status, '') = b.was
returning id;

-- name: agent_capabilities_delete
-- Those that agents have said anew, before what they can now is written.
delete from agent_capabilities
where (zone_id, capability, agent_id) in (
    select b.zone_id, b.capability, b.agent_id
    from rows(:batch as b, zone_id text, capability text, agent_id text)
);

-- name: agent_capabilities_insert
-- So that a list can be asked for one of them: the JSON beside them is opaque.
insert into agent_capabilities (zone_id, capability, agent_id)
select b.zone_id, b.capability, b.agent_id
from rows(:batch as b, zone_id text, capability text, agent_id text);

-- name: agent_pulses_insert
-- With the agent: to register is to be heard of.
insert into agent_pulses (zone_id, agent_id, status, held, last_seen_at, kept_at)
select b.zone_id, b.agent_id, b.status, 0, b.last_seen_at, 0
from rows(:batch as b, zone_id text, agent_id text, status text, last_seen_at bigint);

-- name: agent_pulses_update
-- One statement for every agent of a batch that was heard of. It touches no index, so each row stays in its page. The
-- rows were locked before: none can have moved, or gone, since they were read.
update agent_pulses
set status = b.fares, current_task_id = b.works_on, progress_percent = b.percent, current_step = b.step,
    memory_mb = b.memory, cpu_percent = b.cpu, last_seen_at = b.seen_at, kept_at = b.was_kept
from rows(:batch as b, zone text, agent text, fares text, works_on text, percent bigint, step text, memory bigint,
    cpu bigint, seen_at bigint, was_kept bigint)
where zone_id = b.zone and agent_id = b.agent;

-- name: agents_adjust_held
-- What agents hold, counted. Only who has spoken is heard of: what others give it, or take from it, says nothing of it.
-- But one that held nothing was perhaps nowhere (it is launched for each task), so its silence counts from the first it
-- is given. Whether it is to end with its last task is told with it.
-- (That is asked of `agents` row by row: joined, the planner would begin with every pulse there is.)
update agent_pulses
set held = case when held + b.delta > 0 then held + b.delta else 0 end,
    last_seen_at = case when b.spoke <> 0 or (held = 0 and b.delta > 0) then :now else last_seen_at end
from rows(:batch as b, zone text, agent text, delta bigint, spoke smallint)
where zone_id = b.zone and agent_id = b.agent
returning zone_id, agent_id, held, (
    select e.draining from agents e where e.zone_id = agent_pulses.zone_id and e.id = agent_pulses.agent_id);

-- name: agent_heartbeats_insert
-- The history of an agent. Ids are made in order of time, so the newest stand last.
insert into agent_heartbeats (id, zone_id, agent_id, status, current_task_id, progress_percent, memory_mb, cpu_percent,
    last_seen_at, next_expected_at, metadata_json)
select columns(b as heartbeat)
from rows(:batch as b, id text, zone_id text, agent_id text, status text, current_task_id text,
    progress_percent bigint, memory_mb bigint, cpu_percent bigint, last_seen_at bigint, next_expected_at bigint,
    metadata_json text);

-- name: agent_heartbeats_recent
-- What was kept of one agent, newest first.
select columns(h as heartbeat)
from agent_heartbeats h
where h.agent_id = :agent_id and h.zone_id = :zone_id
order by h.id desc
limit :limit;

-- name: agent_heartbeats_delete_expired
-- Across zones: the oldest, which stand first by their ids. Whoever comes second finds them gone.
delete from agent_heartbeats
where id in (select h.id from agent_heartbeats h where h.id < :before order by h.id limit :limit)
returning id;

-- name: agents_slice
-- For retention, across zones: so many of all there are, from a place on.
select a.zone_id, a.id, a.terminated_at
from agents a
where (a.zone_id, a.id) > (:zone_id, :id)
order by a.zone_id, a.id
limit :limit;

-- name: agents_delete_expired
-- Who is still as long gone as was found; one that was registered again meanwhile stays.
delete from agents
where (zone_id, id) in (
    select a.zone_id, a.id
    from rows(:batch as b, zone_id text, id text, before bigint)
    join agents a on a.zone_id = b.zone_id and a.id = b.id and coalesce(a.terminated_at, b.before) < b.before
)
returning zone_id, id, capabilities;

-- name: agent_pulses_delete
-- With their agents. The rows were locked before, in order, so that no heartbeat waits for them in a ring.
delete from agent_pulses
where (zone_id, agent_id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text));

-- name: agent_heartbeats_delete_of_agents
-- Likewise; nearly always there are none any more. By the index that begins with the agent.
delete from agent_heartbeats
where (agent_id, zone_id) in (select b.id, b.zone_id from rows(:batch as b, zone_id text, id text));

-- name: agents_liveness_due
-- In all zones, or in the one that is named: those who may have been silent for too long. Most were heard of meanwhile;
-- that is for whoever looks.
select a.zone_id, a.id, p.last_seen_at
from agents a
join agent_pulses p on p.zone_id = a.zone_id and p.agent_id = a.id
where a.look_at is not null and a.look_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(a.zone_id, '') = cast(:zone_id as text))
order by a.look_at
limit :limit;

-- name: agents_next_liveness_due
-- When the next of them will have to be looked at, and what time it is now.
select (select a.look_at from agents a where a.look_at is not null order by a.look_at limit 1), now_ms();

-- name: agents_launch_zones
-- Across zones: where there are agents that these launchers start, found by skipping from zone to zone along their index,
-- so that it costs what is found.
with recursive k (launcher, zone_id) as (
    select b.launcher, (
        select min(a.zone_id) from agents a
        where a.launcher = b.launcher and a.launcher is not null and a.terminated_at is null and a.zone_id > b.after)
    from rows(:batch as b, launcher text, after text)
    union all
    select k.launcher, (
        select min(a.zone_id) from agents a
        where a.launcher = k.launcher and a.launcher is not null and a.terminated_at is null
          and a.zone_id > k.zone_id)
    from k
    where k.zone_id is not null
)
select k.launcher, k.zone_id from k where k.zone_id is not null limit :limit;

-- name: agents_launchable
-- Of those, in zones where there is something to do, the ones that have room for it. (What they must be stands in the
-- batch: said of the table alone, a plan made when that was empty would begin with all of them.)
select columns(a), columns(p as pulse)
from rows(:batch as b, launcher text, zone_id text, status text, enabled smallint, drains smallint)
join agents a on a.launcher = b.launcher and a.zone_id = b.zone_id and a.launcher is not null
join agent_pulses p on p.zone_id = a.zone_id and p.agent_id = a.id
where coalesce(a.status, '') = b.status and a.coordinator_enabled = b.enabled and a.draining = b.drains
  and p.held < a.max_concurrent_tasks
limit :limit;

-- name: agents_in_error_count
-- Across zones, by the index that has no others.
select count(*) from agents a where a.status = 'ERROR';

-- name: agents_count
-- Of one zone, how many stand how. (`nullif` as in `agents_page`.)
select case when a.status = 'IDLE' and p.held > 0 then 'WORKING' else a.status end as shown, count(*)
from agents a
join agent_pulses p on p.zone_id = nullif(a.zone_id, '') and p.agent_id = a.id
where a.zone_id = :zone_id
group by shown;

-- name: agents_list_ids
-- So many of a zone from a place on: narrow, since all of them are gone through again and again.
select a.id
from agents a
where a.zone_id = :zone_id and a.id > :after
order by a.id
limit :limit;
