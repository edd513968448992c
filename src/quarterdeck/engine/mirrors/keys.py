"""Keeps the Redis keys for tasks and agents in sync with the database.

The keys are for other programs. The server makes no decision from them.

**Written.** A sink (`engine.sinks`) follows the log. For each event it reads the current row of the task or agent,
writes that state to Redis, and then publishes the event. So the order of events does not matter, and writing twice does
no harm. A lease ensures that one process at a time does this, one cycle after another, so no writer overtakes another.

**Compared.** When no events are left, the same cycles compare the keys with the rows, slice by slice, in repeated
rounds: everything in the database must be in Redis, and everything in Redis must be in the database. Differences are
repaired and counted, and while there are any, the round continues at once. A process without the lease compares without
writing, and acquires the lease only if it finds a difference, so idle servers write nothing.

**Rebuilt.** The state key records that all keys were written; wiping Redis deletes it with the others. If the state is
missing, a complete round runs at once. At its end the process marks the keys as complete only if the state is still
the one that it wrote at the start, so incomplete keys are never marked as complete.

How it fails. If Redis is not reachable, the sink stays at its position, nothing else waits, and the holder of the lease
starts its round again. Keys that other programs write, of any type and content, are removed when a round reaches them.
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
from quarterdeck.bus.redis.interfaces import RejectedEntry, SinkEntry, WriterIdentity
from quarterdeck.bus.redis.key_layout import KeyOperation, KeyPage, KeyRemoval, KeyWriter, MirroredAgent, MirroredTask
from quarterdeck.core.ids import Ref, is_path_id, new_id
from quarterdeck.engine.leases import Fence
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks import Sink, SinkTarget
from quarterdeck.engine.transaction import Engine, Transaction

log = logging.getLogger("quarterdeck.mirror")
SINK_NAME = "redis-keys"
EVENTS_MIN = 500
"""Minimum batch size of the sink: if several events concern the same row, it is read and written once."""
SLICE_MAX = 250
"""Maximum tasks, and maximum agents, that one step compares."""
STEPS_MAX = 40
"""Maximum steps per pass, so that other work runs in between."""
ZONES_MAX = 200
RECOVERING_MAX = 10_000
COMPLETE, BUILDING = "whole", "building"
REBUILD_WAIT_SECONDS = 14.0
"""Less than the default of SHUTDOWN_GRACE_MS, so that a draining server can still respond."""
REBUILD_POLL_SECONDS = 0.1
Positions = tuple[str | None, ...]
"""The last listed id of each of a zone's lists; None for a list that has ended."""


class ZoneContents(NamedTuple):
    """A page of a zone's tasks and agents."""

    tasks: Sequence[Ref]
    agents: Sequence[Ref]
    positions: Positions

    @property
    def is_last(self) -> bool:
        return all(position is None for position in self.positions)


class MirrorSource(Protocol):
    """Reads the rows to mirror. Implemented by the components."""

    async def load_mirrored(
        self, tx: Transaction, task_refs: Sequence[Ref], agent_refs: Sequence[Ref]
    ) -> tuple[list[MirroredTask], list[MirroredAgent]]: ...

    async def list_zones(self, tx: Transaction, after: str, limit: int) -> list[str]: ...

    async def list_contents(
        self, tx: Transaction, zone_id: str, positions: Positions | None, limit: int
    ) -> ZoneContents:
        """A page of a zone after these positions, or the first page if None."""

    async def list_recovering(self, tx: Transaction, limit: int) -> list[Ref]: ...


# -- what to compare ---------------------------------------------------------------------------------------------------


class StoredHolder(NamedTuple):
    """A stored member that names a task and its holder. If ids contain colons, it may name one of several tasks."""

    removal: KeyRemoval
    tasks: Sequence[Ref]
    agent: Ref | None = None
    """The agent, if the key names it; otherwise the member names the session."""


@dataclass(frozen=True, slots=True)
class ComparisonPart:
    """What one step compares."""

    tasks: Sequence[Ref] = ()
    agents: Sequence[Ref] = ()
    holders: Sequence[StoredHolder] = ()
    removals: Sequence[KeyRemoval] = ()
    """Keys and members that are wrong regardless of the database's content."""

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.agents or self.removals)


