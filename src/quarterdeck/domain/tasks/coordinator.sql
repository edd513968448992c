-- Statements for the coordinator, strategies and sweeps.

-- == due tasks, in all zones or in one ==
--
-- The indexes start with the time, because nearly all of these queries are for all zones. A query for one zone filters
-- out the due rows of other zones. While the coordinator is running, there are few due rows.

-- name: tasks_due
-- Tasks whose `available_at` has passed: their start time, or the end of their backoff.
select t.zone_id, t.id
from agent_tasks t
where t.waits = 1 and t.available_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.available_at
limit :limit;

-- name: tasks_timed_out
-- Attempts that have timed out. For an ASSIGNED task, `timeout_at` is the launch deadline.
select t.zone_id, t.id, t.attempt_token, t.status
from agent_tasks t
where t.timeout_at is not null and t.timeout_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.timeout_at
limit :limit;

-- name: tasks_overdue
-- Attempts that are long past their estimate, or that were warned and have made no progress since.
select t.zone_id, t.id, t.attempt_token, case when t.warned_at is null then 0 else 1 end
from agent_tasks t
where t.overdue_at is not null and t.overdue_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.overdue_at
limit :limit;

-- name: tasks_next_due_time
-- Three times and the current time: the next task becomes available, the next attempt times out, the next attempt
-- becomes overdue.
select (select min(t.available_at) from agent_tasks t where t.waits = 1),
    (select min(t.timeout_at) from agent_tasks t where t.timeout_at is not null),
    (select min(t.overdue_at) from agent_tasks t where t.overdue_at is not null), now_ms();

-- name: tasks_with_pending_dependents
-- Ended tasks that still have blocked dependents.
select t.zone_id, t.id
from agent_tasks t
where t.spreads = 1
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.zone_id, t.id
limit :limit;

-- == ready tasks, waiting tasks and counts ==

-- name: tasks_ready_in_class
-- The next ready tasks of a class, to match with agents. Returns few columns, because there may be thousands of rows.
select t.turn, t.id
from agent_tasks t
where t.zone_id = :zone_id and t.class_id = :class_id and t.status = 'PENDING' and t.waits = 0
order by t.turn, t.id
limit :limit;

-- name: tasks_waiting_slice
-- Across zones: a slice of the tasks that are waiting for dependencies, and the unmet dependencies of each.
select w.zone_id, w.id, d.depends_on
from (
    select t.zone_id, t.id
    from agent_tasks t
    where t.waits = 2 and (t.zone_id, t.id) > (:zone_id, :id)
    order by t.zone_id, t.id
    limit :limit
) w
left join task_dependencies d on d.zone_id = w.zone_id and d.task_id = w.id and d.met = 0
order by w.zone_id, w.id;

-- name: tasks_any_waiting
-- Whether any task is waiting for dependencies. If not, there can be no cycle.
select 1 from agent_tasks t where t.waits = 2 limit 1;

-- name: tasks_count_by_state
-- The number of tasks of a zone in a state, counted only up to a limit, because counting many rows is slow.
select (
    select count(*) from (
        select 1 from agent_tasks t where t.zone_id = b.zone_id and t.status = b.status limit :limit
    ) limited)
from rows(:batch as b, zone_id text, status text);

-- name: tasks_count_ready
-- The number of ready tasks of a zone, up to a limit.
select (
    select count(*) from (
        select 1 from agent_tasks t
        where t.zone_id = b.zone_id and t.status = 'PENDING' and t.waits = 0
        limit :limit
    ) limited)
from rows(:batch as b, zone_id text);

-- name: tasks_count_ready_all_zones
-- The number of ready tasks of all zones, up to a limit.
select count(*) from (
    select 1 from agent_tasks t where t.status = 'PENDING' and t.waits = 0 limit :limit
) limited;

-- == strategies and re-ranking ==

-- name: task_strategy_get
-- The strategy of a zone. No row if it was never set.
select g.strategy, g.ranked_to from task_strategies g where g.zone_id = :zone_id;

