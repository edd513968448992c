"""The order of the delegation graph, and indexes for lookups that scanned before: claims by id, calls by service.

`invocation_backlogs` lists the sessions and services with more open invocations than one transaction cancels; a sweep
continues with those. The index of a service's invocations has expressions that only their list uses, so that no cached
plan takes it for another (`case`, because row-level security treats `case` as leakproof but not `coalesce`). The index
of claims is a hash index on PostgreSQL: it holds no rows without a claim, and no plan, however old, can scan it
completely.

`delegation_ranks` is the order of a zone's delegations (docs/decisions/0018). It is written with the first delegation
in a zone after this revision: `delegation_epochs.ranked` is the epoch of the stored order, and 0 is never an epoch.
From this revision on an edge expires no later than its sessions. Existing edges that last longer are shortened, and so
are the edges derived from them, which gave no authority beyond that time either.

Revision ID: 0006
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run
from quarterdeck.store.migrations.row_security import grant, revoke, secure

revision = "0006"
down_revision = "0005"

SCRIPT = """
create index agent_invocations_of_service on agent_invocations
    ((case when service_id is null then '' else service_id end),
     (case when status is null then '' else status end), id);

create index agent_invocations_open_source on agent_invocations (source_session_id, parked, id)
    where status in ('pending', 'running') and source_session_id is not null;

create index agent_invocations_open_target on agent_invocations (target_session_id, parked, id)
    where status in ('pending', 'running') and target_session_id is not null;

create index agent_services_registered on agent_services (zone_id, id) where coalesce(unregistered_at, 0) = 0;

create index agent_services_gone on agent_services (unregistered_at) where unregistered_at is not null;

create table invocation_backlogs (
    zone_id text not null,
    kind text not null,
    owner_id text not null,
    since bigint not null,
    primary key (zone_id, kind, owner_id)
);

create index invocation_backlogs_by_age on invocation_backlogs (since);

create table delegation_ranks (
    zone_id text not null,
    session_id text not null,
    rank bigint not null,
    primary key (zone_id, session_id)
) {clustered};

create unique index delegation_ranks_by_rank on delegation_ranks (zone_id, rank);

alter table delegation_epochs add column ranked bigint not null default 0;

drop index delegation_edges_into;

create index delegation_edges_into on delegation_edges
    (zone_id, target_session_id, source_session_id, expires_at, status)
    where {target} status <> 'revoked' and status <> 'expired';

update delegation_edges set expires_at = s.expires_at
from agent_sessions s
where s.zone_id = delegation_edges.zone_id and s.id = delegation_edges.source_session_id
  and delegation_edges.status = 'active' and delegation_edges.expires_at > s.expires_at;

update delegation_edges set expires_at = s.expires_at
from agent_sessions s
where s.zone_id = delegation_edges.zone_id and s.id = delegation_edges.target_session_id
  and delegation_edges.status = 'active' and delegation_edges.expires_at > s.expires_at;

with recursive line (zone_id, id, upto) as (
    select e.zone_id, e.id, e.expires_at
    from delegation_edges e
    where e.status = 'active' and e.parent_edge_id is null
    union all
    select d.zone_id, d.id, case when d.expires_at < l.upto then d.expires_at else l.upto end
    from line l
    join delegation_edges d on d.zone_id = l.zone_id and d.parent_edge_id = l.id
    where d.status = 'active'
)
update delegation_edges set expires_at = l.upto
from line l
where delegation_edges.zone_id = l.zone_id and delegation_edges.id = l.id and delegation_edges.expires_at > l.upto;
"""


def upgrade() -> None:
    # The index has all columns for walking backwards, as the other has for walking forwards. Otherwise SQLite would use
    # the other one, which has them all, and read every edge of the zone at each step. The condition is as in 0005.
    run(SCRIPT.replace("{target}", "target_session_id is not null and" if on_postgresql() else ""))
    method = "using hash" if on_postgresql() else ""
    run(f"create index agent_invocations_by_claim on agent_invocations {method} (claim_id)")
    # Services are deleted under the zone's lock, which only the server role can take.
    grant("agent_services", server="delete")
    revoke("agent_services", "service_sessions", sweep="delete")
    secure("invocation_backlogs", server="select, insert, update, delete")
    secure("delegation_ranks", server="select, insert, update, delete")
