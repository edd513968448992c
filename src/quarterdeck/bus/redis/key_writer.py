"""Writes the Redis keys and channels for tasks and agents (`key_layout` defines them).

Imported only if REDIS_URL is set: the library is an optional dependency.

The lease holder's writes are fenced by its term (`fence.lua`): a process that was paused while another one took over
changes nothing. Any process may write heartbeats and the name of the coordinating process: they are correct when they
are written, and they expire.

Only other programs write names that are not valid UTF-8. `surrogateescape` preserves the bytes of those names, so that
they can be removed too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.client import (
    ATTEMPTS_MAX,
    ErrorCounter,
    RedisValue,
    call_redis,
    load_script,
    marker_key,
    parse_marker,
    run_fenced,
)
from quarterdeck.bus.redis.interfaces import BusUnavailable, SinkEntry, WriterIdentity
from quarterdeck.bus.redis.key_layout import (
    KEY_FAMILIES,
    MIRROR_STATE_KEY,
    Heartbeat,
    KeyDifferences,
    KeyFamily,
    KeyOperation,
    KeyPage,
    KeyRemoval,
    MirroredAgent,
    MirroredTask,
)

OPERATIONS_MAX = 250
"""Maximum operations per script run, because Redis serves no other client during a run."""
SCAN_COUNT = 1_000
MEMBERS_COUNT = 500
LIST_MAX = 5_000
LISTEN_TIMEOUT_SECONDS = 2.0
COMMAND_GAP_SECONDS = 1.0
"""Pause after each command. Commands have no content, so several in a row mean the same as one."""
CONNECTIONS = 16


class RedisKeyWriter:
    """Implements `KeyWriter`."""

    def __init__(self, client: Redis, errors: ErrorCounter) -> None:
        self._client = client
        self._errors = errors
        self._fence_script = client.register_script(load_script("fence") + "\nreturn {1}")
        self._write_script = client.register_script(load_script("fence", "keys"))
        self._compare_script = client.register_script(load_script("keys"))
        self._publish_script = client.register_script(load_script("fence", "publish"))
        self._state_script = client.register_script(load_script("fence", "complete_marker"))
        self._heartbeats_script = client.register_script(load_script("heartbeats"))
        self._coordinator_script = client.register_script(load_script("locks"))

    # -- by the lease holder ------------------------------------------------------------------------------------

    async def fence_older_terms(self, identity: WriterIdentity) -> None:
        await self._run_fenced(self._fence_script, identity, [], [])

    async def write(self, identity: WriterIdentity, operations: Sequence[KeyOperation]) -> KeyDifferences:
        difference_count = 0
        for chunk in _chunks(operations):
            reply = await self._run_fenced(
                self._write_script, identity, [MIRROR_STATE_KEY], ["write", *_encode_operations(chunk)]
            )
            difference_count += int(reply[1])
        return KeyDifferences(difference_count)

    async def publish(self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]) -> None:
        values: list[RedisValue] = []
        for entry in entries:
            values += [entry.pos, entry.event_id, entry.stream, entry.fields["body"]]
        marker_name = marker_key(identity.sink_id, "channels")
        mode, marker_text = "trust", ""
        for _ in range(ATTEMPTS_MAX):
            reply = await self._run_fenced(
                self._publish_script, identity, [marker_name], [mode, marker_text, after_pos, *values]
            )
            if reply[0] == 1:
                return
            marker_text = str(reply[2])
            mode = "trust" if await identity.checks.has_event(parse_marker(marker_text)) else "ignore"
        raise BusUnavailable(f"another writer keeps changing {marker_name}")

    async def write_state(self, identity: WriterIdentity, state: str, expected: str | None = None) -> bool:
        has_expected = "" if expected is None else "1"
        reply = await self._run_fenced(
            self._state_script, identity, [MIRROR_STATE_KEY], [state, has_expected, expected or ""]
        )
        return reply[1] == 1

    async def _run_fenced(
        self, script: AsyncScript, identity: WriterIdentity, keys: Sequence[str], args: Sequence[RedisValue]
    ) -> list[RedisValue]:
        return await run_fenced(script, identity, keys, args, self._errors)

    # -- by every process ---------------------------------------------------------------------------------------

    async def compare(self, operations: Sequence[KeyOperation]) -> KeyDifferences:
        difference_count = 0
        for chunk in _chunks(operations):
            args: list[RedisValue] = ["", "", "compare", *_encode_operations(chunk)]
            reply: list[RedisValue] = await call_redis(
                partial(self._compare_script, ["", MIRROR_STATE_KEY], args), self._errors
            )
            difference_count += int(reply[1])
        return KeyDifferences(difference_count)

    async def write_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None:
        args: list[RedisValue] = []
        for heartbeat in heartbeats:
            has_task_id = "" if heartbeat.task_id is None else "1"
            args += [
                key_layout.format_agent_name(heartbeat.ref),
                heartbeat.to_json(),
                heartbeat.at,
                has_task_id,
                heartbeat.task_id or "",
            ]
        await call_redis(lambda: self._heartbeats_script([], args), self._errors)

    async def write_coordinator(self, zone_ids: Sequence[str], holder: str, *, overwrite: bool) -> None:
        keys = [key_layout.LOCK_PREFIX + zone_id for zone_id in zone_ids]
        await call_redis(lambda: self._coordinator_script(keys, [holder, "1" if overwrite else ""]), self._errors)

    async def read_state(self) -> str:
        # TYPE first, because GET fails if another program has replaced the key with one of another type. That counts as
        # no state.
        if await call_redis(lambda: self._client.type(MIRROR_STATE_KEY), self._errors) != "string":
            return ""
        return str(await call_redis(lambda: self._client.get(MIRROR_STATE_KEY), self._errors) or "")

    async def delete_state(self) -> None:
        await call_redis(lambda: self._client.delete(MIRROR_STATE_KEY), self._errors)

    async def ping(self) -> None:
        await call_redis(lambda: self._client.ping(), self._errors)

    async def close(self) -> None:
        await self._client.aclose()

    # -- stored keys --------------------------------------------------------------------------------------------

    async def scan(self) -> AsyncIterator[KeyPage]:
        for family in KEY_FAMILIES:
            async for keys in self._scan_keys(family):
                yield KeyPage(family, "")
                for key in keys:
                    async for page in self._read_pages(family, key):
                        yield page

    async def _scan_keys(self, family: KeyFamily) -> AsyncIterator[list[str]]:
        if not family.prefix.endswith(":"):
            yield [family.prefix]
            return
        cursor, pattern = 0, f"{family.prefix}*"
        while True:
            cursor, keys = await call_redis(
                partial(self._client.scan, cursor, match=pattern, count=SCAN_COUNT), self._errors
            )
            yield [str(key) for key in keys]
            if not cursor:
                return

    async def _read_pages(self, family: KeyFamily, key: str) -> AsyncIterator[KeyPage]:
        redis_type = await call_redis(lambda: self._client.type(key), self._errors)
        if redis_type == "none":
            return
        if redis_type != family.redis_type or family.prefix not in key_layout.PREFIXES_WITH_MEMBERS:
            yield KeyPage(family, key, has_wrong_type=redis_type != family.redis_type)
            return
        if redis_type == "list":
            items = await call_redis(lambda: self._client.lrange(key, 0, LIST_MAX), self._errors)
            yield KeyPage(family, key, [str(item) for item in items])
            return
        cursor = 0
        while True:
            cursor, members = await self._scan_members(redis_type, key, cursor)
            yield KeyPage(family, key, members)
            if not cursor:
                return

    async def _scan_members(self, redis_type: str, key: str, cursor: int) -> tuple[int, list[str]]:
        client, count = self._client, MEMBERS_COUNT
        if redis_type == "set":
            next_cursor, members = await call_redis(lambda: client.sscan(key, cursor, count=count), self._errors)
            return int(next_cursor), [str(member) for member in members]
        if redis_type == "hash":
            next_cursor, fields = await call_redis(lambda: client.hscan(key, cursor, count=count), self._errors)
            return int(next_cursor), [str(member) for member in fields]
        next_cursor, scored = await call_redis(lambda: client.zscan(key, cursor, count=count), self._errors)
        return int(next_cursor), [str(member) for member, _ in scored]

    # -- received commands --------------------------------------------------------------------------------------

    async def listen_for_commands(self, on_command: Callable[[], None]) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await call_redis(lambda: pubsub.psubscribe(key_layout.COMMAND_CHANNELS), self._errors)
            # Commands that were sent before the subscription or while disconnected were missed.
            on_command()
            while True:
                message = await call_redis(lambda: pubsub.get_message(timeout=LISTEN_TIMEOUT_SECONDS), self._errors)
                if message is not None:
                    on_command()
                    await asyncio.sleep(COMMAND_GAP_SECONDS)


def _chunks(operations: Sequence[KeyOperation]) -> Iterator[Sequence[KeyOperation]]:
    for start in range(0, len(operations), OPERATIONS_MAX):
        yield operations[start : start + OPERATIONS_MAX]


def _encode_operations(operations: Sequence[KeyOperation]) -> list[RedisValue]:
    values: list[RedisValue] = []
    for operation in operations:
        if isinstance(operation, MirroredTask):
            args, kind = _task_args(operation), "task"
        elif isinstance(operation, MirroredAgent):
            args, kind = _agent_args(operation), "agent"
        else:
            args, kind = _removal_args(operation), "remove"
        values += [kind, len(args), *args]
    return values


def _task_args(task: MirroredTask) -> list[RedisValue]:
    holder = task.holder
    return [
        task.zone_id,
        task.id,
        "" if task.score is None else task.score,
        "" if holder is None else key_layout.format_agent_name((task.zone_id, holder.agent_id)),
        "" if holder is None else holder.session_key,
        "" if holder is None else holder.assigned_at,
        "" if holder is None else holder.started_at,
        _encode_flag(task.is_recovering),
        "" if holder is None else holder.agent_id,
        _encode_flag(task.is_recent),
    ]


def _agent_args(agent: MirroredAgent) -> list[RedisValue]:
    return [
        key_layout.format_agent_name(agent.ref),
        agent.status or "",
        agent.current_task,
        agent.last_heartbeat,
        _encode_flag(agent.is_stale),
        _encode_flag(agent.is_recent),
    ]


def _removal_args(removal: KeyRemoval) -> list[RedisValue]:
    return [removal.key, removal.redis_type, removal.member, _encode_flag(removal.is_recent)]


def _encode_flag(value: bool) -> str:
    return "1" if value else ""
