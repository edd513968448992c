"""The outbox retries completions until the server accepts them. No server is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from quarterdeck.core.retry import Policy
from quarterdeck.sdk.errors import Problem, Unauthenticated, Unavailable
from quarterdeck.sdk.invocation_worker.calls import CompletionOutbox
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import Completion, Item
from quarterdeck.sdk.worker_core import reports

COMPLETION = Completion("a", "token", "succeeded")
EXPIRED = Unauthenticated("token_expired", "The token has expired.")
ENDED = Unauthenticated("session_ended", "The session has ended.")
UNAVAILABLE = Unavailable("database_unavailable", "Unavailable.")


class FakeInvocations:
    """Raises the refusals in order, then accepts completions."""

    def __init__(self, *refusals: Problem) -> None:
        self._refusals = [*refusals]
        self.accepted: list[str] = []

    async def complete(self, completions: Sequence[Completion]) -> tuple[Item, ...]:
        if self._refusals:
            raise self._refusals.pop(0)
        self.accepted += [each.id for each in completions]
        return tuple(Item(each.id, each.status) for each in completions)


async def report(fake: FakeInvocations) -> list[Completion]:
    """Reports one completion. Returns the completions that are settled afterwards."""
    settled: list[Completion] = []
    outbox = CompletionOutbox(cast(Invocations, fake), settled.append)
    running = asyncio.create_task(outbox.run())
    outbox.add(COMPLETION)
    await asyncio.wait_for(outbox.wait_until_sent(), 30)
    running.cancel()
    return settled


@pytest.fixture(autouse=True)
def _no_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "RETRY_POLICY", Policy(max_attempts=0, base_ms=1, cap_ms=1))


@pytest.mark.parametrize("refusals", [[EXPIRED], [UNAVAILABLE, EXPIRED, UNAVAILABLE]], ids=["expired", "both"])
async def test_completion_is_reported_again_after_token_renewal(refusals: list[Problem]) -> None:
    fake = FakeInvocations(*refusals)
    assert await report(fake) == [COMPLETION]
    assert fake.accepted == ["a"]


async def test_completion_is_dropped_when_the_session_has_ended() -> None:
    fake = FakeInvocations(ENDED)
    assert await report(fake) == [COMPLETION]
    assert fake.accepted == []
