-- The columns of a fleet, in the field order of `model.rows.Fleet`.
-- columns: zone_id, fleet_id, label, created_at, deleted_at, director_agent_id, created_by
--
-- The columns of a member, in the field order of `Member`.
-- columns member: zone_id, agent_id, fleet_id, registry_id, name, description, status, registered_at, deregistered_at
-- columns member: agent_card_json
--
-- The columns of a message, in the field order of `Message`.
-- columns message: zone_id, task_id, fleet_id, context_id, from_agent_id, to_agent_id, type, created_at, status_state
-- columns message: status_timestamp, origin_task_id, text, notified_at, notice
--
-- The columns of a placement, in the field order of `Placement`.
-- columns placement: zone_id, agent_id, director_agent_id, tmux_session, tmux_window_id, tmux_pane_id, coding_agent
-- columns placement: created_at, host_id, user_id, tmux_socket, tmux_pid
--
-- The columns of the monitor's rows, in the field order of `MonitorConfig` and `MonitorRuntime`.
-- columns config: zone_id, agent_id, interval_seconds, last_ping_at, enabled
-- columns runtime: zone_id, fleet_id, pid, started_at, last_tick_at, tick_seconds, host_id, user_id, policy

-- name: fleet_counters_get
-- The highest ids used so far. Read under the zone's lock, so no other transaction can use the next ids.
select c.zone_id, c.fleets, c.members, c.messages
from rows(:batch as b, zone_id text)
join fleet_counters c on c.zone_id = b.zone_id;

-- name: fleet_counters_set
-- Counters never decrease, so no id is used twice.
insert into fleet_counters (zone_id, fleets, members, messages)
select b.zone_id, b.fleets, b.members, b.messages
from rows(:batch as b, zone_id text, fleets bigint, members bigint, messages bigint)
where true
on conflict (zone_id) do update set fleets = excluded.fleets, members = excluded.members, messages = excluded.messages
where fleet_counters.fleets <= excluded.fleets and fleet_counters.members <= excluded.members
  and fleet_counters.messages <= excluded.messages;

-- name: fleets_get
-- Loads all fleets in the batch with one statement.
select columns(f)
from rows(:batch as b, zone_id text, fleet_id bigint)
join fleets f on f.zone_id = b.zone_id and f.fleet_id = b.fleet_id;

-- name: members_get
-- Includes deregistered members: messages still show their names.
select columns(m as member)
from rows(:batch as b, zone_id text, agent_id bigint)
join members m on m.zone_id = b.zone_id and m.agent_id = b.agent_id;

-- name: members_of_fleets
-- The members in the given state. The index includes the status, so members in the other state are not scanned.
select columns(m as member)
from rows(:batch as b, zone_id text, fleet_id bigint, state text)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state;

-- name: placements_of_fleets
-- The placements of the members in the given state.
select columns(p as placement)
from rows(:batch as b, zone_id text, fleet_id bigint, state text)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state
join agent_placements p on p.zone_id = m.zone_id and p.agent_id = m.agent_id;

-- name: monitor_configs_get
-- The monitor configurations of the members in the batch.
select columns(c as config)
from rows(:batch as b, zone_id text, agent_id bigint)
join monitor_config c on c.zone_id = b.zone_id and c.agent_id = b.agent_id;

-- name: monitor_configs_of_fleets
-- The monitor configurations of all members in the given state.
select columns(c as config)
from rows(:batch as b, zone_id text, fleet_id bigint, state text)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state
join monitor_config c on c.zone_id = m.zone_id and c.agent_id = m.agent_id;

-- name: monitor_runtimes_get
-- The process that monitors each fleet. A fleet that was never monitored has no row.
select columns(r as runtime)
from rows(:batch as b, zone_id text, fleet_id bigint)
join monitor_runtime r on r.zone_id = b.zone_id and r.fleet_id = b.fleet_id;

-- name: fleets_insert
-- Omits the director, whose row does not exist yet. `fleets_set_director` sets it later.
insert into fleets (zone_id, fleet_id, label, created_at, deleted_at, created_by)
select b.zone_id, b.fleet_id, b.label, b.created_at, b.deleted_at, b.created_by
from rows(:batch as b, zone_id text, fleet_id bigint, label text, created_at bigint, deleted_at bigint,
    created_by text);

-- name: fleets_set_director
-- Sets the reference to the director after the director's row has been inserted.
update fleets
set director_agent_id = b.director
from rows(:batch as b, zone text, fleet bigint, director bigint)
where zone_id = b.zone and fleet_id = b.fleet;

-- name: fleets_delete
-- Marks a fleet as deleted, at most once. The expected old value is a column of the batch: with a constant condition,
-- a plan cached while the table was empty would first scan all fleets that are not deleted.
update fleets
set deleted_at = b.at
from rows(:batch as b, zone text, fleet bigint, at bigint, was bigint)
where zone_id = b.zone and fleet_id = b.fleet and coalesce(deleted_at, 0) = b.was
returning fleet_id;

-- name: members_insert
-- The operation runs this before it inserts placements, and again for administrators at the end.
insert into members (zone_id, agent_id, fleet_id, registry_id, name, description, status, registered_at, deregistered_at,
    agent_card_json)
