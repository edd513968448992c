-- The row of an edge, in the order of `model.Edge`.
-- columns: id, zone_id, source_session_id, target_session_id, issuer_application_id, receiver_application_id, scopes
-- columns: resource_id, resources, hops, constraints_json, parent_edge_id, status, expires_at, edge_version, created_by
-- columns: trace, ended_at, ended_reason, created_at, updated_at
--
-- What the fall of a part of the graph must know of an edge, in the order of `model.Link`.
-- columns link: zone_id, id, source_session_id, target_session_id, parent_edge_id, scopes, expires_at

-- name: delegations_get
-- Gathered: one statement for whoever waits, whether for an edge it named, a parent, or the edge of its token.
select columns(e)
from rows(:batch as b, zone_id text, id text)
join delegation_edges e on e.zone_id = b.zone_id and e.id = b.id;

-- name: delegations_of_keys
-- What the keys of a batch stand for.
select columns(e)
from rows(:batch as b, zone_id text, application_id text, operation text, key text)
join idempotency_keys k on k.zone_id = b.zone_id and k.application_id = b.application_id
  and k.operation = b.operation and k.key = b.key
join delegation_edges e on e.zone_id = k.zone_id and e.id = k.subject_id;

-- name: delegations_inbound
-- By what sessions hold authority: the active edges that lead to them. Whether one is past its time is for the rules.
select columns(e)
from rows(:batch as b, zone_id text, session_id text)
join delegation_edges e on e.zone_id = b.zone_id and e.target_session_id = b.session_id
  and e.status <> 'revoked' and e.status <> 'expired';

-- name: delegation_target_sessions
-- Which of these sessions an edge has ever led to, in whatever state it is: those lend by their edges alone.
select b.zone_id, b.session_id
from rows(:batch as b, zone_id text, session_id text)
where exists (
    select 1 from delegation_edges e where e.zone_id = b.zone_id and e.target_session_id = b.session_id
);

-- name: delegations_ancestors
-- The lines of these edges, each edge of them once however many stand below it, and whether the session that lent it has
-- ended. As long as the lines are: asked only where an ending is under way.
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
-- An edge and its nearest parents. What retention has removed ends the line.
with recursive line (zone_id, id, parent_edge_id, above) as (
    select e.zone_id, e.id, e.parent_edge_id, 0
    from delegation_edges e
    where e.zone_id = :zone_id and e.id = :id
    union
    select p.zone_id, p.id, p.parent_edge_id, l.above + 1
    from line l
    join delegation_edges p on p.zone_id = l.zone_id and p.id = l.parent_edge_id
    where l.above < :most
)
select columns(e)
from line l
join delegation_edges e on e.zone_id = l.zone_id and e.id = l.id
order by l.above;

-- name: delegations_forward_region
-- Who is ahead of an edge's target and does not stand above its source. Sessions are what is remembered as visited, so the
-- walk costs as much as there are edges, not as there are ways; and it stops when nobody fetches more of it.
-- (What does not count is excluded, instead of naming what does: what is named is taken for rare while the table is young,
-- and is then looked up first, for ever. And the states one by one, because that is how the index of active edges says it.
-- The clock and the rank stand in a case, so that no index is searched by them.)
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
select f.session_id, f.rank from reached f limit :most;

-- name: delegations_backward_region
-- The same the other way: who leads to an edge's source and does not stand below its target.
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
select f.session_id, f.rank from reached f limit :most;

-- name: delegation_pairs
-- Who lends to whom in a zone, each pair once: all of it, for a zone whose order is to be made.
select distinct e.source_session_id, e.target_session_id
from delegation_edges e
where e.zone_id = :zone_id and e.source_session_id is not null and e.status <> 'revoked' and e.status <> 'expired'
  and case when e.expires_at > :now then 1 else 0 end <> 0;

-- name: delegation_ranks_get
-- Where the ends of a batch stand.
select r.zone_id, r.session_id, r.rank
from rows(:batch as b, zone_id text, session_id text)
join delegation_ranks r on r.zone_id = b.zone_id and r.session_id = b.session_id;

-- name: delegation_ranks_adjacent
-- The gaps that something could move into: below the one, above the other.
select (select r.rank from delegation_ranks r where r.zone_id = :zone_id and r.rank < :low order by r.rank desc limit 1),
       (select r.rank from delegation_ranks r where r.zone_id = :zone_id and r.rank > :high order by r.rank limit 1);

-- name: delegation_ranks_of_zone
-- All of them, lowest first: for a zone that is spaced anew.
select r.session_id from delegation_ranks r where r.zone_id = :zone_id order by r.rank;

-- name: delegation_ranks_upsert
-- New ones and moved ones alike. No two sessions of a zone have one rank: what moves, moves to where nobody stands.
insert into delegation_ranks (zone_id, session_id, rank)
select zone_id, session_id, rank from rows(:batch as b, zone_id text, session_id text, rank bigint)
where true
on conflict (zone_id, session_id) do update set rank = excluded.rank;

-- name: delegation_ranks_delete
-- With the sessions that end: no edge leads from them or to them any more, and none will.
delete from delegation_ranks
where (zone_id, session_id) in (select b.zone_id, b.session_id from rows(:batch as b, zone_id text, session_id text));

