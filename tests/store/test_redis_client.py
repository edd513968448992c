"""The Redis client: TLS, passwords, time-outs and cancellation."""

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
async def tls_proxy(redis: DirectRedis, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A TLS proxy in front of Redis, as providers run it. Yields its port."""
    upstream = urlsplit(redis.url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection(upstream.hostname, upstream.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer))

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


async def test_tls_connection_requires_a_trusted_certificate(redis: DirectRedis, tmp_path: Path) -> None:
    certificate, context = create_certificate(tmp_path, "127.0.0.1")
    path = urlsplit(redis.url).path
    async with tls_proxy(redis, context) as port:
        writer = RedisSlotWriter(connect(f"rediss://127.0.0.1:{port}{path}?ssl_ca_certs={certificate}"))
        assert await writer.write([SlotCounter("z", 1, 2, 3)]) == 1
        await writer.close()
        untrusting = RedisSlotWriter(connect(f"rediss://127.0.0.1:{port}{path}"))
        with pytest.raises(BusUnavailable, match="certificate"):
            await untrusting.write([SlotCounter("z", 2, 2, 4)])
        await untrusting.close()
    assert redis.client.get("quarterdeck:slots:z") == "1"


async def test_wrong_password_makes_the_bus_unavailable(own_redis: RedisServer) -> None:
    own_redis.direct.client.config_set("requirepass", "password")
    for password, is_valid in (("password", True), ("wrong", False), ("", False)):
        writer = RedisSlotWriter(connect(f"redis://:{password}@127.0.0.1:{own_redis.port}/0"))
        if is_valid:
            assert await writer.write([SlotCounter("z", 1, 2, 3)]) == 1
        else:
            with pytest.raises(BusUnavailable):
                await writer.write([SlotCounter("z", 1, 2, 3)])
        await writer.close()


async def test_redis_user_needs_only_the_documented_commands(runtime: RuntimeHarness, own_redis: RedisServer) -> None:
    commands = (
        "+evalsha +script +mget +client|setname +get +set +xadd +type +del +zadd +zscore +zremrangebyscore +pexpire"
    )
    own_redis.direct.client.acl_setuser(
        "restricted",
        enabled=True,
        passwords=["+password"],
        keys=["caracal.*", "quarterdeck:*"],
        commands=commands.split(),
    )
    url = f"redis://restricted:password@127.0.0.1:{own_redis.port}/0"
    harness = SinkHarness(runtime, url)
    await harness.sink.register()
    own_redis.direct.client.set(AGENTS, "not a stream")
    await emit(runtime, ("session.spawn", "a"), ("session.terminate", "a"))
    await harness.run_until_idle()
    own_redis.direct.client.delete(AGENTS)
    for _ in range(2):
        make_entries_due(runtime)
        await harness.run_until_idle()
    assert len(own_redis.direct.entries()) == 3
    await harness.close()
    writer = RedisSlotWriter(connect(url))
    assert await writer.write([SlotCounter("z", 1, 2, 3)]) == 1
    assert [slot.taken for slot in await writer.read(["z"])] == ["1"]
    await writer.close()


@pytest.mark.parametrize(
    "url", ["", "redis", "http://h", "redis://h:port", "redis://h:99999", "redis://h?db=x", "redis://h?nonsense=1"]
)
def test_invalid_url_is_refused_with_a_message(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        connect(url)


async def test_frozen_redis_times_out_as_unavailable(own_redis: RedisServer) -> None:
    own_redis.freeze()
    writer = RedisSlotWriter(connect(own_redis.url))
    with pytest.raises(BusUnavailable):
        async with asyncio.timeout(8):
            await writer.read(["z"])
    await writer.close()


async def test_cancelled_redis_call_is_cancelled() -> None:
    # Also if a library below loses the cancellation, as `wait_for` does before Python 3.12.
    started, never_set = asyncio.Event(), asyncio.Event()

    async def ignore_cancellation() -> str:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await never_set.wait()
        return "result"

    task = asyncio.create_task(call_redis(ignore_cancellation))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
