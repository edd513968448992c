-- Reads for views, heartbeat responses and the Redis mirror. No decision depends on them.

-- name: tasks_page
-- planned: each time
-- Newest first, because ids are time-ordered. A null filter matches all tasks. Returns only ids: `tasks_sizes`
-- then reads their content sizes, which determine how many of the tasks are read.
select t.id
from agent_tasks t
where t.zone_id = :zone_id
  and (cast(:before as text) is null or t.id < cast(:before as text))
  and (cast(:status as text) is null or t.status = cast(:status as text))
  and (cast(:priority_min as bigint) is null or t.priority >= cast(:priority_min as bigint))
  and (cast(:priority_max as bigint) is null or t.priority <= cast(:priority_max as bigint))
  and (cast(:task_type as text) is null or t.task_type = cast(:task_type as text))
  and (cast(:agent_id as text) is null or t.agent_id = cast(:agent_id as text))
  and (cast(:created_after as bigint) is null or t.created_at > cast(:created_after as bigint))
order by t.id desc
limit :limit;

-- name: tasks_page_tagged
-- planned: each time
-- The same as `tasks_page`, for tasks that have all of the given tags. Scans all tasks with the first tag.
select t.id
from task_tags f
join agent_tasks t on t.zone_id = f.zone_id and t.id = f.task_id
where f.zone_id = :zone_id and f.tag = :tag
  and (cast(:before as text) is null or f.task_id < cast(:before as text))
  and (cast(:status as text) is null or t.status = cast(:status as text))
  and (cast(:priority_min as bigint) is null or t.priority >= cast(:priority_min as bigint))
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
-- Running tasks whose agent was warned that they are overdue, and that have made no progress since. An agent holds few
-- tasks. (The filter is outside the CTE, because within the CTE it would keep the planner from using the
-- index on the agent.)
with held as materialized (
    select t.id, t.warned_at, t.progress_at
    from rows(:batch as b, zone_id text, agent_id text, state text)
    join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
      and t.agent_id is not null
)
select h.id from held h where coalesce(h.progress_at, 0) <= h.warned_at;

-- name: tasks_sizes
-- The content size of each task. Read for a few tasks at a time: to reach a late column, SQLite reads all columns
-- before it.
select t.id, bytes_of(t)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- == explanation and dependency tree ==

-- name: task_dependencies_unmet
-- The first unmet dependencies of a task. The limit inside the subquery keeps the planner from starting with the zone's
-- tasks.
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
-- The number of ready tasks of the same class that rank before a task, up to a limit.
select count(*)
from (
    select 1 as one
    from agent_tasks t
    where t.zone_id = :zone_id and t.class_id = :class_id and t.status = 'PENDING' and t.waits = 0
      and (t.turn, t.id) < (:turn, :id)
    limit :limit
) limited;

-- name: tasks_nodes
-- The columns of a node of the dependency tree.
select t.id, t.title, t.task_type, t.status, t.progress_percent, t.final
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: task_edges_to_dependencies
-- Edges from these tasks to their dependencies: one step of the tree.
select d.task_id, d.depends_on
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
order by d.task_id, d.depends_on
limit :limit;

-- name: task_edges_to_dependents
-- Edges from these tasks to their dependents: one step of the tree.
select d.task_id, d.depends_on
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id
order by d.depends_on, d.task_id
limit :limit;

-- == Redis mirror ==

-- name: tasks_in_state
-- A slice of a zone's tasks in one state. Returns only ids, because the mirror scans all tasks repeatedly.
select t.id
from agent_tasks t
where t.zone_id = :zone_id and t.status = :status and t.id > :after
order by t.id
limit :limit;

-- name: tasks_newest_held
-- The newest task of each agent and state, for agents that do not report their current task.
select b.zone_id, b.agent_id, b.state, (
    select max(t.id) from agent_tasks t
    where t.agent_id = b.agent_id and t.zone_id = b.zone_id and t.status = b.state and t.agent_id is not null)
from rows(:batch as b, zone_id text, agent_id text, state text);

-- name: tasks_in_backoff
-- Across zones: the tasks in backoff among the next tasks that become available. The limit applies before the filter
-- and bounds the scan, because many other tasks may be waiting for a start time.
select n.zone_id, n.id
from (
    select t.zone_id, t.id, t.status
    from agent_tasks t
    where t.waits = 1
    order by t.available_at
    limit :limit
) n
where n.status in ('FAILED', 'ABORTED');
