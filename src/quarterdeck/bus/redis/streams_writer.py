"""Writes stream entries to Redis exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.client import PREFIX, ROUNDS_MAX, Errors, Value, marker_key, marker_of, run_fenced, text_of
from quarterdeck.bus.redis.interfaces import Away, Entry, Hold, Rejected
from quarterdeck.core.clock import DAY, system_now

MAXLEN = 100_000
REMEMBERED = 7 * DAY
"""How long an entry that was added late is known by its key: nobody still sends what was under way so long ago."""
REFUSALS = ("ERR", "WRONGTYPE")
"""Codes that speak of the entry, or of the key it is for. All others speak of Redis: it is loading, full, read-only."""


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


def late_key(sink_id: str, stream: str) -> str:
    return f"{PREFIX}:sink-late:{sink_id}:{stream}"


def _by_stream(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.stream, []).append(entry)
    return [*found.values()]


def _refusal(error: str) -> str | None:
    """What Redis has against an entry; None if nothing. Raises Away for what it has against everything just now."""
    if not error:
        return None
    if error.partition(" ")[0] not in REFUSALS:
        raise Away(error)
    return error[:500]
