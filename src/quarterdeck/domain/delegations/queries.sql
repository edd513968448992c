-- The columns of an edge, in the order of `model.Edge`.
-- columns: id, zone_id, source_session_id, target_session_id, issuer_application_id, receiver_application_id, scopes
-- columns: resource_id, resources, hops, constraints_json, parent_edge_id, status, expires_at, edge_version, created_by
-- columns: trace, ended_at, ended_reason, created_at, updated_at
--
-- The columns that graph walks and events need, in the order of `model.GraphEdge`.
-- columns link: zone_id, id, source_session_id, target_session_id, parent_edge_id, scopes, expires_at

-- name: delegations_get
-- All edges that the commands and tokens of a batch name, in one statement.
select columns(e)
from rows(:batch as b, zone_id text, id text)
join delegation_edges e on e.zone_id = b.zone_id and e.id = b.id;

-- name: delegations_of_keys
-- The edges that the idempotency keys of a batch created.
select columns(e)
from rows(:batch as b, zone_id text, application_id text, operation text, key text)
join idempotency_keys k on k.zone_id = b.zone_id and k.application_id = b.application_id
  and k.operation = b.operation and k.key = b.key
join delegation_edges e on e.zone_id = k.zone_id and e.id = k.subject_id;

-- name: delegations_inbound
-- The edges that give sessions their authority. The rules decide which of them have expired.
select columns(e)
from rows(:batch as b, zone_id text, session_id text)
join delegation_edges e on e.zone_id = b.zone_id and e.target_session_id = b.session_id
  and e.status <> 'revoked' and e.status <> 'expired';

-- name: delegation_target_sessions
-- Which of these sessions were ever the target of an edge, in any state. They can lend only from their inbound edges.
select b.zone_id, b.session_id
from rows(:batch as b, zone_id text, session_id text)
where exists (
    select 1 from delegation_edges e where e.zone_id = b.zone_id and e.target_session_id = b.session_id
);

-- name: delegations_ancestors
-- The chains of these edges, each edge once (`union`), and whether its source session has ended. The cost grows with
-- the length of the chains, so it runs only while a cascade is unfinished.
with recursive line (zone_id, id, source_session_id, parent_edge_id) as (
    select e.zone_id, e.id, e.source_session_id, e.parent_edge_id
    from rows(:batch as b, zone_id text, id text)
    join delegation_edges e on e.zone_id = b.zone_id and e.id = b.id
    union
    select p.zone_id, p.id, p.source_session_id, p.parent_edge_id
    from line l
    join delegation_edges p on p.zone_id = l.zone_id and p.id = l.parent_edge_id
)
select l.zone_id, l.id, l.parent_edge_id, case when s.id is null or s.terminated_at is not null then 1 else 0 end
from line l
left join agent_sessions s on s.zone_id = l.zone_id and s.id = l.source_session_id;

-- name: delegations_chain
-- An edge and its nearest parents. A parent that retention has deleted ends the chain.
with recursive line (zone_id, id, parent_edge_id, above) as (
    select e.zone_id, e.id, e.parent_edge_id, 0
    from delegation_edges e
    where e.zone_id = :zone_id and e.id = :id
    union
    select p.zone_id, p.id, p.parent_edge_id, l.above + 1
    from line l
    join delegation_edges p on p.zone_id = l.zone_id and p.id = l.parent_edge_id
    where l.above < :max_parents
)
select columns(e)
from line l
join delegation_edges e on e.zone_id = l.zone_id and e.id = l.id
order by l.above;

-- name: delegations_forward_region
-- Sessions that are reachable from the target of a new edge and whose rank is not above the source's. `union` visits
-- each session once, so the cost grows with the edges, not with the paths. The walk stops at the limit.
-- (`<>` instead of `= 'active'`: while the table is small, the planner assumes that 'active' is rare, and a cached plan
-- would use the index on the status forever. One comparison per state, as in the condition of the partial index on
-- active edges. Time and rank are compared inside `case`, so that the planner uses no index on them.)
with recursive reached (zone_id, session_id, rank) as (
    select r.zone_id, r.session_id, r.rank
    from delegation_ranks r
    where r.zone_id = :zone_id and r.session_id = :target
    union
    select r.zone_id, r.session_id, r.rank
    from reached f
    join delegation_edges e on e.zone_id = f.zone_id and e.source_session_id = f.session_id
      and e.status <> 'revoked' and e.status <> 'expired'
      and case when e.expires_at > :now then 1 else 0 end <> 0
    join delegation_ranks r on r.zone_id = e.zone_id and r.session_id = e.target_session_id
      and case when r.rank <= :high then 1 else 0 end <> 0
)
select f.session_id, f.rank from reached f limit :limit;

