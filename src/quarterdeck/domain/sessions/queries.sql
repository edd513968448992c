-- The row of a session, in the order of `model.Session`.
-- columns: id, zone_id, application_id, parent_id, root_id, session_sid, kind, status, depth, capabilities, metadata
-- columns: ttl_seconds, limits, spawned_at, expires_at, suspended_at, terminated_at, termination_reason
-- columns: created_at, updated_at, held, cascade_id
--
-- What the end or the suspension of a tree must know of a session, in the order of `model.Member`.
-- columns member: zone_id, id, application_id, parent_id, root_id, session_sid, status, expires_at, terminated_at
-- columns member: cascade_id, held
--
-- columns cascade: zone_id, id, target_id, reason, actor, trace, stamped, settled, started_at, finished_at

-- name: sessions_get
-- Gathered: one statement answers every caller that waits, whether for a session it named, a parent, or its own token.
select columns(s)
from rows(:batch as b, zone_id text, id text)
join agent_sessions s on s.zone_id = b.zone_id and s.id = b.id;

-- name: sessions_of_keys
-- What the keys of a batch stand for, so that a replay is answered without another round trip.
select columns(s)
from rows(:batch as b, zone_id text, application_id text, operation text, key text)
join idempotency_keys k on k.zone_id = b.zone_id and k.application_id = b.application_id
  and k.operation = b.operation and k.key = b.key
join agent_sessions s on s.zone_id = k.zone_id and s.id = k.subject_id;

-- name: counts_load
-- The counts a batch of roots is judged by.
select c.zone_id, c.scope, c.key, c.live, c.ever
from rows(:batch as b, zone_id text, scope text, key text)
join admission_counts c on c.zone_id = b.zone_id and c.scope = b.scope and c.key = b.key;

-- name: counts_of_trees
-- The counts of the trees that the parents of a batch stand in.
select distinct c.zone_id, c.scope, c.key, c.live, c.ever
from rows(:batch as b, zone_id text, id text)
join agent_sessions p on p.zone_id = b.zone_id and p.id = b.id
join admission_counts c on c.zone_id = p.zone_id and c.scope = 'tree' and c.key = p.root_id;

-- name: counts_increment
-- One row per thing that is bounded, made when the first session is counted in it.
insert into admission_counts (zone_id, scope, key, live, ever)
select zone_id, scope, key, n, n from rows(:batch as b, zone_id text, scope text, key text, n bigint)
where true
on conflict (zone_id, scope, key)
do update set live = admission_counts.live + excluded.live, ever = admission_counts.ever + excluded.ever;

-- name: counts_decrement
-- Never below nothing. A count that a hand has made too small would otherwise keep what must end from ending, for good;
-- so it ends, and `qd check` says which count is wrong.
update admission_counts
set live = case when live > b.n then live - b.n else 0 end
from rows(:batch as b, zone text, scope_name text, key_name text, n bigint)
where zone_id = b.zone and scope = b.scope_name and key = b.key_name;

-- name: counts_delete
-- What nothing can be counted in any more: the children of an ended session, the tree of an ended root.
delete from admission_counts
where (zone_id, scope, key) in (select b.zone_id, b.scope, b.key from rows(:batch as b, zone_id text, scope text, key text));

