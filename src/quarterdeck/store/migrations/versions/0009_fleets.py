"""Fleets: teams of coding agents in tmux panes, their messages and their monitors.

The tables have the columns, indexes and foreign keys of the original system. Its `tasks` are `messages` here and its
`agents` are `members`, because those names were taken. The former `members`, the role assignments of a zone, are
`zone_members` from here on.

Ids are small integers, because agents type them. They are counted per zone in `fleet_counters`, under the zone's lock:
no id is used twice, and none is skipped when a transaction is rolled back (docs/decisions/0025).

Polls have an index of unacknowledged messages only, so it does not grow with the history.

Every key starts with the zone. The other indexes start with the queried column, as in the original system, followed by
the zone: a plan made while the tables were empty may take one index for another that starts with the same column.

Revision ID: 0009
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run
from quarterdeck.store.migrations.row_security import secure

revision = "0009"
down_revision = "0008"

SCRIPT = """
alter table members rename to zone_members;

create table fleet_counters (
    zone_id text not null primary key,
    fleets bigint not null,
    members bigint not null,
    messages bigint not null
);

create table fleets (
    zone_id text not null,
    fleet_id bigint not null,
    label text,
    created_at bigint not null,
    deleted_at bigint,
    director_agent_id bigint,
    created_by text not null,
    primary key (zone_id, fleet_id){director}
);

create table members (
    zone_id text not null,
    agent_id bigint not null,
    fleet_id bigint not null,
    registry_id text,
    name text not null,
    description text not null,
    status text not null,
    registered_at bigint not null,
    deregistered_at bigint,
    agent_card_json text not null,
    primary key (zone_id, agent_id),
    foreign key (zone_id, fleet_id) references fleets (zone_id, fleet_id) on delete restrict
);

create index idx_agents_fleet_status on members (fleet_id, zone_id, status);

create unique index members_in_registry on members (registry_id, zone_id) where registry_id is not null;

create table messages (
    zone_id text not null,
    task_id bigint not null,
    fleet_id bigint not null,
    context_id bigint not null,
    from_agent_id bigint not null,
    to_agent_id bigint not null,
    type text not null,
    created_at bigint not null,
    status_state text not null,
    status_timestamp bigint not null,
    origin_task_id bigint,
    text text not null,
    notified_at bigint,
    notice text,
    primary key (zone_id, task_id),
    foreign key (zone_id, context_id) references members (zone_id, agent_id) on delete restrict
);

create index idx_tasks_context_status_ts on messages (context_id, zone_id, status_timestamp desc);

create index idx_tasks_from_agent_status_ts on messages (from_agent_id, zone_id, status_timestamp desc);

create index messages_unread on messages (context_id, zone_id, task_id) where status_state = 'input_required';

create index messages_of_fleet on messages (fleet_id, zone_id, task_id);

create table agent_placements (
    zone_id text not null,
    agent_id bigint not null,
    director_agent_id bigint,
    tmux_session text not null,
    tmux_window_id text not null,
    tmux_pane_id text,
    coding_agent text not null default 'claude',
    created_at bigint not null,
    host_id text not null,
    user_id bigint not null,
    tmux_socket text not null,
    tmux_pid bigint not null,
    primary key (zone_id, agent_id),
    foreign key (zone_id, agent_id) references members (zone_id, agent_id) on delete cascade,
    foreign key (zone_id, director_agent_id) references members (zone_id, agent_id) on delete restrict
);

create index idx_placements_director on agent_placements (director_agent_id, zone_id);

create table monitor_config (
    zone_id text not null,
    agent_id bigint not null,
    interval_seconds bigint not null default 60,
    last_ping_at bigint,
    enabled smallint not null default 1,
    primary key (zone_id, agent_id),
    foreign key (zone_id, agent_id) references members (zone_id, agent_id) on delete cascade
);

create table monitor_runtime (
    zone_id text not null,
    fleet_id bigint not null,
    pid bigint,
    started_at bigint,
    last_tick_at bigint,
    tick_seconds bigint not null default 5,
    host_id text,
    user_id bigint,
    policy text not null default 'quiet',
    primary key (zone_id, fleet_id),
    foreign key (zone_id, fleet_id) references fleets (zone_id, fleet_id) on delete restrict
);
"""


DIRECTOR = "foreign key (zone_id, director_agent_id) references members (zone_id, agent_id) on delete restrict"
"""A fleet and its director refer to each other. PostgreSQL needs the other table first; SQLite cannot add a foreign key
to an existing table."""


def upgrade() -> None:
    if on_postgresql():
        # A renamed table keeps the name of its primary key.
        run("alter table members rename constraint members_pkey to zone_members_pkey")
    run(SCRIPT.replace("{director}", "" if on_postgresql() else f",\n    {DIRECTOR}"))
    if on_postgresql():
        run(f"alter table fleets add {DIRECTOR}")
    everything = "select, insert, update, delete"
    for table in ("fleet_counters", "fleets", "members", "messages"):
        secure(table, server="select, insert, update")
    for table in ("agent_placements", "monitor_config", "monitor_runtime"):
        secure(table, server=everything)
