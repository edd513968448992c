"""The sealer and retention: one chain whoever seals, and nothing deleted that a seal has not attested."""

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


def run_out(keel: RuntimeHarness) -> None:
    """Lets every lease have ended, without waiting for it."""
    keel.database.execute("update leases set expires_at = 0")


# -- sealing


async def test_what_is_new_is_sealed_and_proves(audit_log_harness: AuditLogHarness) -> None:
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


async def test_a_log_of_thousands_is_sealed_in_one_sweep_a_thousand_at_a_time(
    audit_log_harness: AuditLogHarness,
) -> None:
    await audit_log_harness.emit(2_500)
    head = audit_log_harness.read_log().head
    assert await SweepRunner([audit_log_harness.sealer.sweep()]).run_now(SEAL) == head
    assert [int(str(row[2])) - int(str(row[1])) + 1 for row in audit_log_harness.read_log().seals] == [
        1_000,
        1_000,
        head - 2_000,
    ]
    assert audit_log_harness.verify_log().events == head


async def test_with_nothing_new_nothing_is_written_and_no_lease_is_asked_for(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness
) -> None:
    await audit_log_harness.emit_and_seal(3)
    runtime.database.execute("delete from leases")
    assert await audit_log_harness.sealer.run_once(1_000) == 0
    assert runtime.database.count("leases") == 0
    assert audit_log_harness.verify_log().seals == 1


async def test_of_several_that_would_seal_one_does_and_the_chain_is_one(
    audit_log_harness: AuditLogHarness, tmp_path: Path
) -> None:
    keepers = [audit_log_harness, *(AuditLogHarness(audit_log_harness.runtime, tmp_path) for _ in range(3))]
    for count in (5, 3, 1, 8):
        await audit_log_harness.emit(count)
        sealed = await asyncio.gather(*(each.sealer.run_once(4) for each in keepers))
        assert len([count for count in sealed if count]) == 1
    # Whichever of them holds the lease has the rest to seal; the others have nothing to say.
    while sum([await each.sealer.run_once(4) for each in keepers]):
        pass
    assert audit_log_harness.verify_log().events == audit_log_harness.read_log().head


async def test_a_sealer_whose_term_is_over_writes_nothing(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness, tmp_path: Path
) -> None:
    await audit_log_harness.emit_and_seal(3)
    run_out(runtime)
    other = AuditLogHarness(runtime, tmp_path)
    await other.emit_and_seal(3)
    await audit_log_harness.emit(3)
    with pytest.raises(LeaseLost):
        await audit_log_harness.sealer.run_once(1_000)
    assert audit_log_harness.verify_log().unproven == 3
    await other.sealer.run_once(1_000)
    assert audit_log_harness.verify_log().unproven == 0


async def test_another_takes_over_where_the_first_gave_its_lease_back(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness, tmp_path: Path
) -> None:
    await audit_log_harness.emit_and_seal(3)
    await audit_log_harness.sealer.lease.release()
    await AuditLogHarness(runtime, tmp_path).emit_and_seal(3)
    assert audit_log_harness.verify_log().seals == 2


async def test_nothing_is_sealed_past_an_event_that_went_missing(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness
) -> None:
    await audit_log_harness.emit_and_seal(3)
    await audit_log_harness.emit(5)
    head = audit_log_harness.read_log().head
    runtime.database.execute("delete from events where pos = ?", head - 2)
    for _ in range(2):
        with pytest.raises(MissingEventError, match=str(head - 5)):
            await audit_log_harness.sealer.run_once(1_000)
    with pytest.raises(VerificationError) as found:
        audit_log_harness.verify_log()
    assert found.value.pos == head - 2
    runtime.database.execute("delete from events where pos > ?", head - 5)
    with pytest.raises(MissingEventError):
        await audit_log_harness.sealer.run_once(1_000)


async def test_events_are_read_piece_by_piece_and_others_get_their_turn(
    audit_log_harness: AuditLogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sealer, "HASH_CHUNK", 3)
    await audit_log_harness.emit(10)
    sealing = asyncio.create_task(audit_log_harness.sealer.run_once(1_000))
    turns = 0
    while not sealing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 4
    assert audit_log_harness.verify_log().unproven == 0


# -- retention