select columns(b as member)
from rows(:batch as b, zone_id text, agent_id bigint, fleet_id bigint, registry_id text, name text, description text,
    status text, registered_at bigint, deregistered_at bigint, agent_card_json text);

-- name: members_deregister
-- Updates only rows that still have the old status, although the zone's lock already prevents concurrent changes.
update members
set status = b.left_as, deregistered_at = b.at
from rows(:batch as b, zone text, agent bigint, was text, left_as text, at bigint)
where zone_id = b.zone and agent_id = b.agent and status = b.was
returning agent_id;

-- name: placements_insert
-- Stores where a pane is, or where it will be created.
insert into agent_placements (zone_id, agent_id, director_agent_id, tmux_session, tmux_window_id, tmux_pane_id,
    coding_agent, created_at, host_id, user_id, tmux_socket, tmux_pid)
select columns(b as placement)
from rows(:batch as b, zone_id text, agent_id bigint, director_agent_id bigint, tmux_session text, tmux_window_id text,
    tmux_pane_id text, coding_agent text, created_at bigint, host_id text, user_id bigint, tmux_socket text,
    tmux_pid bigint);

-- name: placements_set_pane
-- Sets the id of a created pane, at most once. The expected old value is in the batch, as in `fleets_delete`.
update agent_placements
set tmux_pane_id = b.pane
from rows(:batch as b, zone text, agent bigint, pane text, was text)
where zone_id = b.zone and agent_id = b.agent and coalesce(tmux_pane_id, '') = b.was
returning agent_id;

-- name: placements_delete
-- Deletes the placements of deregistered members: no history of placements is kept.
delete from agent_placements
where (zone_id, agent_id) in (select b.zone_id, b.agent_id from rows(:batch as b, zone_id text, agent_id bigint));

-- name: monitor_configs_set
-- Written when a member gets a placement, is reconfigured or is pinged.
insert into monitor_config (zone_id, agent_id, interval_seconds, last_ping_at, enabled)
select columns(b as config)
from rows(:batch as b, zone_id text, agent_id bigint, interval_seconds bigint, last_ping_at bigint, enabled smallint)
where true
on conflict (zone_id, agent_id) do update
set interval_seconds = excluded.interval_seconds, last_ping_at = excluded.last_ping_at, enabled = excluded.enabled;

-- name: monitor_configs_delete
-- A member without a placement is not monitored.
delete from monitor_config
where (zone_id, agent_id) in (select b.zone_id, b.agent_id from rows(:batch as b, zone_id text, agent_id bigint));

-- name: monitor_runtimes_set
-- Written by a monitor's claim, heartbeat and release.
insert into monitor_runtime (zone_id, fleet_id, pid, started_at, last_tick_at, tick_seconds, host_id, user_id, policy)
select columns(b as runtime)
from rows(:batch as b, zone_id text, fleet_id bigint, pid bigint, started_at bigint, last_tick_at bigint, tick_seconds
    bigint, host_id text, user_id bigint, policy text)
where true
on conflict (zone_id, fleet_id) do update
set pid = excluded.pid, started_at = excluded.started_at, last_tick_at = excluded.last_tick_at,
    tick_seconds = excluded.tick_seconds, host_id = excluded.host_id, user_id = excluded.user_id,
    policy = excluded.policy;

-- name: monitor_runtimes_delete
-- A deleted fleet has no monitor.
delete from monitor_runtime
where (zone_id, fleet_id) in (select b.zone_id, b.fleet_id from rows(:batch as b, zone_id text, fleet_id bigint));

-- name: messages_get
-- The messages in the batch.
select columns(t as message)
from rows(:batch as b, zone_id text, task_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id = b.task_id;

-- name: messages_get_deliveries
-- The deliveries of earlier broadcasts, for repeated requests. The ids of deliveries follow the id of the summary.
select columns(t as message)
from rows(:batch as b, zone_id text, first_id bigint, last_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id > b.first_id and t.task_id <= b.last_id
where t.origin_task_id = b.first_id;

-- name: messages_insert
-- New messages. The summary and all deliveries of a broadcast are inserted in one transaction.
insert into messages (zone_id, task_id, fleet_id, context_id, from_agent_id, to_agent_id, type, created_at, status_state,
    status_timestamp, origin_task_id, text, notified_at, notice)
select columns(b as message)
from rows(:batch as b, zone_id text, task_id bigint, fleet_id bigint, context_id bigint, from_agent_id bigint, to_agent_id
    bigint, type text, created_at bigint, status_state text, status_timestamp bigint, origin_task_id bigint, text text,
    notified_at bigint, notice text);

-- name: messages_update
-- Updates only rows that still have the old state, although the zone's lock already prevents concurrent changes.
update messages
set status_state = b.to_state, status_timestamp = b.at, notified_at = b.notified, notice = b.why
from rows(:batch as b, zone text, message bigint, was text, to_state text, at bigint, notified bigint, why text)
where zone_id = b.zone and task_id = b.message and status_state = b.was
returning task_id;
