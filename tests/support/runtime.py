"""A runtime without a server: stores, engines, and the components that most tests use."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar, cast

import msgspec
import psycopg

from quarterdeck.app import transaction_listeners
from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis, system_now
from quarterdeck.core.errors import Problem
from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents.component import Agents
from quarterdeck.domain.agents.model import AgentTokenClaims
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.component import Invocations
from quarterdeck.domain.invocations.model import Invocation, InvocationSettings, ShowInvocation
from quarterdeck.domain.invocations.operations import reads as invocation_reads
from quarterdeck.domain.invocations.sweeps import sweeps as invocation_sweeps
from quarterdeck.domain.services.component import Services
from quarterdeck.domain.sessions.component import Sessions
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
from quarterdeck.domain.sessions.operations import reads as session_reads
from quarterdeck.domain.sessions.sweeps import TTL, sweeps as session_sweeps
from quarterdeck.domain.tasks.component import Tasks
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.zones.component import Zones
from quarterdeck.domain.zones.model import CEILINGS, Limits, Overrides, PutZone, SetZoneFrozen, Zone
from quarterdeck.engine import event_log
from quarterdeck.engine.event_log import Event, NewEvent
from quarterdeck.engine.lanes import LaneLimits
from quarterdeck.engine.runtime import Runtime, build_runtime
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.sweeps import SweepRunner
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.http.metrics import Metrics
from quarterdeck.store import factory
from quarterdeck.store.interface import Store
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres import PostgresStore
from quarterdeck.store.sqlite import SqliteStore
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.secret_keys import NEW_KEY, cipher_of
from tests.support.structs import build_struct

S = TypeVar("S", bound=msgspec.Struct)
SqlValue = str | int | None
LAUNCHER_NAMES = ("gateway", "local")
SECRET_DERIVER = secret_deriver(b"root of test secrets............")


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of a runtime that a test may change."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    lane_limits: LaneLimits = field(default_factory=LaneLimits)
    pool_max: int = 6
    chunk: int = 1_000
    """The number of sessions that one transaction of a cascade terminates at most."""
    lease_ms: int = 30_000
    clock: Callable[[], Millis] = system_now
    """SQLite's clock; PostgreSQL has its own."""
    defaults: Limits = field(default_factory=Limits)
    tasks: TaskSettings = field(default_factory=lambda: TaskSettings(task_claim_poll_ms=50))
    after_commit: Callable[[Sequence[NewEvent]], None] = lambda events: None


class FixedSettings:
    """The settings of a test: the sections that are given, and the defaults of all others."""

    def __init__(self, *sections: msgspec.Struct) -> None:
        self._sections = {type(section): section for section in sections}

    def section(self, section_type: type[S]) -> S:
        found = self._sections.get(section_type)
        return section_type() if found is None else cast(S, found)

    def source(self, name: str) -> str:
        return "test"

    def replace(self, *sections: msgspec.Struct) -> FixedSettings:
        return FixedSettings(*self._sections.values(), *sections)


