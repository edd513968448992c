"""Leases: one holder at a time, by terms that fence the ones before, also when a holder freezes and wakes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from quarterdeck.engine import leases
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leases import TRUST_MARGIN, Fence, Lease, LeaseLost
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import StoreError
from tests.support.builders import ZONE
from tests.support.child_processes import minimal_environment, signal_on_parent_death
from tests.support.eventually import eventually
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.source import ROOT

LONG = 60_000


def lease(keel: RuntimeHarness, holder: str, ttl_ms: int = LONG, name: str = "pass") -> Lease:
    return Lease(keel.engine, name, holder, ttl_ms)


def run_out(keel: RuntimeHarness) -> None:
    """Lets every lease have ended, without waiting for it."""
    keel.database.execute("update leases set expires_at = 0")


async def fenced_write(keel: RuntimeHarness, fence: Fence) -> None:
    async def operation(tx: Transaction) -> None:
        await fence.check(tx)
        tx.emit(NewEvent("written", ZONE, str(fence.term), "tester"))

    await keel.engine.transact(operation, zones=[ZONE])


async def written(keel: RuntimeHarness) -> list[str]:
    return [event.subject for event in await keel.read_log() if event.type == "written"]


# -- taking turns


async def test_one_takes_a_lease_and_another_cannot_before_it_ends(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    assert await one.acquire() == Fence("pass", 1)
    assert await two.acquire() is None
    assert two.fence() is None
    run_out(runtime)
    assert await two.acquire() == Fence("pass", 2)
    assert await one.acquire() is None
    assert one.fence() is None


async def test_renewing_keeps_the_term_and_moves_its_end(runtime: RuntimeHarness) -> None:
    one = lease(runtime, "one")
    first = await one.acquire()
    runtime.database.execute("update leases set expires_at = expires_at - 50000")
    end = runtime.database.scalar("select expires_at from leases")
    assert await one.acquire() == first
    assert runtime.database.count("leases", "expires_at > ?", end) == 1


async def test_a_holder_late_to_renew_keeps_its_term_while_nobody_has_taken_it(runtime: RuntimeHarness) -> None:
    one = lease(runtime, "one")
    first = await one.acquire()
    run_out(runtime)
    assert await one.acquire() == first
    assert await lease(runtime, "two").acquire() is None


async def test_releasing_lets_the_next_one_in_at_once(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    await one.acquire()
    await one.release()
    assert one.fence() is None
    assert await two.acquire() == Fence("pass", 2)
    await one.release()
    assert await two.acquire() == Fence("pass", 2), "releasing what one does not hold takes nothing from who does"


async def test_a_holder_that_was_taken_over_cannot_release_or_renew_the_new_term(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    await one.acquire()
    run_out(runtime)
    await two.acquire()
    await one.release()
    assert await two.acquire() == Fence("pass", 2)
    assert await lease(runtime, "three").acquire() is None


async def test_taking_again_is_a_new_term_also_for_the_same_holder(runtime: RuntimeHarness) -> None:
    assert await lease(runtime, "one").acquire() == Fence("pass", 1)
    again = lease(runtime, "one")
    assert await again.acquire() is None, "a restarted process waits for the end of its former life"
    run_out(runtime)
    assert await again.acquire() == Fence("pass", 2)


async def test_leases_of_different_names_are_nothing_to_each_other(runtime: RuntimeHarness) -> None:
    assert await lease(runtime, "one").acquire()
    assert await lease(runtime, "two", name="another").acquire() == Fence("another", 1)


async def test_of_the_terms_a_batch_shows_only_those_count_that_are_not_over(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    await one.acquire()
    await lease(runtime, "other", name="another").acquire()
    run_out(runtime)
    await two.acquire()
    shown = leases.valid_terms([("another", 1), ("nobody's", 1), ("pass", 1), ("pass", 2)])
    [held] = await runtime.engine.transact(lambda tx: tx.read(shown), zones=[ZONE])
    assert [*map(tuple, held)] == [("another", 1), ("pass", 2)]


async def test_of_many_who_reach_for_a_lease_at_once_exactly_one_has_it(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        reaching = [lease(runtime, f"holder {i}", name=f"pass {number}") for i in range(10)]
        held = await asyncio.gather(*(one.acquire() for one in reaching))
        assert len([fence for fence in held if fence]) == 1


async def test_of_many_replicas_that_reach_for_a_lease_at_once_exactly_one_has_it(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        keels = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(3)]
        for term in range(1, ROUNDS + 1):
            reaching = [lease(keels[i % 3], f"holder {i}") for i in range(9)]
            held = await asyncio.gather(*(one.acquire() for one in reaching))
            assert [fence for fence in held if fence] == [Fence("pass", term)]
            run_out(keels[0])


async def test_a_holder_trusts_itself_from_the_start_of_its_attempt_and_not_to_the_very_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            # Every look takes a second: the answer of the database came late.
            self.now += 1.0
            return self.now

    clock = Clock()
    monkeypatch.setattr(leases, "time", clock)
    async with open_runtime(sqlite_url) as keel:
        one = lease(keel, "one", ttl_ms=10_000)
        assert await one.acquire()
        began = 101.0
        clock.now = began + 10 * (1 - TRUST_MARGIN) - 1.5
        assert one.fence() is not None
        clock.now = began + 10 * (1 - TRUST_MARGIN) - 1.0
        assert one.fence() is None


# -- fencing


async def test_only_the_present_term_can_write(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    first = await one.acquire()
    assert first
    await fenced_write(runtime, first)
    run_out(runtime)
    second = await two.acquire()
    assert second
    with pytest.raises(LeaseLost) as lost:
        await fenced_write(runtime, first)
    assert lost.value.code == "lease_lost"
    await fenced_write(runtime, second)
    assert await written(runtime) == ["1", "2"]


async def test_a_fence_of_a_lease_that_nobody_ever_took_is_refused(runtime: RuntimeHarness) -> None:
    with pytest.raises(LeaseLost):
        await fenced_write(runtime, Fence("nothing", 1))


async def test_a_taker_waits_for_a_write_that_has_shown_its_fence(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        await lease(one, "one", ttl_ms=1).acquire()
        checked, finish = asyncio.Event(), asyncio.Event()

        async def slow(tx: Transaction) -> None:
            await Fence("pass", 1).check(tx)
            checked.set()
            await finish.wait()
            tx.emit(NewEvent("written", ZONE, "1", "tester"))

        writing = asyncio.ensure_future(one.engine.transact(slow, zones=[ZONE]))
        await checked.wait()
        taking = asyncio.ensure_future(lease(two, "two").acquire())

        async def taker_waits() -> bool:
            return two.database.waiting_for_locks() > 0

        await eventually(taker_waits, "the taker waited for the writer")
        finish.set()
        await writing
        assert await taking == Fence("pass", 2)
        assert await written(one) == ["1"]


# -- a frozen holder


@contextlib.asynccontextmanager
async def holder(url: str, where: str, ttl_ms: int = 300) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.lease_holder", url, "pass", str(ttl_ms), where),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=minimal_environment(),
        preexec_fn=signal_on_parent_death(signal.SIGKILL),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def says(process: asyncio.subprocess.Process) -> str:
    assert process.stdout
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


def wake(process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    process.stdin.write(b"go on\n")
    os.kill(process.pid, signal.SIGCONT)


async def taken_over(keel: RuntimeHarness) -> None:
    successor = lease(keel, "successor")

    async def taken() -> bool:
        return await successor.acquire() is not None

    await eventually(taken, "the lease of the frozen holder ended")


async def test_a_holder_frozen_past_its_time_cannot_write_when_it_wakes(runtime: RuntimeHarness) -> None:
    async with holder(runtime.url, "before") as process:
        assert await says(process) == "held 1"
        os.kill(process.pid, signal.SIGSTOP)
        await taken_over(runtime)
        wake(process)
        assert await says(process) == "trusts itself: False"
        assert await says(process) == "refused lease_lost"
    assert [event.type for event in await runtime.read_log()] == ["zone.create"]
    assert runtime.database.execute("select term, holder from leases") == [(2, "successor")]


async def test_a_holder_that_is_not_frozen_writes(runtime: RuntimeHarness) -> None:
    async with holder(runtime.url, "before", ttl_ms=LONG) as process:
        assert await says(process) == "held 1"
        wake(process)
        assert await says(process) == "trusts itself: True"
        assert await says(process) == "wrote"
    assert [event.type for event in await runtime.read_log()] == ["zone.create", "holder.wrote"]


async def test_a_holder_frozen_inside_its_write_is_cut_off_by_postgresql_and_writes_nothing(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel, holder(postgres_url, "inside") as process:
        assert await says(process) == "held 1"
        assert await says(process) == "checked"
        os.kill(process.pid, signal.SIGSTOP)
        await eventually_taken_despite_the_share_lock(keel)
        wake(process)
        assert (await says(process)).startswith("refused")
        assert await keel.read_log() == []


async def eventually_taken_despite_the_share_lock(keel: RuntimeHarness) -> None:
    successor = lease(keel, "successor")

    async def taken() -> bool:
        # The share lock holds a taker off for as long as PostgreSQL bears with a transaction that does nothing.
        with contextlib.suppress(StoreError):
            return await successor.acquire() is not None
        return False

    await eventually(taken, "the lease of the frozen holder was taken")
