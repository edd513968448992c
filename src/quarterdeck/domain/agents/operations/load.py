"""What a batch of asks that name agents reads first: one round trip, under the zones' locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from quarterdeck.core.caller import Bearer, Caller, Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, Ref, Waiting
from quarterdeck.domain.agents.operations.authorization import Heard, Speakers
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

Batch = list[tuple[object, ...]]


class Asked(Protocol):
    @property
    def zone_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def caller(self) -> Caller | None: ...
    @property
    def bearer(self) -> Bearer | None: ...
    @property
    def ref(self) -> Ref: ...


def get(refs: Iterable[Ref]) -> Bound:
    """The statement that loads agents, for the first round trip of a room above."""
    return Q.agents_get(batch=[*refs])


def by_ref(rows: Sequence[Row]) -> dict[Ref, Agent]:
    """What that statement found."""
    return {agent.ref: agent for agent in decode([*rows], Agent)}


async def waiting(tx: Tx, refs: Iterable[Ref]) -> dict[Ref, Millis]:
    """Of those that wait for work: in how long each must be heard of again."""
    [rows] = await tx.read(Q.agents_waiting(batch=[*sorted(refs)]))
    return {(each.zone_id, each.id): rules.heard_within(each, tx.now) for each in decode(rows, Waiting)}


@dataclass(frozen=True, slots=True)
class Loaded:
    now: Millis
    agents: dict[Ref, Agent]
    heard: Heard
    why_not: Mapping[str, Problem | Busy]
    """Of each zone that could not be locked: why."""
    endings: Mapping[str, Problem | None]
    """Of each zone that was locked: why nothing can begin in it any more, if so."""

    def refusal(self, ask: Asked, power: str) -> Problem | Busy | None:
        """Why an ask is not judged at all."""
        return sessions.held_up(ask, self.why_not) or self.heard.problem(ask, power)

    def role(self, ask: Asked) -> Role | None:
        return self.heard.role(ask)

    def found(self, ask: Asked) -> Agent | Problem:
        return self.agents.get(ask.ref) or rules.not_found(ask.agent_id)


async def load(tx: Tx, asks: Sequence[Asked]) -> Loaded:
    """Under the locks of the zones, and of what is heard of the agents: no heartbeat comes between looking and
    writing."""
    refs = refs_of(asks)
    speakers = Speakers(asks)
    zone_rows, _, rows, *said = await tx.read(
        zones.lock(tx, zones_of(asks)),
        Q.agent_pulses_lock(batch=refs),
        Q.agents_get(batch=refs),
        *speakers.statements(),
    )
    locked = zones.locked(zone_rows)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    return Loaded(tx.now, by_ref(rows), speakers.heard(said, tx.now), why_not, zone_rules.endings(locked.values()))


def refs_of(asks: Iterable[Asked]) -> Batch:
    return [*sorted({ask.ref for ask in asks})]
