-- An agent and its pulse (the state of its last heartbeat), together in the field order of `model.Agent`.
-- columns: zone_id, id, name, model, description, capabilities, max_concurrent_tasks, heartbeat_interval_seconds
-- columns: stale_threshold_seconds, coordinator_enabled, launcher, labels, pool, status, status_reason, draining
-- columns: look_at, terminated_at, created_by, created_at, updated_at
--
-- columns pulse: status, held, current_task_id, progress_percent, current_step, memory_mb, cpu_percent
-- columns pulse: last_seen_at, kept_at
--
-- A stored heartbeat, in the field order of `model.Heartbeat`.
-- columns heartbeat: id, zone_id, agent_id, status, current_task_id, progress_percent, memory_mb, cpu_percent
-- columns heartbeat: last_seen_at, next_expected_at, metadata_json

-- name: agents_contact_state
-- Agents with a waiting claim, in the field order of `model.WaitingAgent`. Few columns, because the statement runs
-- often and reads all these agents.
select a.zone_id, a.id, a.status, a.draining, a.stale_threshold_seconds, p.last_seen_at
from rows(:batch as b, zone_id text, id text)
join agents a on a.zone_id = b.zone_id and a.id = b.id
join agent_pulses p on p.zone_id = b.zone_id and p.agent_id = b.id;

-- name: agents_get
-- Reads all agents of a batch in one statement, so that it can be part of the batch's first round trip.
select columns(a), columns(p as pulse)
from rows(:batch as b, zone_id text, id text)
join agents a on a.zone_id = b.zone_id and a.id = b.id
join agent_pulses p on p.zone_id = a.zone_id and p.agent_id = a.id;

-- name: agent_pulses_lock
-- Locks in order of the primary key, so that heartbeats, which take no other lock, cannot deadlock with transactions
-- that hold a zone's lock. Run it before the reads that a decision depends on.
select p.agent_id
from agent_pulses p
where (p.zone_id, p.agent_id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text))
order by p.zone_id, p.agent_id
for update;

-- name: agents_page
-- planned: each time
-- In order of the primary key. A null filter matches every agent. All filters apply before the limit.
-- (`nullif` keeps the planner from scanning all pulses of the zone for each agent. Unlike `coalesce` it is leakproof,
-- so row-level security allows it in an index condition.)
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
-- Agents are inserted only under the zone's lock, so a conflict is impossible.
insert into agents (zone_id, id, name, model, description, capabilities, max_concurrent_tasks,
    heartbeat_interval_seconds, stale_threshold_seconds, coordinator_enabled, launcher, labels, pool, status,
    status_reason, draining, look_at, terminated_at, created_by, created_at, updated_at)
select columns(b)
from rows(:batch as b, zone_id text, id text, name text, model text, description text, capabilities text,
    max_concurrent_tasks bigint, heartbeat_interval_seconds bigint, stale_threshold_seconds bigint,
    coordinator_enabled smallint, launcher text, labels text, pool text, status text, status_reason text,
    draining smallint, look_at bigint, terminated_at bigint, created_by text, created_at bigint, updated_at bigint);

-- name: agents_update
-- For a registration. `was` is the status as read under the zone's lock. An agent whose status differs is neither
-- updated nor returned. (`coalesce` keeps the planner from using the partial index on agents in ERROR.)
update agents
set name = b.new_name, model = b.new_model, description = b.new_description, capabilities = b.new_capabilities,
    max_concurrent_tasks = b.new_max, heartbeat_interval_seconds = b.new_interval,
    stale_threshold_seconds = b.new_threshold, coordinator_enabled = b.new_enabled, launcher = b.new_launcher,
    labels = b.new_labels, pool = b.new_pool, status = b.new_status, status_reason = b.new_reason,
    draining = b.new_draining, look_at = b.new_look_at, terminated_at = b.new_terminated_at,
    created_by = b.new_created_by, created_at = b.new_created_at, updated_at = b.new_updated_at
