"""The statements there are: each runs on both engines, and none slows down as its tables grow."""

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
from quarterdeck.domain.agents.queries import Q as AGENTS
from quarterdeck.domain.api_keys.queries import Q as KEYS
from quarterdeck.domain.delegations.queries import Q as DELEGATIONS
from quarterdeck.domain.fleets.queries import LISTS as FLEET_LISTS, Q as FLEETS
from quarterdeck.domain.invocations.queries import Q as INVOCATIONS
from quarterdeck.domain.services.queries import Q as SERVICES
from quarterdeck.domain.sessions.queries import Q as SESSIONS
from quarterdeck.domain.tasks.queries import COORDINATOR, COSTS, LISTS, LOGS, Q as TASKS
from quarterdeck.domain.webhooks.queries import Q as WEBHOOKS
from quarterdeck.domain.zones.queries import Q as ZONE_ROOM
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.maintenance.history_checker.queries import Q as HISTORY
from quarterdeck.maintenance.queries import FLEET_QUERIES as UPKEEP_FLEETS, Q as UPKEEP
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
"""What the store says by itself."""


def everything() -> list[Statement]:
    tasks = chain(TASKS, COORDINATOR, LOGS, LISTS, COSTS)
    fleets = chain(FLEETS, FLEET_LISTS)
    return list(chain(ENGINE, ZONE_ROOM, SESSIONS, AGENTS, INVOCATIONS, tasks, WEBHOOKS, fleets))


def test_no_file_of_statements_is_left_out() -> None:
    tried = chain(everything(), KEYS, SERVICES, DELEGATIONS, UPKEEP, UPKEEP_FLEETS, HISTORY)
    assert {statement.name for statement in sql_statements()} == {statement.name for statement in tried}


def test_every_statement_prepares_on_both_engines(sqlite_url: str, postgres_url: str) -> None:
    path = sqlite_path(sqlite_url)
    assert path
    with contextlib.closing(sqlite3.connect(path)) as sqlite, psycopg.connect(postgres_url) as postgres:
        sqlite.create_function("now_ms", 0, system_now)
        for statement in chain(everything(), KEYS, SERVICES, DELEGATIONS, UPKEEP, UPKEEP_FLEETS, HISTORY):
            names = re.findall(r"(?<![:\w]):([a-z_]\w*)", statement.sqlite)
            sqlite.execute(f"explain {statement.sqlite}", dict.fromkeys(names)).fetchall()
            if statement.sqlite_row:
                places = max(int(place) for place in re.findall(r"\?(\d+)", statement.sqlite_row))
                sqlite.execute(f"explain {statement.sqlite_row}", (None,) * places).fetchall()
            postgres.execute(f"prepare {statement.name} as {statement.postgresql}".encode())


def test_no_two_statements_have_one_name() -> None:
    # A connection remembers what it has prepared by name: the second would be run as the first.
    names = Counter(statement.name for statement in chain(everything(), KEYS, SERVICES, DELEGATIONS, STORE))
    assert [name for name, times in names.items() if times > 1] == []


# -- as tables grow


@pytest.fixture
async def workload(postgres_url: str, tmp_path: Path) -> AsyncIterator[WorkloadStatements]:
    async with record_workload(postgres_url, tmp_path) as done:
        yield done


class Planners:
    """One for what each role keeps from when the tables were nearly empty, as a server does that started on a fresh
    database; and one for what each plans anew for the tables as they are."""

    def __init__(self, url: str) -> None:
        self._kept = {role: Planner(url, "force_generic_plan", role) for role in ROLES}
        self._anew = {role: Planner(url, "force_custom_plan", role) for role in ROLES}

    def run(self, day: WorkloadStatements) -> dict[str, Plan]:
        said: dict[Role, dict[str, BoundStatement]] = {SERVER: day.zone_statements, SWEEP: day.cross_zone_statements}
        return {
            f"{name} as {role}": again(self._for(role, bound), bound)
            for role, seen in said.items()
            for name, bound in seen.items()
        }

    def _for(self, role: Role, bound: BoundStatement) -> Planner:
        # What lanes run must not be slow even by an old plan; what is planned each time is asked for by a new one.
        return (self._anew if bound.statement.planned_each_time else self._kept)[role]

    def close(self) -> None:
        for planner in [*self._kept.values(), *self._anew.values()]:
            planner.close()


@pytest.fixture
def planners(postgres_url: str) -> Iterator[Planners]:
    with contextlib.closing(Planners(postgres_url)) as made:
        yield made


