"""Loads a batch of commands about agents in one round trip, under the zones' locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents.model import Agent, AgentCommand, WaitingAgent
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import errors, states
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement


def load_statement(refs: Iterable[Ref]) -> BoundStatement:
    """The statement that loads agents, for the first round trip of a higher component."""
    return Q.agents_get(batch=[*refs])


def decode_agents(rows: Sequence[Row]) -> dict[Ref, Agent]:
    return {agent.ref: agent for agent in decode([*rows], Agent)}


async def load_ms_until_contact(tx: Transaction, refs: Iterable[Ref]) -> dict[Ref, Millis]:
    """Return, for each agent with a waiting claim, the milliseconds until it must be marked as seen again."""
    [rows] = await tx.read(Q.agents_contact_state(batch=sorted(refs)))
    return {(agent.zone_id, agent.id): states.ms_until_contact(agent, tx.now) for agent in decode(rows, WaitingAgent)}


@dataclass(frozen=True, slots=True)
class LoadedAgents:
    batch: access.BatchWithRoles
    agents: dict[Ref, Agent]

    def find_agent(self, command: AgentCommand) -> Agent | Problem:
        return self.agents.get(command.ref) or errors.agent_not_found(command.agent_id)


async def load(tx: Transaction, commands: Sequence[AgentCommand]) -> LoadedAgents:
    """Lock the zones and the agents' rows of `agent_pulses`, and load the agents.

    Heartbeats of these agents wait until the transaction ends.
    """
    refs = sorted_refs(commands)
    batch, [_, rows] = await access.lock_with_roles(
        tx, commands, Q.agent_pulses_lock(batch=refs), Q.agents_get(batch=refs)
    )
    return LoadedAgents(batch, decode_agents(rows))


def sorted_refs(commands: Iterable[AgentCommand]) -> list[Ref]:
    return sorted({command.ref for command in commands})
