-- These statements only read. The fleet checks are in `fleets.sql`.

-- name: schema_revision
-- Read in the snapshot itself, so that no migration can run between this check and the reads.
select version_num from alembic_version;

-- name: log_head_row
-- Exactly one row, unless it was deleted by hand.
select h.pos, h.floor from log_head h where h.id = 1;

-- name: seal_last
-- The newest seal. Its floor shows which events retention may have deleted. The seal itself is verified last, with the
-- chain.
select number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at
from seals order by number desc limit 1;

-- name: seals_all
-- The complete chain, in order.
select number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at
from seals order by number;

-- name: events_all
-- The complete event log in order, without a lower bound: a row below the first position must be found too.
select pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at
from events order by pos;

-- name: check_counts
-- Compares the admission counters with the live sessions. Both sides are summed in one query, so that a row that is
-- missing on either side is found too.
select t.zone_id, t.key, t.scope, cast(sum(t.stored_count) as bigint), cast(sum(t.counted) as bigint)
from (
    select c.zone_id, c.scope, c.key, c.live as stored_count, 0 as counted from admission_counts c
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
having sum(t.stored_count) <> sum(t.counted)
order by t.zone_id, t.scope, t.key;

-- name: check_counts_leftover
-- The counters of a tree and of a parent are deleted when that session ends, because they are no longer needed.
select c.zone_id, c.key, c.scope, c.live
from admission_counts c
left join agent_sessions s on s.zone_id = c.zone_id and s.id = c.key
where c.scope in ('tree', 'parent') and (s.id is null or s.status = 'terminated' or s.terminated_at is not null)
order by c.zone_id, c.key;

-- name: check_counts_total_spawned
-- The counter `ever` of a tree is at least the number of its rows. It is higher after retention has deleted some rows.
select t.zone_id, t.root_id, c.ever, t.n
from (select s.zone_id, s.root_id, count(*) as n from agent_sessions s group by s.zone_id, s.root_id) t
join admission_counts c on c.zone_id = t.zone_id and c.scope = 'tree' and c.key = t.root_id
where c.ever < t.n
order by t.zone_id, t.root_id;

-- name: check_parents
-- Live sessions whose parent has ended or is missing.
select s.zone_id, s.id, s.parent_id, case when p.id is null then 'does not exist' else 'has ended' end
from agent_sessions s
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.status <> 'terminated' and s.terminated_at is null and s.parent_id is not null
  and (p.id is null or p.status = 'terminated' or p.terminated_at is not null)
order by s.zone_id, s.id;

-- name: check_tree_positions
-- Depth and root are derived from the parent. A root has depth 0 and is its own root.
select s.zone_id, s.id, s.depth, s.root_id, coalesce(p.depth + 1, 0), coalesce(p.root_id, s.id)
from agent_sessions s
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where (s.parent_id is null or p.id is not null)
  and (s.depth <> coalesce(p.depth + 1, 0) or s.root_id <> coalesce(p.root_id, s.id))
order by s.zone_id, s.id;

-- name: check_cycles
-- Depth cannot increase all the way around a cycle, so every cycle has a session with a wrong depth. The recursion up
-- the tree starts only at such sessions.
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
-- A child expires no later than its parent.
select s.zone_id, s.id, s.expires_at, p.id, p.expires_at
from agent_sessions s
join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.expires_at > p.expires_at
order by s.zone_id, s.id;

-- name: check_states
-- A session has one of three states, and a terminated session has an end time.
select s.zone_id, s.id, s.status
from agent_sessions s
where s.status not in ('active', 'suspended', 'terminated') or (s.status = 'terminated' and s.terminated_at is null)
order by s.zone_id, s.id;

-- name: check_suspensions
-- A session is suspended if and only if it or an ancestor has the suspension flag (`held`).
with recursive flagged (zone_id, id) as (
    select s.zone_id, s.id
    from agent_sessions s
    where s.held <> 0 and s.status <> 'terminated' and s.terminated_at is null
    union
    select c.zone_id, c.id
    from flagged a
    join agent_sessions c on c.zone_id = a.zone_id and c.parent_id = a.id
    where c.status <> 'terminated' and c.terminated_at is null
)
select s.zone_id, s.id, s.status,
       case when a.id is null then 'neither it nor an ancestor was suspended' else 'it or an ancestor was suspended' end
from agent_sessions s
left join flagged a on a.zone_id = s.zone_id and a.id = s.id
where s.status <> 'terminated' and s.terminated_at is null
  and case when s.status = 'suspended' then 1 else 0 end <> case when a.id is null then 0 else 1 end
order by s.zone_id, s.id;

-- name: check_cascade_marks
-- Only the cascade that marked a session terminates it, so until then the cascade must be unfinished.
select s.zone_id, s.id, coalesce(s.cascade_id, 'none'),
       case when c.id is null then 'does not exist' else 'is finished' end
from agent_sessions s
left join cascades c on c.zone_id = s.zone_id and c.id = s.cascade_id
where s.status <> 'terminated' and s.terminated_at is not null and (c.id is null or c.finished_at is not null)
order by s.zone_id, s.id;

-- name: check_cascades
-- Every session that a cascade has marked is either terminated or still waiting to be terminated.
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
-- A sweep finishes an interrupted cascade within seconds. If a cascade is still unfinished after a minute, probably no
-- server is working on it.
select c.zone_id, c.id, c.stamped - c.settled, (now_ms() - c.started_at) / 1000
from cascades c
where c.finished_at is null and c.started_at < now_ms() - 60000
order by c.zone_id, c.id;

-- name: check_zones
-- The zone of a live session exists and has not ended.
select s.zone_id, s.id, case when z.id is null then 'does not exist' else 'has ended' end
from agent_sessions s
left join zones z on z.id = s.zone_id
where s.status <> 'terminated' and s.terminated_at is null and (z.id is null or z.ended_at is not null)
order by s.zone_id, s.id;

-- name: check_invocations
-- The invocations of a session are canceled in the transaction that terminates it. If there are too many for one
-- transaction, the session is listed in `invocation_backlogs`, and its invocations are not reported here.
select i.zone_id, i.id, i.status, i.session_id, case when s.id is null then 'does not exist' else 'has ended' end
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
-- A running invocation has a counted attempt, a token, a holder, a deadline and a lease. A pending invocation has no
-- holder, deadline or lease. An ended invocation has an end time and no lease.
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
-- An invocation is parked while one of its sessions is suspended. Resuming the session unparks the invocation, or lists
-- the session in `invocation_backlogs` if it has too many invocations for one transaction. Without either, the
-- invocation would never be claimed. An unparked invocation of a suspended session is not an error: a claim that finds
-- it parks it.
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
-- A delegation ends when one of its sessions ends. An expired delegation no longer counts, even before a sweep marks it
-- as expired.
select d.zone_id, d.id, d.session_id, case when s.id is null then 'does not exist' else 'has ended' end
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
-- A delegation ends with its parent, the delegation it was derived from, and expires no later than its parent.
select d.zone_id, d.id, d.parent_edge_id, coalesce(p.status, 'missing')
from delegation_edges d
left join delegation_edges p on p.zone_id = d.zone_id and p.id = d.parent_edge_id
where d.status = 'active' and d.parent_edge_id is not null and d.expires_at > now_ms()
  and (p.id is null or p.status = 'revoked' or d.expires_at > p.expires_at)
order by d.zone_id, d.id;

-- name: check_delegation_order
-- Ranks increase along every active delegation; otherwise a cycle could be created undetected. Ranks of an older epoch
-- are not checked, because they are recomputed before they are used.
select e.zone_id, e.id, e.source_session_id, e.target_session_id
from delegation_edges e
left join delegation_epochs p on p.zone_id = e.zone_id
left join delegation_ranks a on a.zone_id = e.zone_id and a.session_id = e.source_session_id
left join delegation_ranks b on b.zone_id = e.zone_id and b.session_id = e.target_session_id
where e.status = 'active' and e.expires_at > now_ms() and coalesce(p.ranked, 0) = coalesce(p.epoch, 0)
  and (a.rank is null or b.rank is null or a.rank >= b.rank)
order by e.zone_id, e.id;

-- name: check_services
-- A registered service has at least one registration, and an ended session has none.
select v.zone_id, v.id, 'registered, but has no registrations'
from agent_services v
where v.unregistered_at is null
  and not exists (select 1 from service_sessions r where r.zone_id = v.zone_id and r.service_id = v.id)
union all
select r.zone_id, r.service_id, 'still registered by session ' || r.session_id || ', which has ended'
from service_sessions r
join agent_sessions s on s.zone_id = r.zone_id and s.id = r.session_id
where s.status = 'terminated'
order by 1, 2, 3;

-- name: check_tasks
-- A held task has an agent, a token and a counted attempt. A pending or paused task has no agent. A completed task has
-- an end time.
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
-- `unmet` is the number of unmet dependencies. A pending task has `waits` 2 exactly while `unmet` is positive.
select t.zone_id, t.id, t.unmet, coalesce(d.unmet_count, 0), t.waits
from agent_tasks t
left join (
    select d.zone_id, d.task_id, count(*) as unmet_count
    from task_dependencies d
    where d.met = 0
    group by d.zone_id, d.task_id
) d on d.zone_id = t.zone_id and d.task_id = t.id
where t.status in ('PENDING', 'PAUSED')
  and (t.unmet <> coalesce(d.unmet_count, 0) or (t.status = 'PENDING' and (t.unmet > 0) <> (t.waits = 2)))
order by t.zone_id, t.id;

-- name: check_tasks_not_unblocked
-- Tasks that are waiting for an ended or deleted dependency, and that nothing will unblock (`spreads` is 0).
select t.zone_id, t.id, d.depends_on, coalesce(a.status, 'deleted')
from task_dependencies d
join agent_tasks t on t.zone_id = d.zone_id and t.id = d.task_id
left join agent_tasks a on a.zone_id = d.zone_id and a.id = d.depends_on
where d.met = 0 and t.status in ('PENDING', 'PAUSED')
  and (a.id is null or ((a.final <> 0 or a.completed_at is not null) and a.spreads = 0))
order by t.zone_id, t.id;

-- name: check_tasks_held
-- The counter of held tasks equals the number of tasks that the agent holds.
select p.zone_id, p.agent_id, p.held, coalesce(h.held_count, 0)
from agent_pulses p
left join (
    select t.zone_id, t.agent_id, count(*) as held_count
    from agent_tasks t
    where t.status in ('ASSIGNED', 'RUNNING')
    group by t.zone_id, t.agent_id
) h on h.zone_id = p.zone_id and h.agent_id = p.agent_id
where p.held <> coalesce(h.held_count, 0)
order by p.zone_id, p.agent_id;

-- name: check_tasks_of_lost_agents
-- Tasks of an agent that is missing, terminated or stale. The transaction that terminates an agent or marks it as stale
-- also takes back its tasks.
select t.zone_id, t.id, t.agent_id, coalesce(a.status, 'unknown')
from agent_tasks t
left join agents a on a.zone_id = t.zone_id and a.id = t.agent_id
where t.status in ('ASSIGNED', 'RUNNING') and (a.id is null or a.status in ('TERMINATED', 'ERROR'))
order by t.zone_id, t.id;

-- name: check_log_head
-- The head is the position of the last event. Without events it equals the floor, because retention deleted
-- them all.
select '', 'log_head', coalesce(cast(h.pos as text), 'none'), coalesce(cast(h.floor as text), 'none'),
       coalesce(cast(m.top as text), 'none')
from (select 1 as id) one
left join log_head h on h.id = one.id
cross join (select max(e.pos) as top from events e) m
where h.pos is null or h.pos <> coalesce(m.top, h.floor) or h.floor > h.pos or h.floor < 0;

-- name: check_log_gaps
-- Positions have no gaps. Retention deletes only the oldest events, up to the floor.
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
-- A lease lasts for seconds. If one expires more than a day from now, its background work could not run until then.
select '', l.name, l.holder, (l.expires_at - now_ms()) / 1000
from leases l
where l.term < 0 or l.expires_at > now_ms() + 86400000
order by l.name;

-- name: check_idempotency_keys
-- Not an error: a key whose session was deleted by retention can be used again.
select k.zone_id, k.subject_id, k.application_id, k.key
from idempotency_keys k
left join agent_sessions s on s.zone_id = k.zone_id and s.id = k.subject_id
where k.operation = 'spawn' and s.id is null
order by k.zone_id, k.subject_id;

-- name: check_totals
-- The amount of data that was checked, for the summary.
select (select count(*) from zones), (select count(*) from agent_sessions),
       (select count(*) from agent_sessions s where s.status <> 'terminated' and s.terminated_at is null),
       (select count(*) from admission_counts), (select count(*) from cascades), (select count(*) from events);
