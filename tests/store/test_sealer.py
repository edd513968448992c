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
from tests.support.keel import Keel
from tests.support.keeping import Keeper


@pytest.fixture
def keeper(keel: Keel, tmp_path: Path) -> Keeper:
    return Keeper(keel, tmp_path)


def run_out(keel: Keel) -> None:
    """Lets every lease have ended, without waiting for it."""
    keel.side.run("update leases set expires_at = 0")


# -- sealing


async def test_what_is_new_is_sealed_and_proves(keeper: Keeper) -> None:
    await keeper.happen(3)
    log = keeper.log()
    assert keeper.proof() == VerificationResult(unproven=log.head, unproven_since=int(str(log.events[0][-1])))
    assert await keeper.sealer.run_once(1_000) == log.head
    await keeper.seal(1, 5)
    await keeper.happen(2)
    proof = keeper.proof()
    assert (proof.seals, proof.events, proof.unproven) == (3, log.head + 6, 2)


async def test_a_log_of_thousands_is_sealed_in_one_sweep_a_thousand_at_a_time(keeper: Keeper) -> None:
    await keeper.happen(2_500)
    head = keeper.log().head
    assert await SweepRunner([keeper.sealer.sweep()]).run_now(SEAL) == head
    assert [int(str(row[2])) - int(str(row[1])) + 1 for row in keeper.log().seals] == [1_000, 1_000, head - 2_000]
    assert keeper.proof().events == head


async def test_with_nothing_new_nothing_is_written_and_no_lease_is_asked_for(keeper: Keeper, keel: Keel) -> None:
    await keeper.seal(3)
    keel.side.run("delete from leases")
    assert await keeper.sealer.run_once(1_000) == 0
    assert keel.side.count("leases") == 0
    assert keeper.proof().seals == 1


async def test_of_several_that_would_seal_one_does_and_the_chain_is_one(keeper: Keeper, tmp_path: Path) -> None:
    keepers = [keeper, *(Keeper(keeper.keel, tmp_path) for _ in range(3))]
    for count in (5, 3, 1, 8):
        await keeper.happen(count)
        sealed = await asyncio.gather(*(each.sealer.run_once(4) for each in keepers))
        assert len([count for count in sealed if count]) == 1
    # Whichever of them holds the lease has the rest to seal; the others have nothing to say.
    while sum([await each.sealer.run_once(4) for each in keepers]):
        pass
    assert keeper.proof().events == keeper.log().head


async def test_a_sealer_whose_term_is_over_writes_nothing(keeper: Keeper, keel: Keel, tmp_path: Path) -> None:
    await keeper.seal(3)
    run_out(keel)
    other = Keeper(keel, tmp_path)
    await other.seal(3)
    await keeper.happen(3)
    with pytest.raises(LeaseLost):
        await keeper.sealer.run_once(1_000)
    assert keeper.proof().unproven == 3
    await other.sealer.run_once(1_000)
    assert keeper.proof().unproven == 0


async def test_another_takes_over_where_the_first_gave_its_lease_back(
    keeper: Keeper, keel: Keel, tmp_path: Path
) -> None:
    await keeper.seal(3)
    await keeper.sealer.lease.release()
    await Keeper(keel, tmp_path).seal(3)
    assert keeper.proof().seals == 2


async def test_nothing_is_sealed_past_an_event_that_went_missing(keeper: Keeper, keel: Keel) -> None:
    await keeper.seal(3)
    await keeper.happen(5)
    head = keeper.log().head
    keel.side.run("delete from events where pos = ?", head - 2)
    for _ in range(2):
        with pytest.raises(MissingEventError, match=str(head - 5)):
            await keeper.sealer.run_once(1_000)
    with pytest.raises(VerificationError) as found:
        keeper.proof()
    assert found.value.pos == head - 2
    keel.side.run("delete from events where pos > ?", head - 5)
    with pytest.raises(MissingEventError):
        await keeper.sealer.run_once(1_000)


async def test_events_are_read_piece_by_piece_and_others_get_their_turn(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sealer, "HASH_CHUNK", 3)
    await keeper.happen(10)
    sealing = asyncio.create_task(keeper.sealer.run_once(1_000))
    turns = 0
    while not sealing.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 4
    assert keeper.proof().unproven == 0


# -- retention


