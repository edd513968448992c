"""How an agent does a task: step by step, saving after each how far it has come, so that another can go on from
there."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Protocol

import msgspec


class TaskInput(msgspec.Struct, frozen=True):
    """What stands in a task's `inputContext`."""

    steps: int = 2
    seconds: float = 0.02
    """For one step."""
    mood: str = "steady"
    """`fragile` fails now and then; `hopeless` always; `slow` takes far too long the first time."""


class Checkpoint(msgspec.Struct, frozen=True):
    """What stands in a task's `checkpointData`."""

    done: int = 0


class AttemptFailed(Exception):
    """This attempt has failed."""


class AttemptContext(Protocol):
    """Where one attempt is worked at."""

    @property
    def attempt(self) -> int: ...

    async def pause(self, seconds: float) -> None:
        """Raises if the attempt is not wanted any more, as far as its agent knows."""

    async def save(self, percent: int, step: str, checkpoint: Checkpoint) -> None:
        """Raises if the attempt does not count any more."""


SLOW_SECONDS = 3.0
"""Longer than such a task's own time."""


async def run_task(
    task_input: TaskInput, checkpoint: Checkpoint, context: AttemptContext, rng: random.Random
) -> dict[str, object]:
    """What the task's result is to be."""
    failing_step = rng.randrange(task_input.steps) if task_input.mood == "fragile" and rng.random() < 0.3 else None
    for step in range(checkpoint.done, task_input.steps):
        await context.pause(SLOW_SECONDS if task_input.mood == "slow" and context.attempt == 1 else task_input.seconds)
        if step == failing_step:
            raise AttemptFailed(f"it broke at step {step}")
        await context.save(100 * (step + 1) // task_input.steps, f"step {step}", Checkpoint(step + 1))
    if task_input.mood == "hopeless":
        raise AttemptFailed("nobody can do this")
    return {"steps": task_input.steps, "begun_at": checkpoint.done}


async def wait_or_timeout(event: asyncio.Event, seconds: float) -> bool:
    """Lets so much time pass, unless something happens before; whether it did."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