def grow(side: DirectDatabase) -> None:
    """History, living sessions and other zones, by tens of thousands; statistics are left as stale as they are."""
    side.execute(
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
    side.execute(
        """
        insert into events
        select h.pos + n, 'e' || n, 'zone' || n % 7, 'session.spawn', 's' || n, 'a', null, 'active', '{}', null, 1
        from generate_series(1, ?) n, log_head h
        """,
        MANY,
    )
    side.execute("update log_head set pos = pos + ?", MANY)
    side.execute(
        """
        insert into seals
        select n.number + s.number, s.last_pos + n.number, s.last_pos + n.number, s.floor, '', '', '', '', '', '', s.at
        from generate_series(1, ?) as n(number), (select * from seals order by number desc limit 1) s
        """,
        MANY,
    )
    side.execute(
        """
        insert into sink_entries
        select 'a-sink', n, 9, ?, 'stream', 's' || n, '{}', 1, 9000000000000,
               case when n % 100 = 0 then null else 1 end, 'e', 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    side.execute(
        "insert into idempotency_keys select ?, ?, 'spawn', 'key' || n, 'd', 's' || n, 1 from generate_series(1, ?) n",
        ZONE,
        APP,
        MANY,
    )
    side.execute(
        "insert into admission_counts select ?, 'parent', 'p' || n, 1, 1 from generate_series(1, ?) n", ZONE, MANY
    )
    side.execute(
        "insert into zones select 'zone' || n, 'n', 0, '{}', 1, 1 from generate_series(0, ?) n on conflict do nothing",
        6,
    )
    grow_agents(side)
    grow_calls(side)
    grow_tasks(side)
    add_task_detail_rows(side, ZONE, MANY)
    add_webhook_rows(side, ZONE, MANY)
    add_fleet_rows(side, ZONE, MANY)


def grow_agents(side: DirectDatabase) -> None:
    """Most of them idle, one in fifty lost, and each launched in a way of its own; and members beside them."""
    side.execute(
        """
        insert into zone_members
        select case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'm' || n, 'MEMBER', 'a', 1, 1
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )
    side.execute(
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
    side.execute("insert into agent_capabilities select zone_id, 'c', id from agents where name = ?", "n")
    side.execute(
        "insert into agent_pulses select zone_id, id, 'healthy', 0, null, null, null, null, null, 1, 1 from agents "
        "where name = ?",
        "n",
    )
    side.execute(
        """
        insert into agent_heartbeats
        select 'g' || n, case when n % 2 = 0 then ? else 'zone' || n % 7 end, 'g' || n % 500, 'healthy', null, null,
               null, null, 1, 1, '{}'
        from generate_series(1, ?) n
        """,
        ZONE,
        MANY,
    )


def grow_calls(side: DirectDatabase) -> None:
    """Some wait, most have ended, and many run, each for a claim of its own."""
    side.execute(
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
    side.execute(
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


def grow_tasks(side: DirectDatabase) -> None:
    """Most are done; of the rest some wait for an agent, some for a moment, some for others, and some run."""
    side.execute(
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
    side.execute(
        """
        insert into task_dependencies
        select zone_id, id, '1' || substr(id, 2), case when id < '00015000' then 0 else 1 end from agent_tasks
        where title = ?
        """,
        "t",
    )
    side.execute("insert into task_tags select zone_id, 'tag' || turn % 50, id from agent_tasks where title = ?", "t")
    side.execute(
        "insert into task_classes select ?, 'class' || n, 'type', '[]', 1 from generate_series(1, ?) n", ZONE, MANY
    )


WALKS = {
    "tasks_encrypted": "a slice of so many tasks, by their key, and the next slice after it",
    "tasks_slice": "a slice of so many tasks, by its index, and the next slice after it",
    "counts_mismatched": "all that lives in one zone, now and then: it is what is counted",
    "sinks_lowest_position": "all sinks there are, of which there are a few",
    "sinks_abandoned": "all sinks there are, of which there are a few",
    "sink_entries_count": "everything of a sink that waits or was given up, when somebody asks",
    "sink_entries_page": "everything of a sink that waits or was given up, when somebody asks",
    "sink_entries_requeue": "everything of a sink that was given up, when somebody asks",
    "sink_entries_delete_expired": "whatever was given up long enough ago is what it removes",
    "sink_entries_delete_all": "everything of a sink, once",
    "cascades_delete_expired": "few at any time: only endings too large for one transaction leave a row",
    "zone_members_count": "the members of one zone, when one of them changes: it is what is counted",
    "agents_count": "the agents of one zone, when somebody asks how they stand: it is what is counted",
    "agents_in_error_count": "all that are lost, by their own index, when somebody asks: it is what is counted",
    "webhook_events_page": "a span of so many positions of the log, and the next span after it",
    "webhook_deliveries_count_pending": "what waits for one endpoint, counted now and then, no further than there may be",
    "webhook_deliveries_delete_expired": "whatever is over and old enough is what it removes",
    "keys_slice": "a slice of so many keys, by its index, and the next slice after it",
    "sessions_delete_expired": "whatever ended long enough ago to be looked at is what it removes",
    "invocations_slice_by_source": "a slice of so many that wait or run, by its index, and the next slice after it",
    "invocations_slice_by_target": "a slice of so many that wait or run, by its index, and the next slice after it",
    "invocations_delete_expired": "whatever ended long enough ago to be looked at is what it removes",
    "tasks_in_state": "a slice of so many of a zone in one state, by its index, and the next slice after it",
    "tasks_in_backoff": "the next so many for whom a moment comes, by their own index, now and then",
    "agents_list_ids": "a slice of so many of a zone, by its key, and the next slice after it",
    "agents_slice": "a slice of so many, by their key, and the next slice after it",
    "tasks_to_rank": "a slice of so many of a zone whose order was changed, and the next slice after it",
    "tasks_waiting_slice": "a slice of so many that wait for others, by its index, and the next slice after it",
    "tasks_count_by_state": "as many as are counted, by an index, when somebody asks",
    "tasks_count_ready": "as many as are counted, by an index, when somebody asks",
    "tasks_count_ready_all_zones": "as many as are counted, by an index, now and then",
    **{
        f"costs_{by}": "what one zone has spent, summed up when somebody asks: it is what is counted"
        for by in ("by_task", "by_day", "grouped", "since")
    },
    "sessions_orphaned": "every live session there is, now and then: nobody knows which parent a hand has removed",
}
"""What sweeps go through on purpose, a batch at a time."""


def test_no_statement_scans_its_table_or_touches_more_pages_as_tables_grow(
    postgres_url: str, workload: WorkloadStatements, planners: Planners
) -> None:
    assert {
        statement.name for statement in everything()
    } <= workload.zone_statements.keys() | workload.cross_zone_statements.keys()
    small = planners.run(workload)
    grow(DirectDatabase(postgres_url))
    assert_flat(small, planners.run(workload))
    # As for a server that was started again since, and plans by what is known of large tables by now.
    DirectDatabase(postgres_url).execute("analyze")
    with contextlib.closing(Planners(postgres_url)) as later:
        assert_flat(small, later.run(workload))


def assert_flat(small: dict[str, Plan], large: dict[str, Plan]) -> None:
    large = {name: plan for name, plan in large.items() if name.split()[0] not in WALKS}
    scanning = {name: plan.scans("Seq Scan") for name, plan in large.items() if plan.scans("Seq Scan")}
    assert not scanning
    grown = {name: (small[name].pages, plan.pages) for name, plan in large.items() if not is_flat(small[name], plan)}
    assert not grown, f"pages touched before and after, by statement: {grown}"


NEW = {
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
"""The columns in which no two rows may be alike, by statement."""


def again(planner: Planner, bound: BoundStatement) -> Plan:
    """Runs what was run already: what it inserted then must be new once more."""
    first = ENGINE.log_advance(count=1_000) if bound.statement is ENGINE.log_append else None
    if bound.statement is SESSIONS.cascade_insert:
        bound = bound.statement(**{**bound.params, "id": new_id()})
    batch = bound.params.get("batch")
    if isinstance(batch, list) and (alone := NEW.get(bound.statement.name)):
        bound = bound.statement(batch=[tuple(another(v) if n in alone else v for n, v in enumerate(batch[0]))])
    if bound.statement is ENGINE.seal_insert and isinstance(batch, list):
        bound = bound.statement(batch=[(10 * MANY, *row[1:]) for row in batch[:1]])
    return planner.run(bound, first)


def another(value: object) -> object:
    """Of the same kind, and never there before."""
    return next(_numbers) if isinstance(value, int) else new_id()


def is_flat(before: Plan, after: Plan) -> bool:
    """A few more levels of a few indexes, in each of a few zones, and no more than that."""
    return after.pages <= 3 * before.pages + 24
