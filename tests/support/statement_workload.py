"""A workload that runs every statement of a server on PostgreSQL, and records them: those for callers, and those across
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
from quarterdeck.domain.access.operations import require_permission, role_assignments
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.invocations.model import InvocationFilter, OwnerKind, ShowInvocation, State as InvocationState
from quarterdeck.domain.invocations.operations import on_session_ended, reads
from quarterdeck.domain.invocations.operations.long_poll import load_ready_services, new_claim_poll
from quarterdeck.domain.invocations.sweeps import DEADLINE, ORPHAN as INVOCATION_ORPHAN, SETTLE
from quarterdeck.domain.sessions.model import Session, SessionRef, State, StopZone, Terminate
from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.reads import retention_statements
from quarterdeck.domain.sessions.sweeps import CASCADE, ORPHAN, CountReconciler
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import ChangeRole, RoleAssignmentFilter, SetZoneFrozen, ShowZone
from quarterdeck.engine import event_log, leases
from quarterdeck.engine.event_log import CommitProof, EventFilter
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.engine.sweep_passes import delete_past_retention
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import T
from quarterdeck.store.sql import BoundStatement, Statement
from tests.support.agents import run_agent_workload
from tests.support.audit_log import AuditLogHarness
from tests.support.builders import APP, ZONE, admin, caller, spawn_command
from tests.support.fleet_workload import run_fleet_workload
from tests.support.invocations import register_service
from tests.support.key_mirror import run_mirror_workload
from tests.support.query_plans import ENDING_ZONE, RecordingStore, read_statement
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_stores
from tests.support.secret_rotation import run_secret_workload
from tests.support.sink_workload import run_sink_workload
from tests.support.task_details import run_task_detail_workload
from tests.support.task_workload import run_task_workload
from tests.support.webhooks import run_webhook_workload


@dataclass(frozen=True)
class WorkloadStatements:
    zone_statements: dict[str, BoundStatement]
    """Statements of the server role, which is confined to the caller's zones. By name."""
    cross_zone_statements: dict[str, BoundStatement]
    """Statements of the sweep role, which sees all zones. By name."""
    transactions: dict[str, list[list[Statement]]]
    """By section of the workload: the statements of each transaction, in order."""


class StatementLog:
    def __init__(self, *stores: RecordingStore) -> None:
        self._stores = stores
        self.transactions: dict[str, list[list[Statement]]] = {}

    async def record(self, section: str, work: Awaitable[T]) -> T:
        result = await work
        self.transactions[section] = [sent for store in self._stores for sent in store.transactions]
        for store in self._stores:
            store.transactions.clear()
        return result


@contextlib.asynccontextmanager
async def record_workload(url: str, directory: Path) -> AsyncIterator[WorkloadStatements]:
    zone_store, cross_zone_store = map(RecordingStore, await open_stores(url))
    runtime = RuntimeHarness(url, (zone_store, cross_zone_store), RuntimeOptions(chunk=2))
    log = StatementLog(zone_store, cross_zone_store)
    root = await log.record("sessions", run_session_workload(runtime))
    await log.record("role assignments", run_role_workload(runtime))
    await log.record("reads", run_read_workload(runtime, root))
    await log.record("invocations", run_invocation_workload(runtime, root))
    await log.record("terminations", run_termination_workload(runtime, root))
    await log.record("sweeps", run_sweep_workload(runtime))
    await log.record("sinks", run_sink_workload(runtime))
    await log.record("log retention", run_log_retention_workload(runtime, directory))
    await log.record("secrets", run_secret_workload(runtime))
    await log.record("agents", run_agent_workload(runtime))
    await log.record("tasks", run_task_workload(runtime))
    await log.record("costs and logs", run_task_detail_workload(runtime))
    await log.record("webhooks", run_webhook_workload(runtime))
    await log.record("redis mirror", run_mirror_workload(runtime))
    await log.record("fleets", run_fleet_workload(runtime))
    yield WorkloadStatements(zone_store.statements, cross_zone_store.statements, log.transactions)
    await runtime.lanes.drain()
    for store in (zone_store, cross_zone_store):
        await store.close()


