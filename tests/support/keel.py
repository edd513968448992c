"""The engine room without a server: a store, and the lanes of zones and sessions on it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psycopg

from quarterdeck.app import transaction_listeners
from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import Millis, system_now
from quarterdeck.core.errors import Problem
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.model import (
    Invocation,
    InvocationCommand,
    InvocationRef,
    InvocationResult,
    InvocationSettings,
)
from quarterdeck.domain.invocations.sweeps import sweeps as invocation_sweeps
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import (
    Receipt,
    Session,
    SessionExplanation,
    SessionFilter,
    SessionRef,
    SessionSettings,
    Spawn,
    SpawnExplanation,
    StopZone,
    Suspend,
    Terminate,
    TerminateResult,
    Verb,
)
from quarterdeck.domain.sessions.sweeps import TTL, sweeps as session_sweeps
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model import commands as task_commands
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import CEILINGS, Limits, Overrides, PutZone, SetZoneFrozen, Zone
from quarterdeck.engine import event_log
from quarterdeck.engine.event_log import Event, NewEvent
from quarterdeck.engine.lanes import Lane, LaneLimits, Lanes
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.transaction import Engine
from quarterdeck.store.interface import Store
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres import PostgresStore
from quarterdeck.store.postgres_roles import SWEEP
from quarterdeck.store.sqlite import SqliteStore
from tests.support.asking import ZONE, admin, ask
from tests.support.making import struct_of

Cell = str | int | None


@dataclass(frozen=True)
class Rigging:
    """How a keel is to be laid, where a test is particular about it."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    patience: LaneLimits = field(default_factory=LaneLimits)
    pool_max: int = 6
    chunk: int = 1_000
    """How many sessions one transaction settles at most."""
    lease_ms: int = 30_000
    clock: Callable[[], Millis] = system_now
    """SQLite's clock; PostgreSQL has its own."""
    defaults: Limits = field(default_factory=Limits)
    tasks: TaskSettings = field(default_factory=TaskSettings)
    after_commit: Callable[[Sequence[NewEvent]], None] = lambda events: None


