"""The sweep runner: bounded passes, repeated while they are full, and retried after failures."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from quarterdeck.engine import sweeps
from quarterdeck.engine.sweeps import Sweep, SweepRunner
from quarterdeck.sweeper_process import SweepLogger


@dataclass
class FakeSweep:
    """Each pass returns or raises the next of `results`, then 0."""

    results: list[int | Exception] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    is_done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_once(self, batch: int) -> int:
        self.batches.append(batch)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if not self.results:
            self.is_done.set()
            return 0
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


class RecordingObserver:
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def on_swept(self, sweep: str, changed: int) -> None:
        self.calls.append((sweep, changed))

    def on_failed(self, sweep: str) -> None:
        self.calls.append((sweep, "failed"))


async def test_passes_are_repeated_while_they_are_full() -> None:
    sweep, observer = FakeSweep([5, 5, 3, 5]), RecordingObserver()
    assert await SweepRunner([Sweep("expiry", 1_000, 5, sweep.run_once)], observer).run_now("expiry") == 13
    assert sweep.batches == [5, 5, 5]
    assert observer.calls == [("expiry", 13)]


def test_two_sweeps_of_one_name_are_refused() -> None:
    twin = [Sweep("expiry", 1_000, 5, FakeSweep().run_once) for _ in range(2)]
    with pytest.raises(ValueError, match="a name of its own: expiry, expiry"):
        SweepRunner(twin)


async def test_endless_sweep_stops_after_passes_max() -> None:
    sweep = FakeSweep([5] * 1_000)
    assert await SweepRunner([Sweep("expiry", 1_000, 5, sweep.run_once)]).run_now("expiry") == 5 * sweeps.PASSES_MAX


async def test_sweep_never_runs_concurrently_with_itself() -> None:
    sweep = FakeSweep([2, 2, 1, 2, 1])
    runner = SweepRunner([Sweep("expiry", 1_000, 2, sweep.run_once)])
    assert sorted(await asyncio.gather(runner.run_now("expiry"), runner.run_now("expiry"))) == [3, 5]
    assert sweep.most_running == 1


async def test_pass_that_takes_too_long_times_out() -> None:
    async def stuck(batch: int) -> int:
        await asyncio.Event().wait()
        return 0

    with pytest.raises(TimeoutError):
        await SweepRunner([Sweep("stuck", 1_000, 5, stuck, timeout_seconds=0.01)]).run_now("stuck")


async def test_failed_pass_is_reported_and_retried() -> None:
    sweep, observer = FakeSweep([ZeroDivisionError("first"), 3, TimeoutError("third")]), RecordingObserver()
    runner = SweepRunner([Sweep("expiry", 1, 5, sweep.run_once)], observer)
    runner.start()
    async with asyncio.timeout(10):
        await sweep.is_done.wait()
    await runner.stop()
    assert observer.calls[:3] == [("expiry", "failed"), ("expiry", 3), ("expiry", "failed")]


async def test_stuck_sweep_does_not_block_others() -> None:
    sweep = FakeSweep()

    async def stuck(batch: int) -> int:
        await asyncio.Event().wait()
        return 0

    runner = SweepRunner([Sweep("stuck", 1, 5, stuck), Sweep("expiry", 1, 5, sweep.run_once)])
    runner.start()
    async with asyncio.timeout(10):
        await sweep.is_done.wait()
        await runner.stop()


async def test_stop_ends_every_sweep_and_is_idempotent() -> None:
    sweep = FakeSweep()
    runner = SweepRunner([Sweep("expiry", 1, 5, sweep.run_once)])
    runner.start()
    await runner.stop()
    passes = len(sweep.batches)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(sweep.batches) == passes
    await runner.stop()


async def test_only_named_sweeps_start_and_all_observers_are_notified() -> None:
    named, other, first, second = FakeSweep(), FakeSweep(), RecordingObserver(), RecordingObserver()
    runner = SweepRunner([Sweep("expiry", 1, 5, named.run_once), Sweep("retention", 1, 5, other.run_once)], first)
    runner.add_observer(second)
    runner.start(["expiry"])
    async with asyncio.timeout(10):
        await named.is_done.wait()
    await runner.stop()
    assert other.batches == []
    assert first.calls == second.calls
    assert {name for name, _ in first.calls} == {"expiry"}


def test_sweep_logger_summarizes_changes_over_several_passes(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    logger = SweepLogger(lambda: clock[0])
    with caplog.at_level(logging.INFO, "quarterdeck.sweeper_process"):
        for at, changed in ((0.0, 3), (1.0, 4), (2.0, 0), (9.9, 5), (10.0, 0), (30.0, 0), (31.0, 7)):
            clock[0] = at
            logger.on_swept("expiry", changed)
        logger.on_swept("retention", 0)
        logger.on_swept("expiry", 1)
        logger.log_all()
    assert [record.getMessage() for record in caplog.records] == [
        f"sweep expiry moved {changed}" for changed in (3, 9, 7, 1)
    ]
