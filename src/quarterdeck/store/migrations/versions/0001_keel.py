"""Zones, the event log and leases.

Revision ID: 0001
"""

from __future__ import annotations

from quarterdeck.store.migrations import run

revision = "0001"
down_revision = None

SCRIPT = """
create table zones (
    id text not null primary key,
    name text not null,
    frozen smallint not null default 0,
    quotas text not null,
    created_at bigint not null,
    updated_at bigint not null
);

create table log_head (
    id smallint not null primary key check (id = 1),
    pos bigint not null
);

create table events (
    pos {position} not null primary key,
    id text not null,
    zone_id text not null,
    type text not null,
    subject text not null,
    actor text not null,
    from_state text,
    to_state text,
    data text not null,
    trace text,
    at bigint not null
);

create index events_by_zone on events (zone_id, pos);

create index events_by_subject on events (subject, pos);

insert into log_head (id, pos) values (1, 0);

create table leases (
    name text not null primary key,
    term bigint not null,
    holder text not null,
    expires_at bigint not null
);
"""


def upgrade() -> None:
    run(SCRIPT)