class Keel:
    """One process's share of the house, as `app.py` puts it together."""

    def __init__(self, url: str, stores: tuple[Store, Store], rigging: Rigging) -> None:
        self.url = url
        self.store, everywhere = stores
        self.engine = Engine(self.store, transaction_listeners(rigging.tasks), rigging.after_commit)
        self.everywhere = Engine(everywhere)
        self.lanes = Lanes(self.engine, rigging.settings, limits=rigging.patience)
        self.zones = self.lanes.add_write_lane("zone", sessions.with_bearer_check(zones.put_zones))
        self.used = self.lanes.add_read_lane("zone-show", sessions.with_bearer_check(zones.show_zones, writes=False))
        self.freezes = self.lanes.add_write_lane("zone-freeze", sessions.with_bearer_check(zones.set_zones_frozen))
        self.spawner = sessions.Spawner(rigging.defaults)
        self.spawns = self.lanes.add_write_lane("spawn", self.spawner.spawn)
        ender = sessions.Terminator(rigging.chunk)
        self.endings = self.lanes.add_write_lane("terminate", ender.terminate_sessions)
        self.stops = self.lanes.add_write_lane("zone-stop", ender.stop_zones)
        self.settles = self.lanes.add_write_lane("settle", ender.finish_cascades)
        self.finisher = sessions.CascadeRunner(self.endings.submit, self.stops.submit, self.settles.submit)
        self.holds = self.lanes.add_write_lane("hold", sessions.suspend_or_resume)
        self.recounts = self.lanes.add_write_lane("recount", sessions.repair_zone_counts)
        self.waiters = invocations.ClaimPolls()
        exchange = invocations.BatchRunner(rigging.lease_ms, self.waiters)
        self.invocations: Lane[InvocationCommand, InvocationResult] = self.lanes.add_write_lane(
            "invocation", exchange.run
        )
        self.invocation_settles = self.lanes.add_write_lane("invocation-settle", invocations.process_backlogs)
        self.task_waiters = tasks.new_claim_polls()
        told = tasks.timeouts_of(rigging.tasks)
        self.tasks: Lane[task_commands.TaskCommand, task_commands.TaskResult] = self.lanes.add_write_lane(
            "task", tasks.BatchRunner(told, self.task_waiters, 0.05).run
        )
        self.shown = self.lanes.add_read_lane("session-show", sessions.show_sessions)
        self.explainer = sessions.Explainer(self.spawner)

    # -- zones

    async def zone(self, zone_id: str = ZONE, /, **limits: int) -> Zone:
        """Makes a zone, or changes it, in which only the limits named here are narrow."""
        overrides = Overrides(**{**CEILINGS, **limits})
        return (await self.zones.submit(PutZone(zone_id, None, overrides, "tester"))).zone

    async def freeze(self, zone_id: str = ZONE) -> Zone:
        return await self.freezes.submit(SetZoneFrozen(zone_id, True, admin(zone_id)))

    async def thaw(self, zone_id: str = ZONE) -> Zone:
        return await self.freezes.submit(SetZoneFrozen(zone_id, False, admin(zone_id)))

    async def stop(self, zone_id: str = ZONE, reason: str = "stopped", *, ends: bool = False) -> Receipt:
        """Stops a zone, or ends it, to the last chunk, and gives the receipt."""
        ask = StopZone(zone_id, reason, admin(zone_id), ends)
        return await self.receipt(await self.finisher.stop_zone(ask))

    # -- sessions

    async def spawn(self, zone_id: str = ZONE, **asked: object) -> Session:
        return (await self.spawns.submit(ask(zone_id, **asked))).session

    async def tree(self, *shape: int, zone_id: str = ZONE) -> list[Session]:
        """A root, so many children under it, so many under each of those …; parents first."""
        made = [await self.spawn(zone_id)]
        level = made
        for width in shape:
            level = [await self.spawn(zone_id, parent_id=parent.id) for parent in level for _ in range(width)]
            made = made + level
        return made

    async def end(self, session: Session, reason: str = "requested") -> Receipt:
        """Ends a session to the last chunk, and gives the receipt."""
        ask = Terminate(session.zone_id, session.id, reason, admin(session.zone_id))
        return await self.receipt(await self.finisher.terminate(ask))

    async def receipt(self, ended: TerminateResult) -> Receipt:
        return await self.engine.read(lambda tx: sessions.build_receipt(tx, ended, 0), zones=[ended.zone_id])

    async def suspend(self, session: Session) -> int:
        return await self._hold(session, Verb.SUSPEND)

    async def resume(self, session: Session) -> int:
        return await self._hold(session, Verb.RESUME)

    async def _hold(self, session: Session, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> int:
        ask = Suspend(session.zone_id, session.id, verb, admin(session.zone_id))
        return (await self.holds.submit(ask)).changed

    async def explain(self, session: Session) -> SessionExplanation:
        ref, zone_id = SessionRef(session.zone_id, session.id), session.zone_id
        return await self.engine.read(
            lambda tx: self.explainer.explain_session(tx, ref, admin(zone_id)), zones=[zone_id]
        )

    async def explain_spawn(self, asked: Spawn) -> SpawnExplanation:
        return await self.engine.read(lambda tx: self.explainer.explain_spawn(tx, asked), zones=[asked.zone_id])

    async def show(self, session: Session) -> Session:
        return await self.shown.submit(SessionRef(session.zone_id, session.id))

    async def page(self, **wanted: object) -> list[Session]:
        plain: dict[str, object] = {"zone_id": ZONE, "limit": 500}
        asked = struct_of(SessionFilter, **(plain | wanted))
        return await self.engine.read(lambda tx: sessions.list_sessions(tx, asked), zones=[asked.zone_id])

    async def subtree(self, session: Session, bearer: Bearer | None = None) -> list[Session]:
        return await self.subtree_of(SessionRef(session.zone_id, session.id, bearer))

    async def subtree_of(self, ref: SessionRef) -> list[Session]:
        return await self.engine.read(lambda tx: sessions.list_subtree(tx, ref), zones=[ref.zone_id])

    def sweeper(self, batch: int = 500) -> SweepRunner:
        return SweepRunner(session_sweeps(self.everywhere, self.finisher, SessionSettings(ttl_sweep_batch=batch)))

    async def sweep(self, batch: int = 500, name: str = TTL) -> int:
        return await self.sweeper(batch).run_now(name)

    # -- invocations

    async def invocation(self, zone_id: str, invocation_id: str) -> Invocation:
        ref = InvocationRef(zone_id, invocation_id)
        [found] = await self.engine.read(lambda tx: invocations.show(tx, [ref]), zones=[zone_id])
        assert isinstance(found, Invocation)
        return found

    def invocation_sweeper(self, settings: InvocationSettings | None = None) -> SweepRunner:
        told = settings or InvocationSettings()
        lanes = self.invocations.submit, self.invocation_settles.submit
        return SweepRunner(invocation_sweeps(self.everywhere, *lanes, told))

    # -- the log

    async def log(self, after: int = 0, limit: int = 100_000) -> list[Event]:
        return await self.everywhere.read(lambda tx: event_log.read_tail(tx, after, limit))

    # -- the database, from the side

    @property
    def side(self) -> Side:
        return Side(self.url)


@dataclass(frozen=True)
class Side:
    """A connection that no lane knows of: for looking behind, and for making happen what no operation can."""

    url: str

    def run(self, statement: str, *params: Cell) -> list[tuple[Cell, ...]]:
        """One statement in a transaction of its own, with `?` for parameters; its rows."""
        if path := sqlite_path(self.url):
            with contextlib.closing(sqlite3.connect(path, timeout=10)) as sqlite, sqlite:
                return sqlite.execute(statement, params).fetchall()
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement.replace("%", "%%").replace("?", "%s").encode(), params)
            return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, *params: Cell) -> Cell:
        [[value]] = self.run(statement, *params)
        return value

    def count(self, table: str, where: str = "1 = 1", *params: Cell) -> int:
        value = self.one(f"select count(*) from {table} where {where}", *params)
        assert isinstance(value, int)
        return value

    def waiting_for_locks(self) -> int:
        """How many of PostgreSQL's connections to this database stand before a lock just now."""
        return self.count("pg_stat_activity", "datname = current_database() and wait_event_type = 'Lock'")

    def expire(self, *expired: Session) -> None:
        """Lets these sessions have expired a while ago. Name whole subtrees: no child outlives its parent."""
        for session in expired:
            self.run(
                "update agent_sessions set expires_at = ? where zone_id = ? and id = ?",
                session.spawned_at - 1,
                session.zone_id,
                session.id,
            )


