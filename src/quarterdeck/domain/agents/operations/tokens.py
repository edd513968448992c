"""Issues tokens that act as one agent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import SECOND, iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, Issued, IssueToken, State
from quarterdeck.domain.agents.operations.load import load
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx


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
