"""All SQL statements: each prepares on both engines, and none slows down as its tables grow."""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path

import psycopg
import pytest

from quarterdeck.core.clock import system_now
from quarterdeck.core.ids import new_id
from quarterdeck.domain.access.queries import Q as ACCESS
from quarterdeck.domain.agents.queries import Q as AGENTS
from quarterdeck.domain.api_keys.queries import Q as KEYS
from quarterdeck.domain.costs.queries import Q as COSTS
from quarterdeck.domain.delegations.queries import Q as DELEGATIONS
from quarterdeck.domain.fleets.queries import LISTS as FLEET_LISTS, Q as FLEETS
from quarterdeck.domain.invocations.queries import Q as INVOCATIONS
from quarterdeck.domain.services.queries import Q as SERVICES
from quarterdeck.domain.sessions.queries import Q as SESSIONS
from quarterdeck.domain.task_logs.queries import Q as TASK_LOGS
from quarterdeck.domain.tasks.queries import COORDINATOR, LISTS, Q as TASKS
from quarterdeck.domain.webhooks.queries import Q as WEBHOOKS
from quarterdeck.domain.zones.queries import Q as ZONES
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.maintenance.history_checker.queries import Q as HISTORY
from quarterdeck.maintenance.queries import FLEET_QUERIES as MAINTENANCE_FLEETS, Q as MAINTENANCE
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres import BEGIN, COMMIT, LOCK_KEY, PING, ROLLBACK, SET_ZONES
from quarterdeck.store.postgres_roles import ROLES, SERVER, SWEEP, Role
from quarterdeck.store.sql import BoundStatement, Statement
from tests.support.builders import APP, ZONE
from tests.support.fleet_workload import add_fleet_rows
from tests.support.query_plans import Plan, Planner
from tests.support.runtime import DirectDatabase
from tests.support.source import sql_statements
from tests.support.statement_workload import WorkloadStatements, record_workload
from tests.support.task_details import add_task_detail_rows
from tests.support.webhooks import add_webhook_rows

MANY = 20_000
_numbers = itertools.count(10**9)
STORE = (BEGIN, COMMIT, LOCK_KEY, PING, ROLLBACK, SET_ZONES)
"""Statements of the store itself."""


def workload_statements() -> list[Statement]:
    tasks = chain(COSTS, TASKS, COORDINATOR, LISTS, TASK_LOGS)
    fleets = chain(FLEETS, FLEET_LISTS)
    return list(chain(ENGINE, ZONES, ACCESS, SESSIONS, AGENTS, INVOCATIONS, tasks, WEBHOOKS, fleets))


def test_all_statement_files_are_covered() -> None:
    tested = chain(workload_statements(), KEYS, SERVICES, DELEGATIONS, MAINTENANCE, MAINTENANCE_FLEETS, HISTORY)
    assert {statement.name for statement in sql_statements()} == {statement.name for statement in tested}


def test_every_statement_prepares_on_both_engines(sqlite_url: str, postgres_url: str) -> None:
    path = sqlite_path(sqlite_url)
    assert path
    with contextlib.closing(sqlite3.connect(path)) as sqlite, psycopg.connect(postgres_url) as postgres:
        sqlite.create_function("now_ms", 0, system_now)
        for statement in chain(
            workload_statements(), KEYS, SERVICES, DELEGATIONS, MAINTENANCE, MAINTENANCE_FLEETS, HISTORY
        ):
            names = re.findall(r"(?<![:\w]):([a-z_]\w*)", statement.sqlite)
            sqlite.execute(f"explain {statement.sqlite}", dict.fromkeys(names)).fetchall()
            if statement.sqlite_row:
                places = max(int(place) for place in re.findall(r"\?(\d+)", statement.sqlite_row))
                sqlite.execute(f"explain {statement.sqlite_row}", (None,) * places).fetchall()
            postgres.execute(f"prepare {statement.name} as {statement.postgresql}".encode())


def test_statement_names_are_unique() -> None:
    # A connection caches prepared statements by name, so the second would be run as the first.
    names = Counter(statement.name for statement in chain(workload_statements(), KEYS, SERVICES, DELEGATIONS, STORE))
    assert [name for name, times in names.items() if times > 1] == []


# -- as tables grow


@pytest.fixture
async def workload(postgres_url: str, tmp_path: Path) -> AsyncIterator[WorkloadStatements]:
    async with record_workload(postgres_url, tmp_path) as statements:
        yield statements