-- name: delegations_backward_region
-- The reverse of `delegations_forward_region`: sessions from which the source of a new edge is reachable and whose rank
-- is not below the target's.
with recursive reached (zone_id, session_id, rank) as (
    select r.zone_id, r.session_id, r.rank
    from delegation_ranks r
    where r.zone_id = :zone_id and r.session_id = :source
    union
    select r.zone_id, r.session_id, r.rank
    from reached f
    join delegation_edges e on e.zone_id = f.zone_id and e.target_session_id = f.session_id
      and e.status <> 'revoked' and e.status <> 'expired'
      and case when e.expires_at > :now then 1 else 0 end <> 0
    join delegation_ranks r on r.zone_id = e.zone_id and r.session_id = e.source_session_id
      and case when r.rank >= :low then 1 else 0 end <> 0
)
select f.session_id, f.rank from reached f limit :limit;

-- name: delegation_pairs
-- Source and target of all active edges of a zone, each pair once, to rebuild its ranks.
select distinct e.source_session_id, e.target_session_id
from delegation_edges e
where e.zone_id = :zone_id and e.source_session_id is not null and e.status <> 'revoked' and e.status <> 'expired'
  and case when e.expires_at > :now then 1 else 0 end <> 0;

-- name: delegation_ranks_get
-- The ranks of the sources and targets of a batch.
select r.zone_id, r.session_id, r.rank
from rows(:batch as b, zone_id text, session_id text)
join delegation_ranks r on r.zone_id = b.zone_id and r.session_id = b.session_id;

-- name: delegation_ranks_adjacent
-- The outer ends of the two gaps that a region could move into: the next rank below the target's, and the next rank
-- above the source's.
select (select r.rank from delegation_ranks r where r.zone_id = :zone_id and r.rank < :low order by r.rank desc limit 1),
       (select r.rank from delegation_ranks r where r.zone_id = :zone_id and r.rank > :high order by r.rank limit 1);

-- name: delegation_ranks_of_zone
-- All ranked sessions, lowest first, to respace a zone.
select r.session_id from delegation_ranks r where r.zone_id = :zone_id order by r.rank;

-- name: delegation_ranks_upsert
-- Writes new and moved ranks. Ranks are unique per zone; a move uses only free ranks.
insert into delegation_ranks (zone_id, session_id, rank)
select zone_id, session_id, rank from rows(:batch as b, zone_id text, session_id text, rank bigint)
where true
on conflict (zone_id, session_id) do update set rank = excluded.rank;

-- name: delegation_ranks_delete
-- Deletes the ranks of ended sessions, which have no active edges and never will.
delete from delegation_ranks
where (zone_id, session_id) in (select b.zone_id, b.session_id from rows(:batch as b, zone_id text, session_id text));

-- name: delegation_ranks_delete_of_zone
-- Deletes all ranks of a zone before they are rebuilt, because they are valid only for an older epoch.
delete from delegation_ranks where zone_id = :zone_id;

-- name: delegations_to_revoke
-- Finds these edges and all edges derived from them, and returns all active inbound edges of their targets. The result
-- includes the edges themselves, and is enough to decide which targets have another inbound edge. (`coalesce` hides the
-- state from the planner, so that each step uses the index by parent.)
with recursive gone (zone_id, id, target_session_id) as (
    select e.zone_id, e.id, e.target_session_id
    from rows(:batch as b, zone_id text, id text)
    join delegation_edges e on e.zone_id = b.zone_id and e.id = b.id
    where coalesce(e.status, '') not in ('revoked', 'expired')
    union
    select d.zone_id, d.id, d.target_session_id
    from gone g
    join delegation_edges d on d.zone_id = g.zone_id and d.parent_edge_id = g.id
    where coalesce(d.status, '') not in ('revoked', 'expired')
)
select columns(e as link)
from (select distinct g.zone_id, g.target_session_id as session_id from gone g) r
join delegation_edges e on e.zone_id = r.zone_id and e.target_session_id = r.session_id
  and e.status <> 'revoked' and e.status <> 'expired';

