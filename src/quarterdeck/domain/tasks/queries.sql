-- The row of a task, in the order of `model.rows.Task`.
-- columns: id, zone_id, task_type, status, priority, agent_id, session_key, progress_percent, current_step
-- columns: estimated_duration_minutes, estimated_completion_at, retry_count, max_retries, retry_backoff_seconds
-- columns: on_dependency_failure, class_id, turn, ranked_by, waits, depends, unmet, available_at, timeout_seconds
-- columns: timeout_at, attempt, attempt_token, claim_id, final, reason, spreads, warned_at, progress_at, overdue_at
-- columns: usd_micros, input_tokens, output_tokens, created_by, application_id, trace, created_at, updated_at
-- columns: assigned_at, started_at, completed_at, failed_at
--
-- What it says, in the order of `model.rows.Content`.
-- columns content: title, description, last_error, input_context, output_result, summary, checkpoint_data
-- columns content: metadata_json, tags, required_capabilities

-- name: tasks_get
-- Gathered: one statement answers for everything that a batch names by id.
select columns(t)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_whole
-- The same with what they say.
select columns(t), columns(t as content)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_contents
-- What those say that were just given out.
select t.zone_id, t.id, columns(t as content)
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_standing
-- Of those that something is to depend on: narrow, since they may be ten thousand.
select t.zone_id, t.id, t.status, t.final, t.completed_at
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_tagged
-- Of those whose tags are replaced, the tags they have.
select t.zone_id, t.id, t.tags
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id;

-- name: tasks_of_claims
-- What claims hold that are repeated: the same id gives the same leases. An agent holds few.
select columns(t)
from rows(:batch as b, zone_id text, agent_id text, claim_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null
where t.claim_id = b.claim_id;

-- name: tasks_blocked
-- Those that wait for what may end now, as many as one batch settles.
select d.depends_on, columns(t)
from rows(:batch as b, zone_id text, id text, met smallint)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id and d.met = b.met
join agent_tasks t on t.zone_id = d.zone_id and t.id = d.task_id
limit :limit;

-- name: tasks_depend
-- What tasks depend on, and how that stands.
select d.task_id, a.zone_id, a.id, a.status, a.final, a.completed_at
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
join agent_tasks a on a.zone_id = d.zone_id and a.id = d.depends_on
order by d.zone_id, d.task_id, d.depends_on;

-- name: tasks_blocks
-- And which depend on them.
select d.zone_id, d.depends_on, d.task_id
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.depends_on = b.id and coalesce(d.zone_id, '') = b.zone_id
order by d.zone_id, d.depends_on, d.task_id
limit :limit;

-- name: tasks_way_ahead
-- planned: each time
-- Spelt so that no index of what is waited for comes into question: those lead the other way.
-- Everything that is waited for, directly or not, by those that a task is to depend on. What is done waits for nothing.
with recursive ahead (zone_id, task_id) as (
    select b.zone_id, b.id from rows(:batch as b, zone_id text, id text)
    union
    select d.zone_id, d.depends_on
    from ahead a
    join task_dependencies d on d.zone_id = a.zone_id and d.task_id = a.task_id
    where coalesce(d.met, 0) = 0
)
select d.zone_id, d.task_id, d.depends_on
from ahead a
join task_dependencies d on d.zone_id = a.zone_id and d.task_id = a.task_id
where coalesce(d.met, 0) = 0
limit :limit;

-- name: tasks_ranking
-- By what strategy a zone's tasks are ranked, and where it counts, whose turn it is.
select b.zone_id, b.creator, coalesce(g.strategy, 'priority'), coalesce(s.turn, 0), coalesce(z.turn, 0)
from rows(:batch as b, zone_id text, creator text)
left join task_strategies g on g.zone_id = b.zone_id
left join task_shares s on s.zone_id = b.zone_id and s.creator = b.creator and g.strategy = 'fair'
left join task_shares z on z.zone_id = b.zone_id and z.creator = '' and g.strategy = 'fair';

-- name: tasks_classes_ready
-- The classes of which something may begin, and the first turn of each: found by skipping from class to class along the
-- index of what may begin, so that it costs what is found.
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

-- name: tasks_next
-- The next of a class.
select columns(t)
from agent_tasks t
where t.zone_id = :zone_id and t.class_id = :class_id and t.status = 'PENDING' and t.waits = 0
order by t.turn, t.id
limit :limit;

-- name: tasks_insert
-- As they are when the batch is done: what was handed over in the same batch is running already.
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

-- name: tasks_move
-- Guarded by where it comes from, although the zone's lock has kept everybody else away since it was read. What it says
-- stays unless something new is said.
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

-- name: task_classes_note
-- What a class asks for never changes: the first to make a task of it notes it.
insert into task_classes (zone_id, id, task_type, capabilities, created_at)
select b.zone_id, b.id, b.task_type, b.capabilities, b.created_at
from rows(:batch as b, zone_id text, id text, task_type text, capabilities text, created_at bigint)
where true
on conflict (zone_id, id) do nothing;

-- name: task_dependencies_insert
-- Of those that are made, or that depend anew; some may be out of the way already.
insert into task_dependencies (zone_id, task_id, depends_on, met)
select b.zone_id, b.task_id, b.depends_on, b.met
from rows(:batch as b, zone_id text, task_id text, depends_on text, met smallint);

-- name: task_dependencies_remove
-- Of those that depend anew, and of those that are forgotten.
delete from task_dependencies
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_dependencies_settle
-- Out of the way, or waited for again.
update task_dependencies
set met = b.now_met
from rows(:batch as b, zone text, task text, ahead text, now_met smallint)
where zone_id = b.zone and task_id = b.task and depends_on = b.ahead;

-- name: task_tags_insert
-- A tag that is given twice is there once.
insert into task_tags (zone_id, tag, task_id)
select b.zone_id, b.tag, b.task_id
from rows(:batch as b, zone_id text, tag text, task_id text)
where true
on conflict (zone_id, tag, task_id) do nothing;

-- name: task_tags_remove
-- By their whole key: which tags a task has is known from its row.
delete from task_tags
where (zone_id, tag, task_id) in (
    select b.zone_id, b.tag, b.task_id from rows(:batch as b, zone_id text, tag text, task_id text)
);

-- name: task_shares_set
-- Turns only go forward.
insert into task_shares (zone_id, creator, turn)
select b.zone_id, b.creator, b.turn
from rows(:batch as b, zone_id text, creator text, turn bigint)
where true
on conflict (zone_id, creator) do update
set turn = case when excluded.turn > task_shares.turn then excluded.turn else task_shares.turn end;

-- name: tasks_page
-- planned: each time
-- Newest first: ids are made in order of time. A filter that is null matches all.
select columns(t), columns(t as content)
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
select columns(t), columns(t as content)
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

-- name: tasks_slice
-- For retention, across zones: so many of all there are, from a place on, in the order of states.
select t.zone_id, t.status, t.id, t.final, t.updated_at
from agent_tasks t
where (t.zone_id, t.status, t.id) > (:zone_id, :status, :id)
order by t.zone_id, t.status, t.id
limit :limit;

-- name: tasks_forget
-- planned: each time
-- Only what is still put away; spelt so that they are found by their names, and not by all that are.
delete from agent_tasks
where (zone_id, id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text)) 
  and coalesce(status, '') = 'ARCHIVED'
