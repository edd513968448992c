-- The row of a task, in the order of `model.rows.Task`.
-- columns: id, zone_id, task_type, status, priority, agent_id, session_key, progress_percent, current_step
-- columns: estimated_duration_minutes, estimated_completion_at, retry_count, max_retries, retry_backoff_seconds
-- columns: on_dependency_failure, class_id, turn, ranked_by, waits, depends, unmet, available_at, timeout_seconds
-- columns: timeout_at, attempt, attempt_token, claim_id, final, reason, spreads, warned_at, progress_at, overdue_at
-- columns: usd_micros, input_tokens, output_tokens, created_by, application_id, trace, created_at, updated_at
-- columns: assigned_at, started_at, completed_at, failed_at
--
-- Its content, in the order of `model.rows.Content`.
-- columns content: title, description, last_error, input_context, output_result, summary, checkpoint_data
-- columns content: metadata_json, tags, required_capabilities
--
-- Content size: the columns that may be large.
-- phrase bytes_of(t): octets(t.input_context) + octets(t.checkpoint_data) + octets(t.metadata_json)
-- phrase bytes_of(t): + coalesce(octets(t.output_result), 0) + coalesce(octets(t.description), 0)
-- phrase bytes_of(t): + coalesce(octets(t.last_error), 0) + coalesce(octets(t.summary), 0)