def build_comparison_part(page: KeyPage) -> ComparisonPart:
    """The part to compare for a page of stored keys: the tasks and agents that the keys name."""
    family, key = page.family, page.key
    if not key:
        return ComparisonPart()
    if page.has_wrong_type:
        return ComparisonPart(removals=[KeyRemoval(key, "")])
    suffix = key.removeprefix(family.prefix)
    if family.prefix == key_layout.STALE_AGENTS:
        return _build_stale_agents_part(page)
    if family.prefix in (key_layout.STATUS_PREFIX, key_layout.AGENT_TASKS_PREFIX):
        ref = key_layout.parse_agent_name(suffix)
        return ComparisonPart(removals=[KeyRemoval(key, "")]) if ref is None else _build_agent_part(page, ref)
    return (
        _build_tasks_part(page, zone_id=suffix)
        if is_path_id(suffix)
        else ComparisonPart(removals=[KeyRemoval(key, "")])
    )


def _build_stale_agents_part(page: KeyPage) -> ComparisonPart:
    refs = {member: key_layout.parse_agent_name(member) for member in page.members}
    removals = [KeyRemoval(page.key, page.family.redis_type, member) for member, ref in refs.items() if ref is None]
    return ComparisonPart(agents=[ref for ref in refs.values() if ref is not None], removals=removals)


def _build_agent_part(page: KeyPage, ref: Ref) -> ComparisonPart:
    removals, holders = [], []
    for member in page.members:
        removal = KeyRemoval(page.key, page.family.redis_type, member)
        if is_path_id(member):
            holders.append(StoredHolder(removal, [(ref[0], member)], ref))
        else:
            removals.append(removal)
    return ComparisonPart([task for holder in holders for task in holder.tasks], [ref], holders, removals)


def _build_tasks_part(page: KeyPage, zone_id: str) -> ComparisonPart:
    tasks: list[Ref] = []
    removals, holders = [], []
    for member in page.members:
        removal = KeyRemoval(page.key, page.family.redis_type, member)
        is_active_set = page.family.prefix == key_layout.ACTIVE_PREFIX
        task_ids = key_layout.possible_task_ids(member) if is_active_set else [member] if is_path_id(member) else []
        tasks += [(zone_id, task_id) for task_id in task_ids]
        if not task_ids:
            removals.append(removal)
        elif is_active_set:
            holders.append(StoredHolder(removal, [(zone_id, task_id) for task_id in task_ids]))
    return ComparisonPart(tasks, holders=holders, removals=removals)


def find_wrong_holders(holders: Sequence[StoredHolder], mirrored_tasks: Sequence[MirroredTask]) -> list[KeyRemoval]:
    """The stored members whose agent does not hold the task."""
    tasks_by_ref = {task.ref: task for task in mirrored_tasks}
    removals = []
    for holder in holders:
        candidates = [tasks_by_ref[ref] for ref in holder.tasks]
        if not any(_is_correct(holder, task) for task in candidates):
            removals.append(holder.removal._replace(is_recent=any(task.is_recent for task in candidates)))
    return removals


def _is_correct(holder: StoredHolder, task: MirroredTask) -> bool:
    if task.holder is None:
        return False
    if holder.agent is not None:
        return holder.agent == (task.zone_id, task.holder.agent_id)
    return holder.removal.member == key_layout.active_set_member(task.id, task.holder.session_key)


# -- delivery of events ------------------------------------------------------------------------------------------------


class _KeyMirrorWriter:
    """The target of the sink."""

    def __init__(self, cross_zone_engine: Engine, source: MirrorSource, key_writer: KeyWriter) -> None:
        self.identity: WriterIdentity | None = None
        self._cross_zone_engine = cross_zone_engine
        self._source = source
        self._key_writer = key_writer

    async def fence_older_terms(self, identity: WriterIdentity) -> None:
        await self._key_writer.fence_older_terms(identity)
        self.identity = identity

    async def deliver(
        self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]
    ) -> list[RejectedEntry]:
        task_refs, agent_refs = key_layout.changed_refs(entries)
        tasks, agents = await self._cross_zone_engine.read(
            lambda tx: self._source.load_mirrored(tx, task_refs, agent_refs)
        )
        # The keys first, so that a subscriber that reads them when it gets the event finds the new state.
        await self._key_writer.write(identity, [*tasks, *agents])
        await self._key_writer.publish(identity, after_pos, entries)
        return []

    async def deliver_delayed(self, identity: WriterIdentity, entries: Sequence[SinkEntry]) -> list[str | None]:
        """Nothing is ever rejected, so there are no delayed entries."""
        return [None for _ in entries]

    async def close(self) -> None:
        await self._key_writer.close()


