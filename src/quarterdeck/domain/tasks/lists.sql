-- What is shown to somebody, and decides nothing.

-- name: tasks_page
-- planned: each time
-- Newest first: ids are made in order of time. A filter that is null matches all. Only which they are: how many of them
-- are read is decided by how much they say.
select t.id
from agent_tasks t
where t.zone_id = :zone_id
  and (cast(:before as text) is null or t.id < cast(:before as text))
  and (cast(:status as text) is null or t.status = cast(:status as text))
  and (cast(:priority as bigint) is null or t.priority >= cast(:priority as bigint))
  and (cast(:priority_max as bigint) is null or t.priority <= cast(:priority_max as bigint))
  and (cast(:task_type as text) is null or t.task_type = cast(:task_type as text))
  and (cast(:agent_id as text) is null or t.agent_id = cast(:agent_id as text))
  and (cast(:created_after as bigint) is null or t.created_at > cast(:created_after as bigint))
order by t.id desc
limit :limit;

-- name: tasks_page_tagged
-- planned: each time
-- The same for those with certain tags, along all that have the first of them.
select t.id
from task_tags f
join agent_tasks t on t.zone_id = f.zone_id and t.id = f.task_id
where f.zone_id = :zone_id and f.tag = :tag
  and (cast(:before as text) is null or f.task_id < cast(:before as text))
  and (cast(:status as text) is null or t.status = cast(:status as text))
  and (cast(:priority as bigint) is null or t.priority >= cast(:priority as bigint))
  and (cast(:priority_max as bigint) is null or t.priority <= cast(:priority_max as bigint))
  and (cast(:task_type as text) is null or t.task_type = cast(:task_type as text))
  and (cast(:agent_id as text) is null or t.agent_id = cast(:agent_id as text))
  and (cast(:created_after as bigint) is null or t.created_at > cast(:created_after as bigint))
  and not exists (
    select 1 from rows(:tags as g, tag text)
    where not exists (
      select 1 from task_tags w where w.zone_id = t.zone_id and w.tag = g.tag and w.task_id = t.id))
order by f.task_id desc
limit :limit;

-- name: tasks_warned
-- What agents work on that is long past its estimate, and has not moved since they were warned. They hold no more than
-- they may. (Found first and looked at then: what is asked of so few keeps the planner from their own index.)
with held as materialized (
    select t.id, t.warned_at, t.progress_at
    from rows(:batch as b, zone_id text, agent_id text, state text)
    join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
      and t.agent_id is not null
)
select h.id from held h where coalesce(h.progress_at, 0) <= h.warned_at;

-- name: tasks_sizes
-- How much each says. On SQLite what is far into a row is reached through all that stands before it: asked in pieces.
select t.id, bytes_of(t)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- == why a task is as it is, and what it hangs together with ==

-- name: task_dependencies_unmet
-- Those that a task still waits for, as many as are told. Found first and looked up then: the limit keeps the planner
-- from beginning with the zone's tasks.
select a.id, a.title, a.status, a.final, a.agent_id, a.waits, a.available_at
from (
    select d.zone_id, d.depends_on
    from task_dependencies d
    where d.zone_id = :zone_id and d.task_id = :task_id and d.met = 0
    order by d.depends_on
    limit :limit
) w
join agent_tasks a on a.zone_id = w.zone_id and a.id = w.depends_on
order by a.id;

-- name: tasks_count_ranked_before
-- How many of its class are handed out before it, counted as far as it matters.
select count(*)
from (
    select 1 as one
    from agent_tasks t
    where t.zone_id = :zone_id and t.class_id = :class_id and t.status = 'PENDING' and t.waits = 0
      and (t.turn, t.id) < (:turn, :id)
    limit :limit
) first;

-- name: tasks_nodes
-- What is drawn of each.
select t.id, t.title, t.task_type, t.status, t.progress_percent, t.final
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: task_edges_to_dependencies
-- One step from these towards what they depend on.
select d.task_id, d.depends_on
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
order by d.task_id, d.depends_on
limit :limit;

-- name: task_edges_to_dependents
-- One step from these towards what depends on them.
select d.task_id, d.depends_on
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id
order by d.depends_on, d.task_id
limit :limit;

-- == what is shown under keys of Redis ==

-- name: tasks_in_state
-- So many of a zone in one state, from a place on: narrow, since all of them are gone through again and again.
select t.id
from agent_tasks t
where t.zone_id = :zone_id and t.status = :status and t.id > :after
order by t.id
limit :limit;

-- name: tasks_newest_held
-- What agents were given last, who do not say what they work on.
select b.zone_id, b.agent_id, b.state, (
    select max(t.id) from agent_tasks t
    where t.agent_id = b.agent_id and t.zone_id = b.zone_id and t.status = b.state and t.agent_id is not null)
from rows(:batch as b, zone_id text, agent_id text, state text);

-- name: tasks_in_backoff
-- Across zones: of the next for whom a moment comes, those whose backoff it ends. Others only begin later, and may be
-- many: so the limit is of those that are looked at.
select n.zone_id, n.id
from (
    select t.zone_id, t.id, t.status
    from agent_tasks t
    where t.waits = 1
    order by t.available_at
    limit :limit
) n
where n.status in ('FAILED', 'ABORTED');
