"""What is shown of tasks and agents under keys outside, kept as the database says it is.

The database is the judge, and nothing that is decided here ever asks the keys. They are for other components.

**Told.** A sink (`engine.sinks`) follows the log. What an event is about is read again, and written as its row says
it is *now*; then the event is published. So nothing depends on the order in which events come, and what is told twice
does no harm. One process at a time does it, by a lease, and in one turn after another: no writer overtakes another.

**Compared.** In the same turns, when nothing is left to tell, what stands under the keys is compared with the rows,
slice by slice, round and round: everything the database has must be there, and everything that is there must be in
the database. What is wrong is put right and counted, and while something is, the round goes on at once. Whoever does
not hold the lease looks without writing, and asks for it if something is wrong: servers that have nothing to do write
nothing.

**Rebuilt.** That all of it was written is said under a key of its own, which goes with the rest if somebody wipes
Redis. Where it is missing a whole round is made at once, and nobody says of a half that it is whole: whoever began
says so only instead of what it said when it began.

How it fails. With the other side away the sink stands where it is, nothing else waits, and the round goes on where it
was. Keys that somebody else writes, of any type and with any text in them, are struck out when the round comes by.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from quarterdeck.bus.redis import key_layout
from quarterdeck.bus.redis.interfaces import Entry, Hold, Rejected
from quarterdeck.bus.redis.key_layout import AgentMark, KeyBoard, Op, Page, Ref, Strike, TaskMark
from quarterdeck.core.ids import is_path_id, new_id
from quarterdeck.engine.leases import Fence
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks import Channel, Sink
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.mirror")
NAME = "redis-keys"
EVENTS_MIN = 500
"""That are told in one go at least: what several of them are about is read and written once."""
SLICE = 250
"""Of each kind that one step compares."""
STEPS_MAX = 40
"""Of one pass, after which others have their turn."""
ZONES_MAX = 200
RECOVERING_MAX = 10_000
WHOLE, BUILDING = "whole", "building"
WAIT_SECONDS = 14.0
"""Less than a server that drains has."""
ASK_SECONDS = 0.1
Places = tuple[str | None, ...]


class Contents(NamedTuple):
    """Some of what a zone has."""

    tasks: Sequence[Ref]
    agents: Sequence[Ref]
    reached: Places

    @property
    def is_last(self) -> bool:
        return all(place is None for place in self.reached)


class Source(Protocol):
    """The rooms, asked how things are."""

    async def marks(
        self, tx: Tx, tasks: Sequence[Ref], named: Sequence[Ref]
    ) -> tuple[list[TaskMark], list[AgentMark]]: ...

    async def zones(self, tx: Tx, after: str, limit: int) -> list[str]: ...

    async def contents(self, tx: Tx, zone_id: str, places: Places | None, limit: int) -> Contents:
        """Of a zone, from these places on; from the first, if there are none."""

    async def recovering(self, tx: Tx, limit: int) -> list[Ref]: ...


# -- what is asked about -----------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Somewhere a task is said to be held. It may be one of several: ids may hold colons."""

    strike: Strike
    tasks: Sequence[Ref]
    agent: Ref | None = None
    """By whom, where the key says so; else the member says in which session."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one step compares."""

    tasks: Sequence[Ref] = ()
    agents: Sequence[Ref] = ()
    claims: Sequence[Claim] = ()
    strikes: Sequence[Strike] = ()
    """What is wrong whatever the database says."""

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.agents or self.strikes)


def asked_of(page: Page) -> Asked:
    """Whom what stands there is about."""
    family, key = page.family, page.key
    if not key:
        return Asked()
    if page.is_foreign:
        return Asked(strikes=[Strike(key, "")])
    name = key.removeprefix(family.prefix)
    if family.prefix == key_layout.STALE:
        return _about_agents(page)
    if family.prefix in (key_layout.STATUS, key_layout.OF_AGENT):
        ref = key_layout.agent_ref(name)
        return Asked(strikes=[Strike(key, "")]) if ref is None else _about_agent(page, ref)
    return _about_tasks(page, name) if is_path_id(name) else Asked(strikes=[Strike(key, "")])


def _about_agents(page: Page) -> Asked:
    refs = {member: key_layout.agent_ref(member) for member in page.members}
    strikes = [Strike(page.key, page.family.kind, member) for member, ref in refs.items() if ref is None]
    return Asked(agents=[ref for ref in refs.values() if ref is not None], strikes=strikes)


def _about_agent(page: Page, ref: Ref) -> Asked:
    strikes, claims = [], []
    for member in page.members:
        strike = Strike(page.key, page.family.kind, member)
        if is_path_id(member):
            claims.append(Claim(strike, [(ref[0], member)], ref))
        else:
            strikes.append(strike)
    return Asked([task for claim in claims for task in claim.tasks], [ref], claims, strikes)