@contextlib.asynccontextmanager
async def keel_on(url: str, rigging: Rigging | None = None) -> AsyncIterator[Keel]:
    rigging = rigging or Rigging()
    stores = await open_stores(url, rigging)
    try:
        keel = Keel(url, stores, rigging)
        yield keel
        await keel.lanes.drain()
    finally:
        for store in {*stores}:
            await store.close()


async def open_stores(url: str, rigging: Rigging | None = None) -> tuple[Store, Store]:
    """The one that is held to its callers' zones, and the one that sees across them."""
    own = await open_store(url, rigging)
    return own, own if sqlite_path(url) else await PostgresStore.open(url, 2, SWEEP)


async def open_store(url: str, rigging: Rigging | None = None) -> Store:
    rigging = rigging or Rigging()
    if path := sqlite_path(url):
        return SqliteStore(Path(path), rigging.clock)
    return await PostgresStore.open(url, rigging.pool_max)


# -- counters against rows


def recount(side: Side) -> dict[tuple[Cell, ...], tuple[int, int]]:
    """What `admission_counts` must hold, by looking at every session: (zone, scope, key) to (live, ever)."""
    rows = side.run("select zone_id, id, application_id, parent_id, root_id, terminated_at from agent_sessions")
    ended = {(zone, own) for zone, own, _, _, _, terminated_at in rows if terminated_at is not None}
    counted: dict[tuple[Cell, ...], tuple[int, int]] = {}
    for zone, _, application, parent, root, terminated_at in rows:
        scopes = [("zone", ""), ("application", application), ("tree", root)]
        scopes += [("concurrent", ""), ("parent", parent)] if parent is not None else []
        for scope, key in scopes:
            if scope in ("tree", "parent") and (zone, key) in ended:
                continue
            live, ever = counted.get((zone, scope, key), (0, 0))
            counted[zone, scope, key] = (live + (terminated_at is None), ever + 1)
    return counted


def assert_counts_are_what_the_rows_say(side: Side) -> None:
    kept = {
        (zone, scope, key): (live, ever)
        for zone, scope, key, live, ever in side.run("select zone_id, scope, key, live, ever from admission_counts")
    }
    assert kept == recount(side)


def codes(outcomes: Iterable[object]) -> list[str]:
    """What became of gathered commands, in words: a problem's code, or the name of the value's type."""
    return [o.code if isinstance(o, Problem) else type(o).__name__ for o in outcomes]
