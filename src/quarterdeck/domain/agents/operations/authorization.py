"""Whether whoever asks may: asked in the transaction of what they ask for, under the lock of its zone.

    speakers = Speakers(asks)
    zone_rows, *said, rows = await tx.read(zones.lock(tx, zones_of(asks)), *speakers.statements(), Q.things(…))
    heard = speakers.heard(said, tx.now)
    problem = heard.problem(ask, "tasks.create")

The answers come in a fixed order: the session the bearer speaks for has ended (401), its agent was terminated, or
another has its name since (401), the workspace is not there for it (404), it is nobody in it (403), its role does not
allow this (403).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from quarterdeck.core.caller import Bearer, Caller, Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import State
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import Bound

Ref = tuple[str, str]
"""(zone, session, agent or subject)"""


class Asked(Protocol):
    """What is asked, where, and by whom. Without a caller it is the server itself that asks."""

    @property
    def zone_id(self) -> str: ...
    @property
    def caller(self) -> Caller | None: ...
    @property
    def bearer(self) -> Bearer | None: ...


class Speakers:
    """Who speaks in a batch, and the statements that tell whether they may: none, if only the server does."""

    def __init__(self, asks: Sequence[Asked]) -> None:
        self._sessions = sorted(sessions.bearers_of(asks))
        agents: set[Ref] = set()
        members: set[Ref] = set()
        for ask in asks:
            caller = ask.caller
            if caller is None:
                continue
            if caller.agent_id is not None:
                agents.add((caller.zone_id, caller.agent_id))
            elif not caller.is_admin and caller.zone_id == ask.zone_id:
                members.add((caller.zone_id, caller.subject))
        self._agents = sorted(agents)
        self._members = sorted(members)

    def statements(self) -> list[Bound]:
        """Up to three. They go into the first round trip, after the zones' locks."""
        statements = [sessions.get(self._sessions)] if self._sessions else []
        if self._agents:
            statements.append(Q.agents_speaking(batch=[*self._agents]))
        if self._members:
            statements.append(zones.members_get(self._members))
        return statements

    def heard(self, answers: Sequence[list[Row]], now: Millis) -> Heard:
        """What is known of them by the answers of exactly those statements, in their order."""
        rows = iter(answers)
        found = sessions.by_ref(next(rows)) if self._sessions else {}
        agents = next(rows) if self._agents else []
        members = zones.members_by_ref(next(rows)) if self._members else {}
        return Heard(
            now,
            found,
            {
                (str(zone_id), str(name)): (State(str(status)), int(str(since)))
                for zone_id, name, status, since in agents
            },
            {ref: member.role for ref, member in members.items()},
        )


class Heard:
    """Who may speak, and what for."""

    def __init__(
        self,
        now: Millis,
        found: Mapping[Ref, Session],
        agents: Mapping[Ref, tuple[State, Millis]],
        roles: dict[Ref, Role],
    ) -> None:
        self._now = now
        self.sessions = found
        """Those that bearers speak for."""
        self._agents = agents
        self._roles = roles

    def problem(self, ask: Asked, power: str) -> Problem | None:
        """Why whoever asks may not use this power, if not. The server itself may everything."""
        caller = ask.caller
        if caller is None:
            return None
        if problem := session_rules.bearer_problem(ask.bearer, self.sessions, self._now):
            return problem
        known = self._agents.get((caller.zone_id, caller.agent_id or ""))
        if known is not None and (problem := rules.bearer_problem(caller, *known)):
            return problem
        return zone_rules.power_problem(caller, ask.zone_id, self._row(caller), power)

    def role(self, ask: Asked) -> Role | None:
        """What whoever asks is in the workspace it asks in; None for one who is nothing there, and for the server."""
        caller = ask.caller
        return None if caller is None else zone_rules.role_of(caller, ask.zone_id, self._row(caller))

    def is_now(self, member: Ref, role: Role | None) -> None:
        """A member's row was changed in this very transaction."""
        if role is None:
            self._roles.pop(member, None)
        else:
            self._roles[member] = role

    def _row(self, caller: Caller) -> Role | None:
        return self._roles.get((caller.zone_id, caller.subject))


class AsAgent(msgspec.Struct, frozen=True):
    """One who speaks for an agent, in a room below that knows nothing of agents."""

    zone_id: str
    """The caller's own."""
    caller: Caller


async def still_speak(tx: Tx, asks: Sequence[AsAgent]) -> list[bool | Problem]:
    """Whether their agents may still be spoken for; what they may do is for those rooms to say."""
    named = sorted({(ask.zone_id, ask.caller.agent_id) for ask in asks if ask.caller.agent_id is not None})
    [rows] = await tx.read(Q.agents_speaking(batch=[*named]))
    known = {(str(zone_id), str(name)): (State(str(status)), int(str(since))) for zone_id, name, status, since in rows}
    found = [known.get((ask.zone_id, ask.caller.agent_id or "")) for ask in asks]
    return [
        (each is not None and rules.bearer_problem(ask.caller, *each)) or True
        for ask, each in zip(asks, found, strict=True)
    ]


class _Plain(msgspec.Struct, frozen=True):
    zone_id: str
    caller: Caller

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


async def require_power(tx: Tx, caller: Caller | None, zone_id: str, power: str) -> None:
    """Refuses a caller who may not, before anything is read for it."""
    if caller is None:
        return
    ask = _Plain(zone_id, caller)
    speakers = Speakers([ask])
    answers = await tx.read(*speakers.statements())
    if problem := speakers.heard(answers, tx.now).problem(ask, power):
        raise problem
