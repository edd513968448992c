-- The columns of a session, in the field order of `model.Session`.
-- columns: id, zone_id, application_id, parent_id, root_id, session_sid, kind, status, depth, capabilities, metadata
-- columns: ttl_seconds, limits, spawned_at, expires_at, suspended_at, terminated_at, termination_reason
-- columns: created_at, updated_at, held, cascade_id
--
-- The columns that terminating or suspending a tree needs, in the field order of `model.TreeNode`.
-- columns node: zone_id, id, application_id, parent_id, root_id, session_sid, status, expires_at, terminated_at
-- columns node: cascade_id, held
--
-- columns cascade: zone_id, id, target_id, reason, actor, trace, stamped, settled, started_at, finished_at

-- name: sessions_get
-- Batched: one statement loads the named sessions, the parents and the sessions of tokens for all waiting callers.
select columns(s)
from rows(:batch as b, zone_id text, id text)
join agent_sessions s on s.zone_id = b.zone_id and s.id = b.id;

-- name: sessions_of_keys
-- The sessions that the keys of a batch created, so that a replay needs no further round trip.
select columns(s)
from rows(:batch as b, zone_id text, application_id text, operation text, key text)
join idempotency_keys k on k.zone_id = b.zone_id and k.application_id = b.application_id
  and k.operation = b.operation and k.key = b.key
join agent_sessions s on s.zone_id = k.zone_id and s.id = k.subject_id;

-- name: counts_load
-- The counts that a batch is checked against, except those of its trees.
select c.zone_id, c.scope, c.key, c.live, c.ever
from rows(:batch as b, zone_id text, scope text, key text)
join admission_counts c on c.zone_id = b.zone_id and c.scope = b.scope and c.key = b.key;

-- name: counts_of_trees
-- The counts of the trees that contain the parents of a batch.
select distinct c.zone_id, c.scope, c.key, c.live, c.ever
from rows(:batch as b, zone_id text, id text)
join agent_sessions p on p.zone_id = b.zone_id and p.id = b.id
join admission_counts c on c.zone_id = p.zone_id and c.scope = 'tree' and c.key = p.root_id;

-- name: counts_increment
-- The first session that counts against a limit inserts the row for that limit.
insert into admission_counts (zone_id, scope, key, live, ever)
select zone_id, scope, key, n, n from rows(:batch as b, zone_id text, scope text, key text, n bigint)
where true
on conflict (zone_id, scope, key)
do update set live = admission_counts.live + excluded.live, ever = admission_counts.ever + excluded.ever;

-- name: counts_decrement
-- Never below 0: otherwise a manually edited count could block a termination permanently. The session is still
-- terminated, and `qd check` reports the wrong count.
update admission_counts
set live = case when live > b.n then live - b.n else 0 end
from rows(:batch as b, zone text, scope_name text, key_name text, n bigint)
where zone_id = b.zone and scope = b.scope_name and key = b.key_name;

-- name: counts_delete
-- Deletes counts that are no longer needed: the children of a terminated session, the tree of a terminated root.
delete from admission_counts
where (zone_id, scope, key) in (select b.zone_id, b.scope, b.key from rows(:batch as b, zone_id text, scope text, key text));

-- name: counts_mismatched
-- Compares the stored counts of a zone with its sessions. Both are summed, so that a count that exists on only one side
-- is found too.
select t.scope, t.key, cast(sum(t.counted) as bigint)
from (
    select c.scope, c.key, c.live as stored, 0 as counted from admission_counts c where c.zone_id = :zone_id
    union all
    select 'zone', '', 0, count(*) from agent_sessions s
    where s.zone_id = :zone_id and s.status <> 'terminated' and s.terminated_at is null having count(*) > 0
    union all
    select 'concurrent', '', 0, count(s.parent_id) from agent_sessions s
    where s.zone_id = :zone_id and s.status <> 'terminated' and s.terminated_at is null having count(s.parent_id) > 0
    union all
    select 'application', s.application_id, 0, count(*) from agent_sessions s
    where s.zone_id = :zone_id and s.status <> 'terminated' and s.terminated_at is null group by s.application_id
    union all
    select 'tree', s.root_id, 0, count(*) from agent_sessions s
    where s.zone_id = :zone_id and s.status <> 'terminated' and s.terminated_at is null group by s.root_id
    union all
    select 'parent', s.parent_id, 0, count(*) from agent_sessions s
    where s.zone_id = :zone_id and s.status <> 'terminated' and s.terminated_at is null and s.parent_id is not null
    group by s.parent_id
) t
group by t.scope, t.key
having sum(t.stored) <> sum(t.counted);

