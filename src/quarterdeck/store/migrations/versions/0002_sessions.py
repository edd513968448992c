"""Sessions, the counters that admission checks, and idempotency keys.

Parent and zone are not foreign keys: every write to these tables holds the zone's row lock, which already protects what
a foreign key would check, and a foreign key would cost a lookup and a share lock per row.

Revision ID: 0002
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run

revision = "0002"
down_revision = "0001"

SCRIPT = """
create table agent_sessions (
    id text not null,
    zone_id text not null,
    application_id text not null,
    parent_id text,
    root_id text not null,
    session_sid text not null,
    kind text not null,
    status text not null,
    depth bigint not null,
    capabilities text not null,
    metadata text not null,
    ttl_seconds bigint not null,
    limits text not null,
    spawned_at bigint not null,
    expires_at bigint not null,
    suspended_at bigint,
    terminated_at bigint,
    termination_reason text,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, id)
);

create index agent_sessions_by_application on agent_sessions (zone_id, application_id, id);

create index agent_sessions_by_status on agent_sessions (zone_id, status, id);

create index agent_sessions_by_parent on agent_sessions (zone_id, parent_id, id) where parent_id is not null;

create index agent_sessions_by_expiry on agent_sessions (zone_id, expires_at) where status <> 'terminated';

create table admission_counts (
    zone_id text not null,
    scope text not null,
    key text not null,
    live bigint not null check (live >= 0),
    ever bigint not null,
    primary key (zone_id, scope, key)
) {clustered};

create table idempotency_keys (
    zone_id text not null,
    application_id text not null,
    operation text not null,
    key text not null,
    digest text not null,
    subject_id text not null,
    created_at bigint not null,
    primary key (zone_id, application_id, operation, key)
) {clustered};
"""

# While a table is empty, all of its indexes seem to cost the same, and PostgreSQL takes the newest. So the primary key
# is created again, last: then sessions are found by it, also in plans that are cached while the table grows.
#
# Counters change with every batch. Free space on the page keeps each update heap-only: no index entry is written.
POSTGRESQL = """
alter table agent_sessions drop constraint agent_sessions_pkey;

alter table agent_sessions add primary key (zone_id, id);

alter table admission_counts set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

alter table log_head set (fillfactor = 10);
"""


def upgrade() -> None:
    run(SCRIPT)
    if on_postgresql():
        run(POSTGRESQL)
