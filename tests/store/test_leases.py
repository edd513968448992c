"""Leases: one holder at a time. Terms fence off former holders, also a process that was frozen."""

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

LONG_TTL_MS = 60_000


def lease(runtime: RuntimeHarness, holder: str, ttl_ms: int = LONG_TTL_MS, name: str = "pass") -> Lease:
    return Lease(runtime.engine, name, holder, ttl_ms)


def expire_leases(runtime: RuntimeHarness) -> None:
    """Expire every lease without waiting."""
    runtime.database.execute("update leases set expires_at = 0")


async def fenced_write(runtime: RuntimeHarness, fence: Fence) -> None:
    async def operation(tx: Transaction) -> None:
        await fence.check(tx)
        tx.emit(NewEvent("written", ZONE, str(fence.term), "tester"))

    await runtime.engine.transact(operation, zones=[ZONE])


async def written_terms(runtime: RuntimeHarness) -> list[str]:
    return [event.subject for event in await runtime.read_log() if event.type == "written"]


# -- acquire and release


async def test_lease_cannot_be_taken_before_it_expires(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    assert await one.acquire() == Fence("pass", 1)
    assert await two.acquire() is None
    assert two.fence() is None
    expire_leases(runtime)
    assert await two.acquire() == Fence("pass", 2)
    assert await one.acquire() is None
    assert one.fence() is None


async def test_renewal_keeps_the_term_and_extends_the_expiry(runtime: RuntimeHarness) -> None:
    one = lease(runtime, "one")
    first = await one.acquire()
    runtime.database.execute("update leases set expires_at = expires_at - 50000")
    expires_at = runtime.database.scalar("select expires_at from leases")
    assert await one.acquire() == first
    assert runtime.database.count("leases", "expires_at > ?", expires_at) == 1


async def test_late_renewal_keeps_the_term_if_the_lease_was_not_taken(runtime: RuntimeHarness) -> None:
    one = lease(runtime, "one")
    first = await one.acquire()
    expire_leases(runtime)
    assert await one.acquire() == first
    assert await lease(runtime, "two").acquire() is None


async def test_released_lease_can_be_taken_at_once(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    await one.acquire()
    await one.release()
    assert one.fence() is None
    assert await two.acquire() == Fence("pass", 2)
    await one.release()
    assert await two.acquire() == Fence("pass", 2), "a release without the lease has no effect on the holder"


async def test_former_holder_cannot_release_or_renew_the_new_term(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    await one.acquire()
    expire_leases(runtime)
    await two.acquire()
    await one.release()
    assert await two.acquire() == Fence("pass", 2)
    assert await lease(runtime, "three").acquire() is None


async def test_taking_a_lease_again_starts_a_new_term_for_the_same_holder(runtime: RuntimeHarness) -> None:
    assert await lease(runtime, "one").acquire() == Fence("pass", 1)
    again = lease(runtime, "one")
    assert await again.acquire() is None, "a restarted process waits for the expiry of its former lease"
    expire_leases(runtime)
    assert await again.acquire() == Fence("pass", 2)


async def test_leases_of_different_names_are_independent(runtime: RuntimeHarness) -> None:
    assert await lease(runtime, "one").acquire()
    assert await lease(runtime, "two", name="another").acquire() == Fence("another", 1)


async def test_valid_terms_returns_only_current_terms(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    await one.acquire()
    await lease(runtime, "other", name="another").acquire()
    expire_leases(runtime)
    await two.acquire()
    statement = leases.valid_terms_statement([("another", 1), ("unknown", 1), ("pass", 1), ("pass", 2)])
    [valid] = await runtime.engine.transact(lambda tx: tx.read(statement), zones=[ZONE])
    assert [*map(tuple, valid)] == [("another", 1), ("pass", 2)]


async def test_concurrent_acquires_give_the_lease_to_exactly_one(runtime: RuntimeHarness) -> None:
    for number in range(ROUNDS):
        contenders = [lease(runtime, f"holder {i}", name=f"pass {number}") for i in range(10)]
        fences = await asyncio.gather(*(contender.acquire() for contender in contenders))
        assert len([fence for fence in fences if fence]) == 1


async def test_concurrent_acquires_of_replicas_give_the_lease_to_exactly_one(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(3)]
        for term in range(1, ROUNDS + 1):
            contenders = [lease(runtimes[i % 3], f"holder {i}") for i in range(9)]
            fences = await asyncio.gather(*(contender.acquire() for contender in contenders))
            assert [fence for fence in fences if fence] == [Fence("pass", term)]
            expire_leases(runtimes[0])


async def test_fence_is_trusted_from_the_start_of_the_request_less_a_margin(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeClock:
        now = 100.0

        def monotonic(self) -> float:
            # Each call takes a second: the database answers late.
            self.now += 1.0
            return self.now

    clock = FakeClock()
    monkeypatch.setattr(leases, "time", clock)
    async with open_runtime(sqlite_url) as runtime:
        one = lease(runtime, "one", ttl_ms=10_000)
        assert await one.acquire()
        started = 101.0
        clock.now = started + 10 * (1 - TRUST_MARGIN) - 1.5
        assert one.fence() is not None
        clock.now = started + 10 * (1 - TRUST_MARGIN) - 1.0
        assert one.fence() is None


# -- fencing


async def test_only_the_current_term_can_write(runtime: RuntimeHarness) -> None:
    one, two = lease(runtime, "one"), lease(runtime, "two")
    first = await one.acquire()
    assert first
    await fenced_write(runtime, first)
    expire_leases(runtime)
    second = await two.acquire()
    assert second
    with pytest.raises(LeaseLost) as lost:
        await fenced_write(runtime, first)
    assert lost.value.code == "lease_lost"
    await fenced_write(runtime, second)
    assert await written_terms(runtime) == ["1", "2"]


async def test_fence_of_an_unknown_lease_is_refused(runtime: RuntimeHarness) -> None:
    with pytest.raises(LeaseLost):
        await fenced_write(runtime, Fence("nothing", 1))


async def test_new_holder_waits_for_a_write_that_has_checked_its_fence(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        await lease(one, "one", ttl_ms=1).acquire()
        checked, finish = asyncio.Event(), asyncio.Event()

        async def write_slowly(tx: Transaction) -> None:
            await Fence("pass", 1).check(tx)
            checked.set()
            await finish.wait()
            tx.emit(NewEvent("written", ZONE, "1", "tester"))

        writing = asyncio.ensure_future(one.engine.transact(write_slowly, zones=[ZONE]))
        await checked.wait()
        taking = asyncio.ensure_future(lease(two, "two").acquire())

        async def new_holder_waits() -> bool:
            return two.database.waiting_for_locks() > 0

        await eventually(new_holder_waits, "the new holder waited for the writer")
        finish.set()
        await writing
        assert await taking == Fence("pass", 2)
        assert await written_terms(one) == ["1"]


# -- a frozen holder


@contextlib.asynccontextmanager
async def holder(url: str, pause_point: str, ttl_ms: int = 300) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.lease_holder", url, "pass", str(ttl_ms), pause_point),
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


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


def resume(process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    process.stdin.write(b"continue\n")
    os.kill(process.pid, signal.SIGCONT)


async def take_over(runtime: RuntimeHarness) -> None:
    successor = lease(runtime, "successor")

    async def taken() -> bool:
        return await successor.acquire() is not None

    await eventually(taken, "the lease of the frozen holder expired")


async def test_holder_frozen_past_its_expiry_cannot_write(runtime: RuntimeHarness) -> None:
    async with holder(runtime.url, "before") as process:
        assert await read_line(process) == "held 1"
        os.kill(process.pid, signal.SIGSTOP)
        await take_over(runtime)
        resume(process)
        assert await read_line(process) == "has fence: False"
        assert await read_line(process) == "refused lease_lost"
    assert [event.type for event in await runtime.read_log()] == ["zone.create"]
    assert runtime.database.execute("select term, holder from leases") == [(2, "successor")]


async def test_holder_that_is_not_frozen_writes(runtime: RuntimeHarness) -> None:
    async with holder(runtime.url, "before", ttl_ms=LONG_TTL_MS) as process:
        assert await read_line(process) == "held 1"
        resume(process)
        assert await read_line(process) == "has fence: True"
        assert await read_line(process) == "wrote"
    assert [event.type for event in await runtime.read_log()] == ["zone.create", "holder.wrote"]


async def test_holder_frozen_inside_its_transaction_is_aborted_by_postgresql(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime, holder(postgres_url, "inside") as process:
        assert await read_line(process) == "held 1"
        assert await read_line(process) == "checked"
        os.kill(process.pid, signal.SIGSTOP)
        await take_over_despite_the_share_lock(runtime)
        resume(process)
        assert (await read_line(process)).startswith("refused")
        assert await runtime.read_log() == []


async def take_over_despite_the_share_lock(runtime: RuntimeHarness) -> None:
    successor = lease(runtime, "successor")

    async def taken() -> bool:
        # The share lock blocks a new holder until PostgreSQL aborts the idle transaction.
        with contextlib.suppress(StoreError):
            return await successor.acquire() is not None
        return False

    await eventually(taken, "the lease of the frozen holder was taken")
