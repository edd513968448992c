-- The row of a fleet, in the order of `model.rows.Fleet`.
-- columns: zone_id, fleet_id, label, created_at, deleted_at, director_agent_id, created_by
--
-- Of a member, in the order of `Member`.
-- columns member: zone_id, agent_id, fleet_id, registry_id, name, description, status, registered_at, deregistered_at
-- columns member: agent_card_json
--
-- Of a message, in the order of `Message`.
-- columns message: zone_id, task_id, fleet_id, context_id, from_agent_id, to_agent_id, type, created_at, status_state
-- columns message: status_timestamp, origin_task_id, text, notified_at, notice
--
-- Of a placement, in the order of `Placement`.
-- columns placement: zone_id, agent_id, director_agent_id, tmux_session, tmux_window_id, tmux_pane_id, coding_agent
-- columns placement: created_at, host_id, user_id, tmux_socket, tmux_pid
--
-- Of the monitor's rows, in the order of `MonitorConfig` and `MonitorRuntime`.
-- columns config: zone_id, agent_id, interval_seconds, last_ping_at, enabled
-- columns runtime: zone_id, fleet_id, pid, started_at, last_tick_at, tick_seconds, host_id, user_id, policy

-- name: fleet_counters_get
-- The highest ids so far. Under the zone's lock: whoever counts on is alone.
select c.zone_id, c.fleets, c.members, c.messages
from rows(:batch as b, zone_id text)
join fleet_counters c on c.zone_id = b.zone_id;

-- name: fleet_counters_set
-- They only rise, so that no id is ever given out again.
insert into fleet_counters (zone_id, fleets, members, messages)
select b.zone_id, b.fleets, b.members, b.messages
from rows(:batch as b, zone_id text, fleets bigint, members bigint, messages bigint)
where true
on conflict (zone_id) do update set fleets = excluded.fleets, members = excluded.members, messages = excluded.messages
where fleet_counters.fleets <= excluded.fleets and fleet_counters.members <= excluded.members
  and fleet_counters.messages <= excluded.messages;

-- name: fleets_get
-- Gathered: one statement answers for everything that a batch names by id.
select columns(f)
from rows(:batch as b, zone_id text, fleet_id bigint)
join fleets f on f.zone_id = b.zone_id and f.fleet_id = b.fleet_id;

-- name: members_get
-- Also those that have left: their names are shown beside what they said.
select columns(m as member)
from rows(:batch as b, zone_id text, agent_id bigint)
join members m on m.zone_id = b.zone_id and m.agent_id = b.agent_id;

-- name: members_of_fleets
-- Those who are there. What has left does not count, however many that are.
select columns(m as member)
from rows(:batch as b, zone_id text, fleet_id bigint, state text)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state;

-- name: placements_of_fleets
-- The panes of those who are there.
select columns(p as placement)
from rows(:batch as b, zone_id text, fleet_id bigint, state text)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state
join agent_placements p on p.zone_id = m.zone_id and p.agent_id = m.agent_id;

-- name: monitor_configs_get
-- Of those that a batch names, how they are watched over.
select columns(c as config)
from rows(:batch as b, zone_id text, agent_id bigint)
join monitor_config c on c.zone_id = b.zone_id and c.agent_id = b.agent_id;

-- name: monitor_configs_of_fleets
-- Of everybody in a fleet, how they are watched over.
select columns(c as config)
from rows(:batch as b, zone_id text, fleet_id bigint, state text)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state
join monitor_config c on c.zone_id = m.zone_id and c.agent_id = m.agent_id;

-- name: monitor_runtimes_get
-- By whom. Fleets nobody ever watched over have no row.
select columns(r as runtime)
from rows(:batch as b, zone_id text, fleet_id bigint)
join monitor_runtime r on r.zone_id = b.zone_id and r.fleet_id = b.fleet_id;

-- name: fleets_insert
-- Without its director, who is not there yet: that is said by `fleets_set_director`.
insert into fleets (zone_id, fleet_id, label, created_at, deleted_at, created_by)
select b.zone_id, b.fleet_id, b.label, b.created_at, b.deleted_at, b.created_by
from rows(:batch as b, zone_id text, fleet_id bigint, label text, created_at bigint, deleted_at bigint,
    created_by text);

-- name: fleets_set_director
-- The reference back, once the director is there.
update fleets
set director_agent_id = b.director
from rows(:batch as b, zone text, fleet bigint, director bigint)
where zone_id = b.zone and fleet_id = b.fleet;