-- name: delegation_session_subtrees
-- These sessions and their subtrees, which end with them. Like a cascade, it does not descend below terminated
-- sessions. (`coalesce` keeps the planner from using the index of live sessions: each step must use the index by
-- parent.)
with recursive tree (zone_id, id) as (
    select b.zone_id, b.session_id from rows(:batch as b, zone_id text, session_id text)
    union
    select s.zone_id, s.id
    from tree t
    join agent_sessions s on s.zone_id = t.zone_id and s.parent_id = t.id
    where coalesce(s.status, '') <> 'terminated'
)
select t.zone_id, t.id from tree t;

-- name: delegations_reachable_from_subtrees
-- The edges that ending these sessions can affect: all active inbound edges of these sessions, of their subtrees, and
-- of every session reachable from those. Each session is visited once.
with recursive tree (zone_id, id) as (
    select b.zone_id, b.session_id from rows(:batch as b, zone_id text, session_id text)
    union
    select s.zone_id, s.id
    from tree t
    join agent_sessions s on s.zone_id = t.zone_id and s.parent_id = t.id
    where coalesce(s.status, '') <> 'terminated'
),
reached (zone_id, session_id) as (
    select t.zone_id, t.id from tree t
    union
    select e.zone_id, e.target_session_id
    from reached r
    join delegation_edges e on e.zone_id = r.zone_id and e.source_session_id = r.session_id
      and e.status <> 'revoked' and e.status <> 'expired'
)
select columns(e as link)
from reached r
join delegation_edges e on e.zone_id = r.zone_id and e.target_session_id = r.session_id
  and e.status <> 'revoked' and e.status <> 'expired';

-- name: delegations_of_sessions
-- The edges that end with these sessions: active edges from and to them, and all edges derived from those.
with recursive gone (zone_id, id) as (
    select e.zone_id, e.id
    from rows(:batch as b, zone_id text, session_id text)
    join delegation_edges e on e.zone_id = b.zone_id and e.source_session_id = b.session_id
      and e.status <> 'revoked' and e.status <> 'expired'
    union
    select e.zone_id, e.id
    from rows(:batch as b, zone_id text, session_id text)
    join delegation_edges e on e.zone_id = b.zone_id and e.target_session_id = b.session_id
      and e.status <> 'revoked' and e.status <> 'expired'
    union
    select d.zone_id, d.id
    from gone g
    join delegation_edges d on d.zone_id = g.zone_id and d.parent_edge_id = g.id
    where coalesce(d.status, '') not in ('revoked', 'expired')
)
select columns(e as link)
from gone g
join delegation_edges e on e.zone_id = g.zone_id and e.id = g.id
order by e.id;

-- name: delegations_reachable
-- For `traverse`: the active outbound edges of a limited number of sessions, nearest first. The walk stops at the
-- limit.
with recursive reached (zone_id, session_id) as (
    select e.zone_id, e.target_session_id
    from delegation_edges e
    where e.zone_id = :zone_id and e.id = :id and coalesce(e.status, '') not in ('revoked', 'expired')
    union
    select e.zone_id, e.target_session_id
    from reached r
    join delegation_edges e on e.zone_id = r.zone_id and e.source_session_id = r.session_id
      and e.status <> 'revoked' and e.status <> 'expired'
)
select columns(e as link)
from (select f.zone_id, f.session_id from reached f limit :session_limit) r
join delegation_edges e on e.zone_id = r.zone_id and e.source_session_id = r.session_id
  and e.status <> 'revoked' and e.status <> 'expired'
limit :limit;

-- name: delegations_page
-- planned: each time
-- Newest first: ids increase with time, so the primary key gives the order. Edges past `expires_at` count as expired.
select columns(e)
from delegation_edges e
where e.zone_id = :zone_id
  and (cast(:before as text) is null or e.id < cast(:before as text))
  and (cast(:status as text) is null or cast(:status as text)
       = case when e.status = 'active' and e.expires_at <= now_ms() then 'expired' else e.status end)
order by e.id desc
limit :limit;

-- name: delegations_page_active
-- planned: each time
-- Uses the partial index on active edges, because most edges of a zone have ended.
select columns(e)
from delegation_edges e
where e.zone_id = :zone_id and e.status = 'active' and e.expires_at > now_ms()
  and (cast(:before as text) is null or e.id < cast(:before as text))