-- name: counts_repair
-- `ever` never decreases: it counts all sessions ever admitted, and is at least the number of live ones.
insert into admission_counts (zone_id, scope, key, live, ever)
select zone_id, scope, key, n, n from rows(:batch as b, zone_id text, scope text, key text, n bigint)
where true
on conflict (zone_id, scope, key)
do update set live = excluded.live,
  ever = case when admission_counts.ever < excluded.ever then excluded.ever else admission_counts.ever end;

-- name: sessions_expired_unswept
-- Runs only if a limit would refuse a spawn: expired sessions do not count, even before a sweep terminates them.
-- Marked sessions have been subtracted from the counts already.
select s.zone_id, s.application_id, s.parent_id, s.root_id, count(*)
from agent_sessions s
where s.zone_id in (select b.zone_id from rows(:batch as b, zone_id text))
  and s.status <> 'terminated' and s.terminated_at is null and s.expires_at <= :now
group by s.zone_id, s.application_id, s.parent_id, s.root_id;

-- name: sessions_insert
-- The server has already generated the ids, so the statement need not return them.
insert into agent_sessions (id, zone_id, application_id, parent_id, root_id, session_sid, kind, status, depth,
    capabilities, metadata, ttl_seconds, limits, spawned_at, expires_at, suspended_at, terminated_at,
    termination_reason, created_at, updated_at, held, cascade_id)
select columns(b)
from rows(:batch as b, id text, zone_id text, application_id text, parent_id text, root_id text, session_sid text,
    kind text, status text, depth bigint, capabilities text, metadata text, ttl_seconds bigint, limits text,
    spawned_at bigint, expires_at bigint, suspended_at bigint, terminated_at bigint, termination_reason text,
    created_at bigint, updated_at bigint, held bigint, cascade_id text);

-- name: sessions_page
-- planned: each time
-- Newest first: ids increase with time, so the primary key gives the order. A null filter matches everything.
select columns(s)
from agent_sessions s
where s.zone_id = :zone_id
  and (cast(:before as text) is null or s.id < cast(:before as text))
  and (cast(:application_id as text) is null or s.application_id = cast(:application_id as text))
  and (cast(:root_id as text) is null or s.root_id = cast(:root_id as text))
  and (cast(:ended as bigint) is null
       or cast(:ended as bigint)
          = case when s.terminated_at is not null or s.expires_at <= now_ms() then 1 else 0 end)
order by s.id desc
limit :limit;

-- name: sessions_page_of_status
-- planned: each time
-- For live states: a partial index finds the few live sessions among many terminated ones.
select columns(s)
from agent_sessions s
where s.zone_id = :zone_id and s.status = :status and s.terminated_at is null and s.expires_at > now_ms()
  and (cast(:before as text) is null or s.id < cast(:before as text))
  and (cast(:application_id as text) is null or s.application_id = cast(:application_id as text))
  and (cast(:root_id as text) is null or s.root_id = cast(:root_id as text))
order by s.id desc
limit :limit;

-- name: sessions_page_of_application
-- planned: each time
-- Uses the index on the application.
select columns(s)
from agent_sessions s
where s.zone_id = :zone_id and s.application_id = :application_id
  and (cast(:before as text) is null or s.id < cast(:before as text))
  and (cast(:root_id as text) is null or s.root_id = cast(:root_id as text))
  and (cast(:ended as bigint) is null
       or cast(:ended as bigint)
          = case when s.terminated_at is not null or s.expires_at <= now_ms() then 1 else 0 end)
order by s.id desc
limit :limit;

-- name: sessions_page_of_parent
-- planned: each time
-- Uses the index on the parent.
select columns(s)
from agent_sessions s
where s.zone_id = :zone_id and s.parent_id = :parent_id
  and (cast(:before as text) is null or s.id < cast(:before as text))
  and (cast(:application_id as text) is null or s.application_id = cast(:application_id as text))
  and (cast(:root_id as text) is null or s.root_id = cast(:root_id as text))
  and (cast(:status as text) is null or s.status = cast(:status as text))
  and (cast(:ended as bigint) is null
       or cast(:ended as bigint)
          = case when s.terminated_at is not null or s.expires_at <= now_ms() then 1 else 0 end)
order by s.id desc
limit :limit;

-- name: sessions_subtrees
-- Complete subtrees, each row with its top session. `union` removes duplicates, so the query ends even on a cycle.
with recursive reached (top, zone_id, id) as (
    select b.id, s.zone_id, s.id
    from rows(:batch as b, zone_id text, id text)
    join agent_sessions s on s.zone_id = b.zone_id and s.id = b.id
    union
    select r.top, s.zone_id, s.id
    from reached r
    join agent_sessions s on s.zone_id = r.zone_id and s.parent_id = r.id
)
select r.top, columns(s)
from reached r
join agent_sessions s on s.zone_id = r.zone_id and s.id = r.id
order by s.depth, s.id;

