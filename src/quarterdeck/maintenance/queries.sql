-- Nothing here writes. What is asked of fleets stands in `fleets.sql`.

-- name: schema_revision
-- Of the very snapshot that is read, so that nobody upgrades in between.
select version_num from alembic_version;

-- name: log_head_row
-- One row, or somebody removed it.
select h.pos, h.floor from log_head h where h.id = 1;

-- name: seal_last
-- Its floor says what may be absent; the walk comes to it last, and judges it like the others.
select number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at
from seals order by number desc limit 1;

-- name: seals_all
-- The whole chain, in its order.
select number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at
from seals order by number;

-- name: events_all
-- The whole log in its order, from wherever it begins: a row below the first position must be seen, too.
select pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at
from events order by pos;

-- name: check_counts
-- What admission counts against what is there. Both sides are summed, so that what one side lacks is found as well.
select t.zone_id, t.key, t.scope, cast(sum(t.kept) as bigint), cast(sum(t.counted) as bigint)
from (
    select c.zone_id, c.scope, c.key, c.live as kept, 0 as counted from admission_counts c
    union all
    select s.zone_id, 'zone', '', 0, count(*)
    from agent_sessions s where s.status <> 'terminated' and s.terminated_at is null group by s.zone_id
    union all
    select s.zone_id, 'application', s.application_id, 0, count(*)
    from agent_sessions s where s.status <> 'terminated' and s.terminated_at is null group by s.zone_id, s.application_id
    union all
    select s.zone_id, 'tree', s.root_id, 0, count(*)
    from agent_sessions s where s.status <> 'terminated' and s.terminated_at is null group by s.zone_id, s.root_id
    union all
    select s.zone_id, 'concurrent', '', 0, count(*)
    from agent_sessions s
    where s.status <> 'terminated' and s.terminated_at is null and s.parent_id is not null group by s.zone_id
    union all
    select s.zone_id, 'parent', s.parent_id, 0, count(*)
    from agent_sessions s
    where s.status <> 'terminated' and s.terminated_at is null and s.parent_id is not null
    group by s.zone_id, s.parent_id
) t
group by t.zone_id, t.scope, t.key
having sum(t.kept) <> sum(t.counted)
order by t.zone_id, t.scope, t.key;

-- name: check_counts_leftover
-- Nothing can be counted any more in the tree of an ended root, or under an ended parent: those rows go with them.
select c.zone_id, c.key, c.scope, c.live
from admission_counts c
left join agent_sessions s on s.zone_id = c.zone_id and s.id = c.key
where c.scope in ('tree', 'parent') and (s.id is null or s.status = 'terminated' or s.terminated_at is not null)
order by c.zone_id, c.key;

-- name: check_counts_total_spawned
-- How many a tree has ever had is at least how many are there; more, once retention has removed some.
select t.zone_id, t.root_id, c.ever, t.n
from (select s.zone_id, s.root_id, count(*) as n from agent_sessions s group by s.zone_id, s.root_id) t
join admission_counts c on c.zone_id = t.zone_id and c.scope = 'tree' and c.key = t.root_id
where c.ever < t.n
order by t.zone_id, t.root_id;

-- name: check_parents
-- Whoever lives under somebody who does not.
select s.zone_id, s.id, s.parent_id, case when p.id is null then 'is not there' else 'has ended' end
from agent_sessions s
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.status <> 'terminated' and s.terminated_at is null and s.parent_id is not null
  and (p.id is null or p.status = 'terminated' or p.terminated_at is not null)
order by s.zone_id, s.id;

-- name: check_tree_positions
-- Depth and root follow from the parent; of a root, from nothing.
select s.zone_id, s.id, s.depth, s.root_id, coalesce(p.depth + 1, 0), coalesce(p.root_id, s.id)
from agent_sessions s
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where (s.parent_id is null or p.id is not null)
  and (s.depth <> coalesce(p.depth + 1, 0) or s.root_id <> coalesce(p.root_id, s.id))
order by s.zone_id, s.id;

-- name: check_cycles
-- Depth cannot rise all the way around a cycle, so each has a step that is wrong: only from those is it worth walking up.
with recursive line (zone_id, id, ancestor) as (
    select s.zone_id, s.id, s.parent_id
    from agent_sessions s
    join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
    where s.depth <> p.depth + 1
    union
    select l.zone_id, l.id, a.parent_id
    from line l
    join agent_sessions a on a.zone_id = l.zone_id and a.id = l.ancestor
    where a.parent_id is not null and l.ancestor <> l.id
)
select l.zone_id, l.id from line l where l.ancestor = l.id order by l.zone_id, l.id;

