"""Redis: the keys and channels of tasks and agents (`keys` says which).

Imported only where REDIS_URL is set: the library is an extra.

What is written in somebody's name stands behind the fence of the lease's term (`fence.lua`): whoever was frozen while
another took over changes nothing. Heartbeats, and who coordinates, are written by every process for itself: they are
true when they are written, and end by themselves.

Text that is no UTF-8, which only a stranger's hand writes here, is read and written back byte by byte: it can be taken
away like anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.client import ROUNDS_MAX, Errors, Value, ask, marker_key, marker_of, run_fenced, text_of
from quarterdeck.bus.redis.interfaces import Away, Entry, Hold
from quarterdeck.bus.redis.key_layout import (
    FAMILIES,
    WHOLE,
    AgentMark,
    Family,
    Found,
    Op,
    Page,
    Pulse,
    Strike,
    TaskMark,
)

OPS_MAX = 250
"""In one run of a script, during which Redis does nothing else."""
SCAN_COUNT = 1_000
MEMBERS_COUNT = 500
LIST_MAX = 5_000
LISTEN_SECONDS = 2.0
GAP_SECONDS = 1.0
"""Between two commands that are heard of: they say no more than each other."""
CONNECTIONS = 16


class RedisKeys:
    """A `KeyBoard`."""

    def __init__(self, client: Redis, errors: Errors) -> None:
        self._client = client
        self._errors = errors
        self._take_over = client.register_script(text_of("fence") + "\nreturn {1}")
        self._write = client.register_script(text_of("fence", "keys"))
        self._look = client.register_script(text_of("keys"))
        self._tell = client.register_script(text_of("fence", "publish"))
        self._say = client.register_script(text_of("fence", "complete_marker"))
        self._beat = client.register_script(text_of("heartbeats"))
        self._lock = client.register_script(text_of("locks"))

    # -- in the name of whoever holds the lease -----------------------------------------------------------------

    async def take_over(self, hold: Hold) -> None:
        await self._run(self._take_over, hold, [], [])

    async def write(self, hold: Hold, ops: Sequence[Op]) -> Found:
        wrong = 0
        for some in _pieces(ops):
            answer = await self._run(self._write, hold, [WHOLE], ["write", *_args(some)])
            wrong += int(answer[1])
        return Found(wrong)

    async def tell(self, hold: Hold, after: int, entries: Sequence[Entry]) -> None:
        values: list[Value] = []
        for entry in entries:
            values += [entry.pos, entry.event_id, entry.stream, entry.fields["body"]]
        marker = marker_key(hold.sink_id, "channels")
        mode, known = "trust", ""
        for _ in range(ROUNDS_MAX):
            answer = await self._run(self._tell, hold, [marker], [mode, known, after, *values])
            if answer[0] == 1:
                return
            known = str(answer[2])
            mode = "trust" if await hold.judge.has(marker_of(known)) else "overrule"
        raise Away(f"somebody else moves {marker} all the time")

    async def say(self, hold: Hold, state: str, instead_of: str | None = None) -> bool:
        only = "" if instead_of is None else "1"
        answer = await self._run(self._say, hold, [WHOLE], [state, only, instead_of or ""])
        return answer[1] == 1

    async def _run(self, script: AsyncScript, hold: Hold, named: Sequence[str], args: Sequence[Value]) -> list[Value]:
        return await run_fenced(script, hold, named, args, self._errors)

    # -- by anybody ---------------------------------------------------------------------------------------------

    async def look(self, ops: Sequence[Op]) -> Found:
        wrong = 0
        for some in _pieces(ops):
            args: list[Value] = ["", "", "look", *_args(some)]
            answer: list[Value] = await ask(partial(self._look, ["", WHOLE], args), self._errors)
            wrong += int(answer[1])
        return Found(wrong)

    async def beat(self, pulses: Sequence[Pulse]) -> None:
        args: list[Value] = []
        for each in pulses:
            said = "" if each.task_id is None else "1"
            args += [key_layout.agent_name(each.ref), each.told(), each.at, said, each.task_id or ""]
        await ask(lambda: self._beat([], args), self._errors)

    async def lock(self, zone_ids: Sequence[str], holder: str, *, surely: bool) -> None:
        named = [key_layout.LOCK + zone_id for zone_id in zone_ids]
        await ask(lambda: self._lock(named, [holder, "1" if surely else ""]), self._errors)

    async def state(self) -> str:
        # By a script of its own words it would cost as much: something of another type is no state.
        if await ask(lambda: self._client.type(WHOLE), self._errors) != "string":
            return ""
        return str(await ask(lambda: self._client.get(WHOLE), self._errors) or "")

    async def unsay(self) -> None:
        await ask(lambda: self._client.delete(WHOLE), self._errors)

    async def ping(self) -> None:
        await ask(lambda: self._client.ping(), self._errors)

    async def close(self) -> None:
        await self._client.aclose()

    # -- what stands there --------------------------------------------------------------------------------------

    async def standing(self) -> AsyncIterator[Page]:
        for family in FAMILIES:
            async for named in self._named(family):
                yield Page(family, "")
                for key in named:
                    async for page in self._pages(family, key):
                        yield page

    async def _named(self, family: Family) -> AsyncIterator[list[str]]:
        if not family.prefix.endswith(":"):
            yield [family.prefix]
            return
        cursor, pattern = 0, f"{family.prefix}*"
        while True:
            cursor, found = await ask(partial(self._client.scan, cursor, match=pattern, count=SCAN_COUNT), self._errors)
            yield [str(key) for key in found]
            if not cursor:
                return

    async def _pages(self, family: Family, key: str) -> AsyncIterator[Page]:
        kind = await ask(lambda: self._client.type(key), self._errors)
        if kind == "none":
            return
        if kind != family.kind or family.prefix not in key_layout.WITH_MEMBERS:
            yield Page(family, key, is_foreign=kind != family.kind)
            return
        if kind == "list":
            found = await ask(lambda: self._client.lrange(key, 0, LIST_MAX), self._errors)
            yield Page(family, key, [str(each) for each in found])
            return
        cursor = 0
        while True:
            cursor, members = await self._members(kind, key, cursor)
            yield Page(family, key, members)
            if not cursor:
                return

    async def _members(self, kind: str, key: str, cursor: int) -> tuple[int, list[str]]:
        client, count = self._client, MEMBERS_COUNT
        if kind == "set":
            after, members = await ask(lambda: client.sscan(key, cursor, count=count), self._errors)
            return int(after), [str(each) for each in members]
        if kind == "hash":
            after, fields = await ask(lambda: client.hscan(key, cursor, count=count), self._errors)
            return int(after), [str(each) for each in fields]
        after, scored = await ask(lambda: client.zscan(key, cursor, count=count), self._errors)
        return int(after), [str(each) for each, _ in scored]

    # -- what is said to us -------------------------------------------------------------------------------------

    async def listen(self, heard: Callable[[], None]) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as said:
            await ask(lambda: said.psubscribe(key_layout.COMMANDS), self._errors)
            # What was said before this listened, or while the connection was lost, is made up for.
            heard()
            while True:
                message = await ask(lambda: said.get_message(timeout=LISTEN_SECONDS), self._errors)
                if message is not None:
                    heard()
                    await asyncio.sleep(GAP_SECONDS)


def _pieces(ops: Sequence[Op]) -> Iterator[Sequence[Op]]:
    for begin in range(0, len(ops), OPS_MAX):
        yield ops[begin : begin + OPS_MAX]


def _args(ops: Sequence[Op]) -> list[Value]:
    values: list[Value] = []
    for op in ops:
        if isinstance(op, TaskMark):
            given, word = _of_task(op), "task"
        elif isinstance(op, AgentMark):
            given, word = _of_agent(op), "agent"
        else:
            given, word = _of_strike(op), "strike"
        values += [word, len(given), *given]
    return values


def _of_task(mark: TaskMark) -> list[Value]:
    holder = mark.holder
    return [
        mark.zone_id,
        mark.id,
        "" if mark.score is None else mark.score,
        "" if holder is None else key_layout.agent_name((mark.zone_id, holder.agent_id)),
        "" if holder is None else holder.session_key,
        "" if holder is None else holder.assigned_at,
        "" if holder is None else holder.started_at,
        _flag(mark.recovers),
        "" if holder is None else holder.agent_id,
        _flag(mark.is_recent),
    ]


def _of_agent(mark: AgentMark) -> list[Value]:
    return [
        key_layout.agent_name(mark.ref),
        mark.status or "",
        mark.current_task,
        mark.last_heartbeat,
        _flag(mark.is_stale),
        _flag(mark.is_recent),
    ]


def _of_strike(strike: Strike) -> list[Value]:
    return [strike.key, strike.kind, strike.member, _flag(strike.is_recent)]


def _flag(is_so: bool) -> str:
    return "1" if is_so else ""
