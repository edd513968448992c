-- name: check_fleets
-- A live fleet has exactly one administrator and one director. A deleted fleet has no active members. Only the
-- administrator has no entry in the agent registry.
select f.zone_id, f.fleet_id, case when f.deleted_at is null then 'live' else 'deleted' end,
       coalesce(n.administrators, 0), coalesce(n.directors, 0), coalesce(n.members, 0)
from fleets f
left join (
    select m.zone_id, m.fleet_id, count(*) as members,
           sum(case when m.registry_id is null then 1 else 0 end) as administrators,
           sum(case when m.registry_id is not null and m.agent_id = d.director_agent_id then 1 else 0 end) as directors
    from members m
    join fleets d on d.zone_id = m.zone_id and d.fleet_id = m.fleet_id
    where m.status = 'active'
    group by m.zone_id, m.fleet_id
) n on n.zone_id = f.zone_id and n.fleet_id = f.fleet_id
where (f.deleted_at is null and (coalesce(n.administrators, 0) <> 1 or coalesce(n.directors, 0) <> 1))
   or (f.deleted_at is not null and coalesce(n.members, 0) <> 0)
order by f.zone_id, f.fleet_id;

-- name: check_fleet_members
-- A member has a `deregistered_at` if and only if it has left. Its registry id is derived from the ids of the fleet and
-- the member. The administrator has no registry id. It is recognized by the end of its agent card, which callers cannot
-- influence.
select m.zone_id, m.agent_id, m.fleet_id, m.status
from members m
where m.status not in ('active', 'deregistered')
   or (m.status = 'active') <> (m.deregistered_at is null)
   or m.registry_id <> 'fleet-' || cast(m.fleet_id as text) || '-' || cast(m.agent_id as text)
   or (m.registry_id is null) <>
      (substr(m.agent_card_json, length(m.agent_card_json) - 42) = '"cafleet":{"kind":"builtin-administrator"}}')
order by m.zone_id, m.agent_id;

-- name: check_fleet_registry
-- The agent of an active member exists and is not TERMINATED. It may be stale, because a stale agent may recover.
-- The agent of a member that has left is TERMINATED or deleted.
select m.zone_id, m.agent_id, m.fleet_id, m.status, m.registry_id, coalesce(a.status, 'missing')
from members m
left join agents a on a.zone_id = m.zone_id and a.id = m.registry_id
where m.registry_id is not null
  and ((m.status = 'active' and coalesce(a.status, 'TERMINATED') = 'TERMINATED')
       or (m.status <> 'active' and a.status <> 'TERMINATED'))
order by m.zone_id, m.agent_id;

-- name: check_fleet_panes
-- Only active members have a pane, and the administrator has none. The pane's director is the director of the fleet.
-- A member has a monitor configuration if and only if it has a pane.
select p.zone_id, p.agent_id, 'has a pane, but has left its fleet'
from agent_placements p
join members m on m.zone_id = p.zone_id and m.agent_id = p.agent_id
where m.status <> 'active'
union all
select p.zone_id, p.agent_id, 'has a pane, but is an administrator'
from agent_placements p
join members m on m.zone_id = p.zone_id and m.agent_id = p.agent_id
where m.registry_id is null
union all
select p.zone_id, p.agent_id, 'has a pane whose director is not the director of its fleet'
from agent_placements p
join members m on m.zone_id = p.zone_id and m.agent_id = p.agent_id
join fleets f on f.zone_id = m.zone_id and f.fleet_id = m.fleet_id
where coalesce(p.director_agent_id, m.agent_id) <> coalesce(f.director_agent_id, 0)
union all
select p.zone_id, p.agent_id, 'has a pane, but no monitor configuration'
from agent_placements p
left join monitor_config c on c.zone_id = p.zone_id and c.agent_id = p.agent_id
where c.agent_id is null
union all
select c.zone_id, c.agent_id, 'has a monitor configuration, but no pane'
from monitor_config c
left join agent_placements p on p.zone_id = c.zone_id and p.agent_id = c.agent_id
where p.agent_id is null
order by 1, 2, 3;

-- name: check_fleet_monitors
-- A deleted fleet has no monitor. The row of a monitor that has exited has no pid or times.
select r.zone_id, r.fleet_id, coalesce(cast(r.pid as text), 'none'),
       case when f.deleted_at is null then 'live' else 'deleted' end
