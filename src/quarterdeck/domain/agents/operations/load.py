"""Loads a batch of commands about agents in one round trip, under the zones' locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.caller import Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, AgentCommand, Ref, WaitingAgent
from quarterdeck.domain.agents.operations.authorization import CallerChecks, CallerState
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine.lanes import Busy, zones_of
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
    return {(agent.zone_id, agent.id): rules.ms_until_contact(agent, tx.now) for agent in decode(rows, WaitingAgent)}


@dataclass(frozen=True, slots=True)
class AgentBatchInput:
    now: Millis
    agents: dict[Ref, Agent]
    callers: CallerState
    lock_failures: Mapping[str, Problem | Busy]
    """For each zone that could not be locked, the reason."""
    ended_zone_problems: Mapping[str, Problem | None]
    """For each locked zone, the problem if the zone has ended, or None."""

    def problem(self, command: AgentCommand, permission: str) -> Problem | Busy | None:
        """Return the problem if the zone is not locked or the caller does not have the permission."""
        return sessions.lock_problem(command, self.lock_failures) or self.callers.problem(command, permission)

    def role(self, command: AgentCommand) -> Role | None:
        return self.callers.role(command)

    def find_agent(self, command: AgentCommand) -> Agent | Problem:
        return self.agents.get(command.ref) or rules.agent_not_found(command.agent_id)


async def load(tx: Transaction, commands: Sequence[AgentCommand]) -> AgentBatchInput:
    """Lock the zones and the agents' rows of `agent_pulses`, and load the agents.

    Heartbeats of these agents wait until the transaction ends.
    """
    refs = sorted_refs(commands)
    caller_checks = CallerChecks(commands)
    zone_rows, _, rows, *caller_rows = await tx.read(
        zones.lock_statement(tx, zones_of(commands)),
        Q.agent_pulses_lock(batch=refs),
        Q.agents_get(batch=refs),
        *caller_checks.statements(),
    )
    locked = zones.decode_zones(zone_rows)
    lock_failures = await zones.lock_failures(tx, zones_of(commands) - locked.keys())
    return AgentBatchInput(
        tx.now,
        decode_agents(rows),
        caller_checks.build_state(caller_rows, tx.now),
        lock_failures,
        zone_rules.ended_zone_problems(locked.values()),
    )


def sorted_refs(commands: Iterable[AgentCommand]) -> list[Ref]:
    return sorted({command.ref for command in commands})
