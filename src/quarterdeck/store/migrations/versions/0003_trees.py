"""Termination of trees and zones, API keys, and seals of the event log.

`agent_sessions.held` marks a suspended session. `cascade_id` and `cascade_place` mark a session for termination and
give its place in the order. They are null or 0 for nearly every row, and the index holds only sessions that are still
to be terminated, so a spawn does not pay for it.

Revision ID: 0003
"""

from __future__ import annotations

from quarterdeck.store.migrations import run

revision = "0003"
down_revision = "0002"

SCRIPT = """
alter table agent_sessions add column held smallint not null default 0;

alter table agent_sessions add column cascade_id text;

alter table agent_sessions add column cascade_place bigint;

create index agent_sessions_by_cascade on agent_sessions (zone_id, cascade_id, cascade_place)
    where cascade_id is not null and status <> 'terminated';

create table cascades (
    zone_id text not null,
    id text not null,
    target_id text,
    reason text not null,
    actor text not null,
    trace text,
    stamped bigint not null,
    settled bigint not null,
    started_at bigint not null,
    finished_at bigint,
    primary key (zone_id, id)
);

create index cascades_open on cascades (zone_id, id) where finished_at is null;

alter table zones add column ended_at bigint;

alter table log_head add column floor bigint not null default 0;

create table seals (
    number {position} not null primary key,
    first_pos bigint not null,
    last_pos bigint not null,
    floor bigint not null,
    digest text not null,
    leaves text not null,
    previous text not null,
    hash text not null,
    kid text not null,
    signature text not null,
    at bigint not null
);

create index seals_by_end on seals (last_pos, number, at);

create table api_keys (
    zone_id text not null,
    id text not null,
    digest text not null,
    name text not null,
    application_id text not null,
    scopes text not null,
    session_id text,
    created_by text not null,
    created_at bigint not null,
    expires_at bigint,
    revoked_at bigint,
    primary key (zone_id, id)
);

create index api_keys_unrevoked on api_keys (zone_id, expires_at) where revoked_at is null;
"""


def upgrade() -> None:
    run(SCRIPT)