async def run_session_workload(runtime: RuntimeHarness) -> Session:
    """Spawns of all kinds, also one that a bound refuses and one in a zone that does not exist."""
    await runtime.put_zone()
    root = await runtime.spawn(key="k", digest="d")
    await runtime.spawn_lane.submit(
        spawn_command(parent_id=root.id, key="k1", digest="d", caller=caller(session_id=root.id))
    )
    await runtime.put_zone(max_sessions=2)
    for zone_id in (ZONE, "missing-zone"):
        with contextlib.suppress(Problem):
            await runtime.spawn(zone_id)
    await runtime.put_zone()
    await runtime.suspend(root)
    await runtime.resume(root)
    await runtime.engine.transact(
        lambda tx: tx.read(zones.lock_statement(tx, [ZONE])), zones=[ZONE], wait_for_locks=True
    )
    return root


async def run_role_workload(runtime: RuntimeHarness) -> None:
    """Role assignments are created, changed and removed. The permission of an agent is checked."""
    lane = runtime.lanes.add_write_lane("member", role_assignments.change_roles)
    for subject, role in (("a", Role.MEMBER), ("b", Role.MEMBER), ("a", Role.ADMIN), ("b", None)):
        await lane.submit(ChangeRole(ZONE, subject, role, admin()))
    filters = RoleAssignmentFilter(ZONE, admin(), 10)
    await runtime.engine.read(lambda tx: role_assignments.list_role_assignments(tx, filters), zones=[ZONE])
    agent = Caller("agent", APP, ZONE, frozenset(), agent_id="agent")
    await runtime.engine.read(lambda tx: require_permission(tx, agent, ZONE, "tasks.read"), zones=[ZONE])


async def run_read_workload(runtime: RuntimeHarness, root: Session) -> None:
    await runtime.show_zone_lane.submit(ShowZone(ZONE))
    await runtime.cross_zone_engine.read(lambda tx: zones.list_zones(tx, "", 10))
    await runtime.engine.read(lambda tx: tx.read(ENGINE.schema_get_revision()))
    filter_sets: list[dict[str, object]] = [
        {},
        {"status": State.ACTIVE},
        {"application_id": APP, "status": State.TERMINATED},
        {"parent_id": root.id},
    ]
    for fields in filter_sets:
        await runtime.list_sessions(limit=10, before="ffffffff", **fields)
    await runtime.read_subtree(root)
    await runtime.read_session(root)
    explainer, ref = Explainer(runtime.spawner), SessionRef(ZONE, root.id)
    await runtime.engine.read(lambda tx: explainer.explain_session(tx, ref, admin()), zones=[ZONE])
    for subject in (None, root.id):
        event_filter = EventFilter(ZONE, after=0, limit=10, subject=subject)
        await runtime.store.read(partial(event_log.read_page, filters=event_filter), [ZONE])
        await runtime.store.read(partial(event_log.read_replay, filters=event_filter), [ZONE])
    type_filter = EventFilter(ZONE, limit=10, types=("session.spawn",))
    await runtime.store.read(lambda tx: event_log.read_newest(tx, type_filter, event_log.POSITION_MAX), [ZONE])
    await runtime.store.read(lambda tx: event_log.is_committed(tx, CommitProof("id", root.id)), [ZONE])
    await runtime.read_log(limit=10)


