"""A day's work, and every statement of it: what a server says to PostgreSQL for callers, and what it says across
zones."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.clock import DAY
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations import role_assignments
from quarterdeck.domain.agents.operations.authorization import require_permission
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.model import InvocationFilter, InvocationRef, OwnerKind, State as InvocationState
from quarterdeck.domain.invocations.operations.long_poll import load_ready_services, poll_for_claim
from quarterdeck.domain.invocations.sweeps import DEADLINE, ORPHAN as INVOCATION_ORPHAN, SETTLE
from quarterdeck.domain.sessions.model import Session, SessionRef, State, StopZone, Terminate
from quarterdeck.domain.sessions.operations import Explainer, delete_expired
from quarterdeck.domain.sessions.sweeps import CASCADE, ORPHAN, CountReconciler
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import ChangeRole, RoleAssignmentFilter, SetZoneFrozen, ZoneRef
from quarterdeck.engine import event_log, leases
from quarterdeck.engine.event_log import CommitProof, EventFilter
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import T
from quarterdeck.store.sql import BoundStatement, Statement
from tests.support.agency import a_day_of_agents
from tests.support.asking import APP, ZONE, admin, ask, caller
from tests.support.calling import calling
from tests.support.fleet_day import a_day_of_fleets
from tests.support.hooking import a_day_of_webhooks
from tests.support.keel import Keel, Rigging, open_stores
from tests.support.keeping import Keeper
from tests.support.labour import a_day_of_tasks
from tests.support.mirroring import a_day_of_keys
from tests.support.plans import ENDING, Recording, reading
from tests.support.recording import a_day_of_records
from tests.support.sealing import sealing
from tests.support.telling import telling


@dataclass(frozen=True)
class Day:
    own: dict[str, BoundStatement]
    """By name, what was said as the server, held to the zones of whoever asked."""
    everywhere: dict[str, BoundStatement]
    """What was said as the sweeps, who see all."""
    transactions: dict[str, list[list[Statement]]]
    """By part of the day, the statements of each transaction, in order."""


class StatementLog:
    def __init__(self, *stores: Recording) -> None:
        self._stores = stores
        self.transactions: dict[str, list[list[Statement]]] = {}

    async def record(self, part: str, work: Awaitable[T]) -> T:
        done = await work
        self.transactions[part] = [sent for store in self._stores for sent in store.transactions]
        for store in self._stores:
            store.transactions.clear()
        return done


@contextlib.asynccontextmanager
async def day_on(url: str, directory: Path) -> AsyncIterator[Day]:
    own, everywhere = map(Recording, await open_stores(url))
    keel = Keel(url, (own, everywhere), Rigging(chunk=2))
    log = StatementLog(own, everywhere)
    root = await log.record("sessions", spawning(keel))
    await log.record("role assignments", belonging(keel))
    await log.record("reads", looking(keel, root))
    await log.record("invocations", working(keel, root))
    await log.record("terminations", ending(keel, root))
    await log.record("sweeps", sweeping(keel))
    await log.record("sinks", telling(keel))
    await log.record("log retention", keeping(keel, directory))
    await log.record("secrets", sealing(keel))
    await log.record("agents", a_day_of_agents(keel))
    await log.record("tasks", a_day_of_tasks(keel))
    await log.record("costs and logs", a_day_of_records(keel))
    await log.record("webhooks", a_day_of_webhooks(keel))
    await log.record("redis mirror", a_day_of_keys(keel))
    await log.record("fleets", a_day_of_fleets(keel))
    yield Day(own.seen, everywhere.seen, log.transactions)
    await keel.lanes.drain()
    for store in (own, everywhere):
        await store.close()


async def spawning(keel: Keel) -> Session:
    """Of all kinds; with one that a bound refuses, and one in a zone that is not there."""
    await keel.zone()
    root = await keel.spawn(key="k", digest="d")
    await keel.spawns.submit(ask(parent_id=root.id, key="k1", digest="d", caller=caller(session_id=root.id)))
    await keel.zone(max_sessions=2)
    for zone_id in (ZONE, "nowhere"):
        with contextlib.suppress(Problem):
            await keel.spawn(zone_id)
    await keel.zone()
    await keel.suspend(root)
    await keel.resume(root)
    await keel.engine.transact(lambda tx: tx.read(zones.lock_statement(tx, [ZONE])), zones=[ZONE], wait_for_locks=True)
    return root


async def belonging(keel: Keel) -> None:
    """Members come, change and go, and an agent asks who they are."""
    change = keel.lanes.add_write_lane("member", role_assignments.change_roles)
    for subject, role in (("a", Role.MEMBER), ("b", Role.MEMBER), ("a", Role.ADMIN), ("b", None)):
        await change.submit(ChangeRole(ZONE, subject, role, admin()))
    wanted = RoleAssignmentFilter(ZONE, admin(), 10)
    await keel.engine.read(lambda tx: role_assignments.list_role_assignments(tx, wanted), zones=[ZONE])
    agent = Caller("agent", APP, ZONE, frozenset(), agent_id="agent")
    await keel.engine.read(lambda tx: require_permission(tx, agent, ZONE, "tasks.read"), zones=[ZONE])


async def looking(keel: Keel, root: Session) -> None:
    await keel.used.submit(ZoneRef(ZONE))
    await keel.everywhere.read(lambda tx: zones.list_zones(tx, "", 10))
    await keel.engine.read(lambda tx: tx.read(ENGINE.schema_get_revision()))
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
    explainer, ref = Explainer(keel.spawner), SessionRef(ZONE, root.id)
    await keel.engine.read(lambda tx: explainer.explain_session(tx, ref, admin()), zones=[ZONE])
    for subject in (None, root.id):
        wanted_events = EventFilter(ZONE, after=0, limit=10, subject=subject)
        await keel.store.read(partial(event_log.read_page, filters=wanted_events), [ZONE])
        await keel.store.read(partial(event_log.read_replay, filters=wanted_events), [ZONE])
    rare = EventFilter(ZONE, limit=10, types=("session.spawn",))
    await keel.store.read(lambda tx: event_log.read_newest(tx, rare, event_log.POSITION_MAX), [ZONE])
    await keel.store.read(lambda tx: event_log.is_committed(tx, CommitProof("id", root.id)), [ZONE])
    await keel.log(limit=10)


async def working(keel: Keel, root: Session) -> None:
    """Calls, claims and reports of every kind; some are left waiting and running, for their ends to be heard of."""
    service = await calling(keel, session_id=root.id)
    waiter = poll_for_claim(service.asking())
    await service.submit_claim(service.asking(waiter=waiter))
    await service.call(source_session_id=root.id)
    keel.waiters.remove(waiter)
    for _ in range(3):
        await service.call(source_session_id=root.id, target_session_id=root.id)
    [row] = await service.claim(claim_id="c")
    await service.claim(claim_id="c")
    await service.complete(row)
    await keel.suspend(root)
    await keel.resume(root)
    ref = InvocationRef(ZONE, row.id)
    await keel.engine.read(lambda tx: invocations.explain(tx, ref), zones=[ZONE])
    for of_service in (service.service_id, None):
        wanted = InvocationFilter(ZONE, 10, "ffffffff", InvocationState.RUNNING, of_service)
        await keel.engine.read(partial(invocations.list_invocations, filters=wanted), zones=[ZONE])
    await keel.engine.read(lambda tx: load_ready_services(tx, [(ZONE, service.service_id)]), zones=[ZONE])
    sweeper = keel.invocation_sweeper()
    await keel.engine.transact(lambda tx: too_many(tx, root), zones=[ZONE])
    for name in (DEADLINE, SETTLE, INVOCATION_ORPHAN):
        await sweeper.run_now(name)
    await keel.everywhere.read(lambda tx: invocations.find_services_to_push(tx, 10))
    await keel.everywhere.read(lambda tx: invocations.find_unreferenced_services(tx, DAY, 10))
    await keel.everywhere.transact(lambda tx: invocations.delete_expired(tx, DAY, 10))


async def too_many(tx: Transaction, root: Session) -> None:
    await tx.read(zones.lock_statement(tx, [ZONE]))
    invocations.add_backlogs(tx, OwnerKind.SESSION, [(ZONE, root.id)])


async def ending(keel: Keel, root: Session) -> None:
    """In one transaction, by a cascade in chunks, by a zone that is frozen and ends; and one that stays stamped, so
    that what was recorded has something to do when it is run again."""
    last = await keel.spawn(parent_id=root.id)
    service = await calling(keel, session_id=last.id)
    await service.call(source_session_id=last.id)
    await service.call()
    await keel.end(last)
    await keel.zone(ENDING)
    tree = await keel.tree(5, zone_id=ENDING)
    await keel.end(tree[0])
    await keel.engine.read(
        lambda tx: Explainer(keel.spawner).explain_session(tx, SessionRef(ENDING, tree[1].id), admin(ENDING)),
        zones=[ENDING],
    )
    await keel.freezes.submit(SetZoneFrozen(ENDING, True, admin(ENDING)))
    await keel.freezes.submit(SetZoneFrozen(ENDING, False, admin(ENDING)))
    await keel.finisher.stop_zone(StopZone(ENDING, "requested", admin(ENDING), ends_zone=True))
    left = await keel.tree(5)
    await keel.endings.submit(Terminate(ZONE, left[0].id, "requested", admin()))


async def sweeping(keel: Keel) -> None:
    for name in (CASCADE, ORPHAN):
        await keel.sweep(name=name)
    keel.side.expire(await keel.spawn())
    await keel.sweep()
    keel.side.run("update admission_counts set live = live + 1 where scope = 'zone'")
    await CountReconciler(keel.everywhere, keel.recounts.submit).run_once(10)
    await keel.everywhere.transact(lambda tx: delete_expired(tx, 0, 10))
    # Everything is older than a window that ends tomorrow.
    await KeyRetention(keel.everywhere, -1, 1).run_once(10)


async def keeping(keel: Keel, directory: Path) -> None:
    keeper = Keeper(keel, directory)
    await keeper.pass_by()
    for lease in (keeper.sealer.lease, keeper.retention.lease):
        fence = await lease.acquire()
        assert fence
        await keel.everywhere.read(partial(leases.read_holder, name=fence.name))
        shown = leases.valid_terms([(fence.name, fence.term)])
        await keel.engine.transact(reading(shown), zones=[ZONE])
        await lease.release()
