"""Errands: tasks that nobody waits for are heard when they fail, have their time when all stops, and insist."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quarterdeck.core.errors import Conflict, Unavailable
from quarterdeck.core.retry import Policy
from quarterdeck.engine.background import Background, retry_while_unavailable

log = logging.getLogger("quarterdeck.test")
AT_ONCE = Policy(max_attempts=0, base_ms=0)


async def test_the_failure_of_a_task_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("not this time")

    errands = Background(log)
    errands.start(fails(), "the errand")
    assert await errands.stop(1.0) == 0
    assert [record.getMessage() for record in caplog.records] == ["the errand failed"]


async def test_whoever_stops_waits_for_what_ends_in_time_and_cuts_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    errands, gate, done = Background(log), asyncio.Event(), list[str]()

    async def waits(name: str, for_it: asyncio.Event) -> None:
        await for_it.wait()
        done.append(name)

    errands.start(waits("one", gate), "one")
    stuck = errands.start(waits("another", asyncio.Event()), "another")
    gate.set()
    assert await errands.stop(0.05) == 1
    assert (done, stuck.cancelled()) == (["one"], True)
    assert await errands.stop(60.0) == 0, "nothing is left to wait for"
    assert not caplog.records


class Database:
    """Refuses each thing that is said to it, in turn, and then hears."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = [*refusals]

    async def hear(self) -> str:
        if self.refusals:
            raise self.refusals.pop(0)
        return "heard"


AWAY = Unavailable("database_unavailable", "It is away.")


async def test_what_came_of_it_is_said_again_while_the_database_is_away() -> None:
    database = Database(*[AWAY] * 3)
    assert await retry_while_unavailable(database.hear, asyncio.get_running_loop().time() + 60, AT_ONCE) == "heard"
    assert not database.refusals


async def test_it_is_said_once_more_at_least_and_given_up_when_its_time_is_over() -> None:
    database = Database(*[AWAY] * 3)
    with pytest.raises(Unavailable):
        await retry_while_unavailable(database.hear, asyncio.get_running_loop().time() - 1, AT_ONCE)
    assert len(database.refusals) == 2


async def test_a_refusal_is_final() -> None:
    database = Database(Conflict("over", "It is over."), AWAY)
    with pytest.raises(Conflict):
        await retry_while_unavailable(database.hear, asyncio.get_running_loop().time() + 60, AT_ONCE)
    assert len(database.refusals) == 1
