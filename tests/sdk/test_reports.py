"""Outcomes are told until they are heard. Nothing here needs a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from quarterdeck.core.retry import Policy
from quarterdeck.sdk.errors import Problem, Unauthenticated, Unavailable
from quarterdeck.sdk.invocation_worker import reports
from quarterdeck.sdk.invocation_worker.reports import Reporter
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import Completion, Item

DONE = Completion("a", "token", "succeeded")
EXPIRED = Unauthenticated("token_expired", "Its time is over.")
ENDED = Unauthenticated("session_ended", "Its session has ended.")
AWAY = Unavailable("database_unavailable", "Away.")


class Wire:
    """Refuses so often, and then takes what it is told."""

    def __init__(self, *refusals: Problem) -> None:
        self._refusals = [*refusals]
        self.heard: list[str] = []

    async def complete(self, done: Sequence[Completion]) -> tuple[Item, ...]:
        if self._refusals:
            raise self._refusals.pop(0)
        self.heard += [each.id for each in done]
        return tuple(Item(each.id, each.status) for each in done)


async def told(wire: Wire) -> list[Completion]:
    """What needs to be told no more, once one outcome has been reported."""
    over: list[Completion] = []
    reporter = Reporter(cast(Invocations, wire), over.append)
    running = asyncio.create_task(reporter.run())
    reporter.add(DONE)
    await asyncio.wait_for(reporter.wait_until_sent(), 30)
    running.cancel()
    return over


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "RETRY_POLICY", Policy(max_attempts=0, base_ms=1, cap_ms=1))


@pytest.mark.parametrize("refusals", [[EXPIRED], [AWAY, EXPIRED, AWAY]], ids=["expired", "both"])
async def test_an_outcome_outlives_a_token_that_is_renewed(refusals: list[Problem]) -> None:
    wire = Wire(*refusals)
    assert await told(wire) == [DONE]
    assert wire.heard == ["a"]


async def test_for_a_session_that_has_ended_nothing_is_told_again() -> None:
    wire = Wire(ENDED)
    assert await told(wire) == [DONE]
    assert wire.heard == []