class RuntimeHarness:
    """The runtime and the components of one process, built as in `app.py`."""

    def __init__(self, url: str, stores: tuple[Store, Store], options: RuntimeOptions) -> None:
        self.url = url
        self.store, _ = stores
        self.settings = FixedSettings(
            options.settings,
            options.defaults,
            options.tasks,
            SessionSettings(cascade_chunk=options.chunk),
            InvocationSettings(lease_ms=options.lease_ms),
        )
        self.wakeups = Wakeups()
        self.shared = build_runtime(
            self.settings, stores, self.wakeups, Metrics(), transaction_listeners(options.tasks)
        )
        self.shared.lanes.limits = options.lane_limits
        self.shared.commit_listeners.append(options.after_commit)
        self.engine, self.cross_zone_engine = self.shared.engine, self.shared.cross_zone_engine
        self.lanes = self.shared.lanes
        self.cipher = cipher_of(NEW_KEY)
        self.zones = Zones(self.shared, access.with_caller_check, _accept_bearer)
        self.put_zone_lane, self.show_zone_lane = self.zones.put_lane, self.zones.show_lane
        self.freeze_lane = self.zones.freeze_lane
        self.sessions = Sessions(self.shared)
        self.spawner, self.spawn_lane = self.sessions.spawner, self.sessions.spawn_lane
        self.terminate_lane, self.stop_zone_lane = self.sessions.terminate_lane, self.sessions.stop_zone_lane
        self.finish_cascade_lane, self.cascade_runner = self.sessions.finish_cascade_lane, self.sessions.cascades
        self.suspend_lane, self.repair_counts_lane = self.sessions.suspend_lane, self.sessions.repair_counts_lane
        self.show_session_lane, self.explainer = self.sessions.show_lane, self.sessions.explainer
        self.agents = Agents(self.shared, token_text, LAUNCHER_NAMES)
        self.services = Services(self.shared, SECRET_DERIVER, invocations.find_unreferenced_services)
        self.invocations = Invocations(self.shared, None)
        self.claim_polls, self.submit_invocation = self.invocations.polls, self.invocations.submit
        self.backlog_lane = self.invocations.backlog_lane
        self.tasks = Tasks(self.shared, self.cipher, self.agents)
        self.task_claim_polls, self.submit_task = self.tasks.polls, self.tasks.submit

    def with_settings(self, *sections: msgspec.Struct) -> Runtime:
        """The same runtime with other settings, to build a component with them."""
        return replace(self.shared, settings=self.settings.replace(*sections))

    # -- zones

    async def put_zone(self, zone_id: str = ZONE, /, **limits: int) -> Zone:
        """Create or change a zone. Limits that are not given are at their maximum."""
        overrides = Overrides(**{**CEILINGS, **limits})
        return (await self.put_zone_lane.submit(PutZone(zone_id, None, overrides, "tester"))).zone

    async def freeze_zone(self, zone_id: str = ZONE) -> Zone:
        return await self.freeze_lane.submit(SetZoneFrozen(zone_id, True, admin(zone_id)))

    async def unfreeze_zone(self, zone_id: str = ZONE) -> Zone:
        return await self.freeze_lane.submit(SetZoneFrozen(zone_id, False, admin(zone_id)))

    async def stop_zone(self, zone_id: str = ZONE, reason: str = "stopped", *, ends: bool = False) -> Receipt:
        """Stop a zone, or end it, and finish the cascade. Return the receipt."""
        command = StopZone(zone_id, reason, admin(zone_id), ends)
        return await self.read_receipt(await self.cascade_runner.stop_zone(command))

    # -- sessions

    async def spawn(self, zone_id: str = ZONE, **fields: object) -> Session:
        return (await self.spawn_lane.submit(spawn_command(zone_id, **fields))).session

    async def spawn_tree(self, *shape: int, zone_id: str = ZONE) -> list[Session]:
        """Spawn a root, `shape[0]` children of it, `shape[1]` of each of those, and so on. Parents come first."""
        sessions = [await self.spawn(zone_id)]
        level = sessions
        for width in shape:
            level = [await self.spawn(zone_id, parent_id=parent.id) for parent in level for _ in range(width)]
            sessions = sessions + level
        return sessions

    async def terminate(self, session: Session, reason: str = "requested") -> Receipt:
        """Terminate a session and finish the cascade. Return the receipt."""
        command = Terminate(session.zone_id, session.id, reason, admin(session.zone_id))
        return await self.read_receipt(await self.cascade_runner.terminate(command))

    async def read_receipt(self, result: TerminateResult) -> Receipt:
        return await self.engine.read(lambda tx: session_reads.build_receipt(tx, result, 0), zones=[result.zone_id])

    async def suspend(self, session: Session) -> int:
        return await self._set_suspended(session, Verb.SUSPEND)

    async def resume(self, session: Session) -> int:
        return await self._set_suspended(session, Verb.RESUME)

    async def _set_suspended(self, session: Session, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> int:
        command = Suspend(session.zone_id, session.id, verb, admin(session.zone_id))
        return (await self.suspend_lane.submit(command)).changed

    async def explain(self, session: Session) -> SessionExplanation:
        ref, zone_id = SessionRef(session.zone_id, session.id), session.zone_id
        return await self.engine.read(
            lambda tx: self.explainer.explain_session(tx, ref, admin(zone_id)), zones=[zone_id]
        )

    async def explain_spawn(self, command: Spawn) -> SpawnExplanation:
        return await self.engine.read(lambda tx: self.explainer.explain_spawn(tx, command), zones=[command.zone_id])

    async def read_session(self, session: Session) -> Session:
        return await self.show_session_lane.submit(SessionRef(session.zone_id, session.id))

    async def list_sessions(self, **fields: object) -> list[Session]:
        defaults: dict[str, object] = {"zone_id": ZONE, "limit": 500}
        filters = build_struct(SessionFilter, **(defaults | fields))
        return await self.engine.read(lambda tx: session_reads.list_sessions(tx, filters), zones=[filters.zone_id])

    async def read_subtree(self, session: Session, bearer: Bearer | None = None) -> list[Session]:
        return await self.read_subtree_by_ref(SessionRef(session.zone_id, session.id, bearer))

    async def read_subtree_by_ref(self, ref: SessionRef) -> list[Session]:
        return await self.engine.read(lambda tx: session_reads.list_subtree(tx, ref), zones=[ref.zone_id])

    def sweep_runner(self, batch: int = 500) -> SweepRunner:
        return SweepRunner(
            session_sweeps(self.cross_zone_engine, self.cascade_runner, SessionSettings(ttl_sweep_batch=batch))
        )

    async def run_sweep(self, batch: int = 500, name: str = TTL) -> int:
        return await self.sweep_runner(batch).run_now(name)

    # -- invocations

    async def read_invocation(self, zone_id: str, invocation_id: str) -> Invocation:
        ref = ShowInvocation(zone_id, invocation_id)
        [found] = await self.engine.read(lambda tx: invocation_reads.show(tx, [ref]), zones=[zone_id])
        assert isinstance(found, Invocation)
        return found

    def invocation_sweep_runner(self, settings: InvocationSettings | None = None) -> SweepRunner:
        sweep_settings = settings or InvocationSettings()
        lanes = self.submit_invocation, self.backlog_lane.submit
        return SweepRunner(invocation_sweeps(self.cross_zone_engine, *lanes, sweep_settings))

    # -- the log

    async def read_log(self, after: int = 0, limit: int = 100_000) -> list[Event]:
        return await self.cross_zone_engine.read(lambda tx: event_log.read_tail(tx, after, limit))

    # -- the database, directly

    @property
    def database(self) -> DirectDatabase:
        return DirectDatabase(self.url)


@dataclass(frozen=True)
class DirectDatabase:
    """A direct connection to the database, to read rows and to change them as no operation can."""

    url: str

    def execute(self, statement: str, *params: SqlValue) -> list[tuple[SqlValue, ...]]:
        """Run one statement in its own transaction, with `?` for parameters. Return its rows."""
        if path := sqlite_path(self.url):
            with contextlib.closing(sqlite3.connect(path, timeout=10)) as sqlite, sqlite:
                return sqlite.execute(statement, params).fetchall()
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement.replace("%", "%%").replace("?", "%s").encode(), params)
            return cursor.fetchall() if cursor.description else []

    def scalar(self, statement: str, *params: SqlValue) -> SqlValue:
        [[value]] = self.execute(statement, *params)
        return value

    def count(self, table: str, where: str = "1 = 1", *params: SqlValue) -> int:
        value = self.scalar(f"select count(*) from {table} where {where}", *params)
        assert isinstance(value, int)
        return value

    def waiting_for_locks(self) -> int:
        """The number of PostgreSQL connections to this database that wait for a lock now."""
        return self.count("pg_stat_activity", "datname = current_database() and wait_event_type = 'Lock'")

    def expire_sessions(self, *sessions: Session) -> None:
        """Backdate the expiry of these sessions. Give complete subtrees: no child outlives its parent."""
        for session in sessions:
            self.execute(
                "update agent_sessions set expires_at = ? where zone_id = ? and id = ?",
                session.spawned_at - 1,
                session.zone_id,
                session.id,
            )


