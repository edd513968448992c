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

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.interfaces import Away, Entry, Fenced, Hold, Marker, Rejected, Shown, Slot
from quarterdeck.core.clock import DAY, system_now

PREFIX = "quarterdeck"
MAXLEN = 100_000
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 3.0
REMEMBERED = 7 * DAY
"""How long an entry that was added late is known by its key: nobody still sends what was under way so long ago."""
REFUSALS = ("ERR", "WRONGTYPE")
"""Codes that speak of the entry, or of the key it is for. All others speak of Redis: it is loading, full, read-only."""
ROUNDS_MAX = 5
Value = str | int
T = TypeVar("T")


class Errors:
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
        socket_timeout=ANSWER_SECONDS,
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


async def ask(question: Callable[[], Awaitable[T]], errors: Errors | None = None) -> T:
    """One exchange, bounded in time. Whatever Redis does not answer as asked is Away."""
    asker = asyncio.current_task()
    cancelled_before = asker.cancelling() if asker else 0
    try:
        async with asyncio.timeout(CONNECT_SECONDS + ANSWER_SECONDS):
            return await question()
    except RedisError as error:
        if errors is not None and isinstance(error, ConnectionError | TimedOut):
            errors.count += 1
        raise Away(f"{type(error).__name__}: {error}") from error
    except (OSError, TimeoutError, UnicodeDecodeError) as error:
        if errors is not None:
            errors.count += 1
        raise Away(repr(error)) from error
    finally:
        # The library sends by `wait_for`, which before Python 3.12 now and then loses a cancellation; whoever asked
        # this task to end would wait for it for ever.
        if asker and asker.cancelling() > cancelled_before:
            raise asyncio.CancelledError


def text_of(*names: str) -> str:
    """A script of these files, one after the other."""
    folder = resources.files("quarterdeck.bus.redis")
    return "\n".join(folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)


class RedisStreams:
    """The outlet of the sink `redis-streams`."""

    def __init__(self, client: Redis, hmac_key: bytes, errors: Errors | None = None) -> None:
        self._client = client
        self._hmac_key = hmac_key
        self._errors = errors
        self._take_over = client.register_script(text_of("fence") + "\nreturn {1}")
        self._deliver = client.register_script(text_of("fence", "deliver"))
        self._late = client.register_script(text_of("fence", "delayed_entries"))

    async def take_over(self, hold: Hold) -> None:
        await self._run(self._take_over, hold, [], [])

    async def deliver(self, hold: Hold, after: int, entries: Sequence[Entry]) -> list[Rejected]:
        rejected = []
        for of_stream in _by_stream(entries):
            dealt_with, error = await self._deliver_to(hold, after, of_stream)
            if refused := _refusal(error):
                rejected.append(Rejected(of_stream[dealt_with], refused))
        return rejected

    async def deliver_late(self, hold: Hold, entries: Sequence[Entry]) -> list[str | None]:
        refused: dict[str, str | None] = {}
        for of_stream in _by_stream(entries):
            stream = of_stream[0].stream
            args: list[Value] = [system_now(), REMEMBERED, MAXLEN]
            for entry in of_stream:
                args += [entry.dedupe_key, *self._signed(entry)]
            answers = await self._run(self._late, hold, [stream, late_key(hold.sink_id, stream)], args)
            for entry, answer in zip(of_stream, answers[1:], strict=True):
                refused[entry.dedupe_key] = _refusal(str(answer))
        return [refused[entry.dedupe_key] for entry in entries]

    async def close(self) -> None:
        await self._client.aclose()

    async def _deliver_to(self, hold: Hold, after: int, entries: Sequence[Entry]) -> tuple[int, str]:
        """To one stream: how many were dealt with, and what Redis has against the next."""
        stream = entries[0].stream
        keys = [stream, marker_key(hold.sink_id, stream)]
        values: list[Value] = []
        for entry in entries:
            values += [entry.pos, entry.event_id, *self._signed(entry)]
        mode, known = "trust", ""
        for _ in range(ROUNDS_MAX):
            answer = await self._run(self._deliver, hold, keys, [mode, known, after, MAXLEN, *values])
            if answer[0] == 1:
                return int(answer[1]), str(answer[2])
            known = str(answer[2])
            mode = "trust" if await hold.judge.has(marker_of(known)) else "overrule"
        raise Away(f"somebody else moves {keys[1]} all the time")

    async def _run(self, script: AsyncScript, hold: Hold, keys: Sequence[str], args: Sequence[Value]) -> list[Value]:
        return await run_fenced(script, hold, keys, args, self._errors)

    def _signed(self, entry: Entry) -> list[Value]:
        """How many values, and the values."""
        values = [part for pair in entry.fields.items() for part in pair]
        signature = stream_entries.sign(self._hmac_key, entry.stream, entry.fields)
        return [len(values) + 2, *values, stream_entries.SIGNATURE, signature]


