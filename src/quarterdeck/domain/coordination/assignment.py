"""Tasks to agents that are launched: read what there is, match, ask, and launch what was given.

Only agents with a launcher are assigned to; the others ask for work themselves. Where there are such agents is found
first, then whether anything may begin there: a server whose agents all ask for themselves pays next to nothing for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.domain.agents import operations as agents, rules as agent_rules
from quarterdeck.domain.agents.model import Agent
from quarterdeck.domain.coordination.launchers import Launching, Start
from quarterdeck.domain.coordination.rules.matching import Match, Queue, Seat, matched
from quarterdeck.domain.tasks.model.commands import Assign, Command, Outcome
from quarterdeck.domain.tasks.model.rows import Ref, Task
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, Kind
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.coordinator")
PLACES_MAX = 500
"""Zones that one turn looks into; the next goes on after them."""
AGENTS_MAX = 2_000
ASSIGN_MAX = 500
ASIDE_SECONDS = 5.0
"""For which a task is passed over whose assignment was refused: its budget is spent, or somebody was faster."""
_names = msgspec.json.Decoder(list[str]).decode


class Place(NamedTuple):
    launcher: str
    zone_id: str


class Openings(NamedTuple):
    """Where something may begin that a launcher could be started for."""

    places: list[Place]
    kinds: dict[ClassRef, Kind]


class Assigning:
    def __init__(
        self, everywhere: Engine, submit: Callable[[Command], Awaitable[Outcome]], launching: Launching
    ) -> None:
        self._everywhere = everywhere
        self._submit = submit
        self._launching = launching
        self._after = dict.fromkeys(launching.names, "")
        """Of each launcher, the zone after which the next look goes on."""
        self._aside: dict[Ref, float] = {}
        """Until when a task is passed over, by the loop's clock."""

    async def openings(self, tx: Tx) -> Openings:
        """By two statements, and by one where there is nobody to launch."""
        room = self._launching.room()
        after = {name: self._after[name] for name, left in room.items() if left > 0}
        found = [Place(*each) for each in await agents.launch_zones(tx, after, PLACES_MAX)] if after else []
        if len(found) < PLACES_MAX:
            self._after = dict.fromkeys(self._after, "")
        else:
            self._after |= dict(sorted(found))
        kinds = await coordinator_queries.ready_classes(tx, {place.zone_id for place in found}) if found else {}
        types: dict[str, set[str]] = {}
        for (zone_id, _), kind in kinds.items():
            types.setdefault(zone_id, set()).add(kind.task_type)
        return Openings([place for place in found if self._has_work(place, types)], kinds)

    def _has_work(self, place: Place, types: Mapping[str, set[str]]) -> bool:
        """Whether in its zone something may begin of a type that its launcher is for."""
        ready, wanted = types.get(place.zone_id, set()), self._launching.task_types(place.launcher)
        return bool(ready if wanted is None else ready & wanted)

    async def assign(self, openings: Openings, fence: tuple[str, int]) -> int:
        """How many tasks were given out, and are being launched."""
        self._forget_aside()
        free = await self._everywhere.read(lambda tx: agents.launchable_in(tx, openings.places, AGENTS_MAX))
        wanted = self._wanted(openings.kinds, free)
        if not wanted:
            return 0
        ready = await self._everywhere.read(lambda tx: coordinator_queries.ready_of(tx, wanted))
        asks = self._matched(openings.kinds, ready, free, fence)
        outcomes = sorted_out(await asyncio.gather(*(self._submit(ask) for ask in asks), return_exceptions=True))
        by_ref = {agent.ref: agent for agent in free}
        given = 0
        for ask, outcome in zip(asks, outcomes, strict=True):
            if isinstance(outcome, Problem):
                log.debug("%s was not assigned: %r", ask.id, outcome)
                self._aside[ask.zone_id, ask.id] = asyncio.get_running_loop().time() + ASIDE_SECONDS
                continue
            assert isinstance(outcome, Task)
            agent = by_ref[ask.zone_id, ask.agent_id]
            assert agent.launcher is not None
            within = agent_rules.expected_within(agent)
            self._launching.begin(Start(outcome, agent.launcher, within, agent.created_at))
            given += 1
        return given

    def seconds(self) -> float | None:
        """Until something that was passed over may be tried again."""
        now = asyncio.get_running_loop().time()
        return max(0.0, min(self._aside.values()) - now) if self._aside else None

    def _forget_aside(self) -> None:
        now = asyncio.get_running_loop().time()
        self._aside = {ref: until for ref, until in self._aside.items() if until > now}

    def _matched(
        self,
        kinds: Mapping[ClassRef, Kind],
        ready: Mapping[ClassRef, Sequence[tuple[int, str]]],
        free: Sequence[Agent],
        fence: tuple[str, int],
    ) -> list[Assign]:
        """Zone by zone, each with what the ones before have left of the launchers."""
        room = self._launching.room()
        launchers = {agent.ref: agent.launcher or "" for agent in free}
        asks: list[Assign] = []
        for zone_id in sorted({zone_id for zone_id, _ in ready}):
            queues = [
                Queue(
                    kinds[ref].capabilities,
                    [each for each in waiting if (zone_id, each[1]) not in self._aside],
                    kinds[ref].task_type,
                )
                for ref, waiting in sorted(ready.items())
                if ref[0] == zone_id
            ]
            seats = [self._seat(agent) for agent in free if agent.zone_id == zone_id]
            for match in matched(queues, seats, room)[: ASSIGN_MAX - len(asks)]:
                launcher = launchers[zone_id, match.agent_id]
                room[launcher] -= 1
                asks.append(self._ask(zone_id, match, launcher, fence))
        return asks

    def _ask(self, zone_id: str, match: Match, launcher: str, fence: tuple[str, int]) -> Assign:
        return Assign(
            zone_id=zone_id,
            id=match.task_id,
            fence=fence,
            agent_id=match.agent_id,
            token=secrets.token_urlsafe(16),
            launch_ms=self._launching.launch_ms(launcher),
        )

    def _seat(self, agent: Agent) -> Seat:
        assert agent.launcher is not None
        return Seat(
            agent.id,
            frozenset(_names(agent.capabilities)),
            agent.max_concurrent_tasks,
            agent.held,
            agent.launcher,
            self._launching.task_types(agent.launcher),
        )

    def _wanted(self, kinds: Mapping[ClassRef, Kind], free: Sequence[Agent]) -> dict[ClassRef, int]:
        """Of each class as many as there are slots for, and as many more as will be passed over."""
        slots: Counter[tuple[str, frozenset[str], frozenset[str] | None]] = Counter()
        for agent in free:
            seat = self._seat(agent)
            slots[agent.zone_id, seat.capabilities, seat.task_types] += agent_rules.free_slots(agent)
        wanted: dict[ClassRef, int] = {}
        for ref, kind in kinds.items():
            most = sum(
                number
                for (zone_id, has, types), number in slots.items()
                if zone_id == ref[0] and kind.suits(has, types)
            )
            if most:
                wanted[ref] = min(most, ASSIGN_MAX) + len(self._aside)
        return wanted


R = TypeVar("R")


def sorted_out(outcomes: Iterable[R | BaseException]) -> list[R | Problem]:
    """Outcomes and refusals, each for its own command. That the term is over, that the database is away, or that
    something broke, is not about one of them, and ends the turn."""
    kept: list[R | Problem] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and (
            isinstance(outcome, LeaseLost | Unavailable) or not isinstance(outcome, Problem)
        ):
            raise outcome
        kept.append(outcome)
    return kept
