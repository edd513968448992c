"""Looking at agents: one, many, and how one fares."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import (
    RECENT_MAX,
    Agent,
    AgentFilter,
    AgentRef,
    Heartbeat,
    Shown,
    Standing,
    Watched,
)
from quarterdeck.domain.agents.operations.authorization import Speakers, require_power
from quarterdeck.domain.agents.operations.load import by_ref, refs_of
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode

READ = "agents.read"


async def show(tx: Tx, asks: Sequence[AgentRef]) -> list[Standing | Problem | Busy]:
    speakers = Speakers(asks)
    rows, *said = await tx.read(Q.agents_get(batch=refs_of(asks)), *speakers.statements())
    found, heard = by_ref(rows), speakers.heard(said, tx.now)
    outcomes: list[Standing | Problem | Busy] = []
    for ask in asks:
        agent = heard.problem(ask, READ) or found.get(ask.ref) or rules.not_found(ask.agent_id)
        outcomes.append(Standing(agent, tx.now) if isinstance(agent, Agent) else agent)
    return outcomes


async def watch(tx: Tx, ask: AgentRef) -> Watched:
    """One agent, and what was heard of it lately."""
    [standing] = await show(tx, [ask])
    if not isinstance(standing, Standing):
        raise standing if isinstance(standing, Problem) else RuntimeError("a look waits for nobody")
    [rows] = await tx.read(Q.agent_heartbeats_recent(zone_id=ask.zone_id, agent_id=ask.agent_id, limit=RECENT_MAX))
    return Watched(standing.agent, standing.at, tuple(decode(rows, Heartbeat)))


async def page(tx: Tx, wanted: AgentFilter) -> list[Agent]:
    """Up to `limit` agents, in the order of their ids."""
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    enabled = wanted.coordinator_enabled
    [rows] = await tx.read(
        Q.agents_page(
            zone_id=wanted.zone_id,
            after=wanted.after,
            enabled=None if enabled is None else int(enabled),
            status=wanted.status,
            capability=wanted.capability,
            limit=wanted.limit,
        )
    )
    if not rows:
        await zones.require(tx, wanted.zone_id)
    return decode(rows, Agent)


async def counted(tx: Tx, zone_id: str) -> dict[Shown, int]:
    """How many agents of a zone stand how. It looks at all of them: for whoever asks now and then."""
    [rows] = await tx.read(Q.agents_count(zone_id=zone_id))
    return {Shown(str(status)): int(str(number)) for status, number in rows}


async def names(tx: Tx, zone_id: str, *, after: str, limit: int) -> list[str]:
    """Of all agents that a zone has, or had, from one on: for whoever shows them to others."""
    [rows] = await tx.read(Q.agents_named(zone_id=zone_id, after=after, limit=limit))
    return [str(row[0]) for row in rows]