-- name: check_expiries
-- A child's time is at most its parent's.
select s.zone_id, s.id, s.expires_at, p.id, p.expires_at
from agent_sessions s
join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.expires_at > p.expires_at
order by s.zone_id, s.id;

-- name: check_states
-- The instant of an end goes with the end; a state is one of three.
select s.zone_id, s.id, s.status
from agent_sessions s
where s.status not in ('active', 'suspended', 'terminated') or (s.status = 'terminated' and s.terminated_at is null)
order by s.zone_id, s.id;

-- name: check_suspensions
-- Asleep is who bears a flag or stands under one who does, and nobody else.
with recursive asleep (zone_id, id) as (
    select s.zone_id, s.id
    from agent_sessions s
    where s.held <> 0 and s.status <> 'terminated' and s.terminated_at is null
    union
    select c.zone_id, c.id
    from asleep a
    join agent_sessions c on c.zone_id = a.zone_id and c.parent_id = a.id
    where c.status <> 'terminated' and c.terminated_at is null
)
select s.zone_id, s.id, s.status, case when a.id is null then 'no flag' else 'a flag' end
from agent_sessions s
left join asleep a on a.zone_id = s.zone_id and a.id = s.id
where s.status <> 'terminated' and s.terminated_at is null
  and case when s.status = 'suspended' then 1 else 0 end <> case when a.id is null then 0 else 1 end
order by s.zone_id, s.id;

-- name: check_cascade_marks
-- A stamped session waits for a cascade that is under way; there is nobody else to settle it.
select s.zone_id, s.id, coalesce(s.cascade_id, 'none'), case when c.id is null then 'is not there' else 'is finished' end
from agent_sessions s
left join cascades c on c.zone_id = s.zone_id and c.id = s.cascade_id
where s.status <> 'terminated' and s.terminated_at is not null and (c.id is null or c.finished_at is not null)
order by s.zone_id, s.id;

-- name: check_cascades
-- What a cascade has stamped is settled, or waits.
select c.zone_id, c.id, c.stamped, c.settled, coalesce(w.n, 0)
from cascades c
left join (
    select s.zone_id, s.cascade_id, count(*) as n
    from agent_sessions s
    where s.cascade_id is not null and s.status <> 'terminated'
    group by s.zone_id, s.cascade_id
) w on w.zone_id = c.zone_id and w.cascade_id = c.id
where c.stamped - c.settled <> coalesce(w.n, 0)
order by c.zone_id, c.id;

-- name: check_cascades_slow
-- A sweep finishes what a crash left within seconds: one that is open for a minute has nobody who settles it.
select c.zone_id, c.id, c.stamped - c.settled, (now_ms() - c.started_at) / 1000
from cascades c
where c.finished_at is null and c.started_at < now_ms() - 60000
order by c.zone_id, c.id;

-- name: check_zones
-- A session lives in a zone that is there and has not ended.
select s.zone_id, s.id, case when z.id is null then 'is not there' else 'has ended' end
from agent_sessions s
left join zones z on z.id = s.zone_id
where s.status <> 'terminated' and s.terminated_at is null and (z.id is null or z.ended_at is not null)
order by s.zone_id, s.id;

-- name: check_invocations
-- What belongs to a session goes with it, in the transaction that settles it; or soon after, where it is too much for one.
select i.zone_id, i.id, i.status, i.session_id, case when s.id is null then 'is not there' else 'has ended' end
from (
    select a.zone_id, a.id, a.status, a.source_session_id as session_id
    from agent_invocations a where a.status in ('pending', 'running') and a.source_session_id is not null
    union
    select a.zone_id, a.id, a.status, a.target_session_id
    from agent_invocations a where a.status in ('pending', 'running') and a.target_session_id is not null
) i
left join agent_sessions s on s.zone_id = i.zone_id and s.id = i.session_id
where (s.id is null or s.status = 'terminated')
  and not exists (
    select 1 from invocation_backlogs g where g.zone_id = i.zone_id and g.kind = 'session' and g.owner_id = i.session_id)
order by i.zone_id, i.id;

-- name: check_attempts
-- Whatever runs has a token, a deadline and a lease, and is counted; whatever waits is held by nobody.
select i.zone_id, i.id, i.status, i.attempts, i.max_attempts
from agent_invocations i
where i.attempts < 0 or i.attempts > i.max_attempts
   or (i.status = 'running' and (i.attempts = 0 or i.attempt_token is null or i.holder is null
                                 or i.deadline_at is null or i.lease_expires_at is null))
   or (i.status = 'pending' and (i.holder is not null or i.deadline_at is not null or i.lease_expires_at is not null))
   or (i.status not in ('pending', 'running') and (i.completed_at is null or i.lease_expires_at is not null))
   or i.status not in ('pending', 'running', 'succeeded', 'failed', 'timed_out', 'canceled', 'dead')