-- name: task_strategy_put
-- Starts the re-ranking at the first task, even if a re-ranking for another strategy is in progress.
insert into task_strategies (zone_id, strategy, ranked_to, updated_at) values (:zone_id, :strategy, '', :now)
on conflict (zone_id) do update set strategy = excluded.strategy, ranked_to = '', updated_at = excluded.updated_at;

-- name: task_strategy_set_progress
-- Stores the last task that was re-ranked, or null once all tasks have been.
update task_strategies set ranked_to = :ranked_to where zone_id = :zone_id;

-- name: task_strategies_unfinished
-- Across zones: the zones whose re-ranking is not complete.
select g.zone_id from task_strategies g where g.ranked_to is not null limit :limit;

-- name: tasks_to_rank
-- A slice of a zone's tasks, in order of creation.
select columns(t)
from agent_tasks t
where t.zone_id = :zone_id and t.id > :after
order by t.id
limit :limit;

-- name: tasks_rank
-- Runs while the zone is locked. Changes only the rank and its strategy, not `updated_at`.
update agent_tasks
set turn = b.to_turn, ranked_by = b.to_ranked_by
from rows(:batch as b, zone text, task text, to_turn bigint, to_ranked_by text)
where zone_id = b.zone and id = b.task;

-- name: task_fair_ranks_get
-- The latest rank of each creator under the strategy `fair`. The row of the creator '' holds the highest rank claimed.
select s.creator, s.turn
from rows(:batch as b, zone_id text, creator text)
join task_shares s on s.zone_id = b.zone_id and s.creator = b.creator;

-- == retention and key rotation ==

-- name: tasks_slice
-- For retention, across zones: a slice of all tasks, in index order.
select t.zone_id, t.status, t.id, t.final, t.updated_at
from agent_tasks t
where (t.zone_id, t.status, t.id) > (:zone_id, :status, :id)
order by t.zone_id, t.status, t.id
limit :limit;

-- name: tasks_delete_expired
-- planned: each time
-- Deletes only tasks that are still ARCHIVED. (`coalesce` makes the planner use the primary key, not the index on the
-- status.)
delete from agent_tasks
where (zone_id, id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text))
  and coalesce(status, '') = 'ARCHIVED'
returning zone_id, id, tags;

-- name: task_log_lines_delete_expired
-- Deletes the log lines of deleted tasks.
delete from task_log_lines
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_log_counts_delete_expired
-- Deletes the line counters of deleted tasks.
delete from task_log_counts
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: agents_named_by_tasks
-- For each of the given agents: 1 if any stored task refers to it, otherwise null. (The limit keeps the planner from
-- choosing a join, which might start with all tasks of the zone.)
select b.zone_id, b.agent_id, (
    select 1
    from agent_tasks t
    where t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.agent_id is not null
    limit 1)
from rows(:batch as b, zone_id text, agent_id text);

-- name: tasks_encrypted
-- planned: each time
-- For key rotation, across zones: a slice along the primary key. It includes rows without secrets, so that one
-- statement reads a bounded number of rows. A column without secrets is returned as null.
select t.zone_id, t.id,
    case when t.input_context like '%"$sealed"%' then t.input_context end,
    case when t.output_result like '%"$sealed"%' then t.output_result end,
    case when t.checkpoint_data like '%"$sealed"%' then t.checkpoint_data end
from agent_tasks t
where (t.zone_id, t.id) > (:after_zone, :after_id)
order by t.zone_id, t.id
limit :limit;

-- name: tasks_reencrypt
-- Updates a row only if its columns still have the values that were read, so that newer values are not overwritten.
update agent_tasks
set input_context = coalesce(b.to_input, input_context), output_result = coalesce(b.to_output, output_result),
    checkpoint_data = coalesce(b.to_checkpoint, checkpoint_data)
from rows(:batch as b, zone text, task text, from_input text, to_input text, from_output text, to_output text,
    from_checkpoint text, to_checkpoint text)
where zone_id = b.zone and id = b.task
  and (b.from_input is null or input_context = b.from_input)
  and (b.from_output is null or output_result = b.from_output)
  and (b.from_checkpoint is null or checkpoint_data = b.from_checkpoint)
returning id;