def _about_tasks(page: Page, zone_id: str) -> Asked:
    tasks: list[Ref] = []
    strikes, claims = [], []
    for member in page.members:
        strike = Strike(page.key, page.family.kind, member)
        in_session = page.family.prefix == key_layout.ACTIVE
        meant = key_layout.tasks_meant(member) if in_session else [member] if is_path_id(member) else []
        tasks += [(zone_id, task_id) for task_id in meant]
        if not meant:
            strikes.append(strike)
        elif in_session:
            claims.append(Claim(strike, [(zone_id, task_id) for task_id in meant]))
    return Asked(tasks, claims=claims, strikes=strikes)


def refuted(claims: Sequence[Claim], marks: Sequence[TaskMark]) -> list[Strike]:
    """What is said to be held, and is not so."""
    known = {mark.ref: mark for mark in marks}
    found = []
    for claim in claims:
        about = [known[ref] for ref in claim.tasks]
        if not any(_is_so(claim, mark) for mark in about):
            found.append(claim.strike._replace(is_recent=any(mark.is_recent for mark in about)))
    return found


def _is_so(claim: Claim, mark: TaskMark) -> bool:
    if mark.holder is None:
        return False
    if claim.agent is not None:
        return claim.agent == (mark.zone_id, mark.holder.agent_id)
    return claim.strike.member == key_layout.active_member(mark.id, mark.holder.session_key)


# -- telling -----------------------------------------------------------------------------------------------------------


class _Outlet:
    """What the sink delivers to."""

    def __init__(self, everywhere: Engine, source: Source, board: KeyBoard) -> None:
        self.hold: Hold | None = None
        self._everywhere = everywhere
        self._source = source
        self._board = board

    async def take_over(self, hold: Hold) -> None:
        await self._board.take_over(hold)
        self.hold = hold

    async def deliver(self, hold: Hold, after: int, entries: Sequence[Entry]) -> list[Rejected]:
        tasks, agents = key_layout.touched(entries)
        about, of_agents = await self._everywhere.read(lambda tx: self._source.marks(tx, tasks, agents))
        # First the keys: whoever hears of it and looks finds it so.
        await self._board.write(hold, [*about, *of_agents])
        await self._board.tell(hold, after, entries)
        return []

    async def deliver_late(self, hold: Hold, entries: Sequence[Entry]) -> list[str | None]:
        """Nothing is ever refused for what it is."""
        return [None for _ in entries]

    async def close(self) -> None:
        await self._board.close()


# -- the duty ----------------------------------------------------------------------------------------------------------


