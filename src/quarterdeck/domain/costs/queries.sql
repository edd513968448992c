-- Costs of tasks, and budgets.
--
-- The columns of a budget, in the order of `model.Budget`.
-- columns budget: zone_id, scope, scope_key, period, usd_micros, tokens, began_at, ends_at, spent_usd_micros
-- columns budget: spent_tokens, created_by, created_at, updated_at

-- name: task_costs_add
-- Adds costs per task, agent, model and day. A sum stops growing at 2^53: many JSON parsers round larger integers.
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
-- Adds costs per day, task type, agent and model. The table has no rows per task, so the costs of a
-- year can be summed quickly.
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
-- All budgets of the zones, to charge or change them. A zone has at most 1,000, and usually none.
select columns(g as budget)
from rows(:batch as b, zone_id text)
join budgets g on g.zone_id = b.zone_id
order by g.zone_id, g.scope, g.scope_key, g.period;

-- name: budgets_spent_of_zones
-- Only budgets that have reached a limit. `rules.SpentBudgets` then checks whether their period has ended.
select columns(g as budget)
from rows(:batch as b, zone_id text)
join budgets g on g.zone_id = b.zone_id
where coalesce(g.spent_usd_micros >= g.usd_micros, false) or coalesce(g.spent_tokens >= g.tokens, false);

-- name: budgets_charge
-- Increments the stored sums, so that no charge is lost. The first charge in a new period replaces them.
update budgets
set spent_usd_micros = case when b.period_start > began_at then b.charged_usd_micros
        when spent_usd_micros >= 9007199254740992 then spent_usd_micros
        else spent_usd_micros + b.charged_usd_micros end,
    spent_tokens = case when b.period_start > began_at then b.charged_tokens
        when spent_tokens >= 9007199254740992 then spent_tokens else spent_tokens + b.charged_tokens end,
    ends_at = case when b.period_start > began_at then b.period_end else ends_at end,
    began_at = case when b.period_start > began_at then b.period_start else began_at end
from rows(:batch as b, zone text, budget_scope text, budget_key text, budget_period text, period_start bigint,
    period_end bigint, charged_usd_micros bigint, charged_tokens bigint)
where zone_id = b.zone and scope = b.budget_scope and scope_key = b.budget_key and period = b.budget_period;

-- name: budgets_set
-- Writes absolute values. This is safe because the zone is locked, and every charge to a budget locks the zone too.
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
-- Deletes by primary key. The zone is locked, as for `budgets_set`.
delete from budgets
where (zone_id, scope, scope_key, period) in (
    select b.zone_id, b.scope, b.scope_key, b.period
    from rows(:batch as b, zone_id text, scope text, scope_key text, period text)
);

-- name: budgets_page
-- Keyset pagination along the primary key.
select columns(g as budget)
from budgets g
where g.zone_id = :zone_id and (g.scope, g.scope_key, g.period) > (:scope, :scope_key, :period)
order by g.zone_id, g.scope, g.scope_key, g.period
limit :limit;

-- name: costs_since
-- The costs of a zone, or of one task type, since a given day: the initial sums of a new budget.
select coalesce(sum(c.usd_micros), 0), coalesce(sum(c.input_tokens), 0), coalesce(sum(c.output_tokens), 0)
from cost_days c
where c.zone_id = :zone_id and c.day >= :since
  and (cast(:task_type as text) is null or c.task_type = cast(:task_type as text));

-- name: costs_of_task_since
-- The same as `costs_since`, for one task.
select coalesce(sum(c.usd_micros), 0), coalesce(sum(c.input_tokens), 0), coalesce(sum(c.output_tokens), 0)
from task_costs c
where c.zone_id = :zone_id and c.task_id = :task_id and c.day >= :since;

-- name: costs_by_task
-- planned: each time
-- Sums per task, ordered by id. Scans along the primary key and filters out days outside the range.
select c.task_id, sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from task_costs c
where c.zone_id = :zone_id and (cast(:after as text) is null or c.task_id > cast(:after as text))
  and c.day >= :since and c.day < :until
group by c.task_id
order by c.task_id
limit :limit;

-- name: costs_by_day
-- planned: each time
-- Groups the daily sums along the primary key, which starts with (zone_id, day).
select cast(c.day as text), sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and c.day > :after and c.day >= :since and c.day < :until
group by c.day
order by c.day
limit :limit;

-- name: costs_grouped
-- planned: each time
-- Groups the daily sums by agent, model, task type or zone. Grouped by zone, it returns one row, or none if there are
-- no costs. The agent is empty for costs that were reported while no agent held the task.
select k.name, sum(k.usd_micros), sum(k.input_tokens), sum(k.output_tokens)
from (
    select case cast(:grouped_by as text) when 'agent' then c.agent_id when 'model' then c.model
            when 'taskType' then c.task_type else c.zone_id end as name,
        c.usd_micros, c.input_tokens, c.output_tokens
    from cost_days c
    where c.zone_id = :zone_id and c.day >= :since and c.day < :until
) k
where cast(:after as text) is null or k.name > cast(:after as text)
group by k.name
order by k.name
limit :limit;

-- name: task_costs_delete_expired
-- Deletes the costs of deleted tasks. `cost_days` keeps the sums.
delete from task_costs
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_budgets_delete_expired
-- Deletes the budgets of deleted tasks, because nothing will be charged to them. (The scope is an expression over each
-- row, because with a constant the planner would scan all budgets of that scope.)
delete from budgets
where (zone_id, scope, scope_key) in (
    select b.zone_id, 'task' || substr(b.task_id, 1, 0), b.task_id
    from rows(:batch as b, zone_id text, task_id text)
);
