"""Decides whether a token for an agent may be issued, and writes the event."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import SECOND, iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import Agent, IssueToken, IssueTokenResult, State
from quarterdeck.domain.agents.operations.load import load
from quarterdeck.domain.agents.rules import errors
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction


async def issue_tokens(tx: Transaction, commands: Sequence[IssueToken]) -> list[IssueTokenResult | Problem | Busy]:
    """Check that tokens may be issued, and emit their events. The HTTP layer signs the tokens after the commit."""
    loaded = await load(tx, commands)
    batch = loaded.batch
    outcomes: list[IssueTokenResult | Problem | Busy] = []
    for command in commands:
        problem = batch.permission_problem(command, "agents.token") or batch.ended_zone_problem(command)
        agent = problem or loaded.find_agent(command)
        if isinstance(agent, Agent) and agent.status is State.TERMINATED:
            agent = errors.agent_terminated(command.agent_id)
        if not isinstance(agent, Agent):
            outcomes.append(agent)
            continue
        expires_at = tx.now + command.ttl_seconds * SECOND
        data = msgspec.json.encode({"expiresAt": iso(expires_at), "forAttempt": command.for_attempt}).decode()
        tx.emit(NewEvent("agent.token_issued", *command.ref, command.actor, data=data, trace=command.trace))
        outcomes.append(IssueTokenResult(agent, expires_at))
    return outcomes