from rows(:batch as b, zone text, agent text, was text, new_name text, new_model text, new_description text,
    new_capabilities text, new_max bigint, new_interval bigint, new_threshold bigint, new_enabled smallint,
    new_launcher text, new_labels text, new_pool text, new_status text, new_reason text, new_draining smallint,
    new_look_at bigint, new_terminated_at bigint, new_created_by text, new_created_at bigint, new_updated_at bigint)
where zone_id = b.zone and id = b.agent and coalesce(status, '') = b.was
returning id;

-- name: agents_update_status
-- Few columns, because liveness checks update many agents and nearly always change only `look_at`.
update agents
set status = b.new_status, status_reason = b.new_reason, draining = b.new_draining, look_at = b.new_look_at,
    terminated_at = b.new_terminated_at, updated_at = b.new_updated_at
from rows(:batch as b, zone text, agent text, was text, new_status text, new_reason text, new_draining smallint,
    new_look_at bigint, new_terminated_at bigint, new_updated_at bigint)
where zone_id = b.zone and id = b.agent and coalesce(status, '') = b.was
returning id;

-- name: agent_capabilities_delete
-- Deletes the capabilities that a registration removed, or those of deleted agents.
delete from agent_capabilities
where (zone_id, capability, agent_id) in (
    select b.zone_id, b.capability, b.agent_id
    from rows(:batch as b, zone_id text, capability text, agent_id text)
);

-- name: agent_capabilities_insert
-- For the capability filter of `agents_page`, which cannot search the JSON column of `agents`.
insert into agent_capabilities (zone_id, capability, agent_id)
select b.zone_id, b.capability, b.agent_id
from rows(:batch as b, zone_id text, capability text, agent_id text);

-- name: agent_pulses_insert
-- One pulse for each inserted agent. A registration counts as a heartbeat, so it sets `last_seen_at`.
insert into agent_pulses (zone_id, agent_id, status, held, last_seen_at, kept_at)
select b.zone_id, b.agent_id, b.status, 0, b.last_seen_at, 0
from rows(:batch as b, zone_id text, agent_id text, status text, last_seen_at bigint);

-- name: agent_pulses_update
-- One statement for all heartbeats of a batch. No updated column is indexed, so the updates are HOT. The rows are
-- locked, so none has changed since it was read.
update agent_pulses
set status = b.new_status, current_task_id = b.new_task, progress_percent = b.new_percent, current_step = b.new_step,
    memory_mb = b.new_memory, cpu_percent = b.new_cpu, last_seen_at = b.new_seen_at, kept_at = b.new_kept_at
from rows(:batch as b, zone text, agent text, new_status text, new_task text, new_percent bigint, new_step text,
    new_memory bigint, new_cpu bigint, new_seen_at bigint, new_kept_at bigint)
where zone_id = b.zone and agent_id = b.agent;

-- name: agents_adjust_held
-- Changes the number of held tasks. `seen` is 1 for agents that sent the command themselves: commands of other callers
-- do not update `last_seen_at`. There is one exception: an agent without tasks may not be running, because it may be
-- launched for each task, so its first task also updates `last_seen_at`. Returns `draining`, because a draining agent
-- is terminated after its last task.
-- (`draining` is a subquery: with a join, the planner would start with all pulses.)
update agent_pulses
set held = case when held + b.delta > 0 then held + b.delta else 0 end,
    last_seen_at = case when b.seen <> 0 or (held = 0 and b.delta > 0) then :now else last_seen_at end
from rows(:batch as b, zone text, agent text, delta bigint, seen smallint)
where zone_id = b.zone and agent_id = b.agent
returning zone_id, agent_id, held, (
    select e.draining from agents e where e.zone_id = agent_pulses.zone_id and e.id = agent_pulses.agent_id);

-- name: agent_heartbeats_insert
-- The history of an agent. Ids increase with time.
insert into agent_heartbeats (id, zone_id, agent_id, status, current_task_id, progress_percent, memory_mb, cpu_percent,
    last_seen_at, next_expected_at, metadata_json)
select columns(b as heartbeat)
from rows(:batch as b, id text, zone_id text, agent_id text, status text, current_task_id text,
    progress_percent bigint, memory_mb bigint, cpu_percent bigint, last_seen_at bigint, next_expected_at bigint,
    metadata_json text);