-- name: counts_mismatched
-- One zone's counts against its rows, summed, so that what one side lacks is found as well.
select t.scope, t.key, cast(sum(t.counted) as bigint)
from (
    select c.scope, c.key, c.live as kept, 0 as counted from admission_counts c where c.zone_id = :zone_id
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
having sum(t.kept) <> sum(t.counted);

-- name: counts_repair
-- What a tree has ever had is never forgotten: it is at least what is there.
insert into admission_counts (zone_id, scope, key, live, ever)
select zone_id, scope, key, n, n from rows(:batch as b, zone_id text, scope text, key text, n bigint)
where true
on conflict (zone_id, scope, key)
do update set live = excluded.live,
  ever = case when admission_counts.ever < excluded.ever then excluded.ever else admission_counts.ever end;

-- name: sessions_expired_unswept
-- Read only when a bound would refuse: what has expired no longer holds a place, whether a sweep has come or not.
-- What was stamped has given its place back already.
select s.zone_id, s.application_id, s.parent_id, s.root_id, count(*)
from agent_sessions s
where s.zone_id in (select b.zone_id from rows(:batch as b, zone_id text))
  and s.status <> 'terminated' and s.terminated_at is null and s.expires_at <= :now
group by s.zone_id, s.application_id, s.parent_id, s.root_id;

-- name: sessions_insert
-- Ids are made by the server before this statement, so nothing needs to be paired with what it returns.
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
-- Newest first: ids are made in order of time, so the primary key is the order. A filter that is null matches all.
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
-- For the states that are live: an index of their own finds the few among the many that have ended.
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
-- By the application's index.
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
-- By the parent's index.
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
-- Whole subtrees, each row with the session it was reached from. A union without duplicates ends even on a cycle.
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
-- What is alive or stamped under each of these sessions, and they themselves, parents first. Only through what has not
-- been settled: children are settled before their parents, so nothing hides behind an ended session.
-- (The state is wrapped so that no index of the living is taken for it: each step must go by the parent, whatever a
-- plan made while the table was empty thinks of that.)
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
select r.top, columns(s as member)
from reached r
join agent_sessions s on s.zone_id = r.zone_id and s.id = r.id
order by s.depth, s.id;

-- name: session_nodes_of_lineages
-- These sessions and all their ancestors, nearest first: what holds one of them, if it bears no flag itself.
with recursive line (zone_id, id) as (
    select b.zone_id, b.id from rows(:batch as b, zone_id text, id text)
    union
    select s.zone_id, s.parent_id
    from line l
    join agent_sessions s on s.zone_id = l.zone_id and s.id = l.id
    where s.parent_id is not null
)
select columns(s as member)
from line l
join agent_sessions s on s.zone_id = l.zone_id and s.id = l.id
order by s.depth desc;

-- name: session_nodes_of_zones
-- Everything that is alive or stamped in these zones, parents first.
select columns(s as member)
from agent_sessions s
where s.zone_id in (select b.zone_id from rows(:batch as b, zone_id text)) and s.status <> 'terminated'
order by s.depth, s.id;

-- name: session_nodes_of_cascade
-- The next chunk of a cascade, in the order its stamp laid down.
select columns(s as member), s.termination_reason
from agent_sessions s
where s.zone_id = :zone_id and s.cascade_id = :cascade_id and s.status <> 'terminated'
order by s.cascade_place
limit :limit;

-- name: sessions_count_ended_in_subtree
-- How many of a subtree have ended. Told in a receipt; walks all that ever was, and under no lock.
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
-- The guard names where each may come from: the state it was read in, under the lock. What did not move is not in the
-- answer. (States written out here would be looked up first by a plan made when the table was empty, and for ever.)
update agent_sessions
set status = 'terminated', terminated_at = b.ended_at, updated_at = :now, termination_reason = b.reason
from rows(:batch as b, zone text, session text, was text, reason text, ended_at bigint)
where zone_id = b.zone and id = b.session and status = b.was
returning id;

-- name: sessions_mark_cascade
-- From this commit on they read as terminated. The status follows when a chunk settles them. (A plain `is null` is taken
-- for rare while the table is young, and then the batch is compared with all of it.)
update agent_sessions
set cascade_id = :cascade_id, cascade_place = b.place, terminated_at = b.ended_at, termination_reason = b.reason,
    updated_at = :now
from rows(:batch as b, zone text, session text, was text, place bigint, reason text, ended_at bigint)
where zone_id = b.zone and id = b.session and status = b.was and coalesce(terminated_at, -1) < 0
returning id;

-- name: sessions_finish_cascade
-- What was stamped, and read by its cascade under the same lock.
update agent_sessions
set status = 'terminated', updated_at = :now
from rows(:batch as b, zone text, session text, was text)
where zone_id = b.zone and id = b.session and status = b.was and coalesce(terminated_at, -1) >= 0
returning id;

-- name: sids_in_use
-- Which of these sids a live session still bears: null if none. What is stamped stands no longer in the index, or each
-- chunk of a tree that shares one sid would look through all that is left of the tree. The index is found by the very
-- words of its condition. As a subquery that gives one row it cannot become a join, which might begin with the sessions.
select b.zone, b.sid, (
    select 1
    from agent_sessions s
    where s.session_sid = b.sid and s.zone_id = b.zone and coalesce(s.terminated_at, 0) = 0
      and s.status <> 'terminated' and s.expires_at > :now
    limit 1
)
from rows(:batch as b, zone text, sid text);

-- name: sessions_set_suspended
-- Flag and state of those whom a suspension or its end has moved, from the state they were read in.
update agent_sessions
set held = b.flag, status = b.becomes, updated_at = :now,
    suspended_at = case when b.becomes <> 'suspended' then null when b.fell = 1 then :now else suspended_at end
from rows(:batch as b, zone text, session text, was text, becomes text, flag bigint, fell bigint)
where zone_id = b.zone and id = b.session and status = b.was and coalesce(terminated_at, -1) < 0
returning id;

-- name: cascade_insert
-- In the transaction of the stamp.
insert into cascades (zone_id, id, target_id, reason, actor, trace, stamped, settled, started_at, finished_at)
values (:zone_id, :id, :target_id, :reason, :actor, :trace, :stamped, 0, :started_at, null);

-- name: cascades_open
-- The endings of these zones that are not over, oldest first: they are settled in this order.
select columns(c as cascade)
from cascades c
where c.zone_id in (select b.zone_id from rows(:batch as b, zone_id text)) and c.finished_at is null
order by c.started_at, c.id;

-- name: cascade_get
-- For whoever asks why a session has ended.
select columns(c as cascade)
from cascades c
where c.zone_id = :zone_id and c.id = :id;

-- name: cascade_progress
-- Finished when a chunk came back less than full.
update cascades
set settled = settled + :count, finished_at = case when :finished = 1 then cast(:now as bigint) else finished_at end
where zone_id = :zone_id and id = :id;

-- name: sessions_expired
-- The topmost expired session of each branch: ending it takes the rest along. By each zone's own index, which a clock
-- that is asked once can be looked up in, and one that is asked again for every row cannot.
select s.zone_id, s.id
from zones z
join agent_sessions s on s.zone_id = z.id and s.status <> 'terminated' and s.expires_at <= (select now_ms())
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.terminated_at is null and (p.id is null or p.status = 'terminated' or p.expires_at > (select now_ms()))
limit :limit;

-- name: sessions_orphaned
-- Alive although the parent has ended or is gone: no transaction leaves such a row, but a hand in the database may.
select s.zone_id, s.id
from zones z
join agent_sessions s on s.zone_id = z.id and s.status <> 'terminated'
left join agent_sessions p on p.zone_id = s.zone_id and p.id = s.parent_id
where s.terminated_at is null and s.parent_id is not null
  and (p.id is null or p.status = 'terminated' or p.terminated_at is not null)
limit :limit;

-- name: cascades_unfinished
-- Endings under way anywhere. One that is being settled by whoever asked for it loses nothing by a helping hand.
select c.zone_id, c.id from cascades c where c.finished_at is null order by c.started_at, c.id limit :limit;

-- name: sessions_delete_expired
-- What ended before a time and has nothing under it. Ids are made in order of time, so those that are too young are
-- passed over by the index, not one by one.
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
-- Few at any time: only endings too large for one transaction leave a row.
delete from cascades
where (zone_id, id) in (select c.zone_id, c.id from cascades c where c.finished_at < :before limit :limit)
returning id;

-- name: zone_slot_counts
-- How many children live in these zones, and the position of the log it is of: one statement sees one instant, and whoever
-- changes a count moves the head in the same transaction.
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
