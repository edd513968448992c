"""Redis connections, and how scripts write exactly once, in order and from one process.

Imported only if REDIS_URL is set: the library is an optional dependency.

**Once.** Each stream has a marker: the last written event, updated by the script that writes the entries
(`deliver.lua`). A writer that does not know whether its last entries were written sends them again; the script skips
those up to the marker. A marker ahead of the database's position is trusted only if the log has the marker's event at
that position. Otherwise the marker belongs to a different log, such as that of a restored database, and is replaced. A
marker that is missing because Redis was wiped does no harm: delivery continues from the database's position.

**In order.** The entries of a stream are added in log order, up to the first one that Redis rejects because of its
content. The entries after it wait until the sink has recorded the rejection.

**One writer.** Redis also stores the term of the last lease holder that wrote (`fence.lua`). A process that was paused
while another one took over therefore writes nothing when it resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import resources
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError, RedisError, TimeoutError as TimedOut

from quarterdeck.bus.redis.interfaces import BusUnavailable, Marker, WriterFenced, WriterIdentity

PREFIX = "quarterdeck"
CONNECT_SECONDS = 2.0
REPLY_SECONDS = 3.0
ATTEMPTS_MAX = 5
RedisValue = str | int
T = TypeVar("T")


class ErrorCounter:
    """Counts the operations that failed because of the connection, a time-out or an unreadable reply."""

    def __init__(self) -> None:
        self.count = 0


def connect(url: str, connections: int = 4, encoding_errors: str = "strict") -> Redis:
    """Create a client that connects at its first command. Raises ValueError if the URL is not valid."""
    client = Redis.from_url(
        url,
        decode_responses=True,
        protocol=2,
        client_name=PREFIX,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=REPLY_SECONDS,
        # The caller decides when to retry and what to do meanwhile.
        retry=Retry(NoBackoff(), 0),
        max_connections=connections,
        encoding_errors=encoding_errors,
    )
    pool = client.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ValueError(f"it has a parameter that Redis connections do not have ({error})") from error
    return client


async def call_redis(operation: Callable[[], Awaitable[T]], errors: ErrorCounter | None = None) -> T:
    """Run one operation with a time limit. Raises `BusUnavailable` for every Redis or connection error."""
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(CONNECT_SECONDS + REPLY_SECONDS):
            return await operation()
    except RedisError as error:
        if errors is not None and isinstance(error, ConnectionError | TimedOut):
            errors.count += 1
        raise BusUnavailable(f"{type(error).__name__}: {error}") from error
    except (OSError, TimeoutError, UnicodeDecodeError) as error:
        if errors is not None:
            errors.count += 1
        raise BusUnavailable(repr(error)) from error
    finally:
        # The library sends with `wait_for`, which before Python 3.12 sometimes loses a cancellation. The code that
        # cancels this task would then wait for it forever.
        if task and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError


def load_script(*names: str) -> str:
    """Read these script files and concatenate them."""
    folder = resources.files("quarterdeck.bus.redis")
    return "\n".join(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)


async def run_fenced(
    script: AsyncScript,
    identity: WriterIdentity,
    keys: Sequence[str],
    args: Sequence[RedisValue],
    errors: ErrorCounter | None,
) -> list[RedisValue]:
    """Run a script that starts with `fence.lua`. Raises `WriterFenced` if another process has taken over.

    If the database confirms that this process holds the lease, the stored term is wrong and is replaced.
    """
    replaced_term = ""
    for _ in range(ATTEMPTS_MAX):
        fenced_args: list[RedisValue] = [str(identity), replaced_term, *args]
        reply: list[RedisValue] = await call_redis(
            partial(script, [fence_key(identity.sink_id), *keys], fenced_args), errors
        )
        if reply[0] == 1 or reply[1] != "fence":
            return reply
        if not await identity.checks.holds_lease():
            raise WriterFenced(f"term {identity.term} has ended")
        replaced_term = str(reply[2])
    raise BusUnavailable(f"another writer keeps changing {fence_key(identity.sink_id)}")


def fence_key(sink_id: str) -> str:
    return f"{PREFIX}:sink-term:{sink_id}"


def marker_key(sink_id: str, stream: str) -> str:
    return f"{PREFIX}:sink-marker:{sink_id}:{stream}"


def parse_marker(text: str) -> Marker:
    """Parse a marker that a script returned. It starts with digits, but only the first 20 can be a position."""
    pos, _, event_id = text.partition(" ")
    return Marker(int(pos[:20]), event_id)