order by i.zone_id, i.id;

-- name: check_parked
-- Put aside is only what waits for a session that sleeps, or that was just resumed and has too much for one transaction:
-- nobody would come to it. (What sleeps and is not put aside is put aside by whoever comes to it.)
select i.zone_id, i.id
from agent_invocations i
where i.status = 'pending' and i.parked <> 0
  and not exists (
    select 1 from agent_sessions e
    where e.zone_id = i.zone_id and e.id in (i.source_session_id, i.target_session_id)
      and (e.status = 'suspended' or e.terminated_at is not null))
  and not exists (
    select 1 from invocation_backlogs g
    where g.zone_id = i.zone_id and g.kind = 'session' and g.owner_id in (i.source_session_id, i.target_session_id))
order by i.zone_id, i.id;

-- name: check_delegations
-- An edge goes with its sessions. Past its time it is over by another name, which a sweep writes down.
select d.zone_id, d.id, d.session_id, case when s.id is null then 'is not there' else 'has ended' end
from (
    select e.zone_id, e.id, e.source_session_id as session_id
    from delegation_edges e where e.status = 'active' and e.expires_at > now_ms()
    union
    select e.zone_id, e.id, e.target_session_id
    from delegation_edges e where e.status = 'active' and e.expires_at > now_ms()
) d
left join agent_sessions s on s.zone_id = d.zone_id and s.id = d.session_id
where s.id is null or s.status = 'terminated'
order by d.zone_id, d.id;

-- name: check_delegation_chains
-- What was lent out of an edge is over when that edge is.
select d.zone_id, d.id, d.parent_edge_id, coalesce(p.status, 'not there')
from delegation_edges d
left join delegation_edges p on p.zone_id = d.zone_id and p.id = d.parent_edge_id
where d.status = 'active' and d.parent_edge_id is not null and d.expires_at > now_ms()
  and (p.id is null or p.status = 'revoked' or d.expires_at > p.expires_at)
order by d.zone_id, d.id;

-- name: check_delegation_order
-- Ranks rise along every active edge, or a cycle could be closed unseen. An order that is of an older epoch is made anew
-- before anybody relies on it.
select e.zone_id, e.id, e.source_session_id, e.target_session_id
from delegation_edges e
left join delegation_epochs p on p.zone_id = e.zone_id
left join delegation_ranks a on a.zone_id = e.zone_id and a.session_id = e.source_session_id
left join delegation_ranks b on b.zone_id = e.zone_id and b.session_id = e.target_session_id
where e.status = 'active' and e.expires_at > now_ms() and coalesce(p.ranked, 0) = coalesce(p.epoch, 0)
  and (a.rank is null or b.rank is null or a.rank >= b.rank)
order by e.zone_id, e.id;

-- name: check_services
-- Registered is what somebody who lives has registered; an ended session has left what it registered.
select v.zone_id, v.id, 'registered, and nobody who registered it is left'
from agent_services v
where v.unregistered_at is null
  and not exists (select 1 from service_sessions r where r.zone_id = v.zone_id and r.service_id = v.id)
union all
select r.zone_id, r.service_id, 'said to be registered by ' || r.session_id || ', which has ended'
from service_sessions r
join agent_sessions s on s.zone_id = r.zone_id and s.id = r.session_id
where s.status = 'terminated'
order by 1, 2, 3;

-- name: check_tasks
-- Whatever an agent has is counted as an attempt and has a token; what waits is held by nobody; an end has its moment.
select t.zone_id, t.id, t.status, t.attempt
from agent_tasks t
where t.status not in ('PENDING', 'ASSIGNED', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'ABORTED', 'ARCHIVED')
   or t.attempt < 0 or t.retry_count < 0 or t.unmet < 0 or t.unmet > t.depends or t.waits not in (0, 1, 2)
   or (t.status in ('ASSIGNED', 'RUNNING') and (t.agent_id is null or t.attempt_token is null or t.attempt = 0))
   or (t.status in ('PENDING', 'PAUSED') and (t.agent_id is not null or t.attempt_token is not null or t.final <> 0))
   or (t.status = 'COMPLETED' and (t.completed_at is null or t.final <> 0))
   or (t.status in ('FAILED', 'ABORTED') and t.final = 0 and t.waits <> 1)
   or (t.final <> 0 and t.waits <> 0)
