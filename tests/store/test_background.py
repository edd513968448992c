"""Background tasks: failures are logged, `stop` waits for a bounded time, a loop is canceled and waited for, and
unavailability is retried."""

from __future__ import annotations

import asyncio
import logging

import pytest

from quarterdeck.core.errors import Conflict, Unavailable
from quarterdeck.core.retry import Policy
from quarterdeck.engine.background import Background, BackgroundLoop, retry_while_unavailable

log = logging.getLogger("quarterdeck.test")
NO_DELAY = Policy(max_attempts=0, base_ms=0)


async def test_failure_of_a_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("failed")

    background = Background(log)
    background.start(fail(), "cleanup")
    assert await background.stop(1.0) == 0
    assert [record.getMessage() for record in caplog.records] == ["cleanup failed"]


async def test_stop_waits_for_a_bounded_time_and_cancels_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    background, gate, done = Background(log), asyncio.Event(), list[str]()

    async def wait_for(name: str, event: asyncio.Event) -> None:
        await event.wait()
        done.append(name)

    background.start(wait_for("one", gate), "one")
    stuck = background.start(wait_for("another", asyncio.Event()), "another")
    gate.set()
    assert await background.stop(0.05) == 1
    assert (done, stuck.cancelled()) == (["one"], True)
    assert await background.stop(60.0) == 0, "nothing is left to wait for"
    assert not caplog.records


class Loop(BackgroundLoop):
    """Runs until canceled, or raises `failure`. Ends after `may_end` is set."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("loop")
        self.failure = failure
        self.is_ending, self.may_end = asyncio.Event(), asyncio.Event()

    async def _run(self) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await self.may_end.wait()


async def test_stop_of_a_loop_returns_when_its_task_has_ended() -> None:
    loop = Loop()
    loop.start()
    await asyncio.sleep(0)
    stop = asyncio.create_task(loop.stop())
    await loop.is_ending.wait()
    assert (loop.is_running, stop.done()) == (True, False)
    loop.may_end.set()
    await stop
    assert not loop.is_running


async def test_stop_of_a_loop_logs_its_failure_and_returns(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(ValueError("the reason"))
    loop.start()
    await asyncio.sleep(0)
    assert not loop.is_running
    await loop.stop()
    [record] = caplog.records
    assert (record.getMessage(), record.levelname) == ("loop failed", "ERROR")
    assert "the reason" in caplog.text


async def test_loop_can_be_stopped_before_its_start_and_twice_and_started_again() -> None:
    loop = Loop()
    await loop.stop()
    for _ in range(2):
        loop.start()
        assert loop.is_running
        await loop.stop()
        await loop.stop()
        assert not loop.is_running


class Database:
    """Raises each of `refusals` once, then stores."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = [*refusals]

    async def store(self) -> str:
        if self.refusals:
            raise self.refusals.pop(0)
        return "stored"


UNAVAILABLE = Unavailable("database_unavailable", "The database is not reachable.")


async def test_call_is_retried_while_the_database_is_unavailable() -> None:
    database = Database(*[UNAVAILABLE] * 3)
    assert await retry_while_unavailable(database.store, asyncio.get_running_loop().time() + 60, NO_DELAY) == "stored"
    assert not database.refusals


async def test_call_is_tried_once_even_after_the_deadline() -> None:
    database = Database(*[UNAVAILABLE] * 3)
    with pytest.raises(Unavailable):
        await retry_while_unavailable(database.store, asyncio.get_running_loop().time() - 1, NO_DELAY)
    assert len(database.refusals) == 2


async def test_refusal_is_not_retried() -> None:
    database = Database(Conflict("ended", "It has ended."), UNAVAILABLE)
    with pytest.raises(Conflict):
        await retry_while_unavailable(database.store, asyncio.get_running_loop().time() + 60, NO_DELAY)
    assert len(database.refusals) == 1
