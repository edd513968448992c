"""How an agent does a task: step by step, saving after each how far it has come, so that another can go on from
there."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Protocol

import msgspec


class Job(msgspec.Struct, frozen=True):
    """What stands in a task's `inputContext`."""

    steps: int = 2
    seconds: float = 0.02
    """For one step."""
    mood: str = "steady"
    """`fragile` fails now and then; `hopeless` always; `slow` takes far too long the first time."""


class Saved(msgspec.Struct, frozen=True):
    """What stands in a task's `checkpointData`."""

    done: int = 0


class Broken(Exception):
    """This attempt has failed."""


class Bench(Protocol):
    """Where one attempt is worked at."""

    @property
    def attempt(self) -> int: ...

    async def pause(self, seconds: float) -> None:
        """Raises if the attempt is not wanted any more, as far as its agent knows."""

    async def save(self, percent: int, step: str, saved: Saved) -> None:
        """Raises if the attempt does not count any more."""


SLOW_SECONDS = 3.0
"""Longer than such a task's own time."""


async def labour(job: Job, saved: Saved, bench: Bench, chance: random.Random) -> dict[str, object]:
    """What the task's result is to be."""
    breaks_at = chance.randrange(job.steps) if job.mood == "fragile" and chance.random() < 0.3 else None
    for step in range(saved.done, job.steps):
        await bench.pause(SLOW_SECONDS if job.mood == "slow" and bench.attempt == 1 else job.seconds)
        if step == breaks_at:
            raise Broken(f"it broke at step {step}")
        await bench.save(100 * (step + 1) // job.steps, f"step {step}", Saved(step + 1))
    if job.mood == "hopeless":
        raise Broken("nobody can do this")
    return {"steps": job.steps, "begun_at": saved.done}


async def unless(event: asyncio.Event, seconds: float) -> bool:
    """Lets so much time pass, unless something happens before; whether it did."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
