"""How agents stand, decided under the zone's lock: by when they were heard of, or because somebody ends them."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, Look, Ref, Standing, Terminate, ToLookAt
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import Loaded, load
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import Moved
from quarterdeck.domain.sessions import operations as sessions
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


async def to_look_at(tx: Tx, limit: int, zone_id: str | None = None) -> list[ToLookAt]:
    """Agents of all zones, or of one, that may have been silent for too long, the longest first."""
    [rows] = await tx.read(Q.agents_to_look_at(limit=limit, zone_id=zone_id))
    return decode(rows, ToLookAt)


async def next_look(tx: Tx) -> Millis | None:
    """In how many milliseconds the next agent will have to be looked at; None if there is none."""
    [[row]] = await tx.read(Q.agents_next_look())
    look_at, now = row
    return None if look_at is None else max(0, int(str(look_at)) - int(str(now)))


async def stale_count(tx: Tx) -> int:
    """How many agents are lost, in all zones."""
    [[row]] = await tx.read(Q.agents_in_error_count())
    return int(str(row[0]))