-- name: agent_heartbeats_recent
-- The stored heartbeats of one agent, newest first.
select columns(h as heartbeat)
from agent_heartbeats h
where h.agent_id = :agent_id and h.zone_id = :zone_id
order by h.id desc
limit :limit;

-- name: agent_heartbeats_delete_expired
-- Across zones, in order of id, so oldest first. If two processes run the statement at the same time, the second finds
-- the rows already deleted.
delete from agent_heartbeats
where id in (select h.id from agent_heartbeats h where h.id < :before order by h.id limit :limit)
returning id;

-- name: agents_slice
-- For retention, across zones: the next agents after a position.
select a.zone_id, a.id, a.terminated_at
from agents a
where (a.zone_id, a.id) > (:zone_id, :id)
order by a.zone_id, a.id
limit :limit;

-- name: agents_delete_expired
-- Checks the termination time again: an agent that was registered again in the meantime is not deleted.
delete from agents
where (zone_id, id) in (
    select a.zone_id, a.id
    from rows(:batch as b, zone_id text, id text, before bigint)
    join agents a on a.zone_id = b.zone_id and a.id = b.id and coalesce(a.terminated_at, b.before) < b.before
)
returning zone_id, id, capabilities;

-- name: agent_pulses_delete
-- The pulses of deleted agents. `agent_pulses_lock` has locked these rows in order, so heartbeats cannot deadlock with
-- this statement.
delete from agent_pulses
where (zone_id, agent_id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text));

-- name: agent_heartbeats_delete_of_agents
-- The heartbeats of deleted agents. Usually none are left. Uses the index that starts with the agent.
delete from agent_heartbeats
where (agent_id, zone_id) in (select b.id, b.zone_id from rows(:batch as b, zone_id text, id text));

-- name: agents_liveness_due
-- Agents whose check is due, in all zones or in one. Most are not stale: heartbeats do not update `look_at`.
select a.zone_id, a.id, p.last_seen_at
from agents a
join agent_pulses p on p.zone_id = a.zone_id and p.agent_id = a.id
where a.look_at is not null and a.look_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(a.zone_id, '') = cast(:zone_id as text))
order by a.look_at
limit :limit;

-- name: agents_next_liveness_due
-- When the next check is due, and the current time.
select (select a.look_at from agents a where a.look_at is not null order by a.look_at limit 1), now_ms();

-- name: agents_launch_zones
-- Zones with agents of these launchers. Skips from zone to zone in the index, so the cost grows with the number of
-- zones found, not with the number of agents.
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
-- Agents of these launchers and zones with a free slot. (The required values are columns of the batch: with literals, a
-- plan made while the table was empty would start with all agents.)
select columns(a), columns(p as pulse)
from rows(:batch as b, launcher text, zone_id text, status text, enabled smallint, draining smallint)
join agents a on a.launcher = b.launcher and a.zone_id = b.zone_id and a.launcher is not null
join agent_pulses p on p.zone_id = a.zone_id and p.agent_id = a.id
where coalesce(a.status, '') = b.status and a.coordinator_enabled = b.enabled and a.draining = b.draining
  and p.held < a.max_concurrent_tasks
limit :limit;

-- name: agents_in_error_count
-- Across zones. Uses the partial index on agents in ERROR.
select count(*) from agents a where a.status = 'ERROR';

-- name: agents_count
-- The agents of one zone by displayed status. (`nullif` as in `agents_page`.)
select case when a.status = 'IDLE' and p.held > 0 then 'WORKING' else a.status end as displayed, count(*)
from agents a
join agent_pulses p on p.zone_id = nullif(a.zone_id, '') and p.agent_id = a.id
where a.zone_id = :zone_id
group by displayed;

-- name: agents_list_ids
-- The next ids after an id. Reads no other column, because the Redis mirror reads all agents repeatedly.
select a.id
from agents a
where a.zone_id = :zone_id and a.id > :after
order by a.id
limit :limit;