-- name: tasks_get
-- All tasks that a batch names by id, in one statement.
select columns(t)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_with_content
-- The same as `tasks_get`, with the content.
select columns(t), columns(t as content)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_get_content
-- The content of tasks that were just claimed.
select t.zone_id, t.id, columns(t as content)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: task_dependency_states
-- Only the columns that dependents need: a task may have 10,000 dependencies.
select t.zone_id, t.id, t.status, t.final, t.completed_at
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_get_tags
-- The current tags of tasks whose tags are replaced.
select t.zone_id, t.id, t.tags
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_of_claims
-- Tasks that a repeated claim already holds (the same claim id returns the same tasks), and tasks that are assigned to
-- the claiming agent; with their content size. An agent holds few tasks.
select columns(t), bytes_of(t)
from rows(:batch as b, zone_id text, agent_id text, claim_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null
where t.claim_id = b.claim_id or t.status = 'ASSIGNED';

-- name: tasks_waiting_for
-- Dependents of tasks that may end in this batch, up to the number that one batch unblocks.
select d.depends_on, columns(t)
from rows(:batch as b, zone_id text, id text, met smallint)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id and d.met = b.met
join agent_tasks t on t.zone_id = d.zone_id and t.id = d.task_id
limit :limit;

-- name: task_dependencies_list
-- Dependencies for a view, up to a limit.
select d.zone_id, d.task_id, d.depends_on
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
limit :limit;

-- name: task_dependencies_with_states
-- Dependencies with their states, met or not: a retried task checks all of them again.
select d.task_id, a.zone_id, a.id, a.status, a.final, a.completed_at
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
join agent_tasks a on a.zone_id = d.zone_id and a.id = d.depends_on
order by d.zone_id, d.task_id, d.depends_on;

-- name: task_dependents_list
-- Dependents for a view, unsorted: to show 100 of them, the database must not sort 100,000.
select d.zone_id, d.depends_on, d.task_id
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id
limit :limit;

-- name: task_dependency_closure
-- All unmet dependencies of the given tasks, direct and indirect, to search for cycles.
with recursive ahead (zone_id, task_id) as (
    select b.zone_id, b.id from rows(:batch as b, zone_id text, id text)
    union
    select d.zone_id, d.depends_on
    from ahead a
    join each task_dependencies d on d.zone_id = a.zone_id and d.task_id = a.task_id and d.met = 0
)
select d.zone_id, d.task_id, d.depends_on
from ahead a
join each task_dependencies d on d.zone_id = a.zone_id and d.task_id = a.task_id and d.met = 0
limit :limit;

-- name: task_ranks_get
-- The strategy of a zone; under `fair` also the creator's latest rank and the rank claimed last.
select b.zone_id, b.creator, coalesce(g.strategy, 'priority'), coalesce(s.turn, 0), coalesce(z.turn, 0)
from rows(:batch as b, zone_id text, creator text)
left join task_strategies g on g.zone_id = b.zone_id
left join task_shares s on s.zone_id = b.zone_id and s.creator = b.creator and g.strategy = 'fair'
left join task_shares z on z.zone_id = b.zone_id and z.creator = '' and g.strategy = 'fair';

-- name: task_classes_ready
-- The classes that have ready tasks, and the lowest rank of each. A skip scan along the index of ready tasks: the cost
-- depends on the number of classes, not of tasks.
with recursive k (zone_id, class_id) as (
    select b.zone_id, (
        select min(t.class_id) from agent_tasks t
        where t.zone_id = b.zone_id and t.status = 'PENDING' and t.waits = 0)
    from rows(:batch as b, zone_id text)
    union all
    select k.zone_id, (
        select min(t.class_id) from agent_tasks t
        where t.zone_id = k.zone_id and t.class_id > k.class_id and t.status = 'PENDING' and t.waits = 0)
    from k
    where k.class_id is not null
)
select c.zone_id, c.id, c.task_type, c.capabilities, (
    select min(t.turn) from agent_tasks t
    where t.zone_id = c.zone_id and t.class_id = c.id and t.status = 'PENDING' and t.waits = 0)
from k
join task_classes c on c.zone_id = k.zone_id and c.id = k.class_id;

-- name: tasks_next_of_class
-- The next ready tasks of a class, with their content size.
select columns(t), bytes_of(t)
from agent_tasks t
where t.zone_id = :zone_id and t.class_id = :class_id and t.status = 'PENDING' and t.waits = 0
order by t.turn, t.id
limit :limit;

-- name: tasks_insert
-- New tasks as they are at the end of the batch: one that was claimed in the same batch is already RUNNING.
insert into agent_tasks (id, zone_id, task_type, status, priority, agent_id, session_key, progress_percent,
    current_step, estimated_duration_minutes, estimated_completion_at, retry_count, max_retries,
    retry_backoff_seconds, on_dependency_failure, class_id, turn, ranked_by, waits, depends, unmet, available_at,
    timeout_seconds, timeout_at, attempt, attempt_token, claim_id, final, reason, spreads, warned_at, progress_at,
    overdue_at, usd_micros, input_tokens, output_tokens, created_by, application_id, trace, created_at, updated_at,
    assigned_at, started_at, completed_at, failed_at, title, description, last_error, input_context, output_result,
    summary, checkpoint_data, metadata_json, tags, required_capabilities)
select columns(b), columns(b as content)
from rows(:batch as b, id text, zone_id text, task_type text, status text, priority bigint, agent_id text, session_key
    text, progress_percent bigint, current_step text, estimated_duration_minutes bigint, estimated_completion_at
    bigint, retry_count bigint, max_retries bigint, retry_backoff_seconds bigint, on_dependency_failure text, class_id
    text, turn bigint, ranked_by text, waits bigint, depends bigint, unmet bigint, available_at bigint,
    timeout_seconds bigint, timeout_at bigint, attempt bigint, attempt_token text, claim_id text, final smallint,
    reason text, spreads smallint, warned_at bigint, progress_at bigint, overdue_at bigint, usd_micros bigint,
    input_tokens bigint, output_tokens bigint, created_by text, application_id text, trace text, created_at bigint,
    updated_at bigint, assigned_at bigint, started_at bigint, completed_at bigint, failed_at bigint, title text,
    description text, last_error text, input_context text, output_result text, summary text, checkpoint_data text,
    metadata_json text, tags text, required_capabilities text);

-- name: tasks_update
-- Guarded by the loaded status and attempt, although the zone's lock excludes other writers. Content columns keep their
-- value where the new one is null.
update agent_tasks
set status = b.to_status, priority = b.to_priority, agent_id = b.who, session_key = b.session, progress_percent =
    b.percent, current_step = b.step, estimated_completion_at = b.expected, retry_count = b.retries, turn = b.to_turn,
    waits = b.to_waits, depends = b.to_depends, unmet = b.to_unmet, available_at = b.at, timeout_at = b.times_out,
    attempt = b.to_attempt, attempt_token = b.token, claim_id = b.claim, final = b.is_final, reason = b.why, spreads =
    b.to_spread, warned_at = b.warned, progress_at = b.moved_on, overdue_at = b.overdue, usd_micros = b.usd,
    input_tokens = b.tokens_in, output_tokens = b.tokens_out, updated_at = b.moved, assigned_at = b.given, started_at
    = b.began, completed_at = b.done, failed_at = b.failed, last_error = coalesce(b.new_error, last_error),
    output_result = coalesce(b.new_output, output_result), summary = coalesce(b.new_summary, summary), checkpoint_data
    = coalesce(b.new_checkpoint, checkpoint_data), metadata_json = coalesce(b.new_metadata, metadata_json), tags =
    coalesce(b.new_tags, tags)
from rows(:batch as b, zone text, name text, was text, were bigint, to_status text, to_priority bigint, who text,
    session text, percent bigint, step text, expected bigint, retries bigint, to_turn bigint, to_waits bigint,
    to_depends bigint, to_unmet bigint, at bigint, times_out bigint, to_attempt bigint, token text, claim text,
    is_final smallint, why text, to_spread smallint, warned bigint, moved_on bigint, overdue bigint, usd bigint,
    tokens_in bigint, tokens_out bigint, moved bigint, given bigint, began bigint, done bigint, failed bigint,
    new_error text, new_output text, new_summary text, new_checkpoint text, new_metadata text, new_tags text)
where zone_id = b.zone and id = b.name and status = b.was and attempt = b.were
returning id;

-- name: tasks_start
-- `tasks_update` for a claim, with a third of its columns: claims and completions are most writes, and binding a column
-- costs as much as writing it.
update agent_tasks
set status = 'RUNNING', agent_id = b.who, session_key = b.session, progress_percent = 0, current_step = null,
    estimated_completion_at = b.expected, timeout_at = b.times_out, attempt = b.were + 1, attempt_token = b.token,
    claim_id = b.claim, warned_at = null, progress_at = b.moved, overdue_at = b.overdue, updated_at = b.moved,
    assigned_at = b.moved, started_at = b.moved
from rows(:batch as b, zone text, name text, was text, were bigint, who text, session text, expected bigint, times_out
    bigint, token text, claim text, overdue bigint, moved bigint)
where zone_id = b.zone and id = b.name and status = b.was and attempt = b.were
returning id;

-- name: tasks_complete
-- `tasks_update` for a completion, with fewer columns.
update agent_tasks
set status = 'COMPLETED', waits = 0, progress_percent = 100, timeout_at = null, overdue_at = null, completed_at =
    b.moved, updated_at = b.moved, output_result = coalesce(b.new_output, output_result), summary =
    coalesce(b.new_summary, summary)
from rows(:batch as b, zone text, name text, was text, were bigint, moved bigint, new_output text, new_summary text)
where zone_id = b.zone and id = b.name and status = b.was and attempt = b.were
returning id;

-- name: task_classes_insert
-- A class is immutable, so the first writer wins.
insert into task_classes (zone_id, id, task_type, capabilities, created_at)
select b.zone_id, b.id, b.task_type, b.capabilities, b.created_at
from rows(:batch as b, zone_id text, id text, task_type text, capabilities text, created_at bigint)
where true
on conflict (zone_id, id) do nothing;

-- name: task_dependencies_insert
-- Dependencies of new tasks, or replaced ones. Some may already be met.
insert into task_dependencies (zone_id, task_id, depends_on, met)
select b.zone_id, b.task_id, b.depends_on, b.met
from rows(:batch as b, zone_id text, task_id text, depends_on text, met smallint);

-- name: task_dependencies_remove
-- For tasks whose dependencies are replaced, and for deleted tasks.
delete from task_dependencies
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_dependencies_set_met
-- Marks dependencies as met or, for a retried task, as unmet again.
update task_dependencies
set met = b.now_met
from rows(:batch as b, zone text, task text, ahead text, now_met smallint)
where zone_id = b.zone and task_id = b.task and depends_on = b.ahead;

-- name: task_tags_insert
-- A task may already have the tag: it is stored once.
insert into task_tags (zone_id, tag, task_id)
select b.zone_id, b.tag, b.task_id
from rows(:batch as b, zone_id text, tag text, task_id text)
where true
on conflict (zone_id, tag, task_id) do nothing;

-- name: task_tags_remove
-- By the full primary key: the task's row lists its tags.
delete from task_tags
where (zone_id, tag, task_id) in (
    select b.zone_id, b.tag, b.task_id from rows(:batch as b, zone_id text, tag text, task_id text)
);

-- name: task_fair_ranks_set
-- A rank never decreases, so a late writer cannot undo a newer one.
insert into task_shares (zone_id, creator, turn)
select b.zone_id, b.creator, b.turn
from rows(:batch as b, zone_id text, creator text, turn bigint)
where true
on conflict (zone_id, creator) do update
set turn = case when excluded.turn > task_shares.turn then excluded.turn else task_shares.turn end;

-- name: tasks_of_agents
-- All tasks that agents hold. Unlimited, since an agent holds at most `max_concurrent_tasks`.
select columns(t)
from rows(:batch as b, zone_id text, agent_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null;
