"""Writes stream entries to Redis exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from quarterdeck.bus.redis import stream_entries
from quarterdeck.bus.redis.client import (
    ATTEMPTS_MAX,
    PREFIX,
    ErrorCounter,
    RedisValue,
    load_script,
    marker_key,
    parse_marker,
    run_fenced,
)
from quarterdeck.bus.redis.interfaces import BusUnavailable, RejectedEntry, SinkEntry, WriterIdentity
from quarterdeck.core.clock import DAY, system_now

MAXLEN = 100_000
DEDUPE_RETENTION_MS = 7 * DAY
"""How long the dedupe key of a delayed entry is stored. A writer that did not get the reply retries much sooner."""
REJECTION_CODES = ("ERR", "WRONGTYPE")
"""Error codes with which Redis rejects an entry. All other codes concern Redis itself: loading, full, read-only."""


class RedisStreamWriter:
    """The stream writer of the sink `redis-streams`."""

    def __init__(self, client: Redis, hmac_key: bytes, errors: ErrorCounter | None = None) -> None:
        self._client = client
        self._hmac_key = hmac_key
        self._errors = errors
        self._fence_script = client.register_script(load_script("fence") + "\nreturn {1}")
        self._deliver_script = client.register_script(load_script("fence", "deliver"))
        self._delayed_script = client.register_script(load_script("fence", "delayed_entries"))

    async def fence_older_terms(self, identity: WriterIdentity) -> None:
        await self._run_fenced(self._fence_script, identity, [], [])

    async def deliver(
        self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]
    ) -> list[RejectedEntry]:
        rejections = []
        for batch in _group_by_stream(entries):
            processed_count, error = await self._deliver_to_stream(identity, after_pos, batch)
            if reason := _rejection_reason(error):
                rejections.append(RejectedEntry(batch[processed_count], reason))
        return rejections

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        reasons: dict[str, str | None] = {}
        for batch in _group_by_stream(entries):
            stream = batch[0].stream
            args: list[RedisValue] = [system_now(), DEDUPE_RETENTION_MS, MAXLEN]
            for entry in batch:
                args += [entry.dedupe_key, *self._signed_values(entry)]
            replies = await self._run_fenced(
                self._delayed_script, identity, [stream, delayed_key(identity.sink_id, stream)], args
            )
            for entry, reply in zip(batch, replies[1:], strict=True):
                reasons[entry.dedupe_key] = _rejection_reason(str(reply))
        return [reasons[entry.dedupe_key] for entry in entries]

    async def close(self) -> None:
        await self._client.aclose()

    async def _deliver_to_stream(
        self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]
    ) -> tuple[int, str]:
        """Deliver to one stream. Return how many entries were processed, and the error of the next entry, or "".

        If the stream's marker is ahead of `after_pos`, the script returns the marker and writes nothing. If the log has
        the marker's event, the entries up to it are already delivered (`trust`). Otherwise the marker belongs to a
        different log (`ignore`).
        """
        stream = entries[0].stream
        keys = [stream, marker_key(identity.sink_id, stream)]
        values: list[RedisValue] = []
        for entry in entries:
            values += [entry.pos, entry.event_id, *self._signed_values(entry)]
        mode, marker_text = "trust", ""
        for _ in range(ATTEMPTS_MAX):
            reply = await self._run_fenced(
                self._deliver_script, identity, keys, [mode, marker_text, after_pos, MAXLEN, *values]
            )
            if reply[0] == 1:
                return int(reply[1]), str(reply[2])
            marker_text = str(reply[2])
            mode = "trust" if await identity.checks.has_event(parse_marker(marker_text)) else "ignore"
        raise BusUnavailable(f"another writer keeps changing {keys[1]}")

    async def _run_fenced(
        self, script: AsyncScript, identity: WriterIdentity, keys: Sequence[str], args: Sequence[RedisValue]
    ) -> list[RedisValue]:
        return await run_fenced(script, identity, keys, args, self._errors)

    def _signed_values(self, entry: SinkEntry) -> list[RedisValue]:
        """The script arguments for an entry: the number of values, then field, value, …, with the signature last."""
        values = [part for pair in entry.fields.items() for part in pair]
        signature = stream_entries.sign(self._hmac_key, entry.stream, entry.fields)
        return [len(values) + 2, *values, stream_entries.SIGNATURE, signature]


def delayed_key(sink_id: str, stream: str) -> str:
    return f"{PREFIX}:sink-late:{sink_id}:{stream}"


def _group_by_stream(entries: Sequence[SinkEntry]) -> list[list[SinkEntry]]:
    groups: dict[str, list[SinkEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.stream, []).append(entry)
    return [*groups.values()]


def _rejection_reason(error: str) -> str | None:
    """Return why Redis rejected the entry, or None if it did not. Raises `BusUnavailable` for any other error."""
    if not error:
        return None
    if error.partition(" ")[0] not in REJECTION_CODES:
        raise BusUnavailable(error)
    return error[:500]
