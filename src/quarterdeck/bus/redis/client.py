"""Redis: streams that are written once, and slots that never go back.

Imported only where REDIS_URL is set: the library is an extra.

**Once.** Beside each stream stands a marker: the last position that was written, moved by the script that writes the
entries (`deliver.lua`). Whoever sends again what it does not know to have been written, because it was killed or cut
off, finds the marker ahead and adds nothing twice. A marker ahead of the database's own position is believed only if
the log has that very event there. One of another log (of a database that was restored, or from a hand) is written over;
one that went with the rest of a wiped Redis is not missed: delivery goes on from the database's position.

**In order.** A stream's entries are added in the order of the log, up to the first that Redis refuses for what it is;
the rest of them waits until the sink has written that down.

**By one.** The term of the lease stands in Redis, too (`fence.lua`): whoever was frozen while another took over writes
nothing when it wakes.
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
RedisValue = str | int
T = TypeVar("T")


class ErrorCounter:
    """How often Redis could not be reached, counted over all that is done with it."""

    def __init__(self) -> None:
        self.count = 0


def connect(url: str, connections: int = 4, encoding_errors: str = "strict") -> Redis:
    """A client that has not connected yet. Raises ValueError, with a sentence, for a URL that can never be used."""
    client = Redis.from_url(
        url,
        decode_responses=True,
        protocol=2,
        client_name=PREFIX,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=REPLY_SECONDS,
        # Whoever asks is the one who decides when to try again, and what to do meanwhile.
        retry=Retry(NoBackoff(), 0),
        max_connections=connections,
        encoding_errors=encoding_errors,
    )
    pool = client.connection_pool
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError as error:
        raise ValueError(f"it has a parameter that no connection to Redis has ({error})") from error
    return client


async def call_redis(operation: Callable[[], Awaitable[T]], errors: ErrorCounter | None = None) -> T:
    """One exchange, bounded in time. Whatever Redis does not answer as asked is Away."""
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
        # The library sends by `wait_for`, which before Python 3.12 now and then loses a cancellation; whoever asked
        # this task to end would wait for it for ever.
        if task and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError


def load_script(*names: str) -> str:
    """A script of these files, one after the other."""
    folder = resources.files("quarterdeck.bus.redis")
    return "\n".join(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)


async def run_fenced(
    script: AsyncScript,
    identity: WriterIdentity,
    keys: Sequence[str],
    args: Sequence[RedisValue],
    errors: ErrorCounter | None,
) -> list[RedisValue]:
    """Runs a script behind the fence; a term that stands there and is of no lease of this database is overruled."""
    replaced_term = ""
    for _ in range(ATTEMPTS_MAX):
        fenced_args: list[RedisValue] = [str(identity), replaced_term, *args]
        reply: list[RedisValue] = await call_redis(
            partial(script, [fence_key(identity.sink_id), *keys], fenced_args), errors
        )
        if reply[0] == 1 or reply[1] != "fence":
            return reply
        if not await identity.checks.holds_lease():
            raise WriterFenced(f"term {identity.term} is over")
        replaced_term = str(reply[2])
    raise BusUnavailable(f"somebody else moves {fence_key(identity.sink_id)} all the time")


def fence_key(sink_id: str) -> str:
    return f"{PREFIX}:sink-term:{sink_id}"


ATTEMPTS_MAX = 5


def marker_key(sink_id: str, stream: str) -> str:
    return f"{PREFIX}:sink-marker:{sink_id}:{stream}"


def parse_marker(text: str) -> Marker:
    """The script has seen that it begins with digits. More than a position can have are of no position."""
    pos, _, event_id = text.partition(" ")
    return Marker(int(pos[:20]), event_id)