-- name: session_nodes_of_subtrees
-- These sessions and their descendants that are live or marked, parents first. The search stops at terminated sessions:
-- children are terminated before their parents, so nothing is missed.
-- (`coalesce` keeps the partial index of live sessions from being used: each step must use the index on the parent,
-- even in a plan that was made while the table was empty.)
with recursive reached (top, zone_id, id) as (
    select b.id, s.zone_id, s.id
    from rows(:batch as b, zone_id text, id text)
    join agent_sessions s on s.zone_id = b.zone_id and s.id = b.id
    where coalesce(s.status, '') <> 'terminated'
    union
    select r.top, s.zone_id, s.id
    from reached r
    join agent_sessions s on s.zone_id = r.zone_id and s.parent_id = r.id
    where coalesce(s.status, '') <> 'terminated'
)
select r.top, columns(s as node)
from reached r
join agent_sessions s on s.zone_id = r.zone_id and s.id = r.id
order by s.depth, s.id;

-- name: session_nodes_of_lineages
-- These sessions and all their ancestors, nearest first, to find the flags that suspend them.
with recursive line (zone_id, id) as (
    select b.zone_id, b.id from rows(:batch as b, zone_id text, id text)
    union
    select s.zone_id, s.parent_id
    from line l
    join agent_sessions s on s.zone_id = l.zone_id and s.id = l.id
    where s.parent_id is not null
)
select columns(s as node)
from line l
join agent_sessions s on s.zone_id = l.zone_id and s.id = l.id
order by s.depth desc;

-- name: session_nodes_of_zones
-- All live or marked sessions of these zones, parents first.
select columns(s as node)
from agent_sessions s
where s.zone_id in (select b.zone_id from rows(:batch as b, zone_id text)) and s.status <> 'terminated'
order by s.depth, s.id;

-- name: session_nodes_of_cascade
-- The next chunk of a cascade, in the order that was set when its sessions were marked.
select columns(s as node), s.termination_reason
from agent_sessions s
where s.zone_id = :zone_id and s.cascade_id = :cascade_id and s.status <> 'terminated'
order by s.cascade_place
limit :limit;

-- name: sessions_count_ended_in_subtree
-- The number of terminated or marked sessions in a subtree, for a receipt. Reads all sessions that the subtree ever
-- had, without a lock.
with recursive reached (zone_id, id) as (
    select s.zone_id, s.id from agent_sessions s where s.zone_id = :zone_id and s.id = :session_id
    union
    select s.zone_id, s.id
    from reached r
    join agent_sessions s on s.zone_id = r.zone_id and s.parent_id = r.id
)
select count(*)
from reached r
join agent_sessions s on s.zone_id = r.zone_id and s.id = r.id
where s.terminated_at is not null;

-- name: sessions_end
-- `from_status` is the state that was read under the lock; a session in a different state is neither updated nor
-- returned. (The states come from the batch, because a plan that was made while the table was empty would evaluate
-- literal states first, and such a plan stays cached.)
update agent_sessions
set status = 'terminated', terminated_at = b.ended_at, updated_at = :now, termination_reason = b.reason
from rows(:batch as b, zone text, session text, from_status text, reason text, ended_at bigint)
where zone_id = b.zone and id = b.session and status = b.from_status
returning id;

-- name: sessions_mark_cascade
-- From this commit on, these sessions read as terminated. A chunk sets the status later. (`coalesce`, because the
-- planner considers a plain `is null` selective while the table is new, and would compare the batch with every row.)
update agent_sessions
set cascade_id = :cascade_id, cascade_place = b.place, terminated_at = b.ended_at, termination_reason = b.reason,
    updated_at = :now
from rows(:batch as b, zone text, session text, from_status text, place bigint, reason text, ended_at bigint)
where zone_id = b.zone and id = b.session and status = b.from_status and coalesce(terminated_at, -1) < 0
returning id;

-- name: sessions_finish_cascade
-- Sets the status of marked sessions, which the chunk has read under the same lock.
update agent_sessions
set status = 'terminated', updated_at = :now
from rows(:batch as b, zone text, session text, from_status text)
where zone_id = b.zone and id = b.session and status = b.from_status and coalesce(terminated_at, -1) >= 0
returning id;

