-- What tasks have cost, and the budgets that hold them up.
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
-- This and the following group what was summed by days already. This one along the key, which the days are in.
select cast(c.day as text), sum(c.usd_micros), sum(c.input_tokens), sum(c.output_tokens)
from cost_days c
where c.zone_id = :zone_id and c.day > :after and c.day >= :since and c.day < :until
group by c.day
order by c.day
limit :limit;

-- name: costs_grouped
-- planned: each time
-- The same by whatever else a row of a day says; of a whole zone it is one row, or none if nothing was spent. The empty
-- agent is of costs that were said by hand.
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
-- With the tasks they are of; what they add up to stands in cost_days.
delete from task_costs
where (zone_id, task_id) in (select b.zone_id, b.task_id from rows(:batch as b, zone_id text, task_id text));

-- name: task_budgets_delete_expired
-- Budgets of tasks that are forgotten: nothing will ever be charged to them again. (The scope is spelt as something of
-- each row: as a constant it would have the planner go through all budgets of that scope.)
delete from budgets
where (zone_id, scope, scope_key) in (
    select b.zone_id, 'task' || substr(b.task_id, 1, 0), b.task_id
    from rows(:batch as b, zone_id text, task_id text)
);
