"""The client of Redis: over TLS and sockets, with a password, bounded in time, and never a lost cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quarterdeck.bus.redis.client import call_redis, connect
from quarterdeck.bus.redis.interfaces import BusUnavailable, SlotCounter
from quarterdeck.bus.redis.slots import RedisSlotWriter
from quarterdeck.bus.redis.stream_entries import AGENTS
from tests.support.certificates import create_certificate
from tests.support.redis import DirectRedis, RedisServer
from tests.support.runtime import RuntimeHarness
from tests.support.sink import SinkHarness, emit, make_entries_due


@contextlib.asynccontextmanager
async def tls_before(redis: DirectRedis, context: ssl.SSLContext) -> AsyncIterator[int]:
    """TLS in front of Redis, as a provider has it; the port."""
    upstream = urlsplit(redis.url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(upstream.hostname, upstream.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(reader, ours), pump(theirs, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def test_redis_over_tls_is_believed_by_its_certificate_and_only_by_that(
    redis: DirectRedis, tmp_path: Path
) -> None:
    public, context = create_certificate(tmp_path, "127.0.0.1")
    number = urlsplit(redis.url).path
    async with tls_before(redis, context) as port:
        board = RedisSlotWriter(connect(f"rediss://127.0.0.1:{port}{number}?ssl_ca_certs={public}"))
        assert await board.write([SlotCounter("z", 1, 2, 3)]) == 1
        await board.close()
        stranger = RedisSlotWriter(connect(f"rediss://127.0.0.1:{port}{number}"))
        with pytest.raises(BusUnavailable, match="certificate"):
            await stranger.write([SlotCounter("z", 2, 2, 4)])
        await stranger.close()
    assert redis.client.get("quarterdeck:slots:z") == "1"


async def test_a_password_is_sent_and_a_wrong_one_is_away(own_redis: RedisServer) -> None:
    own_redis.direct.client.config_set("requirepass", "hush")
    for password, is_good in (("hush", True), ("wrong", False), ("", False)):
        board = RedisSlotWriter(connect(f"redis://:{password}@127.0.0.1:{own_redis.port}/0"))
        if is_good:
            assert await board.write([SlotCounter("z", 1, 2, 3)]) == 1
        else:
            with pytest.raises(BusUnavailable):
                await board.write([SlotCounter("z", 1, 2, 3)])
        await board.close()


async def test_a_login_needs_no_more_than_the_operations_page_says(
    runtime: RuntimeHarness, own_redis: RedisServer
) -> None:
    may = "+evalsha +script +mget +client|setname +get +set +xadd +type +del +zadd +zscore +zremrangebyscore +pexpire"
    own_redis.direct.client.acl_setuser(
        "narrow", enabled=True, passwords=["+hush"], keys=["caracal.*", "quarterdeck:*"], commands=may.split()
    )
    url = f"redis://narrow:hush@127.0.0.1:{own_redis.port}/0"
    runner = SinkHarness(runtime, url)
    await runner.sink.register()
    own_redis.direct.client.set(AGENTS, "in the way")
    await emit(runtime, ("session.spawn", "a"), ("session.terminate", "a"))
    await runner.run_until_idle()
    own_redis.direct.client.delete(AGENTS)
    for _ in range(2):
        make_entries_due(runtime)
        await runner.run_until_idle()
    assert len(own_redis.direct.entries()) == 3
    await runner.close()
    board = RedisSlotWriter(connect(url))
    assert await board.write([SlotCounter("z", 1, 2, 3)]) == 1
    assert [shown.taken for shown in await board.read(["z"])] == ["1"]
    await board.close()


@pytest.mark.parametrize(
    "url", ["", "redis", "http://h", "redis://h:port", "redis://h:99999", "redis://h?db=x", "redis://h?nonsense=1"]
)
def test_a_url_that_can_never_be_used_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        connect(url)


async def test_a_redis_that_takes_connections_and_says_nothing_is_away_in_time(own_redis: RedisServer) -> None:
    own_redis.freeze()
    board = RedisSlotWriter(connect(own_redis.url))
    with pytest.raises(BusUnavailable):
        async with asyncio.timeout(8):
            await board.read(["z"])
    await board.close()


async def test_whoever_is_told_to_end_while_it_asks_ends() -> None:
    """Also where a library below loses the cancellation, as `wait_for` does before Python 3.12."""
    asked, answers = asyncio.Event(), asyncio.Event()

    async def deaf() -> str:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await answers.wait()
        return "an answer"

    task = asyncio.create_task(call_redis(deaf))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