returning zone_id, id, tags;

-- name: task_lines_forget
-- What agents said of tasks that are forgotten.
delete from task_log_lines
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: tasks_due
-- For the coordinator, across zones: what has waited for its moment long enough.
select t.zone_id, t.id
from agent_tasks t
where t.waits = 1 and t.available_at <= (select now_ms())
order by t.available_at
limit :limit;

-- name: tasks_timed_out
-- Attempts whose time is over, across zones; of those that are only assigned, the time to be launched.
select t.zone_id, t.id, t.attempt, t.status
from agent_tasks t
where t.timeout_at is not null and t.timeout_at <= (select now_ms())
order by t.timeout_at
limit :limit;

-- name: tasks_overdue
-- Attempts that are long past their estimate, or were warned and have not moved since.
select t.zone_id, t.id, t.attempt, case when t.warned_at is null then 0 else 1 end
from agent_tasks t
where t.overdue_at is not null and t.overdue_at <= (select now_ms())
order by t.overdue_at
limit :limit;

-- name: tasks_next_moment
-- When the next moment comes that a task waits for, when the next attempt's time is over, and when the next is overdue.
select (select min(t.available_at) from agent_tasks t where t.waits = 1),
    (select min(t.timeout_at) from agent_tasks t where t.timeout_at is not null),
    (select min(t.overdue_at) from agent_tasks t where t.overdue_at is not null), now_ms();

-- name: tasks_spreading
-- Ended, and some that depend on them have not heard of it.
select t.zone_id, t.id
from agent_tasks t
where t.spreads = 1
order by t.zone_id, t.id
limit :limit;

