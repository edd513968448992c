"""How long a worker pauses between claims. No server is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from quarterdeck.core.retry import Policy
from quarterdeck.sdk.errors import Fault, Problem
from quarterdeck.sdk.worker_core import claims
from quarterdeck.sdk.worker_core.claims import Claimer


class OneSlot:
    def free_slots(self, limit: int) -> int:
        return 1

    async def wait_for_slots(self, limit: int) -> int:
        return 1

    @contextlib.contextmanager
    def reserve_slots(self, count: int) -> Iterator[None]:
        yield


class ScriptedClaims:
    """Claims that do what the steps say, and then wait until they are canceled."""

    noun, limit = "tasks", 1

    def __init__(self, *steps: Callable[[], Sequence[str]]) -> None:
        self._steps = list(steps)
        self.has_ended = asyncio.Event()

    async def prepare(self) -> None: ...

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> Sequence[str]:
        if not self._steps:
            self.has_ended.set()
            await asyncio.Event().wait()
        return self._steps.pop(0)()

    async def release(self, leases: Sequence[str]) -> None: ...

    async def handle_refusal(self, problem: Problem) -> None:
        raise problem


def fail() -> Sequence[str]:
    raise Fault("unreachable", "The server cannot be reached.")


async def test_pauses_start_again_after_a_claim_that_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, attempts, offset = asyncio.get_running_loop(), list[int](), [0.0]
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + offset[0])

    def no_pause(policy: Policy, *, attempt: int, jitter: float) -> float:
        attempts.append(attempt)
        return 0.0

    def wait_in_vain() -> Sequence[str]:
        offset[0] += claims.WAIT_SECONDS
        return ()

    monkeypatch.setattr(claims, "backoff", no_pause)
    source = ScriptedClaims(fail, fail, lambda: (), wait_in_vain, fail, lambda: ("lease",), fail)
    found: list[str] = []
    claimer = asyncio.create_task(Claimer(source, OneSlot()).run(found.extend))
    async with asyncio.timeout(claims.WAIT_SECONDS * 2):
        await source.has_ended.wait()
    claimer.cancel()
    assert (attempts, found) == ([1, 2, 3, 1, 1], ["lease"])
