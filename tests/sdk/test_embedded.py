"""A server inside one's own program: the same client, the same refusals, and what it leaves behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import quarterdeck
from quarterdeck.embedded_server import Embedded, EmbeddedConfig
from quarterdeck.sdk import Attempt, TaskWorker
from quarterdeck.sdk.errors import Forbidden, NotFound, TimedOut, Unauthenticated, Unreachable
from quarterdeck.settings import SettingsError
from tests.sdk.fake_servers import collect
from tests.support.eventually import eventually

LIMIT = 60.0


def where(engine_url: str, tmp_path: Path) -> Embedded:
    """On both engines, on a database that is there already."""
    if engine_url.startswith("sqlite"):
        return quarterdeck.embedded(Path(engine_url.removeprefix("sqlite:///")))
    return quarterdeck.embedded(engine_url, data=tmp_path / "keys")


async def test_a_worker_works_and_its_caller_waits_in_one_process(engine_url: str, tmp_path: Path) -> None:
    async with where(engine_url, tmp_path) as qd:
        worker = TaskWorker(qd, "dev-1", concurrency=4)

        @worker.task("square")
        async def square(task: Attempt) -> int:
            await task.progress(50)
            return int(str(task.input["n"])) ** 2

        made = await asyncio.gather(*(qd.tasks.create(f"{n}", "square", input_context={"n": n}) for n in range(20)))
        running = asyncio.create_task(worker.run())
        ended = await qd.tasks.wait([task.id for task in made], timeout=LIMIT)
        assert [task.output_result for task in ended] == [n * n for n in range(20)]
        worker.stop()
        await asyncio.wait_for(running, LIMIT)
        assert len(await collect(qd.tasks.list(status="COMPLETED"))) == 20
        session = await qd.sessions.spawn("planner")
        assert [event.subject async for event in qd.events.list(types=["session.spawn"])] == [session.id]


async def test_what_was_done_is_there_again_and_secrets_with_it(tmp_path: Path) -> None:
    async with quarterdeck.embedded(tmp_path / "work") as qd:
        made = await qd.tasks.create("it", "any", input_context={"password": "hush"})
    async with quarterdeck.embedded(tmp_path / "work") as qd:
        assert (await qd.tasks.get(made.id)).input_context == {"password": "***"}
        await qd.agents.register("dev-1")
        [lease] = await qd.tasks.claim("dev-1", "c")
        assert b"hush" in bytes(lease.input_context)


async def test_a_directory_belongs_to_one_at_a_time_and_a_client_outlives_nothing(tmp_path: Path) -> None:
    async with quarterdeck.embedded(tmp_path / "work") as qd:
        with pytest.raises(SettingsError, match="Another server runs"):
            async with quarterdeck.embedded(tmp_path / "work"):
                pass
        other = qd.in_zone("default")
        await other.tasks.create("it", "any")
    with pytest.raises((RuntimeError, Unreachable)):
        await other.tasks.create("it", "any")


async def test_tokens_count_as_they_do_over_http(sqlite_url: str) -> None:
    house = Embedded(EmbeddedConfig(Path(sqlite_url.removeprefix("sqlite:///"))))
    async with house as qd:
        await qd.agents.register("dev-1")
        async with house.client((await qd.agents.token("dev-1")).token) as own:
            assert (await own.agents.heartbeat("dev-1")).cancel == []
            with pytest.raises(Forbidden):
                await own.coordinator.status()
            with pytest.raises(NotFound):
                await own.in_zone("elsewhere").tasks.list().__anext__()
        async with house.client("no token at all") as stranger:
            with pytest.raises(Unauthenticated):
                await stranger.agents.get("dev-1")


async def test_whoever_gives_up_waiting_is_given_nothing(sqlite_url: str) -> None:
    async with quarterdeck.embedded(Path(sqlite_url.removeprefix("sqlite:///"))) as qd:
        await qd.agents.register("dev-1")
        waiting = asyncio.create_task(qd.tasks.claim("dev-1", "c", wait_seconds=30))
        following = asyncio.create_task(_first_event(qd))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        made = await qd.tasks.create("it", "any")
        assert await asyncio.wait_for(following, LIMIT) == made.id

        async def is_given_back() -> bool:
            return (await qd.tasks.get(made.id)).status == "PENDING"

        await eventually(is_given_back, "what nobody was there for was given back")
        with pytest.raises(TimedOut):
            await qd.tasks.wait([made.id], timeout=0.05)


async def _first_event(qd: quarterdeck.sdk.Quarterdeck) -> str:
    async for event in qd.events.follow(after=0, types=["task.created"]):
        return event.subject
    raise AssertionError("a stream has no end")