-- name: tasks_of_agents
-- All that agents hold, who hold no more than they may.
select columns(t)
from rows(:batch as b, zone_id text, agent_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null;

-- name: tasks_held
-- What agents hold, in the order of their names.
select t.zone_id, t.agent_id, t.id, t.attempt, t.status
from rows(:batch as b, zone_id text, agent_id text, state text)
join agent_tasks t on t.agent_id = b.agent_id and coalesce(t.zone_id, '') = b.zone_id and t.status = b.state
  and t.agent_id is not null
order by t.agent_id, t.id
limit :limit;

-- == costs and budgets ==
--
-- A budget, in the order of `model.money.Budget`.
-- columns budget: zone_id, scope, scope_key, period, usd_micros, tokens, began_at, ends_at, spent_usd_micros
-- columns budget: spent_tokens, created_by, created_at, updated_at

-- name: task_costs_add
-- What tasks have cost, by who and by which model, a day. Beyond 2^53 nothing is added: a sum must stay a number.
insert into task_costs (zone_id, task_id, agent_id, model, day, input_tokens, output_tokens, usd_micros)
select b.zone_id, b.task_id, b.agent_id, b.model, b.day, b.input_tokens, b.output_tokens, b.usd_micros
from rows(:batch as b, zone_id text, task_id text, agent_id text, model text, day bigint, input_tokens bigint,
    output_tokens bigint, usd_micros bigint)
where true
on conflict (zone_id, task_id, agent_id, model, day) do update
set input_tokens = case when task_costs.input_tokens >= 9007199254740992 then task_costs.input_tokens
        else task_costs.input_tokens + excluded.input_tokens end,
    output_tokens = case when task_costs.output_tokens >= 9007199254740992 then task_costs.output_tokens
        else task_costs.output_tokens + excluded.output_tokens end,
    usd_micros = case when task_costs.usd_micros >= 9007199254740992 then task_costs.usd_micros
        else task_costs.usd_micros + excluded.usd_micros end;

-- name: cost_days_add
-- The same for the whole zone, by type: a row for each day and not for each task, so that a year is summed in a moment.
insert into cost_days (zone_id, day, task_type, agent_id, model, input_tokens, output_tokens, usd_micros)
select b.zone_id, b.day, b.task_type, b.agent_id, b.model, b.input_tokens, b.output_tokens, b.usd_micros
from rows(:batch as b, zone_id text, day bigint, task_type text, agent_id text, model text, input_tokens bigint,
    output_tokens bigint, usd_micros bigint)
where true
on conflict (zone_id, day, task_type, agent_id, model) do update
set input_tokens = case when cost_days.input_tokens >= 9007199254740992 then cost_days.input_tokens
        else cost_days.input_tokens + excluded.input_tokens end,
    output_tokens = case when cost_days.output_tokens >= 9007199254740992 then cost_days.output_tokens
        else cost_days.output_tokens + excluded.output_tokens end,
    usd_micros = case when cost_days.usd_micros >= 9007199254740992 then cost_days.usd_micros
        else cost_days.usd_micros + excluded.usd_micros end;

-- name: budgets_of_zones
-- All of them, for whoever charges them or changes one: a zone has a thousand at most, and mostly none.
select columns(g as budget)
from rows(:batch as b, zone_id text)
join budgets g on g.zone_id = b.zone_id
order by g.zone_id, g.scope, g.scope_key, g.period;

-- name: budgets_spent_of_zones
-- Only those that hold something up. Whether their period is over is for the rules to say, who know the moment.
select columns(g as budget)
from rows(:batch as b, zone_id text)
join budgets g on g.zone_id = b.zone_id
where coalesce(g.spent_usd_micros >= g.usd_micros, false) or coalesce(g.spent_tokens >= g.tokens, false);

-- name: budgets_charge
-- An increment, whoever else has added meanwhile; in a new period it is the first.
update budgets
set spent_usd_micros = case when b.began > began_at then b.usd
        when spent_usd_micros >= 9007199254740992 then spent_usd_micros else spent_usd_micros + b.usd end,
    spent_tokens = case when b.began > began_at then b.used
        when spent_tokens >= 9007199254740992 then spent_tokens else spent_tokens + b.used end,
    ends_at = case when b.began > began_at then b.ends else ends_at end,
    began_at = case when b.began > began_at then b.began else began_at end
from rows(:batch as b, zone text, of_scope text, of_key text, of_period text, began bigint, ends bigint, usd bigint,
    used bigint)
where zone_id = b.zone and scope = b.of_scope and scope_key = b.of_key and period = b.of_period;

-- == what agents say of their tasks ==
--
-- A line, in the order of `model.lines.Line`.
-- columns line: zone_id, task_id, id, number, agent_id, attempt, level, event, message, details, session_key
-- columns line: stack_trace, size, created_at

-- name: task_log_counts_add
-- Gives out numbers, in the order of commits: the row is locked from here on, by nobody but those who add lines. A
-- count that would pass its bound is left alone, and says so by not being there.
insert into task_log_counts (zone_id, task_id, lines)
select b.zone_id, b.task_id, b.lines
from rows(:batch as b, zone_id text, task_id text, lines bigint)
where true
on conflict (zone_id, task_id) do update set lines = task_log_counts.lines + excluded.lines
where task_log_counts.lines + excluded.lines <= :most
returning zone_id, task_id, lines;

-- name: task_log_lines_insert
-- Reads the count that this transaction has just raised; `place` counts back from it.
insert into task_log_lines (zone_id, task_id, id, number, agent_id, attempt, level, event, message, details,
    session_key, stack_trace, size, created_at)
select b.zone_id, b.task_id, b.id, c.lines - b.place, b.agent_id, b.attempt, b.level, b.event, b.message, b.details,
    b.session_key, b.stack_trace, b.size, b.created_at
from rows(:batch as b, zone_id text, task_id text, id text, place bigint, agent_id text, attempt bigint, level text,
    event text, message text, details text, session_key text, stack_trace text, size bigint, created_at bigint)
join task_log_counts c on c.zone_id = b.zone_id and c.task_id = b.task_id;

-- == budgets by hand, and what was spent ==

-- name: budgets_set
-- Written as it was decided under the zone's lock, which everybody takes who charges it.
insert into budgets (zone_id, scope, scope_key, period, usd_micros, tokens, began_at, ends_at, spent_usd_micros,
    spent_tokens, created_by, created_at, updated_at)
select columns(b as budget)
from rows(:batch as b, zone_id text, scope text, scope_key text, period text, usd_micros bigint, tokens bigint, began_at
    bigint, ends_at bigint, spent_usd_micros bigint, spent_tokens bigint, created_by text, created_at bigint, updated_at
    bigint)
where true
on conflict (zone_id, scope, scope_key, period) do update
set usd_micros = excluded.usd_micros, tokens = excluded.tokens, began_at = excluded.began_at, ends_at =
    excluded.ends_at, spent_usd_micros = excluded.spent_usd_micros, spent_tokens = excluded.spent_tokens, updated_at =
    excluded.updated_at;

-- name: budgets_remove
-- By name, under the zone's lock: whoever asked has seen that it is there.
delete from budgets
where (zone_id, scope, scope_key, period) in (
    select b.zone_id, b.scope, b.scope_key, b.period
    from rows(:batch as b, zone_id text, scope text, scope_key text, period text)
);

-- name: budgets_page
-- In the order of their names, from one on.
select columns(g as budget)
from budgets g
where g.zone_id = :zone_id and (g.scope, g.scope_key, g.period) > (:scope, :scope_key, :period)
order by g.zone_id, g.scope, g.scope_key, g.period
limit :limit;

-- name: budgets_next_change
-- When the first of those that hold something up begins anew. The condition is that of their index, to the letter.
select min(g.ends_at), now_ms()
from budgets g
where (g.spent_usd_micros >= g.usd_micros or g.spent_tokens >= g.tokens) and g.ends_at > (select now_ms());

-- name: costs_since
-- What a zone, or its tasks of one type, have cost since a day: what a new budget begins with.
select coalesce(sum(c.usd_micros), 0), coalesce(sum(c.input_tokens), 0), coalesce(sum(c.output_tokens), 0)
from cost_days c
where c.zone_id = :zone_id and c.day >= :since
  and (cast(:task_type as text) is null or c.task_type = cast(:task_type as text));

-- name: costs_of_task_since
-- The same of one task.
select coalesce(sum(c.usd_micros), 0), coalesce(sum(c.input_tokens), 0), coalesce(sum(c.output_tokens), 0)
from task_costs c
where c.zone_id = :zone_id and c.task_id = :task_id and c.day >= :since;

-- name: costs_by_task
-- planned: each time
-- In the order of ids. It walks along the key, and passes over what is of other days.
select c.task_id, sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from task_costs c
where c.zone_id = :zone_id and (cast(:after as text) is null or c.task_id > cast(:after as text))
  and c.day >= :since and c.day < :until
group by c.task_id
order by c.task_id
limit :limit;

-- name: costs_by_day
-- planned: each time
-- This and the following group what was summed by days already.
select cast(c.day as text), sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and c.day > :after and c.day >= :since and c.day < :until
group by c.day
order by c.day
limit :limit;

-- name: costs_by_agent
-- planned: each time
-- The empty name is of costs that were said by hand.
select c.agent_id, sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and (cast(:after as text) is null or c.agent_id > cast(:after as text))
  and c.day >= :since and c.day < :until
group by c.agent_id
order by c.agent_id
limit :limit;

-- name: costs_by_model
-- planned: each time
-- As the others, by another column.
select c.model, sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and (cast(:after as text) is null or c.model > cast(:after as text))
  and c.day >= :since and c.day < :until
group by c.model
order by c.model
limit :limit;

-- name: costs_by_type
-- planned: each time
-- As the others, by another column.
select c.task_type, sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and (cast(:after as text) is null or c.task_type > cast(:after as text))
  and c.day >= :since and c.day < :until
group by c.task_type
order by c.task_type
limit :limit;

-- name: costs_of_zone
-- planned: each time
-- One row, or none if nothing was spent.
select c.zone_id, sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and c.day >= :since and c.day < :until
group by c.zone_id;

-- name: tasks_sealed
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

-- name: tasks_reseal
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

-- name: task_costs_forget
-- With the tasks they are of; what they add up to stands in cost_days.
delete from task_costs
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_budgets_forget
-- Budgets of tasks that are forgotten: nothing will ever be charged to them again. (The scope is spelt as something of
-- each row: as a constant it would have the planner go through all budgets of that scope.)
delete from budgets
where (zone_id, scope, scope_key) in (
    select b.zone_id, 'task' || substr(b.task_id, 1, 0), b.task_id
    from rows(:batch as b, zone_id text, task_id text)
);

-- == the log of a task ==

-- name: task_log_subjects
-- Of tasks that something is to be said of: how many lines they have, and what of their content holds secrets, which
-- must not be said.
select t.zone_id, t.id, coalesce(c.lines, 0),
    case when t.input_context like '%"$sealed"%' then t.input_context end,
    case when t.checkpoint_data like '%"$sealed"%' then t.checkpoint_data end
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id
left join task_log_counts c on c.zone_id = b.zone_id and c.task_id = b.id;

-- name: task_log_lines_known
-- What is tried again after a COMMIT that nobody heard of may be there already.
select l.id
from rows(:batch as b, zone_id text, task_id text, id text)
join task_log_lines l on l.zone_id = b.zone_id and l.task_id = b.task_id and l.id = b.id;

-- name: task_log_head
-- How far both halves of a task's log go. Read before them: whatever stands below is committed, and seen by what
-- follows.
select h.pos, coalesce((select c.lines from task_log_counts c where c.zone_id = :zone_id and c.task_id = :task_id), 0)
from log_head h
where h.id = 1;

-- name: task_log_transitions
-- planned: each time
-- What the event log says of a task, oldest first. That retries were exhausted is said in the data: a quote within a
-- value is escaped, so nothing but the member itself reads like this (its colon would be taken for a parameter).
select e.pos, e.id, e.type, e.actor, e.from_state, e.to_state, e.data, e.at
from events e
where e.subject = :subject and e.zone_id = :zone_id and e.pos > :after and e.type >= 'task.' and e.type < 'task/'
  and (cast(:any_type as bigint) = 1 or e.type in (select t.name from rows(:types as t, name text)))
  and (cast(:exhausted as bigint) is null
    or cast(:exhausted as bigint) = case when e.data like '%"exhausted"_true%' then 1 else 0 end)
order by e.pos
limit :limit;

-- name: task_log_transitions_back
-- planned: each time
-- The same, newest first.
select e.pos, e.id, e.type, e.actor, e.from_state, e.to_state, e.data, e.at
from events e
where e.subject = :subject and e.zone_id = :zone_id and e.pos < :before and e.type >= 'task.' and e.type < 'task/'
  and (cast(:any_type as bigint) = 1 or e.type in (select t.name from rows(:types as t, name text)))
  and (cast(:exhausted as bigint) is null
    or cast(:exhausted as bigint) = case when e.data like '%"exhausted"_true%' then 1 else 0 end)
order by e.pos desc
limit :limit;

-- name: task_log_lines_page
-- planned: each time
-- What agents have said, oldest first; as many as fit, and how many there would be.
with few as (
    select l.number, l.size
    from task_log_lines l
    where l.task_id = :task_id and l.zone_id = :zone_id and l.number > :after
      and (cast(:level as text) is null or l.level = cast(:level as text))
      and (cast(:event as text) is null or l.event = cast(:event as text))
    order by l.number
    limit :limit
), sized as (
    select f.number, sum(f.size) over (order by f.number) - f.size as ahead from few f
)
select (select count(*) from few), columns(l as line)
from sized s
join task_log_lines l on l.task_id = :task_id and l.zone_id = :zone_id and l.number = s.number
where s.ahead < :bytes
order by l.number;

-- name: task_log_lines_back
-- planned: each time
-- The same, newest first.
with few as (
    select l.number, l.size
    from task_log_lines l
    where l.task_id = :task_id and l.zone_id = :zone_id and l.number < :before
      and (cast(:level as text) is null or l.level = cast(:level as text))
      and (cast(:event as text) is null or l.event = cast(:event as text))
    order by l.number desc
    limit :limit
), sized as (
    select f.number, sum(f.size) over (order by f.number desc) - f.size as ahead from few f
)
select (select count(*) from few), columns(l as line)
from sized s
join task_log_lines l on l.task_id = :task_id and l.zone_id = :zone_id and l.number = s.number
where s.ahead < :bytes
order by l.number desc;

-- name: task_logs_news
-- Once for everybody in a process who follows tasks: how far the log of each goes now.
select b.zone_id, b.task_id, coalesce((
    select e.pos from events e where e.subject = b.task_id and e.zone_id = b.zone_id order by e.pos desc limit 1
), 0), coalesce((
    select c.lines from task_log_counts c where c.zone_id = b.zone_id and c.task_id = b.task_id
), 0)
from rows(:batch as b, zone_id text, task_id text);

-- name: task_log_counts_forget
-- With the lines they count.
delete from task_log_counts
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- What the coordinator looks for besides, and the ranks that a zone's strategy gives.

-- name: tasks_ready_of
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

-- name: tasks_waiting_some
-- Whether there is any that waits for others: what nobody waits for is in no cycle.
select 1 from agent_tasks t where t.waits = 2 limit 1;

-- name: tasks_counted
-- How many of a zone stand how, up to a bound: beyond it nobody needs the number, and counting would take its time.
select b.zone_id, b.status, (
    select count(*) from (
        select 1 from agent_tasks t where t.zone_id = b.zone_id and t.status = b.status limit :limit
    ) few)
from rows(:batch as b, zone_id text, status text);

-- name: tasks_pending_count
-- Across zones, those that wait for nothing but an agent, up to a bound.
select count(*) from (
    select 1 from agent_tasks t where t.status = 'PENDING' and t.waits = 0 limit :limit
) few;

-- name: task_strategy_get
-- By what a zone's tasks are ranked; nothing if that was never said.
select g.strategy, g.ranked_to from task_strategies g where g.zone_id = :zone_id;

-- name: task_strategy_put
-- All that wait are to be ranked anew, from the first: also by whoever was in the middle of it for another strategy.
insert into task_strategies (zone_id, strategy, ranked_to, updated_at) values (:zone_id, :strategy, '', :now)
on conflict (zone_id) do update set strategy = excluded.strategy, ranked_to = '', updated_at = excluded.updated_at;

-- name: task_strategy_ranked
-- How far that has come; null when all have been.
update task_strategies set ranked_to = :ranked_to where zone_id = :zone_id;

-- name: task_strategies_unsettled
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

-- name: task_shares_get
-- Whose turn it was last, where those who ask take turns.
select s.creator, s.turn
from rows(:batch as b, zone_id text, creator text)
join task_shares s on s.zone_id = b.zone_id and s.creator = b.creator;

-- == why a task is as it is, and what it hangs together with ==

-- name: tasks_waited_for
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

-- name: tasks_before
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

-- name: tasks_edges_ahead
-- One step from these towards what they depend on.
select d.task_id, d.depends_on
from rows(:batch as b, zone_id text, id text)
join task_dependencies d on d.zone_id = b.zone_id and d.task_id = b.id
order by d.task_id, d.depends_on
limit :limit;

-- name: tasks_edges_behind
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

-- name: tasks_recovering
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
