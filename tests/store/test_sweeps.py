"""The sweep runner: bounded passes, repeated while they come back full, and never given up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from quarterdeck.engine import sweeps
from quarterdeck.engine.sweeps import Sweep, SweepRunner
from quarterdeck.sweeper_process import SweepLogger


@dataclass
class Broom:
    """What a pass does: moves so many rows, in turn; fails where it is told to."""

    moves: list[int | Exception] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    passed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_once(self, batch: int) -> int:
        self.asked.append(batch)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if not self.moves:
            self.passed.set()
            return 0
        moved = self.moves.pop(0)
        if isinstance(moved, Exception):
            raise moved
        return moved


class Ears:
    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []

    def on_swept(self, sweep: str, changed: int) -> None:
        self.heard.append((sweep, changed))

    def on_failed(self, sweep: str) -> None:
        self.heard.append((sweep, "failed"))


async def test_passes_are_repeated_while_they_come_back_full() -> None:
    broom, ears = Broom([5, 5, 3, 5]), Ears()
    assert await SweepRunner([Sweep("dust", 1_000, 5, broom.run_once)], ears).run_now("dust") == 13
    assert broom.asked == [5, 5, 5]
    assert ears.heard == [("dust", 13)]


async def test_a_sweep_that_never_comes_to_an_end_lets_others_have_a_turn() -> None:
    broom = Broom([5] * 1_000)
    assert await SweepRunner([Sweep("dust", 1_000, 5, broom.run_once)]).run_now("dust") == 5 * sweeps.PASSES_MAX


async def test_a_sweep_never_runs_beside_itself() -> None:
    broom = Broom([2, 2, 1, 2, 1])
    runner = SweepRunner([Sweep("dust", 1_000, 2, broom.run_once)])
    assert sorted(await asyncio.gather(runner.run_now("dust"), runner.run_now("dust"))) == [3, 5]
    assert broom.most_at_once == 1


async def test_a_pass_that_takes_too_long_is_broken_off() -> None:
    async def stuck(batch: int) -> int:
        await asyncio.Event().wait()
        return 0

    with pytest.raises(TimeoutError):
        await SweepRunner([Sweep("stuck", 1_000, 5, stuck, timeout_seconds=0.01)]).run_now("stuck")


async def test_a_pass_that_fails_is_told_of_and_tried_again_at_its_next_turn() -> None:
    broom, ears = Broom([ZeroDivisionError("once"), 3, TimeoutError("twice")]), Ears()
    runner = SweepRunner([Sweep("dust", 1, 5, broom.run_once)], ears)
    runner.start()
    async with asyncio.timeout(10):
        await broom.passed.wait()
    await runner.stop()
    assert ears.heard[:3] == [("dust", "failed"), ("dust", 3), ("dust", "failed")]


async def test_a_sweep_that_is_stuck_does_not_keep_another_from_its_turn() -> None:
    broom = Broom()

    async def stuck(batch: int) -> int:
        await asyncio.Event().wait()
        return 0

    runner = SweepRunner([Sweep("stuck", 1, 5, stuck), Sweep("dust", 1, 5, broom.run_once)])
    runner.start()
    async with asyncio.timeout(10):
        await broom.passed.wait()
        await runner.stop()


async def test_stopping_ends_every_sweep_and_may_be_repeated() -> None:
    broom = Broom()
    runner = SweepRunner([Sweep("dust", 1, 5, broom.run_once)])
    runner.start()
    await runner.stop()
    asked = len(broom.asked)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(broom.asked) == asked
    await runner.stop()


async def test_only_the_sweeps_that_are_named_begin_and_everybody_hears_of_them() -> None:
    named, other, first, second = Broom(), Broom(), Ears(), Ears()
    runner = SweepRunner([Sweep("dust", 1, 5, named.run_once), Sweep("rust", 1, 5, other.run_once)], first)
    runner.add_observer(second)
    runner.start(["dust"])
    async with asyncio.timeout(10):
        await named.passed.wait()
    await runner.stop()
    assert other.asked == []
    assert first.heard == second.heard
    assert {name for name, _ in first.heard} == {"dust"}


def test_a_tally_says_what_moved_and_not_at_every_pass(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    tally = SweepLogger(lambda: clock[0])
    with caplog.at_level(logging.INFO, "quarterdeck.sweeper_process"):
        for at, moved in ((0.0, 3), (1.0, 4), (2.0, 0), (9.9, 5), (10.0, 0), (30.0, 0), (31.0, 7)):
            clock[0] = at
            tally.on_swept("dust", moved)
        tally.on_swept("rust", 0)
        tally.on_swept("dust", 1)
        tally.log_all()
    assert [record.getMessage() for record in caplog.records] == [
        f"the sweep dust moved {moved}" for moved in (3, 9, 7, 1)
    ]
