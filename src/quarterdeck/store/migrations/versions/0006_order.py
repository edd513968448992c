"""The order of the delegation graph, and ways to what was found by walking: claims by their id, calls by their service.

`invocation_backlogs` names the sessions and services with more calls than one transaction settles: a sweep goes on
with those. The index of a service's calls is spelt as only the list of them is, so that no kept plan takes it for
another (by `case`, which row-level security trusts, as it does not trust `coalesce`: what might leak is asked after
it). The one of claims is a hash where there is such a thing: it holds nothing of what has no claim, and no plan,
however old, can read all of it.

`delegation_ranks` is the order of a zone's delegations (docs/decisions/0018). It is written when somebody first lends
in a zone after this revision: `delegation_epochs.ranked` is the epoch that the order is of, and 0 is none that ever
was. From this revision on an edge lasts no longer than its sessions; those that were lent for longer are cut, and so
is what was derived from them, which held nothing beyond that either.

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
    # What the walk back needs stands in the index, as for the walk ahead: SQLite would walk by the other one, which has
    # it all, and meet every edge of the zone at each step. The condition is as in 0005.
    run(SCRIPT.replace("{target}", "target_session_id is not null and" if on_postgresql() else ""))
    method = "using hash" if on_postgresql() else ""
    run(f"create index agent_invocations_by_claim on agent_invocations {method} (claim_id)")
    # Services are forgotten under the zone's lock, which only the server's role can take.
    grant("agent_services", server="delete")
    revoke("agent_services", "service_sessions", sweep="delete")
    secure("invocation_backlogs", server="select, insert, update, delete")
    secure("delegation_ranks", server="select, insert, update, delete")
