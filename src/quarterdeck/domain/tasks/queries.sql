-- The columns of a task, in the order of `model.rows.Task`.
-- columns: id, zone_id, task_type, status, priority, agent_id, session_key, progress_percent, current_step
-- columns: estimated_duration_minutes, estimated_completion_at, retry_count, max_retries, retry_backoff_seconds
-- columns: on_dependency_failure, class_id, turn, ranked_by, waits, depends, unmet, available_at, timeout_seconds
-- columns: timeout_at, attempt, attempt_token, claim_id, final, reason, spreads, warned_at, progress_at, overdue_at
-- columns: usd_micros, input_tokens, output_tokens, created_by, application_id, trace, created_at, updated_at
-- columns: assigned_at, started_at, completed_at, failed_at
--
-- The columns of a task's content, in the order of `model.rows.Content`.
-- columns content: title, description, last_error, input_context, output_result, summary, checkpoint_data
-- columns content: metadata_json, tags, required_capabilities
--
-- The content size of a task, in bytes: only the columns that may be large.
-- phrase bytes_of(t): octets(t.input_context) + octets(t.checkpoint_data) + octets(t.metadata_json)
-- phrase bytes_of(t): + coalesce(octets(t.output_result), 0) + coalesce(octets(t.description), 0)
-- phrase bytes_of(t): + coalesce(octets(t.last_error), 0) + coalesce(octets(t.summary), 0)