-- name: fleets_delete
-- Once, and for good. (What it must be stands in the batch: said of the table alone, a plan made when that was empty
-- would begin with all that are so.)
update fleets
set deleted_at = b.at
from rows(:batch as b, zone text, fleet bigint, at bigint, was bigint)
where zone_id = b.zone and fleet_id = b.fleet and coalesce(deleted_at, 0) = b.was
returning fleet_id;

-- name: members_insert
-- Directors before their placements, administrators last: what writes them says which.
insert into members (zone_id, agent_id, fleet_id, registry_id, name, description, status, registered_at, deregistered_at,
    agent_card_json)
select columns(b as member)
from rows(:batch as b, zone_id text, agent_id bigint, fleet_id bigint, registry_id text, name text, description text,
    status text, registered_at bigint, deregistered_at bigint, agent_card_json text);

-- name: members_deregister
-- Guarded by where it comes from, although the zone's lock has kept everybody else away since it was read.
update members
set status = b.left_as, deregistered_at = b.at
from rows(:batch as b, zone text, agent bigint, was text, left_as text, at bigint)
where zone_id = b.zone and agent_id = b.agent and status = b.was
returning agent_id;

-- name: placements_insert
-- Where a pane is, or is to be.
insert into agent_placements (zone_id, agent_id, director_agent_id, tmux_session, tmux_window_id, tmux_pane_id,
    coding_agent, created_at, host_id, user_id, tmux_socket, tmux_pid)
select columns(b as placement)
from rows(:batch as b, zone_id text, agent_id bigint, director_agent_id bigint, tmux_session text, tmux_window_id text,
    tmux_pane_id text, coding_agent text, created_at bigint, host_id text, user_id bigint, tmux_socket text,
    tmux_pid bigint);

-- name: placements_set_pane
-- The pane is there: said once. (What it was stands in the batch, as in `fleets_delete`.)
update agent_placements
set tmux_pane_id = b.pane
from rows(:batch as b, zone text, agent bigint, pane text, was text)
where zone_id = b.zone and agent_id = b.agent and coalesce(tmux_pane_id, '') = b.was
returning agent_id;

-- name: placements_delete
-- It describes nobody any more, and has no history.
delete from agent_placements
where (zone_id, agent_id) in (select b.zone_id, b.agent_id from rows(:batch as b, zone_id text, agent_id bigint));

-- name: monitor_configs_set
-- Of those who got a pane, are watched over otherwise, or were pinged.
insert into monitor_config (zone_id, agent_id, interval_seconds, last_ping_at, enabled)
select columns(b as config)
from rows(:batch as b, zone_id text, agent_id bigint, interval_seconds bigint, last_ping_at bigint, enabled smallint)
where true
on conflict (zone_id, agent_id) do update
set interval_seconds = excluded.interval_seconds, last_ping_at = excluded.last_ping_at, enabled = excluded.enabled;

-- name: monitor_configs_delete
-- With the pane goes the watch over it.
delete from monitor_config
where (zone_id, agent_id) in (select b.zone_id, b.agent_id from rows(:batch as b, zone_id text, agent_id bigint));

-- name: monitor_runtimes_set
-- Whoever has claimed it, is still there, or has gone.
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
-- With the fleet goes whoever watches over it.
delete from monitor_runtime
where (zone_id, fleet_id) in (select b.zone_id, b.fleet_id from rows(:batch as b, zone_id text, fleet_id bigint));

-- name: messages_get
-- Those that a batch names by id.
select columns(t as message)
from rows(:batch as b, zone_id text, task_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id = b.task_id;

-- name: messages_get_deliveries
-- Of broadcasts that are asked for once more: what was delivered follows each summary, one id after the other.
select columns(t as message)
from rows(:batch as b, zone_id text, first_id bigint, last_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id > b.first_id and t.task_id <= b.last_id
where t.origin_task_id = b.first_id;

-- name: messages_insert
-- A broadcast's summary and its deliveries come in one piece, or not at all.
insert into messages (zone_id, task_id, fleet_id, context_id, from_agent_id, to_agent_id, type, created_at, status_state,
    status_timestamp, origin_task_id, text, notified_at, notice)
select columns(b as message)
from rows(:batch as b, zone_id text, task_id bigint, fleet_id bigint, context_id bigint, from_agent_id bigint, to_agent_id
    bigint, type text, created_at bigint, status_state text, status_timestamp bigint, origin_task_id bigint, text text,
    notified_at bigint, notice text);

-- name: messages_update
-- Guarded by where it comes from: of two who end it at once, one does.
update messages
set status_state = b.to_state, status_timestamp = b.at, notified_at = b.notified, notice = b.why
from rows(:batch as b, zone text, message bigint, was text, to_state text, at bigint, notified bigint, why text)
where zone_id = b.zone and task_id = b.message and status_state = b.was
returning task_id;