order by t.zone_id, t.id;

-- name: check_tasks_unmet
-- A task waits for as many as are not out of its way, and for others exactly while there are some.
select t.zone_id, t.id, t.unmet, coalesce(d.waited, 0), t.waits
from agent_tasks t
left join (
    select d.zone_id, d.task_id, count(*) as waited
    from task_dependencies d
    where d.met = 0
    group by d.zone_id, d.task_id
) d on d.zone_id = t.zone_id and d.task_id = t.id
where t.status in ('PENDING', 'PAUSED')
  and (t.unmet <> coalesce(d.waited, 0) or (t.status = 'PENDING' and (t.unmet > 0) <> (t.waits = 2)))
order by t.zone_id, t.id;

-- name: check_tasks_not_unblocked
-- Waits for what has ended or is gone, and nobody is to tell it.
select t.zone_id, t.id, d.depends_on, coalesce(a.status, 'gone')
from task_dependencies d
join agent_tasks t on t.zone_id = d.zone_id and t.id = d.task_id
left join agent_tasks a on a.zone_id = d.zone_id and a.id = d.depends_on
where d.met = 0 and t.status in ('PENDING', 'PAUSED')
  and (a.id is null or ((a.final <> 0 or a.completed_at is not null) and a.spreads = 0))
order by t.zone_id, t.id;

-- name: check_tasks_held
-- An agent holds as many as it is counted to hold.
select p.zone_id, p.agent_id, p.held, coalesce(h.number, 0)
from agent_pulses p
left join (
    select t.zone_id, t.agent_id, count(*) as number
    from agent_tasks t
    where t.status in ('ASSIGNED', 'RUNNING')
    group by t.zone_id, t.agent_id
) h on h.zone_id = p.zone_id and h.agent_id = p.agent_id
where p.held <> coalesce(h.number, 0)
order by p.zone_id, p.agent_id;

-- name: check_tasks_of_lost_agents
-- Held by an agent that is not there, was terminated, or was lost: what it held is taken from it when that is written.
select t.zone_id, t.id, t.agent_id, coalesce(a.status, 'unknown')
from agent_tasks t
left join agents a on a.zone_id = t.zone_id and a.id = t.agent_id
where t.status in ('ASSIGNED', 'RUNNING') and (a.id is null or a.status in ('TERMINATED', 'ERROR'))
order by t.zone_id, t.id;

-- name: check_log_head
-- The head is the last event. With no event left it is the floor: retention has come as far as it can.
select '', 'log_head', coalesce(cast(h.pos as text), 'nothing'), coalesce(cast(h.floor as text), 'nothing'),
       coalesce(cast(m.top as text), 'nothing')
from (select 1 as id) one
left join log_head h on h.id = one.id
cross join (select max(e.pos) as top from events e) m
where h.pos is null or h.pos <> coalesce(m.top, h.floor) or h.floor > h.pos or h.floor < 0;

-- name: check_log_gaps
-- Positions have no gaps; below the floor retention has removed the first of them, and from the first on.
select '', 'events', g.first_pos, g.last_pos
from (
    select n.before + 1 as first_pos, n.pos - 1 as last_pos
    from (select e.pos, lag(e.pos) over (order by e.pos) as before from events e) n
    where n.before is not null and n.pos <> n.before + 1
    union all
    select h.floor + 1, m.low - 1
    from log_head h
    join (select min(e.pos) as low from events e) m on m.low > h.floor + 1
) g
order by g.first_pos;

-- name: check_leases
-- A lease is for seconds: one that ends in a day or later keeps everybody from its pass.
select '', l.name, l.holder, (l.expires_at - now_ms()) / 1000
from leases l
where l.term < 0 or l.expires_at > now_ms() + 86400000
order by l.name;

-- name: check_idempotency_keys
-- Not wrong, only worth knowing: a key whose session retention has removed frees itself at its next use.
select k.zone_id, k.subject_id, k.application_id, k.key
from idempotency_keys k
left join agent_sessions s on s.zone_id = k.zone_id and s.id = k.subject_id
where k.operation = 'spawn' and s.id is null
order by k.zone_id, k.subject_id;

-- name: check_totals
-- How much was looked at, so that whoever reads that all is well sees what that was said of.
select (select count(*) from zones), (select count(*) from agent_sessions),
       (select count(*) from agent_sessions s where s.status <> 'terminated' and s.terminated_at is null),
       (select count(*) from admission_counts), (select count(*) from cascades), (select count(*) from events);