async def run_fenced(
    script: AsyncScript, hold: Hold, keys: Sequence[str], args: Sequence[Value], errors: Errors | None
) -> list[Value]:
    """Runs a script behind the fence; a term that stands there and is of no lease of this database is overruled."""
    overruled = ""
    for _ in range(ROUNDS_MAX):
        fenced: list[Value] = [str(hold), overruled, *args]
        answer: list[Value] = await ask(partial(script, [fence_key(hold.sink_id), *keys], fenced), errors)
        if answer[0] == 1 or answer[1] != "fence":
            return answer
        if not await hold.judge.holds():
            raise Fenced(f"term {hold.term} is over")
        overruled = str(answer[2])
    raise Away(f"somebody else moves {fence_key(hold.sink_id)} all the time")


def fence_key(sink_id: str) -> str:
    return f"{PREFIX}:sink-term:{sink_id}"


def marker_key(sink_id: str, stream: str) -> str:
    return f"{PREFIX}:sink-marker:{sink_id}:{stream}"


def late_key(sink_id: str, stream: str) -> str:
    return f"{PREFIX}:sink-late:{sink_id}:{stream}"


def _by_stream(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.stream, []).append(entry)
    return [*found.values()]


def marker_of(text: str) -> Marker:
    """The script has seen that it begins with digits. More than a position can have are of no position."""
    pos, _, event_id = text.partition(" ")
    return Marker(int(pos[:20]), event_id)


def _refusal(error: str) -> str | None:
    """What Redis has against an entry; None if nothing. Raises Away for what it has against everything just now."""
    if not error:
        return None
    if error.partition(" ")[0] not in REFUSALS:
        raise Away(error)
    return error[:500]


class RedisSlots:
    """How many slots are taken, for other components to read: `GET quarterdeck:slots:<zone>`."""

    def __init__(self, client: Redis, errors: Errors | None = None) -> None:
        self._client = client
        self._errors = errors
        self._write = client.register_script(text_of("slots"))

    async def write(self, slots: Sequence[Slot]) -> int:
        keys: list[str] = []
        args: list[Value] = []
        for slot in slots:
            keys += [slot_key(slot.zone_id), position_key(slot.zone_id)]
            args += [slot.taken, slot.limit, slot.pos, slot.overrules or ""]
        written: Value = await ask(lambda: self._write(keys, args), self._errors)
        return int(written)

    async def read(self, zone_ids: Sequence[str]) -> list[Shown]:
        keys = [key for zone_id in zone_ids for key in (slot_key(zone_id), position_key(zone_id))]
        stands = await ask(lambda: self._client.mget(keys), self._errors)
        found = [None if value is None else str(value) for value in stands]
        return [Shown(*pair) for pair in zip(found[::2], found[1::2], strict=True)]

    async def close(self) -> None:
        await self._client.aclose()


def slot_key(zone_id: str) -> str:
    return f"{PREFIX}:slots:{zone_id}"


def position_key(zone_id: str) -> str:
    # Not below the key itself: a zone may be called like any suffix.
    return f"{PREFIX}:slots-position:{zone_id}"
