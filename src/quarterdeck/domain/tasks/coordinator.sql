-- What the server looks for by itself, and does with what it finds: of the coordinator, of strategies, of sweeps.

-- == what comes due, in all zones or in the one that is named ==
--
-- By indexes that begin with the moment, which is what all but a few questions go by; whoever asks for one zone passes over
-- what is due elsewhere, and the coordinator sees to it that this is little.

-- name: tasks_due
-- For the coordinator: what has waited for its moment long enough.
select t.zone_id, t.id
from agent_tasks t
where t.waits = 1 and t.available_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.available_at
limit :limit;

-- name: tasks_timed_out
-- Attempts whose time is over; of those that are only assigned, the time to be launched.
select t.zone_id, t.id, t.attempt_token, t.status
from agent_tasks t
where t.timeout_at is not null and t.timeout_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.timeout_at
limit :limit;

-- name: tasks_overdue
-- Attempts that are long past their estimate, or were warned and have not moved since.
select t.zone_id, t.id, t.attempt_token, case when t.warned_at is null then 0 else 1 end
from agent_tasks t
where t.overdue_at is not null and t.overdue_at <= (select now_ms())
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.overdue_at
limit :limit;

-- name: tasks_next_due_time
-- When the next moment comes that a task waits for, when the next attempt's time is over, and when the next is overdue.
select (select min(t.available_at) from agent_tasks t where t.waits = 1),
    (select min(t.timeout_at) from agent_tasks t where t.timeout_at is not null),
    (select min(t.overdue_at) from agent_tasks t where t.overdue_at is not null), now_ms();

-- name: tasks_with_pending_dependents
-- Ended, and some that depend on them have not heard of it.
select t.zone_id, t.id
from agent_tasks t
where t.spreads = 1
  and (cast(:zone_id as text) is null or coalesce(t.zone_id, '') = cast(:zone_id as text))
order by t.zone_id, t.id
limit :limit;

-- == what may begin, what waits for others, and how much there is of each ==

-- name: tasks_ready_in_class
-- The next of a class, for whoever matches them to agents: narrow, since they may be thousands.
select t.turn, t.id
from agent_tasks t
where t.zone_id = :zone_id and t.class_id = :class_id and t.status = 'PENDING' and t.waits = 0
order by t.turn, t.id
limit :limit;

-- name: tasks_waiting_slice
-- Across zones: so many tasks that wait for others, from a place on, and what each of them still waits for.
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
-- Whether there is any that waits for others: what nobody waits for is in no cycle.
select 1 from agent_tasks t where t.waits = 2 limit 1;

-- name: tasks_count_by_state
-- How many of a zone stand how, up to a bound: beyond it nobody needs the number, and counting would take its time.
select (
    select count(*) from (
        select 1 from agent_tasks t where t.zone_id = b.zone_id and t.status = b.status limit :limit
    ) few)
from rows(:batch as b, zone_id text, status text);

-- name: tasks_count_ready
-- Of a zone, those that wait for nothing but an agent, up to a bound.
select (
    select count(*) from (
        select 1 from agent_tasks t
        where t.zone_id = b.zone_id and t.status = 'PENDING' and t.waits = 0
        limit :limit
    ) few)
from rows(:batch as b, zone_id text);

-- name: tasks_count_ready_all_zones
-- Across zones, those that wait for nothing but an agent, up to a bound.
select count(*) from (
    select 1 from agent_tasks t where t.status = 'PENDING' and t.waits = 0 limit :limit
) few;

-- == the ranks that a zone's strategy gives ==

-- name: task_strategy_get
-- By what a zone's tasks are ranked; nothing if that was never said.
select g.strategy, g.ranked_to from task_strategies g where g.zone_id = :zone_id;

-- name: task_strategy_put
-- All that wait are to be ranked anew, from the first: also by whoever was in the middle of it for another strategy.
insert into task_strategies (zone_id, strategy, ranked_to, updated_at) values (:zone_id, :strategy, '', :now)
on conflict (zone_id) do update set strategy = excluded.strategy, ranked_to = '', updated_at = excluded.updated_at;

-- name: task_strategy_set_progress
-- How far that has come; null when all have been.
update task_strategies set ranked_to = :ranked_to where zone_id = :zone_id;

-- name: task_strategies_unfinished
-- Across zones: where tasks are still to be ranked anew.
select g.zone_id from task_strategies g where g.ranked_to is not null limit :limit;

-- name: tasks_to_rank
-- So many of a zone's tasks from a place on, in the order in which they were made.
select columns(t)
from agent_tasks t
where t.zone_id = :zone_id and t.id > :after
order by t.id
limit :limit;

-- name: tasks_rank
-- Under the zone's lock, and beside everything else that a row is: only its place among those that wait.
update agent_tasks
set turn = b.to_turn, ranked_by = b.by
from rows(:batch as b, zone text, name text, to_turn bigint, by text)
where zone_id = b.zone and id = b.name;

-- name: task_fair_ranks_get
-- Whose turn it was last, where those who ask take turns.
select s.creator, s.turn
from rows(:batch as b, zone_id text, creator text)
join task_shares s on s.zone_id = b.zone_id and s.creator = b.creator;

-- == retention, and the rotation of keys ==

-- name: tasks_slice
-- For retention, across zones: so many of all there are, from a place on, in the order of states.
select t.zone_id, t.status, t.id, t.final, t.updated_at
from agent_tasks t
where (t.zone_id, t.status, t.id) > (:zone_id, :status, :id)
order by t.zone_id, t.status, t.id
limit :limit;

-- name: tasks_delete_expired
-- planned: each time
-- Only what is still put away; spelt so that they are found by their names, and not by all that are.
delete from agent_tasks
where (zone_id, id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text))
  and coalesce(status, '') = 'ARCHIVED'
returning zone_id, id, tags;

-- name: agents_named_by_tasks
-- Of agents that have ended, those that some task says have worked on it. (The limit keeps the planner from a join, which
-- might begin with the tasks of the zone.)
select b.zone_id, b.agent_id, (
    select 1
    from agent_tasks t
    where t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.agent_id is not null
    limit 1)
from rows(:batch as b, zone_id text, agent_id text);

-- name: tasks_encrypted
-- planned: each time
-- For the rotation of keys, across zones: so many rows along the key whether or not they hold secrets, so that one
-- statement looks at no more. Texts without secrets stay where they are.
select t.zone_id, t.id,
    case when t.input_context like '%"$sealed"%' then t.input_context end,
    case when t.output_result like '%"$sealed"%' then t.output_result end,
    case when t.checkpoint_data like '%"$sealed"%' then t.checkpoint_data end
from agent_tasks t
where (t.zone_id, t.id) > (:after_zone, :after_id)
order by t.zone_id, t.id
limit :limit;

-- name: tasks_reencrypt
-- Guarded by the texts that were read: what was said meanwhile stays as it was said.
update agent_tasks
set input_context = coalesce(b.new_input, input_context), output_result = coalesce(b.new_output, output_result),
    checkpoint_data = coalesce(b.new_checkpoint, checkpoint_data)
from rows(:batch as b, zone text, name text, was_input text, new_input text, was_output text, new_output text,
    was_checkpoint text, new_checkpoint text)
where zone_id = b.zone and id = b.name
  and (b.was_input is null or input_context = b.was_input)
  and (b.was_output is null or output_result = b.was_output)
  and (b.was_checkpoint is null or checkpoint_data = b.was_checkpoint)
returning id;