-- name: tasks_get
-- All tasks that a batch refers to by id, in one statement.
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
-- The current tags of tasks whose tags are being replaced.
select t.zone_id, t.id, t.tags
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_of_claims
-- Tasks that a repeated claim already holds (the same claim id returns the same tasks) and tasks that are assigned to
-- the claiming agent, with their content size. An agent holds few tasks.
select columns(t), bytes_of(t)
from rows(:batch as b, zone_id text, agent_id text, claim_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null
where t.claim_id = b.claim_id or t.status = 'ASSIGNED';

-- name: tasks_waiting_for
-- Tasks that are waiting for tasks that may end in this batch, up to the number that one batch unblocks.
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
-- Dependencies of retried tasks with their states. Includes met ones, because a retry checks all dependencies again.
select d.task_id, a.zone_id, a.id, a.status, a.final, a.completed_at
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
join agent_tasks a on a.zone_id = d.zone_id and a.id = d.depends_on
order by d.zone_id, d.task_id, d.depends_on;

-- name: task_dependents_list
-- Dependents for a view. Not sorted, because the database would have to sort 100,000 dependents to return 100.
select d.zone_id, d.depends_on, d.task_id
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id
limit :limit;

-- name: task_dependency_closure
-- All unmet dependencies of the given tasks, direct and indirect, to search for cycles.
with recursive closure (zone_id, task_id) as (
    select b.zone_id, b.id from rows(:batch as b, zone_id text, id text)
    union
    select d.zone_id, d.depends_on
    from closure a
    join each task_dependencies d on d.zone_id = a.zone_id and d.task_id = a.task_id and d.met = 0
)
select d.zone_id, d.task_id, d.depends_on
from closure a
join each task_dependencies d on d.zone_id = a.zone_id and d.task_id = a.task_id and d.met = 0
limit :limit;

-- name: task_ranks_get
-- The strategy of a zone; under `fair` also the creator's latest rank and the highest rank claimed.
select b.zone_id, b.creator, coalesce(g.strategy, 'priority'), coalesce(s.turn, 0), coalesce(z.turn, 0)
from rows(:batch as b, zone_id text, creator text)
left join task_strategies g on g.zone_id = b.zone_id
left join task_shares s on s.zone_id = b.zone_id and s.creator = b.creator and g.strategy = 'fair'
left join task_shares z on z.zone_id = b.zone_id and z.creator = '' and g.strategy = 'fair';

-- name: task_classes_ready
-- The classes that have ready tasks, and the lowest rank of each. A skip scan along the index of ready tasks: the cost
-- depends on the number of classes, not on the number of tasks.
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
-- Inserts tasks in their state at the end of the batch: a task that was claimed in the same batch is already RUNNING.
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
-- Updates a row only if its status and attempt are still those that were loaded. The zone's lock should already prevent
-- other writes; this check detects a writer that does not take it. A null leaves a content column unchanged.
update agent_tasks
set status = b.to_status, priority = b.to_priority, agent_id = b.to_agent_id, session_key = b.to_session_key,
    progress_percent = b.to_percent, current_step = b.to_step, estimated_completion_at = b.to_completion_at,
    retry_count = b.to_retry_count, turn = b.to_turn, waits = b.to_waits, depends = b.to_depends, unmet = b.to_unmet,
    available_at = b.to_available_at, timeout_at = b.to_timeout_at, attempt = b.to_attempt,
    attempt_token = b.to_attempt_token, claim_id = b.to_claim_id, final = b.to_final, reason = b.to_reason,
    spreads = b.to_spreads, warned_at = b.to_warned_at, progress_at = b.to_progress_at, overdue_at = b.to_overdue_at,
    usd_micros = b.to_usd_micros, input_tokens = b.to_input_tokens, output_tokens = b.to_output_tokens,
    updated_at = b.to_updated_at, assigned_at = b.to_assigned_at, started_at = b.to_started_at,
    completed_at = b.to_completed_at, failed_at = b.to_failed_at, last_error = coalesce(b.to_error, last_error),
    output_result = coalesce(b.to_output, output_result), summary = coalesce(b.to_summary, summary),
    checkpoint_data = coalesce(b.to_checkpoint, checkpoint_data),
    metadata_json = coalesce(b.to_metadata, metadata_json), tags = coalesce(b.to_tags, tags)
from rows(:batch as b, zone text, task text, from_status text, from_attempt bigint, to_status text, to_priority bigint,
    to_agent_id text, to_session_key text, to_percent bigint, to_step text, to_completion_at bigint,
    to_retry_count bigint, to_turn bigint, to_waits bigint, to_depends bigint, to_unmet bigint, to_available_at bigint,
    to_timeout_at bigint, to_attempt bigint, to_attempt_token text, to_claim_id text, to_final smallint,
    to_reason text, to_spreads smallint, to_warned_at bigint, to_progress_at bigint, to_overdue_at bigint,
    to_usd_micros bigint, to_input_tokens bigint, to_output_tokens bigint, to_updated_at bigint, to_assigned_at bigint,
    to_started_at bigint, to_completed_at bigint, to_failed_at bigint, to_error text, to_output text, to_summary text,
    to_checkpoint text, to_metadata text, to_tags text)
where zone_id = b.zone and id = b.task and status = b.from_status and attempt = b.from_attempt
returning id;

-- name: tasks_start
-- The same as `tasks_update`, for a claim and with a third of the columns: most writes are claims and completions, and
-- binding a parameter costs as much as writing a column.
update agent_tasks
set status = 'RUNNING', agent_id = b.to_agent_id, session_key = b.to_session_key, progress_percent = 0,
    current_step = null, estimated_completion_at = b.to_completion_at, timeout_at = b.to_timeout_at,
    attempt = b.from_attempt + 1, attempt_token = b.to_attempt_token, claim_id = b.to_claim_id, warned_at = null,
    progress_at = b.to_updated_at, overdue_at = b.to_overdue_at, updated_at = b.to_updated_at,
    assigned_at = b.to_updated_at, started_at = b.to_updated_at
from rows(:batch as b, zone text, task text, from_status text, from_attempt bigint, to_agent_id text,
    to_session_key text, to_completion_at bigint, to_timeout_at bigint, to_attempt_token text, to_claim_id text,
    to_overdue_at bigint, to_updated_at bigint)
where zone_id = b.zone and id = b.task and status = b.from_status and attempt = b.from_attempt
returning id;

-- name: tasks_complete
-- The same as `tasks_update`, for a completion and with fewer columns.
update agent_tasks
set status = 'COMPLETED', waits = 0, progress_percent = 100, timeout_at = null, overdue_at = null,
    completed_at = b.to_updated_at, updated_at = b.to_updated_at, output_result = coalesce(b.to_output, output_result),
    summary = coalesce(b.to_summary, summary)
from rows(:batch as b, zone text, task text, from_status text, from_attempt bigint, to_updated_at bigint,
    to_output text, to_summary text)
where zone_id = b.zone and id = b.task and status = b.from_status and attempt = b.from_attempt
returning id;

-- name: task_classes_insert
-- A class is immutable, so the first writer wins.
insert into task_classes (zone_id, id, task_type, capabilities, created_at)
select b.zone_id, b.id, b.task_type, b.capabilities, b.created_at
from rows(:batch as b, zone_id text, id text, task_type text, capabilities text, created_at bigint)
where true
on conflict (zone_id, id) do nothing;

-- name: task_dependencies_insert
-- Inserts the dependencies of new tasks, and of tasks whose dependencies are being replaced. Some may already be met.
insert into task_dependencies (zone_id, task_id, depends_on, met)
select b.zone_id, b.task_id, b.depends_on, b.met
from rows(:batch as b, zone_id text, task_id text, depends_on text, met smallint);

-- name: task_dependencies_remove
-- Deletes the dependencies of tasks whose dependencies are being replaced, and of deleted tasks.
delete from task_dependencies
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_dependencies_set_met
-- Marks dependencies as met or, for a retried task, as unmet again.
update task_dependencies
set met = b.to_met
from rows(:batch as b, zone text, task text, dependency text, to_met smallint)
where zone_id = b.zone and task_id = b.task and depends_on = b.dependency;

-- name: task_tags_insert
-- Ignores tags that the task already has.
insert into task_tags (zone_id, tag, task_id)
select b.zone_id, b.tag, b.task_id
from rows(:batch as b, zone_id text, tag text, task_id text)
where true
on conflict (zone_id, tag, task_id) do nothing;

-- name: task_tags_remove
-- Deletes by the full primary key. It is known, because the task's row lists its tags.
delete from task_tags
where (zone_id, tag, task_id) in (
    select b.zone_id, b.tag, b.task_id from rows(:batch as b, zone_id text, tag text, task_id text)
);

-- name: task_log_counts_add
-- Assigns line numbers in commit order: the counter row stays locked until the commit, and only writers of lines lock
-- it. If the count of a task would exceed the limit, its row is neither updated nor returned.
insert into task_log_counts (zone_id, task_id, lines)
select b.zone_id, b.task_id, b.lines
from rows(:batch as b, zone_id text, task_id text, lines bigint)
where true
on conflict (zone_id, task_id) do update set lines = task_log_counts.lines + excluded.lines
where task_log_counts.lines + excluded.lines <= :lines_max
returning zone_id, task_id, lines;

-- name: task_log_lines_insert
-- A line's number is the count that this transaction has just increased, minus the number of later lines in the batch.
insert into task_log_lines (zone_id, task_id, id, number, agent_id, attempt, level, event, message, details,
    session_key, stack_trace, size, created_at)
select b.zone_id, b.task_id, b.id, c.lines - b.lines_after, b.agent_id, b.attempt, b.level, b.event, b.message,
    b.details, b.session_key, b.stack_trace, b.size, b.created_at
from rows(:batch as b, zone_id text, task_id text, id text, lines_after bigint, agent_id text, attempt bigint,
    level text, event text, message text, details text, session_key text, stack_trace text, size bigint,
    created_at bigint)
join task_log_counts c on c.zone_id = b.zone_id and c.task_id = b.task_id;

-- name: task_fair_ranks_set
-- A rank never decreases, so a late writer cannot overwrite a newer rank.
insert into task_shares (zone_id, creator, turn)
select b.zone_id, b.creator, b.turn
from rows(:batch as b, zone_id text, creator text, turn bigint)
where true
on conflict (zone_id, creator) do update
set turn = case when excluded.turn > task_shares.turn then excluded.turn else task_shares.turn end;

-- name: tasks_of_agents
-- All tasks that agents hold. No limit is needed, because an agent holds at most `max_concurrent_tasks`.
select columns(t)
from rows(:batch as b, zone_id text, agent_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null;
