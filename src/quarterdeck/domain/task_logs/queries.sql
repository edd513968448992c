-- The log of a task: lines that agents add, and transitions from the event log.
--
-- The columns of a line, in the order of `model.LogLine`.
-- columns line: zone_id, task_id, id, number, agent_id, attempt, level, event, message, details, session_key
-- columns line: stack_trace, size, created_at

-- name: task_log_counts_and_secrets
-- For tasks that get new lines: the number of existing lines, and the columns with secrets. Those secrets are redacted
-- from the new lines.
select t.zone_id, t.id, coalesce(c.lines, 0),
    case when t.input_context like '%"$sealed"%' then t.input_context end,
    case when t.checkpoint_data like '%"$sealed"%' then t.checkpoint_data end
from rows(:batch as b, zone_id text, id text)
join agent_tasks t on t.zone_id = b.zone_id and t.id = b.id
left join task_log_counts c on c.zone_id = b.zone_id and c.task_id = b.id;

-- name: task_log_lines_existing
-- After a COMMIT whose response was lost, a retried batch may find its lines already stored.
select l.id
from rows(:batch as b, zone_id text, task_id text, id text)
join task_log_lines l on l.zone_id = b.zone_id and l.task_id = b.task_id and l.id = b.id;

-- name: task_log_head
-- The head of the event log, and the number of lines of the task. Read before the events and lines: everything up to
-- these positions is committed and visible to the reads that follow.
select h.pos, coalesce((select c.lines from task_log_counts c where c.zone_id = :zone_id and c.task_id = :task_id), 0)
from log_head h
where h.id = 1;

-- name: task_log_transitions
-- planned: each time
-- A task's events, oldest first. The JSON in `data` has the member `exhausted` if no retry was left. Quotes inside JSON
-- strings are escaped, so the pattern matches only the member itself. (The pattern has `_` for the colon, which would
-- be taken for a parameter.)
select e.pos, e.id, e.type, e.actor, e.from_state, e.to_state, e.data, e.at
from events e
where e.subject = :subject and e.zone_id = :zone_id and e.pos > :after and e.type >= 'task.' and e.type < 'task/'
  and (cast(:any_type as bigint) = 1 or e.type in (select t.name from rows(:types as t, name text)))
  and (cast(:exhausted as bigint) is null
    or cast(:exhausted as bigint) = case when e.data like '%"exhausted"_true%' then 1 else 0 end)
order by e.pos
limit :limit;

-- name: task_log_transitions_newest_first
-- planned: each time
-- The same as `task_log_transitions`, newest first.
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
-- Lines, oldest first, until their total size reaches `bytes`. The first column is the number of lines that there would
-- be without the size limit.
with limited as (
    select l.number, l.size
    from task_log_lines l
    where l.task_id = :task_id and l.zone_id = :zone_id and l.number > :after
      and (cast(:level as text) is null or l.level = cast(:level as text))
      and (cast(:event as text) is null or l.event = cast(:event as text))
    order by l.number
    limit :limit
), sized as (
    select f.number, sum(f.size) over (order by f.number) - f.size as bytes_before from limited f
)
select (select count(*) from limited), columns(l as line)
from sized s
join task_log_lines l on l.task_id = :task_id and l.zone_id = :zone_id and l.number = s.number
where s.bytes_before < :bytes
order by l.number;

-- name: task_log_lines_newest_first
-- planned: each time
-- The same as `task_log_lines_page`, newest first.
with limited as (
    select l.number, l.size
    from task_log_lines l
    where l.task_id = :task_id and l.zone_id = :zone_id and l.number < :before
      and (cast(:level as text) is null or l.level = cast(:level as text))
      and (cast(:event as text) is null or l.event = cast(:event as text))
    order by l.number desc
    limit :limit
), sized as (
    select f.number, sum(f.size) over (order by f.number desc) - f.size as bytes_before from limited f
)
select (select count(*) from limited), columns(l as line)
from sized s
join task_log_lines l on l.task_id = :task_id and l.zone_id = :zone_id and l.number = s.number
where s.bytes_before < :bytes
order by l.number desc;

-- name: task_log_ends
-- The current end of each followed log, in one statement for all long polls of a process.
select b.zone_id, b.task_id, coalesce((
    select e.pos from events e where e.subject = b.task_id and e.zone_id = b.zone_id order by e.pos desc limit 1
), 0), coalesce((
    select c.lines from task_log_counts c where c.zone_id = b.zone_id and c.task_id = b.task_id
), 0)
from rows(:batch as b, zone_id text, task_id text);