async def run_invocation_workload(runtime: RuntimeHarness, root: Session) -> None:
    """Invocations, claims and reports of every kind. Some stay pending or running, for the terminations that follow."""
    service = await register_service(runtime, session_id=root.id)
    poll = new_claim_poll(service.claim_command())
    await service.submit_claim(service.claim_command(poll=poll))
    await service.create(source_session_id=root.id)
    runtime.claim_polls.remove(poll)
    for _ in range(3):
        await service.create(source_session_id=root.id, target_session_id=root.id)
    [row] = await service.claim(claim_id="c")
    await service.claim(claim_id="c")
    await service.complete(row)
    await runtime.suspend(root)
    await runtime.resume(root)
    ref = ShowInvocation(ZONE, row.id)
    await runtime.engine.read(lambda tx: reads.explain(tx, ref), zones=[ZONE])
    for service_id in (service.service_id, None):
        filters = InvocationFilter(
            zone_id=ZONE, limit=10, before="ffffffff", status=InvocationState.RUNNING, service_id=service_id
        )
        await runtime.engine.read(partial(reads.list_invocations, filters=filters), zones=[ZONE])
    await runtime.engine.read(lambda tx: load_ready_services(tx, [(ZONE, service.service_id)]), zones=[ZONE])
    sweeper = runtime.invocation_sweep_runner()
    await runtime.engine.transact(lambda tx: add_backlog(tx, root), zones=[ZONE])
    for name in (DEADLINE, SETTLE, INVOCATION_ORPHAN):
        await sweeper.run_now(name)
    await runtime.cross_zone_engine.read(lambda tx: reads.find_services_to_push(tx, 10))
    await runtime.cross_zone_engine.read(lambda tx: invocations.find_unreferenced_services(tx, DAY, 10))
    await delete_past_retention(runtime.cross_zone_engine, DAY, reads.retention_statements)(10)


async def add_backlog(tx: Transaction, root: Session) -> None:
    await tx.read(zones.lock_statement(tx, [ZONE]))
    on_session_ended.add_backlogs(tx, OwnerKind.SESSION, [(ZONE, root.id)])


async def run_termination_workload(runtime: RuntimeHarness, root: Session) -> None:
    """Terminations in one transaction, in a chunked cascade, and by the end of a frozen zone. One cascade stays
    unfinished, so that the recorded statements find rows when they run again."""
    last = await runtime.spawn(parent_id=root.id)
    service = await register_service(runtime, session_id=last.id)
    await service.create(source_session_id=last.id)
    await service.create()
    await runtime.terminate(last)
    await runtime.put_zone(ENDING_ZONE)
    tree = await runtime.spawn_tree(5, zone_id=ENDING_ZONE)
    await runtime.terminate(tree[0])
    await runtime.engine.read(
        lambda tx: Explainer(runtime.spawner).explain_session(
            tx, SessionRef(ENDING_ZONE, tree[1].id), admin(ENDING_ZONE)
        ),
        zones=[ENDING_ZONE],
    )
    await runtime.freeze_lane.submit(SetZoneFrozen(ENDING_ZONE, True, admin(ENDING_ZONE)))
    await runtime.freeze_lane.submit(SetZoneFrozen(ENDING_ZONE, False, admin(ENDING_ZONE)))
    await runtime.cascade_runner.stop_zone(StopZone(ENDING_ZONE, "requested", admin(ENDING_ZONE), ends_zone=True))
    unfinished = await runtime.spawn_tree(5)
    await runtime.terminate_lane.submit(Terminate(ZONE, unfinished[0].id, "requested", admin()))


async def run_sweep_workload(runtime: RuntimeHarness) -> None:
    for name in (CASCADE, ORPHAN):
        await runtime.run_sweep(name=name)
    runtime.database.expire_sessions(await runtime.spawn())
    await runtime.run_sweep()
    runtime.database.execute("update admission_counts set live = live + 1 where scope = 'zone'")
    await CountReconciler(runtime.cross_zone_engine, runtime.repair_counts_lane.submit).run_once(10)
    await delete_past_retention(runtime.cross_zone_engine, 0, retention_statements)(10)
    # A negative retention deletes every key: the window ends tomorrow.
    await KeyRetention(runtime.cross_zone_engine, -1, 1).run_once(10)


async def run_log_retention_workload(runtime: RuntimeHarness, directory: Path) -> None:
    harness = AuditLogHarness(runtime, directory)
    await harness.run_seal_and_retention()
    for lease in (harness.sealer.lease, harness.retention.lease):
        fence = await lease.acquire()
        assert fence
        await runtime.cross_zone_engine.read(partial(leases.read_holder, name=fence.name))
        statement = leases.valid_terms_statement([(fence.name, fence.term)])
        await runtime.engine.transact(read_statement(statement), zones=[ZONE])
        await lease.release()