-- name: sids_in_use
-- For each sid: 1 if a live session still has it, else null. The partial index excludes marked sessions; otherwise each
-- chunk of a tree that shares one sid would read the rest of the tree. The condition must equal that of the index, or
-- the index is not used. This is a scalar subquery, because the planner could start a join from the sessions.
select b.zone, b.sid, (
    select 1
    from agent_sessions s
    where s.session_sid = b.sid and s.zone_id = b.zone and coalesce(s.terminated_at, 0) = 0
      and s.status <> 'terminated' and s.expires_at > :now
    limit 1
)
from rows(:batch as b, zone text, sid text);

-- name: sessions_set_suspended
-- Sets the flags and states of suspended and resumed sessions. `from_status` is the state as read under the lock.
update agent_sessions
set held = b.new_held, status = b.new_status, updated_at = :now,
    suspended_at = case when b.new_status <> 'suspended' then null when b.newly_suspended = 1 then :now
                        else suspended_at end
from rows(:batch as b, zone text, session text, from_status text, new_status text, new_held bigint,
    newly_suspended bigint)
where zone_id = b.zone and id = b.session and status = b.from_status and coalesce(terminated_at, -1) < 0
returning id;

-- name: cascade_insert
-- Runs in the transaction that marks the sessions.
insert into cascades (zone_id, id, target_id, reason, actor, trace, stamped, settled, started_at, finished_at)
values (:zone_id, :id, :target_id, :reason, :actor, :trace, :stamped, 0, :started_at, null);

-- name: cascades_open
-- Unfinished cascades of these zones, oldest first: they finish in this order.
select columns(c as cascade)
from cascades c
where c.zone_id in (select b.zone_id from rows(:batch as b, zone_id text)) and c.finished_at is null
order by c.started_at, c.id;

-- name: cascade_get
-- For the explanation of a terminated session.
select columns(c as cascade)
from cascades c
where c.zone_id = :zone_id and c.id = :id;

-- name: cascade_progress
-- A cascade is finished when a chunk finds fewer sessions than its limit.
update cascades
set settled = settled + :count, finished_at = case when :finished = 1 then cast(:now as bigint) else finished_at end
where zone_id = :zone_id and id = :id;

-- name: sessions_expired
-- The topmost expired session of each branch: its termination includes its descendants. `now_ms()` is in a subquery, so
-- that it is evaluated once and the index on expires_at can be used for each zone.
select s.zone_id, s.id
from zones z
join agent_sessions s on s.zone_id = z.id and s.status <> 'terminated' and s.expires_at <= (select now_ms())
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.terminated_at is null and (p.id is null or p.status = 'terminated' or p.expires_at > (select now_ms()))
limit :limit;

-- name: sessions_orphaned
-- Live sessions whose parent is terminated or missing. They exist only if someone edited the database by hand.
select s.zone_id, s.id
from zones z
join agent_sessions s on s.zone_id = z.id and s.status <> 'terminated'
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.terminated_at is null and s.parent_id is not null
  and (p.id is null or p.status = 'terminated' or p.terminated_at is not null)
limit :limit;

-- name: cascades_unfinished
-- Unfinished cascades of all zones. They may include cascades that a request is still running, because several runners
-- do no harm.
select c.zone_id, c.id from cascades c where c.finished_at is null order by c.started_at, c.id limit :limit;

-- name: sessions_delete_expired
-- Sessions that were terminated before a time and have no children. Ids increase with time, so the index skips sessions
-- that are too recent.
delete from agent_sessions
where (zone_id, id) in (
    select s.zone_id, s.id
    from zones z
    join agent_sessions s on s.zone_id = z.id and s.status = 'terminated' and s.id < :before_id
    where s.terminated_at < :before
      and not exists (select 1 from agent_sessions c where c.zone_id = s.zone_id and c.parent_id = s.id)
    limit :limit
)
returning id;

-- name: cascades_delete_expired
-- There are few rows: only terminations that take several transactions create one.
delete from cascades
where (zone_id, id) in (select c.zone_id, c.id from cascades c where c.finished_at < :before limit :limit)
returning id;

-- name: zone_slot_counts
-- Live child sessions of these zones, and the log position they correspond to. They agree, because
-- one statement reads one snapshot and every transaction that changes a count also advances `log_head`.
select z.id, z.quotas, coalesce(c.live, 0), coalesce(x.expired, 0), h.pos
from rows(:batch as b, zone text)
join zones z on z.id = b.zone
join log_head h on h.id = 1
left join admission_counts c on c.zone_id = z.id and c.scope = 'concurrent' and c.key = ''
left join (
    select e.zone_id, count(e.parent_id) as expired
    from agent_sessions e
    where e.zone_id in (select a.zone from rows(:batch as a, zone text))
      and e.status <> 'terminated' and e.terminated_at is null and e.expires_at <= (select now_ms())
    group by e.zone_id
) x on x.zone_id = z.id;
