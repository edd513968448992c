-- name: fleets_page
-- The fleets of a zone, newest first. Deleted fleets are included on request.
select columns(f)
from fleets f
where f.zone_id = :zone_id and f.fleet_id < :before and (coalesce(f.deleted_at, 0) = 0 or :with_deleted = 1)
order by f.fleet_id desc
limit :limit;

-- name: fleets_root_members
-- The director and the administrator of each fleet. Only the administrator has no `registry_id`.
select columns(m as member)
from rows(:batch as b, zone_id text, fleet_id bigint, state text, director_id bigint)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state
where m.agent_id = b.director_id or m.registry_id is null;

-- name: fleets_count_members
-- The number of members in the given state, per fleet.
select b.zone_id, b.fleet_id, (
    select count(*) from members m where m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state)
from rows(:batch as b, zone_id text, fleet_id bigint, state text);

-- name: members_page
-- The members of a fleet in the given state, in the order of registration. The index includes the status, so
-- deregistered members do not slow down a list of active ones. `coalesce` hides the id from the planner, which would
-- otherwise scan all members of the zone by id.
select columns(m as member)
from members m
where m.zone_id = :zone_id and m.fleet_id = :fleet_id and m.status = :state and coalesce(m.agent_id, 0) > :after
order by coalesce(m.agent_id, 0)
limit :limit;

-- name: members_get_names
-- The names of members. Includes deregistered members: messages still show their names.
select m.zone_id, m.agent_id, m.name
from rows(:batch as b, zone_id text, agent_id bigint)
join members m on m.zone_id = b.zone_id and m.agent_id = b.agent_id;

-- name: placements_get
-- The placements of the members in the batch.
select columns(p as placement)
from rows(:batch as b, zone_id text, agent_id bigint)
join agent_placements p on p.zone_id = b.zone_id and p.agent_id = b.agent_id;

-- name: messages_notice_states
-- For messages whose notices are about to be typed: their state, and the recipient's current pane.
select t.zone_id, t.task_id, t.status_state, p.tmux_pane_id
from rows(:batch as b, zone_id text, task_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id = b.task_id
left join agent_placements p on p.zone_id = t.zone_id and p.agent_id = t.to_agent_id;

-- name: messages_unread_counts
-- The number of unread messages per member. Unread messages have a partial index.
select b.zone_id, b.agent_id, (
    select count(*) from messages t
    where t.context_id = b.agent_id and t.zone_id = b.zone_id and t.status_state = 'input_required')
from rows(:batch as b, zone_id text, agent_id bigint);

-- name: messages_newest_unread
-- The newest unread message and the status of each polling member. Runs once for all long polls of a process.
select b.zone_id, b.agent_id, (
    select max(t.task_id) from messages t
    where t.context_id = b.agent_id and t.zone_id = b.zone_id and t.status_state = 'input_required'),
    (select m.status from members m where m.zone_id = b.zone_id and m.agent_id = b.agent_id)
from rows(:batch as b, zone_id text, agent_id bigint);

-- name: messages_unread
-- The unread messages of a member, newest first. Acknowledged and canceled messages are not in the partial index.
select columns(t as message)
from messages t
where t.context_id = :agent_id and t.zone_id = :zone_id and t.status_state = 'input_required' and t.task_id > :after
  and t.task_id < :before
order by t.task_id desc
limit :limit;

-- name: messages_unread_oldest
-- `messages_unread`, oldest first.
select columns(t as message)
from messages t
where t.context_id = :agent_id and t.zone_id = :zone_id and t.status_state = 'input_required' and t.task_id > :after
  and t.task_id < :before
order by t.task_id
limit :limit;

-- name: messages_inbox
-- planned: each time
-- The messages to a member after a position, ordered by the time of their last state change, newest first.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.context_id = :agent_id and t.status_timestamp <= :at
  and (t.status_timestamp < :at or coalesce(t.task_id, 0) < :id) and coalesce(t.task_id, 0) > :after
  and t.type = 'unicast' and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp desc, coalesce(t.task_id, 0) desc
limit :limit;

-- name: messages_inbox_oldest
-- planned: each time
-- `messages_inbox`, oldest first.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.context_id = :agent_id and t.status_timestamp >= :at
  and (t.status_timestamp > :at or coalesce(t.task_id, 0) > :id) and coalesce(t.task_id, 0) > :after
  and t.type = 'unicast' and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp, coalesce(t.task_id, 0)
limit :limit;

-- name: messages_sent
-- planned: each time
-- The messages from a member after a position, ordered by the time of their last state change, newest first. Includes
-- the summaries of broadcasts.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.from_agent_id = :agent_id and t.status_timestamp <= :at
  and (t.status_timestamp < :at or coalesce(t.task_id, 0) < :id) and coalesce(t.task_id, 0) > :after
  and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp desc, coalesce(t.task_id, 0) desc
limit :limit;

-- name: messages_sent_oldest
-- planned: each time
-- `messages_sent`, oldest first.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.from_agent_id = :agent_id and t.status_timestamp >= :at
  and (t.status_timestamp > :at or coalesce(t.task_id, 0) > :id) and coalesce(t.task_id, 0) > :after
  and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp, coalesce(t.task_id, 0)
limit :limit;

-- name: messages_page
-- All messages of a fleet, one row per delivery, newest first.
select columns(t as message)
from messages t
where t.fleet_id = :fleet_id and t.zone_id = :zone_id and t.task_id > :after and t.task_id < :before
order by t.task_id desc
limit :limit;

-- name: messages_page_oldest
-- `messages_page`, oldest first.
select columns(t as message)
from messages t
where t.fleet_id = :fleet_id and t.zone_id = :zone_id and t.task_id > :after and t.task_id < :before
order by t.task_id
limit :limit;

-- name: timeline_heads
-- One message per entry of a fleet's timeline: a message to one member, or the summary of a broadcast.
select columns(t as message)
from messages t
where t.fleet_id = :fleet_id and t.zone_id = :zone_id and t.task_id < :before
  and (t.origin_task_id is null or t.origin_task_id = t.task_id)
order by t.task_id desc
limit :limit;

-- name: timeline_changed
-- Changed messages, without their text because the client already has it.
select t.zone_id, t.task_id, t.fleet_id, t.context_id, t.from_agent_id, t.to_agent_id, t.type, t.created_at,
    t.status_state, t.status_timestamp, t.origin_task_id, '', t.notified_at, t.notice
from rows(:batch as b, zone_id text, fleet_id bigint, task_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id = b.task_id and t.fleet_id = b.fleet_id
order by t.task_id;

-- name: timeline_deliveries
-- The deliveries of broadcasts. Their ids follow the id of the summary. Only the first delivery includes the text: all
-- deliveries have the same text, which may be long, and there may be many of them.
select t.zone_id, t.task_id, t.fleet_id, t.context_id, t.from_agent_id, t.to_agent_id, t.type, t.created_at,
    t.status_state, t.status_timestamp, t.origin_task_id, case when t.task_id = b.first_id + 1 then t.text else '' end,
    t.notified_at, t.notice
from rows(:batch as b, zone_id text, fleet_id bigint, first_id bigint, end_id bigint)
join messages t on t.fleet_id = b.fleet_id and t.zone_id = b.zone_id and t.task_id > b.first_id
  and t.task_id < b.end_id
where t.origin_task_id = b.first_id
order by t.task_id;
