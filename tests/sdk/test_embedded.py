"""The embedded server: same client, same refusals, durable data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import quarterdeck
from quarterdeck.embedded_server import Embedded, EmbeddedConfig
from quarterdeck.engine.settings import SettingsError
from quarterdeck.http.auth import KeyFileError
from quarterdeck.sdk import Attempt, TaskWorker
from quarterdeck.sdk.errors import Forbidden, NotFound, TimedOut, Unauthenticated, Unreachable
from tests.sdk.fake_servers import collect
from tests.support.eventually import eventually

TIMEOUT_SECONDS = 60.0


def embedded_server(engine_url: str, tmp_path: Path) -> Embedded:
    """Returns an embedded server on the existing database of the engine."""
    if engine_url.startswith("sqlite"):
        return quarterdeck.embedded(Path(engine_url.removeprefix("sqlite:///")))
    return quarterdeck.embedded(engine_url, data=tmp_path / "keys")


def find_databases(directory: Path) -> list[Path]:
    return [*directory.glob("*.db*")]


async def test_worker_and_waiting_client_share_one_process(engine_url: str, tmp_path: Path) -> None:
    async with embedded_server(engine_url, tmp_path) as qd:
        worker = TaskWorker(qd, "dev-1", concurrency=4)

        @worker.task("square")
        async def square(task: Attempt) -> int:
            await task.progress(50)
            return int(str(task.input["n"])) ** 2

        tasks = await asyncio.gather(*(qd.tasks.create(f"{n}", "square", input_context={"n": n}) for n in range(20)))
        running = asyncio.create_task(worker.run())
        ended = await qd.tasks.wait([task.id for task in tasks], timeout=TIMEOUT_SECONDS)
        assert [task.output_result for task in ended] == [n * n for n in range(20)]
        worker.stop()
        await asyncio.wait_for(running, TIMEOUT_SECONDS)
        assert len(await collect(qd.tasks.list(status="COMPLETED"))) == 20
        session = await qd.sessions.spawn("planner")
        assert [event.subject async for event in qd.events.list(types=["session.spawn"])] == [session.id]


async def test_tasks_and_secrets_survive_a_restart(tmp_path: Path) -> None:
    async with quarterdeck.embedded(tmp_path / "work") as qd:
        task = await qd.tasks.create("task-1", "any", input_context={"password": "s3cret"})
    async with quarterdeck.embedded(tmp_path / "work") as qd:
        assert (await qd.tasks.get(task.id)).input_context == {"password": "***"}
        await qd.agents.register("dev-1")
        [lease] = await qd.tasks.claim("dev-1", "c")
        assert b"s3cret" in bytes(lease.input_context)


async def test_unusable_signing_key_leaves_no_database(tmp_path: Path) -> None:
    key_file = tmp_path / "signing-key.pem"
    key_file.write_text("no key")
    key_file.chmod(0o600)
    with pytest.raises(KeyFileError, match="signing-key"):
        async with quarterdeck.embedded(tmp_path):
            pass
    assert not find_databases(tmp_path)


async def test_second_server_on_a_directory_is_refused_and_clients_end_with_theirs(tmp_path: Path) -> None:
    async with quarterdeck.embedded(tmp_path / "work") as qd:
        with pytest.raises(SettingsError, match="Another server is running"):
            async with quarterdeck.embedded(tmp_path / "work"):
                pass
        other = qd.in_zone("default")
        await other.tasks.create("task-1", "any")
    with pytest.raises((RuntimeError, Unreachable)):
        await other.tasks.create("task-1", "any")


async def test_tokens_are_checked_as_over_http(sqlite_url: str) -> None:
    server = Embedded(EmbeddedConfig(Path(sqlite_url.removeprefix("sqlite:///"))))
    async with server as qd:
        await qd.agents.register("dev-1")
        async with server.client((await qd.agents.token("dev-1")).token) as agent_client:
            assert (await agent_client.agents.heartbeat("dev-1")).cancel == []
            with pytest.raises(Forbidden):
                await agent_client.coordinator.status()
            with pytest.raises(NotFound):
                await agent_client.in_zone("no-such-zone").tasks.list().__anext__()
        async with server.client("not-a-token") as unauthenticated:
            with pytest.raises(Unauthenticated):
                await unauthenticated.agents.get("dev-1")


async def test_canceled_claim_gets_no_task(sqlite_url: str) -> None:
    async with quarterdeck.embedded(Path(sqlite_url.removeprefix("sqlite:///"))) as qd:
        await qd.agents.register("dev-1")
        claim = asyncio.create_task(qd.tasks.claim("dev-1", "c", wait_seconds=30))
        first_event = asyncio.create_task(_first_event(qd))
        await asyncio.sleep(0)
        claim.cancel()
        await asyncio.wait([claim])
        task = await qd.tasks.create("task-1", "any")
        assert await asyncio.wait_for(first_event, TIMEOUT_SECONDS) == task.id

        async def is_pending() -> bool:
            return (await qd.tasks.get(task.id)).status == "PENDING"

        await eventually(is_pending, "the task of the canceled claim is pending again")
        with pytest.raises(TimedOut):
            await qd.tasks.wait([task.id], timeout=0.05)


async def _first_event(qd: quarterdeck.sdk.Quarterdeck) -> str:
    async for event in qd.events.follow(after=0, types=["task.created"]):
        return event.subject
    raise AssertionError("the event stream ended")
