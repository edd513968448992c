"""How agents stand, decided under the zone's lock: by when they were heard of, or because somebody ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from quarterdeck.core.clock import SECOND, Millis, iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, Issued, IssueToken, Look, Ref, Standing, State, Terminate, ToLookAt
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import Loaded, load
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import Moved
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

POWER = "agents.terminate"


async def look(tx: Tx, asks: Sequence[Look]) -> list[Standing | Problem | Busy]:
    """Whether agents still stand as is stored of them. Nothing of it depends on who asks, or when: a look too many
    finds what is there, so it needs no lease. An agent that is heard of while this waits for its row is found alive."""
    loaded = await load(tx, asks)
    moves: dict[Ref, tuple[Agent, Agent]] = {}
    outcomes: list[Standing | Problem | Busy] = []
    for ask in asks:
        agent = sessions.held_up(ask, loaded.why_not) or loaded.found(ask)
        if isinstance(agent, Agent):
            agent = _take(tx, loaded, moves, rules.judged(agent, tx.now), ask)
        outcomes.append(Standing(agent, tx.now) if isinstance(agent, Agent) else agent)
    await persist.move(tx, moves)
    return outcomes


async def terminate(tx: Tx, asks: Sequence[Terminate]) -> list[Standing | Problem | Busy]:
    """Ends agents, at once or with their last task; members of fleets only from within. Done twice it moves
    nothing the second time."""
    loaded = await load(tx, asks)
    moves: dict[Ref, tuple[Agent, Agent]] = {}
    outcomes: list[Standing | Problem | Busy] = []
    for ask in asks:
        agent = loaded.refusal(ask, POWER) or _acting(ask, loaded) or loaded.found(ask)
        if isinstance(agent, Agent):
            agent = rules.ending_problem(ask, agent) or agent
        if isinstance(agent, Agent):
            moved = rules.terminated(agent, ask.reason, tx.now, graceful=ask.graceful)
            agent = _take(tx, loaded, moves, moved, ask)
        outcomes.append(Standing(agent, tx.now) if isinstance(agent, Agent) else agent)
    await persist.move(tx, moves)
    return outcomes


def _acting(ask: Terminate, loaded: Loaded) -> Problem | None:
    return rules.acting_problem(ask.caller, loaded.role(ask), ask.agent_id)


def _take(tx: Tx, loaded: Loaded, moves: dict[Ref, tuple[Agent, Agent]], moved: Moved, ask: Look | Terminate) -> Agent:
    """Keeps a move, from how the agent was before the batch."""
    first = moves.get(ask.ref, (moved.before, moved.before))[0]
    moves[ask.ref] = (first, moved.after)
    loaded.agents[ask.ref] = moved.after
    persist.tell(tx, moved, ask.actor, ask.trace)
    return moved.after


# -- a token of an agent's own -----------------------------------------------------------------------------------


async def issue(tx: Tx, asks: Sequence[IssueToken]) -> list[Issued | Problem | Busy]:
    """That a token is made for an agent, and until when it is good; what it looks like is the shell's. It is told, as
    every credential is that somebody gives away."""
    loaded = await load(tx, asks)
    outcomes: list[Issued | Problem | Busy] = []
    for ask in asks:
        refusal = loaded.refusal(ask, "agents.token") or loaded.endings[ask.zone_id]
        agent = refusal or loaded.found(ask)
        if isinstance(agent, Agent) and agent.status is State.TERMINATED:
            agent = rules.has_terminated(ask.agent_id)
        if not isinstance(agent, Agent):
            outcomes.append(agent)
            continue
        expires_at = tx.now + ask.ttl_seconds * SECOND
        data = msgspec.json.encode({"expiresAt": iso(expires_at), "forAttempt": ask.for_attempt}).decode()
        tx.emit(NewEvent("agent.token_issued", *ask.ref, ask.actor, data=data, trace=ask.trace))
        outcomes.append(Issued(agent, expires_at))
    return outcomes


# -- across zones, for the coordinator ---------------------------------------------------------------------------


async def to_look_at(tx: Tx, limit: int, zone_id: str | None = None) -> list[ToLookAt]:
    """Agents of all zones, or of one, that may have been silent for too long, the longest first."""
    [rows] = await tx.read(Q.agents_to_look_at(limit=limit, zone_id=zone_id))
    return decode(rows, ToLookAt)


async def next_look(tx: Tx) -> Millis | None:
    """In how many milliseconds the next agent will have to be looked at; None if there is none."""
    [[row]] = await tx.read(Q.agents_next_look())
    look_at, now = row
    return None if look_at is None else max(0, int(str(look_at)) - int(str(now)))


async def launch_zones(tx: Tx, after: Mapping[str, str], limit: int) -> list[tuple[str, str]]:
    """(launcher, zone) of where there are agents that launchers start: of each launcher the next after a zone."""
    batch: list[tuple[object, ...]] = [*sorted(after.items())]
    [rows] = await tx.read(Q.agents_launch_zones(batch=batch, limit=limit))
    return [(str(launcher), str(zone_id)) for launcher, zone_id in rows]


async def launchable_in(tx: Tx, places: Sequence[tuple[str, str]], limit: int) -> list[Agent]:
    """Of these, (launcher, zone), the agents that have a slot free."""
    batch: list[tuple[object, ...]] = [(*place, State.IDLE, 1, 0) for place in sorted(set(places))]
    [rows] = await tx.read(Q.agents_launchable_in(batch=batch, limit=limit))
    return decode(rows, Agent)


async def stale_count(tx: Tx) -> int:
    """How many agents are lost, in all zones."""
    [[row]] = await tx.read(Q.agents_in_error_count())
    return int(str(row[0]))