# -- leader loop -------------------------------------------------------------------------------------------------------


class KeyMirror:
    """The mirror of this process: implements `engine.leader_loop.LeaderWork`."""

    def __init__(
        self, cross_zone_engine: Engine, source: MirrorSource, key_writer: KeyWriter, settings: SinkSettings
    ) -> None:
        self.repair_count = 0
        self._cross_zone_engine = cross_zone_engine
        self._source = source
        self._key_writer = key_writer
        self._mirror_writer = _KeyMirrorWriter(cross_zone_engine, source, key_writer)
        target = SinkTarget(self._mirror_writer, key_layout.build_entries, lambda _: False)
        batch_max = max(EVENTS_MIN, settings.outbox_batch_size)
        sink_settings = msgspec.structs.replace(settings, outbox_batch_size=batch_max)
        self.sink = Sink(cross_zone_engine, SINK_NAME, target, sink_settings)
        self._interval_seconds = settings.keys_reconcile_interval_ms / 1000
        self._comparison_due_at = 0.0
        self._round: AsyncIterator[ComparisonPart] | None = None
        self._suspects: ComparisonPart | None = None
        self._building_state: str | None = None
        """The state written at the start of a complete round."""
        self._repaired_in_round = 0

    # -- LeaderWork ---------------------------------------------------------------------------------------------

    async def is_due(self) -> bool:
        if await self.sink.is_due():
            return True
        return self._is_comparison_due() and await self._find_differences()

    async def run_cycle(self, fence: Fence) -> float | None:
        next_in = await self.sink.run_cycle(fence)
        if next_in == 0:
            return 0
        if self._is_comparison_due():
            identity = self._mirror_writer.identity
            assert identity is not None  # the sink has taken over and delivered everything
            if await self._repair(identity):
                return 0
            self._comparison_due_at = time.monotonic() + self._interval_seconds
        remaining = max(0.01, self._comparison_due_at - time.monotonic())
        return remaining if next_in is None else min(next_in, remaining)

    async def on_stop(self, fence: Fence | None) -> None:
        await self.sink.on_stop(fence)

    def _is_comparison_due(self) -> bool:
        return time.monotonic() >= self._comparison_due_at

    # -- on request ---------------------------------------------------------------------------------------------

    async def read_state(self) -> str:
        return await self._key_writer.read_state()

    async def rebuild(self, notify: Callable[[], None]) -> str:
        """Let the lease holder write all keys again. Return the state when that is done, or after
        `REBUILD_WAIT_SECONDS`."""
        await self._key_writer.delete_state()
        self._comparison_due_at = 0.0
        notify()
        deadline = time.monotonic() + REBUILD_WAIT_SECONDS
        while True:
            # Polled, because another process may be the lease holder, and it reports nowhere else.
            await asyncio.sleep(REBUILD_POLL_SECONDS)
            state = await self._key_writer.read_state()
            if state.startswith(COMPLETE) or time.monotonic() >= deadline:
                return state

    # -- comparison ---------------------------------------------------------------------------------------------

    async def _find_differences(self) -> bool:
        """Compare without the lease. A difference is checked again under the lease before anything is written."""
        if not (await self._key_writer.read_state()).startswith(COMPLETE):
            return True
        for _ in range(STEPS_MAX):
            part = await self._next_part()
            if part is None:
                break
            if part.is_empty:
                continue
            if (await self._key_writer.compare(await self._load_operations(part))).total:
                self._suspects = part
                return True
        self._comparison_due_at = time.monotonic() + self._interval_seconds
        return False

    async def _repair(self, identity: WriterIdentity) -> bool:
        """Run a part of a round. Return whether to continue at once."""
        try:
            await self._start_rebuild_if_missing(identity)
            repaired = await self._repair_parts(identity)
        except BaseException:
            # A part that was not written must not count as written at the end of the round: start the round again.
            self._round = self._building_state = self._suspects = None
            raise
        return bool(repaired) or self._building_state is not None

    async def _repair_parts(self, identity: WriterIdentity) -> int:
        suspects, self._suspects = self._suspects, None
        repaired = 0 if suspects is None else await self._repair_part(identity, suspects)
        for _ in range(STEPS_MAX):
            part = await self._next_part()
            if part is None:
                await self._finish_round(identity)
                break
            repaired += await self._repair_part(identity, part)
        return repaired

    async def _repair_part(self, identity: WriterIdentity, part: ComparisonPart) -> int:
        if part.is_empty:
            return 0
        differences = (await self._key_writer.write(identity, await self._load_operations(part))).total
        self.repair_count += differences
        self._repaired_in_round += differences
        return differences

    async def _load_operations(self, part: ComparisonPart) -> list[KeyOperation]:
        task_refs, agent_refs = [*dict.fromkeys(part.tasks)], [*dict.fromkeys(part.agents)]
        tasks, agents = await self._cross_zone_engine.read(
            lambda tx: self._source.load_mirrored(tx, task_refs, agent_refs)
        )
        return [*part.removals, *find_wrong_holders(part.holders, tasks), *tasks, *agents]

    # -- rounds -------------------------------------------------------------------------------------------------

    async def _start_rebuild_if_missing(self, identity: WriterIdentity) -> None:
        state = await self._key_writer.read_state()
        # Only a state that this database wrote counts.
        if state.startswith(f"{COMPLETE} {identity.sink_id} "):
            self._building_state = None
            return
        if state == self._building_state:
            return
        self._building_state = f"{BUILDING} {new_id()}"
        self._round = None
        log.info("the Redis keys of tasks and agents are missing or incomplete: rebuilding")
        await self._key_writer.write_state(identity, self._building_state)

    async def _finish_round(self, identity: WriterIdentity) -> None:
        if self._building_state is None:
            return
        state = f"{COMPLETE} {identity.sink_id} {self._repaired_in_round}"
        if await self._key_writer.write_state(identity, state, expected=self._building_state):
            log.info("rebuilt the Redis keys of tasks and agents: %d changes", self._repaired_in_round)
            self._building_state = None

    async def _next_part(self) -> ComparisonPart | None:
        """The next part of the round, or None at its end. The call after that starts a new round."""
        if self._round is None:
            self._round, self._repaired_in_round = self._iterate_parts(), 0
        try:
            return await anext(self._round)
        except StopAsyncIteration:
            self._round = None
            return None
        except BaseException:
            # An iterator that has failed cannot continue: start a new round.
            self._round = None
            raise

    async def _iterate_parts(self) -> AsyncIterator[ComparisonPart]:
        """First everything in the database, then everything in Redis."""
        async for zone_id in self._iterate_zones():
            async for part in self._iterate_zone_parts(zone_id):
                yield part
        recovering = await self._cross_zone_engine.read(lambda tx: self._source.list_recovering(tx, RECOVERING_MAX))
        for start in range(0, len(recovering), SLICE_MAX):
            yield ComparisonPart(recovering[start : start + SLICE_MAX])
        async for page in self._key_writer.scan():
            yield build_comparison_part(page)

    async def _iterate_zones(self) -> AsyncIterator[str]:
        after = ""
        while True:
            zone_ids = await self._cross_zone_engine.read(
                partial(self._source.list_zones, after=after, limit=ZONES_MAX)
            )
            for zone_id in zone_ids:
                yield zone_id
            if len(zone_ids) < ZONES_MAX:
                return
            after = zone_ids[-1]

    async def _iterate_zone_parts(self, zone_id: str) -> AsyncIterator[ComparisonPart]:
        positions: Positions | None = None
        while True:
            contents = await self._cross_zone_engine.read(
                partial(self._source.list_contents, zone_id=zone_id, positions=positions, limit=SLICE_MAX)
            )
            yield ComparisonPart(contents.tasks, contents.agents)
            if contents.is_last:
                return
            positions = contents.positions
