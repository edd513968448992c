"""The statements there are: each runs on both engines, and none slows down as its tables grow."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from itertools import chain

import psycopg
import pytest

from quarterdeck.core.clock import system_now
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.sessions.model import State
from quarterdeck.domain.sessions.queries import Q as SESSIONS
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import ZoneRef
from quarterdeck.domain.zones.queries import Q as ZONES
from quarterdeck.engine import events
from quarterdeck.engine.events import EventFilter
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.sql import Bound, Statement
from tests.support.asking import APP, ZONE, ask, caller
from tests.support.keel import Keel, Rigging, Side, open_store
from tests.support.plans import Plan, Planner, Recording

MANY = 20_000


def everything() -> list[Statement]:
    return list(chain(ENGINE, ZONES, SESSIONS))


def test_every_statement_prepares_on_both_engines(sqlite_url: str, postgres_url: str) -> None:
    path = sqlite_path(sqlite_url)
    assert path
    with contextlib.closing(sqlite3.connect(path)) as sqlite, psycopg.connect(postgres_url) as postgres:
        sqlite.create_function("now_ms", 0, system_now)
        for statement in everything():
            names = re.findall(r"(?<![:\w]):([a-z_]\w*)", statement.sqlite)
            sqlite.execute(f"explain {statement.sqlite}", dict.fromkeys(names)).fetchall()
            if statement.sqlite_each:
                places = max(int(place) for place in re.findall(r"\?(\d+)", statement.sqlite_each))
                sqlite.execute(f"explain {statement.sqlite_each}", (None,) * places).fetchall()
            postgres.execute(f"prepare {statement.name} as {statement.postgresql}".encode())


# -- as tables grow


@pytest.fixture
async def recorded(postgres_url: str) -> AsyncIterator[dict[str, Bound]]:
    """Every statement of a day's work: spawns of all kinds, endings, looking, sweeping, reading the log."""
    store = Recording(await open_store(postgres_url))
    keel = Keel(postgres_url, store, Rigging())
    await keel.zone()
    root = await keel.spawn(key="k", digest="d")
    await keel.spawns.submit(ask(parent_id=root.id, key="k1", digest="d", caller=caller(session_id=root.id)))
    await keel.zone(max_sessions=2)
    for zone_id in (ZONE, "nowhere"):
        with pytest.raises(Problem):
            await keel.spawn(zone_id)
    await keel.used.submit(ZoneRef(ZONE))
    await keel.engine.read(lambda tx: zones.page(tx, "", 10))
    await keel.engine.transact(lambda tx: tx.read(zones.lock(tx, [ZONE])), waits=True)
    wants: list[dict[str, object]] = [
        {},
        {"status": State.ACTIVE},
        {"application_id": APP, "status": State.TERMINATED},
        {"parent_id": root.id},
    ]
    for wanted in wants:
        await keel.page(limit=10, before="ffffffff", **wanted)
    await keel.subtree(root)
    await keel.show(root)
    await keel.sweep()
    await keel.store.read(lambda tx: events.page(tx, EventFilter(ZONE, after=0, limit=10)))
    await keel.store.read(lambda tx: events.page(tx, EventFilter(ZONE, after=0, limit=10, subject=root.id)))
    await keel.log(limit=10)
    # A session that stays, so that the ending that was recorded has something to end when it is run again.
    await keel.zone()
    await keel.end(await keel.spawn(parent_id=root.id))
    yield store.seen
    await keel.lanes.drain()
    await store.close()


@pytest.fixture
def keeping(postgres_url: str) -> Iterator[Planner]:
    """Plans made while the tables were nearly empty, and kept: what a server has that started on a fresh database."""
    planner = Planner(postgres_url, "force_generic_plan")
    yield planner
    planner.close()


@pytest.fixture
def planning(postgres_url: str) -> Iterator[Planner]:
    """Plans made anew for the tables as they are."""
    planner = Planner(postgres_url, "force_custom_plan")
    yield planner
    planner.close()


def grow(side: Side) -> None:
    """History, living sessions and other zones, by tens of thousands; statistics are left as stale as they are."""
    side.run(
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
    side.run(
        """
        insert into events
        select h.pos + n, 'e' || n, 'zone' || n % 7, 'session.spawn', 's' || n, 'a', null, 'active', '{}', null, 1
        from generate_series(1, ?) n, log_head h
        """,
        MANY,
    )
    side.run("update log_head set pos = pos + ?", MANY)
    side.run(
        "insert into idempotency_keys select ?, ?, 'spawn', 'key' || n, 'd', 's' || n, 1 from generate_series(1, ?) n",
        ZONE,
        APP,
        MANY,
    )
    side.run(
        "insert into admission_counts select ?, 'parent', 'p' || n, 1, 1 from generate_series(1, ?) n",
        ZONE,
        MANY,
    )
    side.run(
        "insert into zones select 'zone' || n, 'n', 0, '{}', 1, 1 from generate_series(0, ?) n on conflict do nothing",
        6,
    )


def test_no_statement_scans_its_table_or_touches_more_pages_as_tables_grow(
    postgres_url: str, recorded: dict[str, Bound], keeping: Planner, planning: Planner
) -> None:
    unrecorded = {statement.name for statement in everything()} - recorded.keys()
    assert not {name for name in unrecorded if not name.startswith(("lease_", "log_witness"))}

    def run() -> dict[str, Plan]:
        # What lanes run must not be slow even by an old plan. Lists are asked for by people, and only by new ones.
        lists = ("sessions_page", "log_page", "zone_list")
        return {
            name: again(planning if name.startswith(lists) else keeping, bound)
            for name, bound in recorded.items()
        }

    small = run()
    grow(Side(postgres_url))
    large = run()
    scanning = {name: plan.scans("Seq Scan") for name, plan in large.items() if plan.scans("Seq Scan")}
    assert not scanning
    grown = {
        name: (small[name].pages, plan.pages)
        for name, plan in large.items()
        if not is_flat(small[name], plan)
    }
    assert not grown, f"pages touched before and after, by statement: {grown}"


def again(planner: Planner, bound: Bound) -> Plan:
    """Runs what was run already: what it inserted then must be new once more."""
    if bound.statement is ENGINE.log_append:
        return planner.run(bound, ENGINE.log_advance(count=1_000))
    if bound.statement is SESSIONS.sessions_insert:
        batch = bound.params["batch"]
        assert isinstance(batch, list)
        return planner.run(bound.statement(batch=[(new_id(), *row[1:]) for row in batch]))
    return planner.run(bound)


def is_flat(before: Plan, after: Plan) -> bool:
    """A few more levels of a few indexes, and no more than that."""
    return after.pages <= 3 * before.pages + 12