class Mirror:
    """One process's share of it: an `engine.duties.Work`."""

    def __init__(self, everywhere: Engine, source: Source, board: KeyBoard, settings: SinkSettings) -> None:
        self.repairs = 0
        self.rebuilt = 0
        """How often this process has written all of it."""
        self._everywhere = everywhere
        self._source = source
        self._board = board
        self._outlet = _Outlet(everywhere, source, board)
        channel = Channel(self._outlet, key_layout.entries_of, lambda _: False)
        batch = max(EVENTS_MIN, settings.outbox_batch_size)
        told = msgspec.structs.replace(settings, outbox_batch_size=batch)
        self.sink = Sink(everywhere, NAME, channel, told)
        self._every_seconds = settings.keys_reconcile_interval_ms / 1000
        self._due_at = 0.0
        self._round: AsyncIterator[Asked] | None = None
        self._suspects: Asked | None = None
        self._building: str | None = None
        """What was said when the round began in which all of it is written."""
        self._repaired_in_round = 0

    # -- what a duty asks for -----------------------------------------------------------------------------------

    async def is_due(self) -> bool:
        if await self.sink.is_due():
            return True
        return self._is_time() and await self._finds_something()

    async def turn(self, fence: Fence) -> float | None:
        again = await self.sink.turn(fence)
        if again == 0:
            return 0
        if self._is_time():
            hold = self._outlet.hold
            assert hold is not None  # the sink has taken over, and told whatever there was
            if await self._put_right(hold):
                return 0
            self._due_at = time.monotonic() + self._every_seconds
        left = max(0.01, self._due_at - time.monotonic())
        return left if again is None else min(again, left)

    async def rest(self, fence: Fence | None) -> None:
        await self.sink.rest(fence)

    def _is_time(self) -> bool:
        return time.monotonic() >= self._due_at

    # -- by hand ------------------------------------------------------------------------------------------------

    async def state(self) -> str:
        return await self._board.state()

    async def rebuild(self, wake: Callable[[], None]) -> str:
        """Has all of it written anew by whoever holds the lease; what is said of it when that is done, or at the end of
        our patience."""
        await self._board.unsay()
        self._due_at = 0.0
        wake()
        until = time.monotonic() + WAIT_SECONDS
        while True:
            # Looked at again and again, because whoever does it may be another process, and says so nowhere else.
            await asyncio.sleep(ASK_SECONDS)
            state = await self._board.state()
            if state.startswith(WHOLE) or time.monotonic() >= until:
                return state

    # -- comparing ----------------------------------------------------------------------------------------------

    async def _finds_something(self) -> bool:
        """Looks, without the lease. What it finds is looked at again with it, before anything is written."""
        if not (await self._board.state()).startswith(WHOLE):
            return True
        for _ in range(STEPS_MAX):
            asked = await self._next()
            if asked is None:
                break
            if asked.is_empty:
                continue
            if (await self._board.look(await self._ops(asked))).wrong:
                self._suspects = asked
                return True
        self._due_at = time.monotonic() + self._every_seconds
        return False

    async def _put_right(self, hold: Hold) -> bool:
        """A part of a round. Whether to go on at once."""
        try:
            await self._begin_if_missing(hold)
            repaired = await self._steps(hold)
        except BaseException:
            # A part that was not written must not be taken for written at the end of the round: it begins anew.
            self._round = self._building = self._suspects = None
            raise
        return bool(repaired) or self._building is not None

    async def _steps(self, hold: Hold) -> int:
        suspects, self._suspects = self._suspects, None
        repaired = 0 if suspects is None else await self._right(hold, suspects)
        for _ in range(STEPS_MAX):
            asked = await self._next()
            if asked is None:
                await self._round_is_over(hold)
                break
            repaired += await self._right(hold, asked)
        return repaired

    async def _right(self, hold: Hold, asked: Asked) -> int:
        if asked.is_empty:
            return 0
        wrong = (await self._board.write(hold, await self._ops(asked))).wrong
        self.repairs += wrong
        self._repaired_in_round += wrong
        return wrong

    async def _ops(self, asked: Asked) -> list[Op]:
        tasks, agents = [*dict.fromkeys(asked.tasks)], [*dict.fromkeys(asked.agents)]
        about, of_agents = await self._everywhere.read(lambda tx: self._source.marks(tx, tasks, agents))
        return [*asked.strikes, *refuted(asked.claims, about), *about, *of_agents]

    # -- rounds -------------------------------------------------------------------------------------------------

    async def _begin_if_missing(self, hold: Hold) -> None:
        state = await self._board.state()
        if state.startswith(f"{WHOLE} {hold.sink_id} "):  # by this database: what another has written says nothing
            self._building = None
            return
        if state == self._building:
            return
        self._building = f"{BUILDING} {new_id()}"
        self._round = None
        log.info("what is shown of tasks and agents is missing, and written anew")
        await self._board.say(hold, self._building)

    async def _round_is_over(self, hold: Hold) -> None:
        if self._building is None:
            return
        whole = f"{WHOLE} {hold.sink_id} {self._repaired_in_round}"
        if await self._board.say(hold, whole, instead_of=self._building):
            log.info("what is shown of tasks and agents was written anew: %d", self._repaired_in_round)
            self._building = None
            self.rebuilt += 1

    async def _next(self) -> Asked | None:
        """The next part of the round; None when it is over. The one after it begins from the first."""
        if self._round is None:
            self._round, self._repaired_in_round = self._walk(), 0
        try:
            return await anext(self._round)
        except StopAsyncIteration:
            self._round = None
            return None
        except BaseException:
            # A walk that has failed cannot go on: the next round begins anew.
            self._round = None
            raise

    async def _walk(self) -> AsyncIterator[Asked]:
        """First everything the database has, then everything that stands there."""
        async for zone_id in self._zones():
            async for part in self._zone(zone_id):
                yield part
        recovering = await self._everywhere.read(lambda tx: self._source.recovering(tx, RECOVERING_MAX))
        for begin in range(0, len(recovering), SLICE):
            yield Asked(recovering[begin : begin + SLICE])
        async for page in self._board.standing():
            yield asked_of(page)

    async def _zones(self) -> AsyncIterator[str]:
        after = ""
        while True:
            names = await self._everywhere.read(partial(self._source.zones, after=after, limit=ZONES_MAX))
            for name in names:
                yield name
            if len(names) < ZONES_MAX:
                return
            after = names[-1]

    async def _zone(self, zone_id: str) -> AsyncIterator[Asked]:
        places: Places | None = None
        while True:
            part = await self._everywhere.read(
                partial(self._source.contents, zone_id=zone_id, places=places, limit=SLICE)
            )
            yield Asked(part.tasks, part.agents)
            if part.is_last:
                return
            places = part.reached
