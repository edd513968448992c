-- name: fleets_page
-- The fleets of a zone, newest first. Those that were deleted are shown where they are asked for.
select columns(f)
from fleets f
where f.zone_id = :zone_id and f.fleet_id < :before and (coalesce(f.deleted_at, 0) = 0 or :with_deleted = 1)
order by f.fleet_id desc
limit :limit;

-- name: fleets_root_members
-- Of each fleet its director and its administrator, who alone is not in the registry.
select columns(m as member)
from rows(:batch as b, zone_id text, fleet_id bigint, state text, director_id bigint)
join members m on m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state
where m.agent_id = b.director_id or m.registry_id is null;

-- name: fleets_count_members
-- How many members are there in each.
select b.zone_id, b.fleet_id, (
    select count(*) from members m where m.zone_id = b.zone_id and m.fleet_id = b.fleet_id and m.status = b.state)
from rows(:batch as b, zone_id text, fleet_id bigint, state text);

-- name: members_page
-- In the order they came. Those who have left are read by whoever reads what they said, and never stand in the way of
-- those who are there: the index of both is by status. (Ids hidden from the planner, which would else walk all of the
-- zone's in their order.)
select columns(m as member)
from members m
where m.zone_id = :zone_id and m.fleet_id = :fleet_id and m.status = :state and coalesce(m.agent_id, 0) > :after
order by coalesce(m.agent_id, 0)
limit :limit;

-- name: members_get_names
-- What members are called, also those that have left: beside what they said, their names are shown.
select m.zone_id, m.agent_id, m.name
from rows(:batch as b, zone_id text, agent_id bigint)
join members m on m.zone_id = b.zone_id and m.agent_id = b.agent_id;

-- name: placements_get
-- Where members' panes are.
select columns(p as placement)
from rows(:batch as b, zone_id text, agent_id bigint)
join agent_placements p on p.zone_id = b.zone_id and p.agent_id = b.agent_id;

-- name: messages_notice_states
-- Of messages that are about to be typed, whether they still wait, and where their recipients are.
select t.zone_id, t.task_id, t.status_state, p.tmux_pane_id
from rows(:batch as b, zone_id text, task_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id = b.task_id
left join agent_placements p on p.zone_id = t.zone_id and p.agent_id = t.to_agent_id;

-- name: messages_unread_counts
-- How many wait for each: of what nobody has acknowledged there is an index of its own.
select b.zone_id, b.agent_id, (
    select count(*) from messages t
    where t.context_id = b.agent_id and t.zone_id = b.zone_id and t.status_state = 'input_required')
from rows(:batch as b, zone_id text, agent_id bigint);

-- name: messages_newest_unread
-- Of what waits for each of those who wait for it, the newest; and whether they are still there. Asked once for all who
-- poll in a process.
select b.zone_id, b.agent_id, (
    select max(t.task_id) from messages t
    where t.context_id = b.agent_id and t.zone_id = b.zone_id and t.status_state = 'input_required'),
    (select m.status from members m where m.zone_id = b.zone_id and m.agent_id = b.agent_id)
from rows(:batch as b, zone_id text, agent_id bigint);

-- name: messages_unread
-- What waits for a member, newest first: it costs what is found, however much was acknowledged before.
select columns(t as message)
from messages t
where t.context_id = :agent_id and t.zone_id = :zone_id and t.status_state = 'input_required' and t.task_id > :after
  and t.task_id < :before
order by t.task_id desc
limit :limit;

-- name: messages_unread_oldest
-- The same, oldest first.
select columns(t as message)
from messages t
where t.context_id = :agent_id and t.zone_id = :zone_id and t.status_state = 'input_required' and t.task_id > :after
  and t.task_id < :before
order by t.task_id
limit :limit;

-- name: messages_inbox
-- planned: each time
-- Everything that a member was ever sent, by when it last moved, from a position on.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.context_id = :agent_id and t.status_timestamp <= :at
  and (t.status_timestamp < :at or coalesce(t.task_id, 0) < :id) and coalesce(t.task_id, 0) > :after
  and t.type = 'unicast' and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp desc, coalesce(t.task_id, 0) desc
limit :limit;

-- name: messages_inbox_oldest
-- planned: each time
-- The same, oldest first.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.context_id = :agent_id and t.status_timestamp >= :at
  and (t.status_timestamp > :at or coalesce(t.task_id, 0) > :id) and coalesce(t.task_id, 0) > :after
  and t.type = 'unicast' and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp, coalesce(t.task_id, 0)
limit :limit;

-- name: messages_sent
-- planned: each time
-- Everything that a member has sent, summaries of broadcasts among it, by when it last moved, from a position on.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.from_agent_id = :agent_id and t.status_timestamp <= :at
  and (t.status_timestamp < :at or coalesce(t.task_id, 0) < :id) and coalesce(t.task_id, 0) > :after
  and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp desc, coalesce(t.task_id, 0) desc
limit :limit;

-- name: messages_sent_oldest
-- planned: each time
-- The same, oldest first.
select columns(t as message)
from messages t
where t.zone_id = :zone_id and t.from_agent_id = :agent_id and t.status_timestamp >= :at
  and (t.status_timestamp > :at or coalesce(t.task_id, 0) > :id) and coalesce(t.task_id, 0) > :after
  and (cast(:state as text) is null or t.status_state = cast(:state as text))
order by t.status_timestamp, coalesce(t.task_id, 0)
limit :limit;

-- name: messages_page
-- Everything that was said in a fleet, row by row, newest first.
select columns(t as message)
from messages t
where t.fleet_id = :fleet_id and t.zone_id = :zone_id and t.task_id > :after and t.task_id < :before
order by t.task_id desc
limit :limit;

-- name: messages_page_oldest
-- The same, oldest first.
select columns(t as message)
from messages t
where t.fleet_id = :fleet_id and t.zone_id = :zone_id and t.task_id > :after and t.task_id < :before
order by t.task_id
limit :limit;

-- name: timeline_heads
-- What stands as an entry of its own in a fleet's timeline: messages to one, and the summaries of broadcasts.
select columns(t as message)
from messages t
where t.fleet_id = :fleet_id and t.zone_id = :zone_id and t.task_id < :before
  and (t.origin_task_id is null or t.origin_task_id = t.task_id)
order by t.task_id desc
limit :limit;

-- name: timeline_changed
-- Of entries that were shown before, what has moved since: what they say is known.
select t.zone_id, t.task_id, t.fleet_id, t.context_id, t.from_agent_id, t.to_agent_id, t.type, t.created_at,
    t.status_state, t.status_timestamp, t.origin_task_id, '', t.notified_at, t.notice
from rows(:batch as b, zone_id text, fleet_id bigint, task_id bigint)
join messages t on t.zone_id = b.zone_id and t.task_id = b.task_id and t.fleet_id = b.fleet_id
order by t.task_id;

-- name: timeline_deliveries
-- What belongs to broadcasts: their deliveries follow them, one id after the other. What they say is the same in all of
-- them, and is read once: a fleet may be large, and so may a text.
select t.zone_id, t.task_id, t.fleet_id, t.context_id, t.from_agent_id, t.to_agent_id, t.type, t.created_at,
    t.status_state, t.status_timestamp, t.origin_task_id, case when t.task_id = b.first_id + 1 then t.text else '' end,
    t.notified_at, t.notice
from rows(:batch as b, zone_id text, fleet_id bigint, first_id bigint, end_id bigint)
join messages t on t.fleet_id = b.fleet_id and t.zone_id = b.zone_id and t.task_id > b.first_id
  and t.task_id < b.end_id
where t.origin_task_id = b.first_id
order by t.task_id;