from monitor_runtime r
join fleets f on f.zone_id = r.zone_id and f.fleet_id = r.fleet_id
where f.deleted_at is not null
   or (r.pid is null) <> (r.started_at is null) or (r.pid is null) <> (r.last_tick_at is null)
order by r.zone_id, r.fleet_id;

-- name: check_fleet_ids
-- A counter is at least the highest id, because an id must never be used twice.
select h.zone_id, h.noun, coalesce(
           case h.noun when 'fleets' then c.fleets when 'members' then c.members else c.messages end, 0), h.highest
from (
    select f.zone_id, 'fleets' as noun, max(f.fleet_id) as highest from fleets f group by f.zone_id
    union all
    select m.zone_id, 'members', max(m.agent_id) from members m group by m.zone_id
    union all
    select t.zone_id, 'messages', max(t.task_id) from messages t group by t.zone_id
) h
left join fleet_counters c on c.zone_id = h.zone_id
where coalesce(case h.noun when 'fleets' then c.fleets when 'members' then c.members else c.messages end, 0) < h.highest
order by h.zone_id, h.noun;

-- name: check_messages
-- While a message is waiting for its recipient (`input_required`), its status timestamp is the time at which it was
-- sent. At most one of `notified_at` and `notice` is set. A broadcast summary has no recipient and is completed. The
-- order of the times is not checked, because the database's clock may have been set back.
select t.zone_id, t.task_id, t.type, t.status_state
from messages t
where t.type not in ('unicast', 'broadcast_summary')
   or t.status_state not in ('input_required', 'completed', 'canceled')
   or (t.status_state = 'input_required' and t.status_timestamp <> t.created_at)
   or (t.notified_at is not null and t.notice is not null)
   or (t.type = 'unicast' and (t.context_id <> t.to_agent_id or t.origin_task_id = t.task_id))
   or (t.type = 'broadcast_summary'
       and (t.to_agent_id <> 0 or t.context_id <> t.from_agent_id or t.status_state <> 'completed'
            or t.status_timestamp <> t.created_at or coalesce(t.origin_task_id, 0) <> t.task_id
            or t.notified_at is not null or t.notice is not null))
order by t.zone_id, t.task_id;

-- name: check_message_endpoints
-- Sender and recipient are or were members of the message's fleet. The administrator receives no messages.
select t.zone_id, t.task_id, t.fleet_id, 'from', t.from_agent_id
from messages t
left join members m on m.zone_id = t.zone_id and m.agent_id = t.from_agent_id
where m.agent_id is null or m.fleet_id <> t.fleet_id
union all
select t.zone_id, t.task_id, t.fleet_id, 'to', t.to_agent_id
from messages t
left join members m on m.zone_id = t.zone_id and m.agent_id = t.to_agent_id
where t.type = 'unicast' and (m.agent_id is null or m.fleet_id <> t.fleet_id or m.registry_id is null)
order by 1, 2, 4;

-- name: check_broadcasts
-- A broadcast has as many deliveries as its summary states, one per recipient. Their ids directly follow the id of the
-- summary, because the timeline finds them by this range of ids.
select s.zone_id, s.task_id, s.text, coalesce(d.deliveries, 0), coalesce(d.recipients, 0),
       coalesce(d.last_id, s.task_id)
from messages s
left join (
    select t.zone_id, t.origin_task_id, count(*) as deliveries, count(distinct t.to_agent_id) as recipients,
           max(t.task_id) as last_id
    from messages t
    where t.type = 'unicast' and t.origin_task_id is not null
    group by t.zone_id, t.origin_task_id
) d on d.zone_id = s.zone_id and d.origin_task_id = s.task_id
where s.type = 'broadcast_summary'
  and (s.text <> 'Broadcast sent to ' || cast(coalesce(d.deliveries, 0) as text) || ' recipients'
       or d.recipients <> d.deliveries or d.last_id <> s.task_id + d.deliveries)
order by s.zone_id, s.task_id;

-- name: check_deliveries
-- A delivery and its broadcast have the same sender, fleet and time.
select t.zone_id, t.task_id, t.origin_task_id,
       case when s.task_id is null then 'does not exist' else 'does not match the delivery' end
from messages t
left join messages s on s.zone_id = t.zone_id and s.task_id = t.origin_task_id
where t.type = 'unicast' and t.origin_task_id is not null
  and (s.task_id is null or s.type <> 'broadcast_summary' or s.fleet_id <> t.fleet_id
       or s.from_agent_id <> t.from_agent_id or s.created_at <> t.created_at or s.task_id >= t.task_id)
order by t.zone_id, t.task_id;