-- name: delegation_ranks_delete_of_zone
-- An order that is not of the zone's epoch says nothing.
delete from delegation_ranks where zone_id = :zone_id;

-- name: delegations_to_revoke
-- What falls with these edges if nobody ends by it: all that are derived from them. And of each session they lead to, all
-- active edges into it, so that it is known what else holds it. (The state is wrapped so that each step goes by the parent.)
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
-- Who ends with these sessions: all that stand under them. Only through what has not been settled, as an ending goes.
-- (The state is wrapped so that no index of the living is taken for it: each step must go by the parent.)
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
-- What can fall because these sessions end, and all that stand under them: every session ahead of them, visited once,
-- and of each all active edges that lead to it.
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
-- What goes with sessions that end: the active edges from them and to them, and all that are derived from those.
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
-- For whoever looks at what is ahead: so many sessions, nearest first as the walk finds them, and all active edges out of
-- each. The walk stops when nobody fetches more of it.
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
from (select f.zone_id, f.session_id from reached f limit :limit) r
join delegation_edges e on e.zone_id = r.zone_id and e.source_session_id = r.session_id
  and e.status <> 'revoked' and e.status <> 'expired'
limit :most;

-- name: delegations_page
-- planned: each time
-- Newest first: ids are made in order of time, so the primary key is the order. What is past its time reads as expired.
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
-- By an index of its own, which finds the few among the many that are over.
select columns(e)
from delegation_edges e
where e.zone_id = :zone_id and e.status = 'active' and e.expires_at > now_ms()
  and (cast(:before as text) is null or e.id < cast(:before as text))
order by e.id desc
limit :limit;

-- name: delegations_page_of_source
-- planned: each time
-- By the source's index.
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
-- By the target's index.
select columns(e)
from delegation_edges e
where e.zone_id = :zone_id and e.target_session_id = :target
  and (cast(:before as text) is null or e.id < cast(:before as text))
  and (cast(:status as text) is null or cast(:status as text)
       = case when e.status = 'active' and e.expires_at <= now_ms() then 'expired' else e.status end)
order by e.id desc
limit :limit;

-- name: delegations_insert
-- Ids are made by the server before this statement, so nothing needs to be paired with what it returns.
insert into delegation_edges (id, zone_id, source_session_id, target_session_id, issuer_application_id,
    receiver_application_id, scopes, resource_id, resources, hops, constraints_json, parent_edge_id, status, expires_at,
    edge_version, created_by, trace, ended_at, ended_reason, created_at, updated_at)
select columns(b)
from rows(:batch as b, id text, zone_id text, source_session_id text, target_session_id text,
    issuer_application_id text, receiver_application_id text, scopes text, resource_id text, resources text, hops bigint,
    constraints_json text, parent_edge_id text, status text, expires_at bigint, edge_version bigint, created_by text,
    trace text, ended_at bigint, ended_reason text, created_at bigint, updated_at bigint);

-- name: delegations_end
-- The guard names where each may come from: the state it was read in, under the lock. What did not move is not in the
-- answer.
update delegation_edges
set status = b.becomes, ended_at = b.ended, ended_reason = b.reason, edge_version = edge_version + 1, updated_at = :now
from rows(:batch as b, zone text, edge text, was text, becomes text, reason text, ended bigint)
where zone_id = b.zone and id = b.edge and status = b.was
returning id;

-- name: delegation_zone_epochs
-- What zones are at, in the order of `model.Standing`. Under the zones' locks, so what is read here is what is raised.
select b.zone_id, coalesce(p.epoch, 0), coalesce(p.ranked, 0),
    coalesce((select 1 from cascades c where c.zone_id = b.zone_id and c.finished_at is null limit 1), 0),
    (select r.rank from delegation_ranks r where r.zone_id = b.zone_id order by r.rank limit 1),
    (select r.rank from delegation_ranks r where r.zone_id = b.zone_id order by r.rank desc limit 1)
from rows(:batch as b, zone_id text)
left join delegation_epochs p on p.zone_id = b.zone_id;

-- name: delegation_epochs_raise
-- Never down: whoever cached by an epoch must not meet it again. The order goes along if it was of the epoch before.
insert into delegation_epochs (zone_id, epoch, ranked)
select zone_id, epoch, epoch from rows(:batch as b, zone_id text, epoch bigint)
where true
on conflict (zone_id) do update
set epoch = excluded.epoch,
    ranked = case when delegation_epochs.ranked = delegation_epochs.epoch then excluded.epoch
                  else delegation_epochs.ranked end
where delegation_epochs.epoch < excluded.epoch;

-- name: delegation_epochs_mark_ranked
-- The zone's order has been made: it is of the epoch that the zone is at.
update delegation_epochs set ranked = epoch where zone_id = :zone_id;

-- name: delegations_expired
-- Across zones, those that have waited longest first. A clock that is asked once can be looked up in the index.
select e.zone_id, e.id
from delegation_edges e
where e.status = 'active' and e.expires_at <= (select now_ms())
order by e.expires_at
limit :limit;

-- name: delegations_delete_expired
-- What was over before a time, across zones, oldest first.
delete from delegation_edges
where (zone_id, id) in (
    select e.zone_id, e.id from delegation_edges e
    where e.ended_at is not null and e.ended_at < :before
    order by e.ended_at
    limit :limit
)
returning id;
