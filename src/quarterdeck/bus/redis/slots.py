"""Writes the slot counters of zones to Redis."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from quarterdeck.bus.redis.client import PREFIX, ErrorCounter, RedisValue, call_redis, load_script
from quarterdeck.bus.redis.interfaces import SlotCounter, StoredSlotCounter


class RedisSlotWriter:
    """Implements `SlotWriter`. Other programs read a counter with `GET quarterdeck:slots:<zone>`."""

    def __init__(self, client: Redis, errors: ErrorCounter | None = None) -> None:
        self._client = client
        self._errors = errors
        self._write_script = client.register_script(load_script("slots"))

    async def write(self, counters: Sequence[SlotCounter]) -> int:
        keys: list[str] = []
        args: list[RedisValue] = []
        for counter in counters:
            keys += [slot_key(counter.zone_id), position_key(counter.zone_id)]
            args += [counter.taken, counter.limit, counter.pos, counter.replaces_pos or ""]
        reply: RedisValue = await call_redis(lambda: self._write_script(keys, args), self._errors)
        return int(reply)

    async def read(self, zone_ids: Sequence[str]) -> list[StoredSlotCounter]:
        keys = [key for zone_id in zone_ids for key in (slot_key(zone_id), position_key(zone_id))]
        values = await call_redis(lambda: self._client.mget(keys), self._errors)
        texts = [None if value is None else str(value) for value in values]
        return [StoredSlotCounter(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]

    async def close(self) -> None:
        await self._client.aclose()


def slot_key(zone_id: str) -> str:
    return f"{PREFIX}:slots:{zone_id}"


def position_key(zone_id: str) -> str:
    # Not `slots:<zone>:position`: zone ids may contain colons, so that could be the counter key of another zone.
    return f"{PREFIX}:slots-position:{zone_id}"