def token_text(claims: AgentTokenClaims) -> str:
    return f"token of {claims.agent_id} for {claims.attempt}"


async def _accept_bearer(caller: Caller) -> None:
    """Stands in for the check of the HTTP layer, which no test of an operation reaches."""


@contextlib.asynccontextmanager
async def open_runtime(url: str, options: RuntimeOptions | None = None) -> AsyncIterator[RuntimeHarness]:
    options = options or RuntimeOptions()
    stores = await open_stores(url, options)
    try:
        runtime = RuntimeHarness(url, stores, options)
        yield runtime
        await runtime.lanes.drain()
    finally:
        for store in {*stores}:
            await store.close()


async def open_stores(url: str, options: RuntimeOptions | None = None) -> tuple[Store, Store]:
    """The store that is confined to the callers' zones, and the one that sees all zones."""
    options = options or RuntimeOptions()
    return await factory.open_stores(url, options.pool_max, options.clock, cross_zone_connections=2)


async def open_store(url: str, options: RuntimeOptions | None = None) -> Store:
    options = options or RuntimeOptions()
    if path := sqlite_path(url):
        return SqliteStore(Path(path), options.clock)
    return await PostgresStore.open(url, options.pool_max)


# -- counters compared with rows


def count_sessions(database: DirectDatabase) -> dict[tuple[SqlValue, ...], tuple[int, int]]:
    """What `admission_counts` must contain, counted from the sessions: (zone, scope, key) to (live, ever)."""
    rows = database.execute("select zone_id, id, application_id, parent_id, root_id, terminated_at from agent_sessions")
    ended = {(zone, session_id) for zone, session_id, _, _, _, terminated_at in rows if terminated_at is not None}
    counts: dict[tuple[SqlValue, ...], tuple[int, int]] = {}
    for zone, _, application, parent, root, terminated_at in rows:
        scopes = [("zone", ""), ("application", application), ("tree", root)]
        scopes += [("concurrent", ""), ("parent", parent)] if parent is not None else []
        for scope, key in scopes:
            if scope in ("tree", "parent") and (zone, key) in ended:
                continue
            live, ever = counts.get((zone, scope, key), (0, 0))
            counts[zone, scope, key] = (live + (terminated_at is None), ever + 1)
    return counts


def assert_counts_match_rows(database: DirectDatabase) -> None:
    stored_counts = {
        (zone, scope, key): (live, ever)
        for zone, scope, key, live, ever in database.execute(
            "select zone_id, scope, key, live, ever from admission_counts"
        )
    }
    assert stored_counts == count_sessions(database)


def result_names(results: Iterable[object]) -> list[str]:
    """For each result of gathered commands: the code of a problem, or the name of the value's type."""
    return [result.code if isinstance(result, Problem) else type(result).__name__ for result in results]