async def test_events_go_in_two_steps_and_only_when_a_seal_attests_it(audit_log_harness: AuditLogHarness) -> None:
    await audit_log_harness.emit_and_seal(10, 10, 10)
    first = int(str(audit_log_harness.read_log().seals[0][2]))
    second = first + 10
    assert await audit_log_harness.retention.run_once(1_000) == 0
    raised = audit_log_harness.read_log()
    assert (raised.floor, raised.attested_floor, len(raised.events)) == (second, 0, raised.head)
    assert audit_log_harness.verify_log().events == raised.head
    assert await audit_log_harness.retention.run_once(1_000) == 0, "nobody has attested it yet"
    assert await audit_log_harness.sealer.run_once(1_000) == 0
    attested = audit_log_harness.read_log()
    assert (attested.attested_floor, len(attested.seals)) == (second, 4)
    assert await audit_log_harness.retention.run_once(1_000) == second
    proof = audit_log_harness.verify_log()
    assert (proof.removed, proof.events, proof.floor) == (second, 10, second)


async def test_a_quiet_log_comes_to_rest_with_every_event_gone_and_still_proves(
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


async def test_removing_goes_on_where_it_was_broken_off_and_proves_at_every_step(
    audit_log_harness: AuditLogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_retention, "DELETE_CHUNK", 3)
    await audit_log_harness.emit_and_seal(10, 10)
    floor = int(str(audit_log_harness.read_log().seals[0][2]))
    await audit_log_harness.retention.run_once(1)
    await audit_log_harness.sealer.run_once(1_000)
    steps = []
    while moved := await audit_log_harness.retention.run_once(1):
        steps.append(moved)
        assert audit_log_harness.verify_log().removed == sum(steps)
    assert sum(steps) == floor
    assert max(steps) == 3


async def test_inside_its_window_nothing_goes(runtime: RuntimeHarness, tmp_path: Path) -> None:
    keeper = AuditLogHarness(runtime, tmp_path, LogSettings())
    await keeper.emit_and_seal(10, 10, 10)
    assert await keeper.retention.run_once(1_000) == 0
    assert keeper.read_log().floor == 0
    assert runtime.database.count("leases", "name = ?", event_retention.EVENT_RETENTION) == 0, "nothing was even begun"


async def test_a_floor_that_somebody_else_wrote_is_not_attested(runtime: RuntimeHarness, tmp_path: Path) -> None:
    keeper = AuditLogHarness(runtime, tmp_path, LogSettings())
    await keeper.emit_and_seal(10, 10, 10)
    ends = [int(str(row[2])) for row in keeper.read_log().seals]
    for floor in (ends[0], ends[1] - 1, ends[2]):
        runtime.database.execute("update log_head set floor = ?", floor)
        await keeper.emit_and_seal(1)
        assert keeper.read_log().attested_floor == 0
        assert await keeper.retention.run_once(1_000) == 0
    assert runtime.database.count("events") == keeper.read_log().head


async def test_an_attested_floor_is_never_taken_back(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness
) -> None:
    await audit_log_harness.emit_and_seal(5, 5, 5)
    await audit_log_harness.retention.run_once(1_000)
    await audit_log_harness.sealer.run_once(1_000)
    floor = audit_log_harness.read_log().attested_floor
    runtime.database.execute("update log_head set floor = 0")
    await audit_log_harness.emit_and_seal(2)
    assert audit_log_harness.read_log().attested_floor == floor
    await audit_log_harness.retention.run_once(1_000)
    assert audit_log_harness.read_log().floor > 0, "and retention says again what it said"


async def test_retention_whose_term_is_over_deletes_nothing(
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


async def test_of_several_that_would_remove_one_does(
    audit_log_harness: AuditLogHarness, runtime: RuntimeHarness, tmp_path: Path
) -> None:
    others = [AuditLogHarness(runtime, tmp_path) for _ in range(3)]
    await audit_log_harness.emit_and_seal(5, 5, 5)
    gone = []
    for _ in range(2):
        gone += await asyncio.gather(*(each.retention.run_once(1_000) for each in (audit_log_harness, *others)))
        await audit_log_harness.sealer.run_once(1_000)
    assert len([count for count in gone if count]) == 1
    assert sum(gone) == audit_log_harness.verify_log().removed == audit_log_harness.read_log().attested_floor - 5