order by e.id desc
limit :limit;

-- name: delegations_page_of_source
-- planned: each time
-- Uses the index by source session.
select columns(e)
from delegation_edges e
where e.zone_id = :zone_id and e.source_session_id = :source
  and (cast(:before as text) is null or e.id < cast(:before as text))
  and (cast(:target as text) is null or e.target_session_id = cast(:target as text))
  and (cast(:status as text) is null or cast(:status as text)
       = case when e.status = 'active' and e.expires_at <= now_ms() then 'expired' else e.status end)
order by e.id desc
limit :limit;

-- name: delegations_page_of_target
-- planned: each time
-- Uses the index by target session.
select columns(e)
from delegation_edges e
where e.zone_id = :zone_id and e.target_session_id = :target
  and (cast(:before as text) is null or e.id < cast(:before as text))
  and (cast(:status as text) is null or cast(:status as text)
       = case when e.status = 'active' and e.expires_at <= now_ms() then 'expired' else e.status end)
order by e.id desc
limit :limit;

-- name: delegations_insert
-- The ids are generated before the insert, so it need not return them.
insert into delegation_edges (id, zone_id, source_session_id, target_session_id, issuer_application_id,
    receiver_application_id, scopes, resource_id, resources, hops, constraints_json, parent_edge_id, status, expires_at,
    edge_version, created_by, trace, ended_at, ended_reason, created_at, updated_at)
select columns(b)
from rows(:batch as b, id text, zone_id text, source_session_id text, target_session_id text,
    issuer_application_id text, receiver_application_id text, scopes text, resource_id text, resources text, hops bigint,
    constraints_json text, parent_edge_id text, status text, expires_at bigint, edge_version bigint, created_by text,
    trace text, ended_at bigint, ended_reason text, created_at bigint, updated_at bigint);

-- name: delegations_end
-- The guard `was` is the state as read under the zone's lock. An edge whose state differs is neither updated nor
-- returned.
update delegation_edges
set status = b.new_status, ended_at = b.new_ended_at, ended_reason = b.reason, edge_version = edge_version + 1,
    updated_at = :now
from rows(:batch as b, zone text, edge text, was text, new_status text, reason text, new_ended_at bigint)
where zone_id = b.zone and id = b.edge and status = b.was
returning id;

-- name: delegation_zone_epochs
-- In the order of `model.ZoneEpoch`. Run under the zones' locks, so that no epoch changes before it is raised.
select b.zone_id, coalesce(p.epoch, 0), coalesce(p.ranked, 0),
    coalesce((select 1 from cascades c where c.zone_id = b.zone_id and c.finished_at is null limit 1), 0),
    (select r.rank from delegation_ranks r where r.zone_id = b.zone_id order by r.rank limit 1),
    (select r.rank from delegation_ranks r where r.zone_id = b.zone_id order by r.rank desc limit 1)
from rows(:batch as b, zone_id text)
left join delegation_epochs p on p.zone_id = b.zone_id;

-- name: delegation_epochs_raise
-- The epoch never decreases, because a client that caches by epoch must never see an old epoch again. If the ranks were
-- valid for the old epoch, they are valid for the new one.
insert into delegation_epochs (zone_id, epoch, ranked)
select zone_id, epoch, epoch from rows(:batch as b, zone_id text, epoch bigint)
where true
on conflict (zone_id) do update
set epoch = excluded.epoch,
    ranked = case when delegation_epochs.ranked = delegation_epochs.epoch then excluded.epoch
                  else delegation_epochs.ranked end
where delegation_epochs.epoch < excluded.epoch;

-- name: delegation_epochs_mark_ranked
-- Marks the rebuilt ranks as valid for the current epoch.
update delegation_epochs set ranked = epoch where zone_id = :zone_id;

-- name: delegations_expired
-- Across zones, oldest first. `(select now_ms())` is evaluated once, so the index on `expires_at` can be used.
select e.zone_id, e.id
from delegation_edges e
where e.status = 'active' and e.expires_at <= (select now_ms())
order by e.expires_at
limit :limit;

-- name: delegations_delete_expired
-- Edges that ended before the given time, across zones, oldest first.
delete from delegation_edges
where (zone_id, id) in (
    select e.zone_id, e.id from delegation_edges e
    where e.ended_at is not null and e.ended_at < :before
    order by e.ended_at
    limit :limit
)
returning id;
