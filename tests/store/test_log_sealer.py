"""The log sealer and event retention: one chain of seals, and no event is deleted before a seal attests it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quarterdeck.core.audit_verify import VerificationError, VerificationResult
from quarterdeck.engine import event_retention, log_sealer
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.log_sealer import SEAL, MissingEventError
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.audit_log import AuditLogHarness
from tests.support.runtime import RuntimeHarness


@pytest.fixture
def audit_log_harness(runtime: RuntimeHarness, tmp_path: Path) -> AuditLogHarness:
    return AuditLogHarness(runtime, tmp_path)


def expire_leases(runtime: RuntimeHarness) -> None:
    """Expire every lease without waiting."""
    runtime.database.execute("update leases set expires_at = 0")


# -- sealing


async def test_new_events_are_sealed_and_verified(audit_log_harness: AuditLogHarness) -> None:
    await audit_log_harness.emit(3)
    log = audit_log_harness.read_log()
    assert audit_log_harness.verify_log() == VerificationResult(
        unproven=log.head, unproven_since=int(str(log.events[0][-1]))
    )
    assert await audit_log_harness.sealer.run_once(1_000) == log.head
    await audit_log_harness.emit_and_seal(1, 5)
    await audit_log_harness.emit(2)
    proof = audit_log_harness.verify_log()
    assert (proof.seals, proof.events, proof.unproven) == (3, log.head + 6, 2)


async def test_one_sweep_seals_the_whole_log_in_chunks_of_1000(audit_log_harness: AuditLogHarness) -> None:
    await audit_log_harness.emit(2_500)
    head = audit_log_harness.read_log().head
    assert await SweepRunner([audit_log_harness.sealer.sweep()]).run_now(SEAL) == head
    assert [int(str(row[2])) - int(str(row[1])) + 1 for row in audit_log_harness.read_log().seals] == [
        1_000,
        1_000,
        head - 2_000,
    ]
    assert audit_log_harness.verify_log().events == head


async def test_sealer_without_new_events_writes_nothing_and_takes_no_lease(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness
) -> None:
    await audit_log_harness.emit_and_seal(3)
    runtime.database.execute("delete from leases")
    assert await audit_log_harness.sealer.run_once(1_000) == 0
    assert runtime.database.count("leases") == 0
    assert audit_log_harness.verify_log().seals == 1


async def test_concurrent_sealers_write_one_chain(audit_log_harness: AuditLogHarness, tmp_path: Path) -> None:
    harnesses = [audit_log_harness, *(AuditLogHarness(audit_log_harness.runtime, tmp_path) for _ in range(3))]
    for count in (5, 3, 1, 8):
        await audit_log_harness.emit(count)
        sealed = await asyncio.gather(*(harness.sealer.run_once(4) for harness in harnesses))
        assert len([count for count in sealed if count]) == 1
    # The holder of the lease seals the rest. The others return 0.
    while sum([await harness.sealer.run_once(4) for harness in harnesses]):
        pass
    assert audit_log_harness.verify_log().events == audit_log_harness.read_log().head


async def test_sealer_with_an_ended_term_writes_nothing(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness, tmp_path: Path
) -> None:
    await audit_log_harness.emit_and_seal(3)
    expire_leases(runtime)
    other = AuditLogHarness(runtime, tmp_path)
    await other.emit_and_seal(3)
    await audit_log_harness.emit(3)
    with pytest.raises(LeaseLost):
        await audit_log_harness.sealer.run_once(1_000)
    assert audit_log_harness.verify_log().unproven == 3
    await other.sealer.run_once(1_000)
    assert audit_log_harness.verify_log().unproven == 0


async def test_another_sealer_continues_the_chain_after_a_release(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness, tmp_path: Path
) -> None:
    await audit_log_harness.emit_and_seal(3)
    await audit_log_harness.sealer.lease.release()
    await AuditLogHarness(runtime, tmp_path).emit_and_seal(3)
    assert audit_log_harness.verify_log().seals == 2


async def test_sealer_stops_at_a_missing_event(audit_log_harness: AuditLogHarness, runtime: RuntimeHarness) -> None:
    await audit_log_harness.emit_and_seal(3)
    await audit_log_harness.emit(5)
    head = audit_log_harness.read_log().head
    runtime.database.execute("delete from events where pos = ?", head - 2)
    for _ in range(2):
        with pytest.raises(MissingEventError, match=str(head - 5)):
            await audit_log_harness.sealer.run_once(1_000)
    with pytest.raises(VerificationError) as failed:
        audit_log_harness.verify_log()
    assert failed.value.pos == head - 2
    runtime.database.execute("delete from events where pos > ?", head - 5)
    with pytest.raises(MissingEventError):
        await audit_log_harness.sealer.run_once(1_000)


async def test_hashing_in_chunks_yields_to_the_event_loop(
    audit_log_harness: AuditLogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sealer, "HASH_CHUNK", 3)
    await audit_log_harness.emit(10)
    sealing = asyncio.create_task(audit_log_harness.sealer.run_once(1_000))
    iterations = 0
    while not sealing.done():
        iterations += 1
        await asyncio.sleep(0)
    assert iterations > 4
    assert audit_log_harness.verify_log().unproven == 0


# -- retention


async def test_events_are_deleted_only_after_a_seal_attests_the_floor(audit_log_harness: AuditLogHarness) -> None:
    await audit_log_harness.emit_and_seal(10, 10, 10)
    first = int(str(audit_log_harness.read_log().seals[0][2]))
    second = first + 10
    assert await audit_log_harness.retention.run_once(1_000) == 0
    before_seal = audit_log_harness.read_log()
    assert (before_seal.floor, before_seal.attested_floor, len(before_seal.events)) == (second, 0, before_seal.head)
    assert audit_log_harness.verify_log().events == before_seal.head
    assert await audit_log_harness.retention.run_once(1_000) == 0, "no seal attests the floor yet"
    assert await audit_log_harness.sealer.run_once(1_000) == 0
    after_seal = audit_log_harness.read_log()
    assert (after_seal.attested_floor, len(after_seal.seals)) == (second, 4)
    assert await audit_log_harness.retention.run_once(1_000) == second
    proof = audit_log_harness.verify_log()
    assert (proof.removed, proof.events, proof.floor) == (second, 10, second)


async def test_idle_log_reaches_a_fixed_point_without_events_and_still_verifies(
    audit_log_harness: AuditLogHarness,
) -> None:
    await audit_log_harness.emit_and_seal(5, 5)
    for _ in range(6):
        await audit_log_harness.retention.run_once(1_000)
        await audit_log_harness.sealer.run_once(1_000)
        audit_log_harness.verify_log()
    log = audit_log_harness.read_log()
    assert (log.events, log.floor, log.attested_floor) == ((), log.head, log.head)
    assert len(log.seals) == 4
    await audit_log_harness.emit_and_seal(3)
    proof = audit_log_harness.verify_log()
    assert (proof.events, proof.removed) == (3, log.head)


async def test_interrupted_deletion_continues_and_the_log_verifies_after_each_step(
    audit_log_harness: AuditLogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_retention, "DELETE_CHUNK", 3)
    await audit_log_harness.emit_and_seal(10, 10)
    floor = int(str(audit_log_harness.read_log().seals[0][2]))
    await audit_log_harness.retention.run_once(1)
    await audit_log_harness.sealer.run_once(1_000)
    steps = []
    while deleted := await audit_log_harness.retention.run_once(1):
        steps.append(deleted)
        assert audit_log_harness.verify_log().removed == sum(steps)
    assert sum(steps) == floor
    assert max(steps) == 3


async def test_events_within_the_retention_window_are_kept(runtime: RuntimeHarness, tmp_path: Path) -> None:
    harness = AuditLogHarness(runtime, tmp_path, LogSettings())
    await harness.emit_and_seal(10, 10, 10)
    assert await harness.retention.run_once(1_000) == 0
    assert harness.read_log().floor == 0
    assert runtime.database.count("leases", "name = ?", event_retention.EVENT_RETENTION) == 0, "no lease was acquired"


async def test_floor_not_set_by_retention_is_not_attested(runtime: RuntimeHarness, tmp_path: Path) -> None:
    harness = AuditLogHarness(runtime, tmp_path, LogSettings())
    await harness.emit_and_seal(10, 10, 10)
    ends = [int(str(row[2])) for row in harness.read_log().seals]
    for floor in (ends[0], ends[1] - 1, ends[2]):
        runtime.database.execute("update log_head set floor = ?", floor)
        await harness.emit_and_seal(1)
        assert harness.read_log().attested_floor == 0
        assert await harness.retention.run_once(1_000) == 0
    assert runtime.database.count("events") == harness.read_log().head


async def test_attested_floor_never_decreases(audit_log_harness: AuditLogHarness, runtime: RuntimeHarness) -> None:
    await audit_log_harness.emit_and_seal(5, 5, 5)
    await audit_log_harness.retention.run_once(1_000)
    await audit_log_harness.sealer.run_once(1_000)
    floor = audit_log_harness.read_log().attested_floor
    runtime.database.execute("update log_head set floor = 0")
    await audit_log_harness.emit_and_seal(2)
    assert audit_log_harness.read_log().attested_floor == floor
    await audit_log_harness.retention.run_once(1_000)
    assert audit_log_harness.read_log().floor > 0, "retention raises the floor again"


async def test_retention_with_an_ended_term_deletes_nothing(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness
) -> None:
    await audit_log_harness.emit_and_seal(5, 5, 5)
    await audit_log_harness.retention.run_once(1_000)
    await audit_log_harness.sealer.run_once(1_000)
    assert audit_log_harness.retention.lease.fence() == Fence(event_retention.EVENT_RETENTION, 1)
    runtime.database.execute("update leases set term = term + 1")
    before = audit_log_harness.read_log()
    with pytest.raises(LeaseLost):
        await audit_log_harness.retention.run_once(1_000)
    assert audit_log_harness.read_log() == before


async def test_only_one_of_several_retention_processes_deletes(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness, tmp_path: Path
) -> None:
    others = [AuditLogHarness(runtime, tmp_path) for _ in range(3)]
    await audit_log_harness.emit_and_seal(5, 5, 5)
    deleted = []
    for _ in range(2):
        deleted += await asyncio.gather(
            *(harness.retention.run_once(1_000) for harness in (audit_log_harness, *others))
        )
        await audit_log_harness.sealer.run_once(1_000)
    assert len([count for count in deleted if count]) == 1
    assert sum(deleted) == audit_log_harness.verify_log().removed == audit_log_harness.read_log().attested_floor - 5