class Planners:
    """Two planners per role.

    One keeps the plans of nearly empty tables, as a server that started on a fresh database. The other plans for the
    current tables.
    """

    def __init__(self, url: str) -> None:
        self._generic = {role: Planner(url, "force_generic_plan", role) for role in ROLES}
        self._custom = {role: Planner(url, "force_custom_plan", role) for role in ROLES}

    def run(self, workload: WorkloadStatements) -> dict[str, Plan]:
        by_role: dict[Role, dict[str, BoundStatement]] = {
            SERVER: workload.zone_statements,
            SWEEP: workload.cross_zone_statements,
        }
        return {
            f"{name} as {role}": run_again(self._for(role, bound), bound)
            for role, statements in by_role.items()
            for name, bound in statements.items()
        }

    def _for(self, role: Role, bound: BoundStatement) -> Planner:
        # Statements of lanes must be fast even with an old plan. Others are planned each time.
        return (self._custom if bound.statement.planned_each_time else self._generic)[role]

    def close(self) -> None:
        for planner in [*self._generic.values(), *self._custom.values()]:
            planner.close()


@pytest.fixture
def planners(postgres_url: str) -> Iterator[Planners]:
    with contextlib.closing(Planners(postgres_url)) as opened:
        yield opened


def grow(database: DirectDatabase) -> None:
    """Insert tens of thousands of ended and live rows in several zones. Table statistics stay stale."""
    database.execute(
        """
        insert into agent_sessions
        select '0' || to_char(n, 'FM0000000') || md5(n::text), case when n % 4 = 0 then ? else 'zone' || n % 7 end,
               'app' || n % 50, null, 'r' || n, 'sid', 'instance',
               case when n % 5 = 0 then 'active' else 'terminated' end, 0, '[]', '{}', 3600, '{}',
               1, 9000000000000, null, null, null, 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute(
        """
        insert into events
        select h.pos + n, 'e' || n, 'zone' || n % 7, 'session.spawn', 's' || n, 'a', null, 'active', '{}', null, 1
        from generate_series(1, ?) n, log_head h
        """,
        MANY,
    )
    database.execute("update log_head set pos = pos + ?", MANY)
    database.execute(
        """
        insert into seals
        select n.number + s.number, s.last_pos + n.number, s.last_pos + n.number, s.floor, '', '', '', '', '', '', s.at
        from generate_series(1, ?) as n(number), (select * from seals order by number desc limit 1) s
        """,
        MANY,
    )
    database.execute(
        """
        insert into sink_entries
        select 'a-sink', n, 9, ?, 'stream', 's' || n, '{}', 1, 9000000000000,
               case when n % 100 = 0 then null else 1 end, 'e', 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute(
        "insert into idempotency_keys select ?, ?, 'spawn', 'key' || n, 'd', 's' || n, 1 from generate_series(1, ?) n",
        ZONE,
        APP,
        MANY,
    )
    database.execute(
        "insert into admission_counts select ?, 'parent', 'p' || n, 1, 1 from generate_series(1, ?) n", ZONE, MANY
    )
    database.execute(
        "insert into zones select 'zone' || n, 'n', 0, '{}', 1, 1 from generate_series(0, ?) n on conflict do nothing",
        6,
    )
    grow_agents(database)
    grow_invocations(database)
    grow_tasks(database)
    add_task_detail_rows(database, ZONE, MANY)
    add_webhook_rows(database, ZONE, MANY)
    add_fleet_rows(database, ZONE, MANY)


def grow_agents(database: DirectDatabase) -> None:
    """Role assignments, and agents with distinct launches: one in fifty is stale, the others are idle."""
    database.execute(
        """
        insert into zone_members
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'm' || n, 'MEMBER', 'a', 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute(
        """
        insert into agents
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'g' || n, 'n', null, null, '["c"]', 1, 30, 180, 1,
               'l' || n, '{}', null, case when n % 50 = 0 then 'ERROR' else 'IDLE' end, null, 0,
               case when n % 50 = 0 then null else 9000000000000 + n end, null, 'a', 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute("insert into agent_capabilities select zone_id, 'c', id from agents where name = ?", "n")
    database.execute(
        "insert into agent_pulses select zone_id, id, 'healthy', 0, null, null, null, null, null, 1, 1 from agents "
        "where name = ?",
        "n",
    )
    database.execute(
        """
        insert into agent_heartbeats
        select 'g' || n, case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'g' || n % 500, 'healthy', null, null,
               null, null, 1, 1, '{}'
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )


def grow_invocations(database: DirectDatabase) -> None:
    """Some invocations are pending, most have ended, and many run, each with its own claim."""
    database.execute(
        """
        insert into agent_invocations
        select '0' || to_char(n, 'FM0000000') || md5(n::text), case when n % 4 = 0 then ? else 'zone' || n % 7 end,
               case when n % 5 = 1 then (select min(service_id) from agent_invocations) else 'service' || n % 50 end,
               'app', 'r' || n, null, 'k' || n, 'd', 'm', '{}', '{}',
               case when n % 5 = 0 then 'pending' else 'succeeded' end, 1, 3, 1000, '{}', null, null, 0, 1,
               null, null, null, null, null, null, null, null, 'app', null, 1, 9000000000000, 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute(
        """
        insert into agent_invocations
        select '1' || to_char(n, 'FM0000000') || md5(n::text), ?, (select min(service_id) from agent_invocations),
               'app', null, null, 'running' || n, 'd', 'm', '{}', '{}', 'running', 1, 3, 1000, '{}', null, null, 0, 1,
               9000000000000, 9000000000000, 't', 'claim', 'h', 'claim' || n, null, null, 'app', null, 1, null, 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY // 4,
    )


def grow_tasks(database: DirectDatabase) -> None:
    """Most tasks are completed. The others are ready, in backoff, waiting for dependencies, or running."""
    database.execute(
        """
        insert into agent_tasks
        select '0' || to_char(n, 'FM0000000') || md5(n::text), case when n % 4 = 0 then ? else 'zone' || n % 7 end, 't',
               null, 'type' || n % 9,
               case when n % 10 = 0 then 'RUNNING' when n % 10 < 4 then 'PENDING' else 'COMPLETED' end, 5,
               case when n % 10 = 0 then 'g' || n % 900 end, null, 0, null, null, null, 0, 3, 300, null, 'fail', '{}',
               null, null, '{}', '{}', '[]', '[]', 'class' || n % 40, n, 'priority',
               case when n % 10 < 4 then n % 3 else 0 end, 1, 1, 9000000000000, null,
               case when n % 20 = 0 then 9000000000000 end, 1, 't', null, 0, null, 0, null, null,
               case when n % 20 = 0 then 9000000000000 end, 0, 0, 0, 'c', 'app', null, 1, 9000000000000, null, null,
               null, null
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    database.execute(
        """
        insert into task_dependencies
        select zone_id, id, '1' || substr(id, 2), case when id < '00015000' then 0 else 1 end from agent_tasks
        where title = ?
        """,
        "t",
    )
    database.execute(
        "insert into task_tags select zone_id, 'tag' || turn % 50, id from agent_tasks where title = ?", "t"
    )
    database.execute(
        "insert into task_classes select ?, 'class' || n, 'type', '[]', 1 from generate_series(1, ?) n", ZONE, MANY
    )


READS_MANY_ROWS = {
    "tasks_encrypted": "a bounded slice of tasks by primary key",
    "tasks_slice": "a bounded slice of tasks by index",
    "counts_mismatched": "counts the live sessions of one zone, periodically",
    "sinks_lowest_position": "reads all sinks, of which there are few",
    "sinks_abandoned": "reads all sinks, of which there are few",
    "sink_entries_count": "counts the rejected entries of one sink, on request",
    "sink_entries_page": "sorts the rejected entries of one sink, on request",
    "sink_entries_requeue": "updates all dead entries of one sink, on request",
    "sink_entries_delete_expired": "deletes the rows that it reads",
    "sink_entries_delete_all": "deletes all entries of one sink, once",
    "cascades_delete_expired": "few rows: only cascades of several transactions have one",
    "zone_members_count": "counts the role assignments of one zone, when one changes",
    "agents_count": "counts the agents of one zone, on request",
    "agents_in_error_count": "counts all stale agents by their own index, on request",
    "webhook_events_page": "a bounded range of log positions",
    "webhook_deliveries_count_pending": "counts the pending deliveries of one endpoint up to the limit, periodically",
    "webhook_deliveries_delete_expired": "deletes the rows that it reads",
    "keys_slice": "a bounded slice of keys by index",
    "sessions_delete_expired": "deletes the rows that it reads",
    "invocations_slice_by_source": "a bounded slice of pending and running invocations by index",
    "invocations_slice_by_target": "a bounded slice of pending and running invocations by index",
    "invocations_delete_expired": "deletes the rows that it reads",
    "tasks_in_state": "a bounded slice of one state of a zone by index",
    "tasks_in_backoff": "a bounded slice of due tasks by their own index, periodically",
    "agents_list_ids": "a bounded slice of one zone by primary key",
    "agents_slice": "a bounded slice of agents by primary key",
    "tasks_to_rank": "a bounded slice of a zone whose order was changed",
    "tasks_waiting_slice": "a bounded slice of tasks with unmet dependencies by index",
    "tasks_count_by_state": "counts rows of an index, on request",
    "tasks_count_ready": "counts rows of an index, on request",
    "tasks_count_ready_all_zones": "counts rows of an index, periodically",
    **{f"costs_{by}": "sums up the costs of one zone, on request" for by in ("by_task", "by_day", "grouped", "since")},
    "sessions_orphaned": "reads all live sessions, periodically: any parent may have been deleted by hand",
}
"""Statements that read many rows on purpose, each with the reason why this is acceptable."""


def test_no_statement_scans_a_table_or_touches_more_pages_as_tables_grow(
    postgres_url: str, workload: WorkloadStatements, planners: Planners
) -> None:
    assert {
        statement.name for statement in workload_statements()
    } <= workload.zone_statements.keys() | workload.cross_zone_statements.keys()
    small = planners.run(workload)
    grow(DirectDatabase(postgres_url))
    assert_costs_unchanged(small, planners.run(workload))
    # A server that restarts now plans with the statistics of the large tables.
    DirectDatabase(postgres_url).execute("analyze")
    with contextlib.closing(Planners(postgres_url)) as later:
        assert_costs_unchanged(small, later.run(workload))


def assert_costs_unchanged(small: dict[str, Plan], large: dict[str, Plan]) -> None:
    large = {name: plan for name, plan in large.items() if name.split()[0] not in READS_MANY_ROWS}
    scanning = {name: plan.scans("Seq Scan") for name, plan in large.items() if plan.scans("Seq Scan")}
    assert not scanning
    grown = {
        name: (small[name].pages, plan.pages) for name, plan in large.items() if not has_same_cost(small[name], plan)
    }
    assert not grown, f"pages touched before and after, by statement: {grown}"


UNIQUE_COLUMNS = {
    "sessions_insert": (0,),
    "invocations_insert": (0, 6),
    "services_insert": (0, 4),
    "registrations_insert": (2,),
    "delegations_insert": (0,),
    "zone_members_insert": (1,),
    "webhooks_insert": (1,),
    "agents_insert": (1,),
    "tasks_insert": (0,),
    "task_dependencies_insert": (1,),
    "task_classes_insert": (1,),
    "agent_capabilities_insert": (1,),
    "agent_pulses_insert": (1,),
    "agent_heartbeats_insert": (0,),
    "task_log_lines_insert": (1,),
    "fleets_insert": (1,),
    "members_insert": (1, 3),
    "messages_insert": (1,),
}
"""Columns with a unique constraint, by statement."""


def run_again(planner: Planner, bound: BoundStatement) -> Plan:
    """Run a recorded statement again, with fresh values in unique columns."""
    first = ENGINE.log_advance(count=1_000) if bound.statement is ENGINE.log_append else None
    if bound.statement is SESSIONS.cascade_insert:
        bound = bound.statement(**{**bound.params, "id": new_id()})
    batch = bound.params.get("batch")
    if isinstance(batch, list) and (unique := UNIQUE_COLUMNS.get(bound.statement.name)):
        bound = bound.statement(batch=[tuple(fresh_value(v) if n in unique else v for n, v in enumerate(batch[0]))])
    if bound.statement is ENGINE.seal_insert and isinstance(batch, list):
        bound = bound.statement(batch=[(10 * MANY, *row[1:]) for row in batch[:1]])
    return planner.run(bound, first)


def fresh_value(value: object) -> object:
    """A fresh value of the same type."""
    return next(_numbers) if isinstance(value, int) else new_id()


def has_same_cost(before: Plan, after: Plan) -> bool:
    """Allows for deeper indexes in a few zones, and no more."""
    return after.pages <= 3 * before.pages + 24
