"""Services, invocations and delegations; cursors of sinks; and the index by which an ended session's sid is found.

A pending invocation is found by the index of its service, in the order in which it may start; a running one by its
deadline or its lease. `parked` excludes invocations of suspended sessions from claims.

PostgreSQL plans a statement while the tables are empty and caches the plan. Of several indexes that start with the
columns of the statement it then takes any, and it may scan a partial index completely. So each index starts with a
column of its own, statements hide (`coalesce`) conditions that would match another index, and `agent_sessions_by_sid`
has a condition that only one statement has.

`service_sessions` lists the sessions that registered a service; the service ends with the last of them. The unique key
of a service starts with its application: an index that starts with the zone would be taken instead of the primary key
by plans made while the table was empty.

Revision ID: 0005
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run
from quarterdeck.store.migrations.row_security import grant, secure

revision = "0005"
down_revision = "0004"

SCRIPT = """
create index agent_sessions_by_sid on agent_sessions (session_sid, zone_id) where coalesce(terminated_at, 0) = 0;

create table agent_services (
    id text not null,
    zone_id text not null,
    application_id text not null,
    agent_id text,
    endpoint_url text not null,
    protocol_versions text not null,
    framework_name text,
    framework_version text,
    capabilities text not null,
    health text not null,
    metadata_json text not null,
    delivery text not null,
    secret_number bigint not null,
    active_invocations bigint not null,
    last_heartbeat_at bigint,
    unregistered_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, id),
    unique (application_id, endpoint_url, zone_id)
);

create index agent_services_to_push on agent_services (zone_id, id)
    where delivery = 'push' and unregistered_at is null;

create table service_sessions (
    zone_id text not null,
    service_id text not null,
    session_id text not null,
    primary key (zone_id, service_id, session_id)
);

create index service_sessions_by_session on service_sessions (zone_id, session_id, service_id);

create table agent_invocations (
    id text not null,
    zone_id text not null,
    service_id text not null,
    application_id text not null,
    source_session_id text,
    target_session_id text,
    idempotency_key text not null,
    digest text not null,
    method text not null,
    params_json text not null,
    metadata_json text not null,
    status text not null,
    attempts bigint not null,
    max_attempts bigint not null,
    timeout_ms bigint not null,
    retry_policy_json text not null,
    result_json text,
    error_json text,
    parked smallint not null,
    available_at bigint not null,
    deadline_at bigint,
    lease_expires_at bigint,
    attempt_token text,
    begun_by text,
    holder text,
    claim_id text,
    cancel_requested_at bigint,
    cancel_reason text,
    invoker text not null,
    trace text,
    started_at bigint,
    completed_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, id),
    unique (idempotency_key, service_id, zone_id)
);

create index agent_invocations_by_service on agent_invocations (status, service_id, parked, available_at, id);

create index agent_invocations_by_status on agent_invocations (zone_id, status, id);

create index agent_invocations_by_source on agent_invocations (zone_id, source_session_id, id)
    where source_session_id is not null;

create index agent_invocations_by_target on agent_invocations (zone_id, target_session_id, id)
    where target_session_id is not null;

create index agent_invocations_by_deadline on agent_invocations (deadline_at) where status = 'running';

create index agent_invocations_by_lease on agent_invocations (lease_expires_at) where status = 'running';

create table delegation_edges (
    id text not null,
    zone_id text not null,
    source_session_id text not null,
    target_session_id text not null,
    issuer_application_id text not null,
    receiver_application_id text not null,
    scopes text not null,
    resource_id text,
    resources text,
    hops bigint not null,
    constraints_json text not null,
    parent_edge_id text,
    status text not null,
    expires_at bigint not null,
    edge_version bigint not null,
    created_by text not null,
    trace text,
    ended_at bigint,
    ended_reason text,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, id)
);

create index delegation_edges_by_source on delegation_edges (zone_id, source_session_id, id);

create index delegation_edges_by_target on delegation_edges (zone_id, target_session_id, id);

create index delegation_edges_by_parent on delegation_edges (zone_id, parent_edge_id)
    where parent_edge_id is not null;

create index delegation_edges_from on delegation_edges
    (zone_id, source_session_id, target_session_id, expires_at, status)
    where status <> 'revoked' and status <> 'expired';

create index delegation_edges_into on delegation_edges (zone_id, target_session_id, status)
    where status <> 'revoked' and status <> 'expired';

create index delegation_edges_active on delegation_edges (zone_id, id) where status = 'active';

create index delegation_edges_by_expiry on delegation_edges (expires_at) where status = 'active';

create index delegation_edges_by_end on delegation_edges (ended_at) where ended_at is not null;

create table delegation_epochs (
    zone_id text not null primary key,
    epoch bigint not null
);

create table sinks (
    name text not null primary key,
    id text not null,
    position bigint not null,
    updated_at bigint not null
);

create table sink_entries (
    sink text not null,
    pos bigint not null,
    entry bigint not null,
    zone_id text not null,
    stream text not null,
    subject text not null,
    fields text not null,
    attempts bigint not null,
    next_at bigint not null,
    dead_at bigint,
    error text not null,
    created_at bigint not null,
    primary key (sink, pos, entry)
);

create index sink_entries_due on sink_entries (sink, next_at) where dead_at is null;

create index sink_entries_by_subject on sink_entries (sink, stream, subject, pos);

create index sink_entries_dead on sink_entries (sink, dead_at) where dead_at is not null;
"""

# While a table is empty, all of its indexes seem to cost the same, and PostgreSQL takes the newest. So the primary key
# is created again, last: then edges are found by it. A partial index seems cheaper still if its condition is known to
# hold. `is not null` on a column that is never null only makes sure that the statement must name that column.
POSTGRESQL = """
drop index delegation_edges_by_target;

drop index delegation_edges_from;

drop index delegation_edges_into;

create index delegation_edges_by_target on delegation_edges (zone_id, target_session_id, id)
    where target_session_id is not null;

create index delegation_edges_from on delegation_edges
    (zone_id, source_session_id, target_session_id, expires_at, status)
    where source_session_id is not null and status <> 'revoked' and status <> 'expired';

create index delegation_edges_into on delegation_edges (zone_id, target_session_id, status)
    where target_session_id is not null and status <> 'revoked' and status <> 'expired';

alter table delegation_edges drop constraint delegation_edges_pkey;

alter table delegation_edges add primary key (zone_id, id);
"""


def upgrade() -> None:
    run(SCRIPT)
    if on_postgresql():
        run(POSTGRESQL)
    secure("agent_services", server="select, insert, update", sweep="select, delete")
    secure("service_sessions", server="select, insert, delete", sweep="select, delete")
    secure("agent_invocations", server="select, insert, update", sweep="select, delete")
    secure("delegation_edges", server="select, insert, update", sweep="select, delete")
    secure("delegation_epochs", server="select, insert, update")
    grant("sinks", server="select", sweep="select, insert, update, delete")
    secure("sink_entries", server="select", sweep="select, insert, update, delete")
