"""How an agent executes a task: step by step, with a checkpoint after each step, so that another agent can resume."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Protocol

import msgspec


class TaskInput(msgspec.Struct, frozen=True):
    """The content of a task's `inputContext`."""

    steps: int = 2
    seconds: float = 0.02
    """The duration of one step."""
    behaviour: str = "steady"
    """`flaky` fails sometimes, `failing` always; `slow` exceeds its time-out in the first attempt."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The content of a task's `checkpointData`."""

    done: int = 0


class AttemptFailed(Exception):
    """The attempt has failed."""


class AttemptContext(Protocol):
    """The attempt that is executed."""

    @property
    def attempt(self) -> int: ...

    async def pause(self, seconds: float) -> None:
        """Wait. Raises if the agent knows that the attempt was canceled."""

    async def save(self, percent: int, step: str, checkpoint: Checkpoint) -> None:
        """Save a checkpoint. Raises if the attempt is no longer valid."""


SLOW_SECONDS = 3.0
"""Longer than the time-out of a slow task."""


async def run_task(
    task_input: TaskInput, checkpoint: Checkpoint, context: AttemptContext, rng: random.Random
) -> dict[str, object]:
    """Execute a task from a checkpoint. Return its result."""
    failing_step = rng.randrange(task_input.steps) if task_input.behaviour == "flaky" and rng.random() < 0.3 else None
    for step in range(checkpoint.done, task_input.steps):
        await context.pause(
            SLOW_SECONDS if task_input.behaviour == "slow" and context.attempt == 1 else task_input.seconds
        )
        if step == failing_step:
            raise AttemptFailed(f"failed at step {step}")
        await context.save(100 * (step + 1) // task_input.steps, f"step {step}", Checkpoint(step + 1))
    if task_input.behaviour == "failing":
        raise AttemptFailed("always fails")
    return {"steps": task_input.steps, "started_at_step": checkpoint.done}


async def wait_or_timeout(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most `seconds`. Return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