async def test_events_go_in_two_steps_and_only_when_a_seal_attests_it(keeper: Keeper) -> None:
    await keeper.seal(10, 10, 10)
    first = int(str(keeper.log().seals[0][2]))
    second = first + 10
    assert await keeper.retention.run_once(1_000) == 0
    raised = keeper.log()
    assert (raised.floor, raised.attested, len(raised.events)) == (second, 0, raised.head)
    assert keeper.proof().events == raised.head
    assert await keeper.retention.run_once(1_000) == 0, "nobody has attested it yet"
    assert await keeper.sealer.run_once(1_000) == 0
    attested = keeper.log()
    assert (attested.attested, len(attested.seals)) == (second, 4)
    assert await keeper.retention.run_once(1_000) == second
    proof = keeper.proof()
    assert (proof.removed, proof.events, proof.floor) == (second, 10, second)


async def test_a_quiet_log_comes_to_rest_with_every_event_gone_and_still_proves(keeper: Keeper) -> None:
    await keeper.seal(5, 5)
    for _ in range(6):
        await keeper.retention.run_once(1_000)
        await keeper.sealer.run_once(1_000)
        keeper.proof()
    log = keeper.log()
    assert (log.events, log.floor, log.attested) == ((), log.head, log.head)
    assert len(log.seals) == 4
    await keeper.seal(3)
    proof = keeper.proof()
    assert (proof.events, proof.removed) == (3, log.head)


async def test_removing_goes_on_where_it_was_broken_off_and_proves_at_every_step(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_retention, "DELETE_CHUNK", 3)
    await keeper.seal(10, 10)
    floor = int(str(keeper.log().seals[0][2]))
    await keeper.retention.run_once(1)
    await keeper.sealer.run_once(1_000)
    steps = []
    while moved := await keeper.retention.run_once(1):
        steps.append(moved)
        assert keeper.proof().removed == sum(steps)
    assert sum(steps) == floor
    assert max(steps) == 3


async def test_inside_its_window_nothing_goes(keel: Keel, tmp_path: Path) -> None:
    keeper = Keeper(keel, tmp_path, LogSettings())
    await keeper.seal(10, 10, 10)
    assert await keeper.retention.run_once(1_000) == 0
    assert keeper.log().floor == 0
    assert keel.side.count("leases", "name = ?", event_retention.EVENT_RETENTION) == 0, "nothing was even begun"


async def test_a_floor_that_somebody_else_wrote_is_not_attested(keel: Keel, tmp_path: Path) -> None:
    keeper = Keeper(keel, tmp_path, LogSettings())
    await keeper.seal(10, 10, 10)
    ends = [int(str(row[2])) for row in keeper.log().seals]
    for floor in (ends[0], ends[1] - 1, ends[2]):
        keel.side.run("update log_head set floor = ?", floor)
        await keeper.seal(1)
        assert keeper.log().attested == 0
        assert await keeper.retention.run_once(1_000) == 0
    assert keel.side.count("events") == keeper.log().head


async def test_an_attested_floor_is_never_taken_back(keeper: Keeper, keel: Keel) -> None:
    await keeper.seal(5, 5, 5)
    await keeper.retention.run_once(1_000)
    await keeper.sealer.run_once(1_000)
    floor = keeper.log().attested
    keel.side.run("update log_head set floor = 0")
    await keeper.seal(2)
    assert keeper.log().attested == floor
    await keeper.retention.run_once(1_000)
    assert keeper.log().floor > 0, "and retention says again what it said"


async def test_retention_whose_term_is_over_deletes_nothing(keeper: Keeper, keel: Keel) -> None:
    await keeper.seal(5, 5, 5)
    await keeper.retention.run_once(1_000)
    await keeper.sealer.run_once(1_000)
    assert keeper.retention.lease.fence() == Fence(event_retention.EVENT_RETENTION, 1)
    keel.side.run("update leases set term = term + 1")
    before = keeper.log()
    with pytest.raises(LeaseLost):
        await keeper.retention.run_once(1_000)
    assert keeper.log() == before


async def test_of_several_that_would_remove_one_does(keeper: Keeper, keel: Keel, tmp_path: Path) -> None:
    others = [Keeper(keel, tmp_path) for _ in range(3)]
    await keeper.seal(5, 5, 5)
    gone = []
    for _ in range(2):
        gone += await asyncio.gather(*(each.retention.run_once(1_000) for each in (keeper, *others)))
        await keeper.sealer.run_once(1_000)
    assert len([count for count in gone if count]) == 1
    assert sum(gone) == keeper.proof().removed == keeper.log().attested - 5
