"""Authorizes callers in the transaction of the command. Writes other than heartbeats do so under the zone's lock.

    checks = CallerChecks(commands)
    zone_rows, *caller_rows, rows = await tx.read(
        zones.lock_statement(tx, zones_of(commands)), *checks.statements(), Q.things(…)
    )
    callers = checks.build_state(caller_rows, tx.now)
    problem = callers.problem(command, "tasks.create")

The first of these that applies is the error: the caller's session has ended (401), its agent was terminated or
registered again (401), the workspace does not exist or the caller may not access it (404), the caller has no role there
(403), its role lacks the permission (403). An agent id that is not registered is no error.
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
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import BoundStatement

Ref = tuple[str, str]
"""(zone id, X), where X is a session id, an agent id or a subject"""


class CallerCommand(Protocol):
    """A command with its zone and caller. A command without a caller comes from the server itself."""

    @property
    def zone_id(self) -> str: ...
    @property
    def caller(self) -> Caller | None: ...
    @property
    def bearer(self) -> Bearer | None: ...


class CallerChecks:
    """Loads the sessions, agents and role assignments of the callers of a batch."""

    def __init__(self, commands: Sequence[CallerCommand]) -> None:
        self._sessions = sorted(sessions.bearer_refs(commands))
        agents: set[Ref] = set()
        subjects: set[Ref] = set()
        for command in commands:
            caller = command.caller
            if caller is None:
                continue
            if caller.agent_id is not None:
                agents.add((caller.zone_id, caller.agent_id))
            elif not caller.is_admin and caller.zone_id == command.zone_id:
                subjects.add((caller.zone_id, caller.subject))
        self._agents = sorted(agents)
        self._subjects = sorted(subjects)

    def statements(self) -> list[BoundStatement]:
        """Return up to three statements for the batch's first round trip, to run after the zones' locks.

        Commands of the server itself need none.
        """
        statements = [sessions.load_statement(self._sessions)] if self._sessions else []
        if self._agents:
            statements.append(Q.agents_auth_state(batch=[*self._agents]))
        if self._subjects:
            statements.append(zones.role_assignments_statement(self._subjects))
        return statements

    def build_state(self, results: Sequence[list[Row]], now: Millis) -> CallerState:
        """Decode the results of `statements()`, in the same order."""
        rows = iter(results)
        sessions_by_ref = sessions.decode_sessions(next(rows)) if self._sessions else {}
        agents = next(rows) if self._agents else []
        assignments = zones.decode_role_assignments(next(rows)) if self._subjects else {}
        return CallerState(
            now,
            sessions_by_ref,
            {
                (str(zone_id), str(agent_id)): (State(str(status)), int(str(registered_at)))
                for zone_id, agent_id, status, registered_at in agents
            },
            {ref: assignment.role for ref, assignment in assignments.items()},
        )


class CallerState:
    """The loaded sessions, agents and roles of the callers of a batch, and the checks that use them."""

    def __init__(
        self,
        now: Millis,
        sessions: Mapping[Ref, Session],
        agents: Mapping[Ref, tuple[State, Millis]],
        roles: dict[Ref, Role],
    ) -> None:
        self._now = now
        self.sessions = sessions
        """The sessions that callers act for."""
        self._agents = agents
        self._roles = roles

    def problem(self, command: CallerCommand, permission: str) -> Problem | None:
        """Return a problem if the caller does not have the permission. The server itself has all permissions."""
        caller = command.caller
        if caller is None:
            return None
        if problem := session_rules.bearer_problem(command.bearer, self.sessions, self._now):
            return problem
        agent = self._agents.get((caller.zone_id, caller.agent_id or ""))
        if agent is not None and (problem := rules.agent_token_problem(caller, *agent)):
            return problem
        return zone_rules.permission_problem(caller, command.zone_id, self._assigned_role(caller), permission)

    def role(self, command: CallerCommand) -> Role | None:
        """The caller's role in the zone of the command. None if it has no role, or if the server sent the command."""
        caller = command.caller
        return (
            None if caller is None else zone_rules.effective_role(caller, command.zone_id, self._assigned_role(caller))
        )

    def set_role(self, ref: Ref, role: Role | None) -> None:
        """Record a role change of this transaction."""
        if role is None:
            self._roles.pop(ref, None)
        else:
            self._roles[ref] = role

    def _assigned_role(self, caller: Caller) -> Role | None:
        return self._roles.get((caller.zone_id, caller.subject))


class AgentCaller(msgspec.Struct, frozen=True):
    """A caller with an agent token, on a route of a component that does not depend on agents."""

    zone_id: str
    """The caller's zone."""
    caller: Caller


async def check_agent_callers(tx: Transaction, commands: Sequence[AgentCaller]) -> list[bool | Problem]:
    """Return, for each caller, True or the problem with its agent token.

    Permissions are not checked here. The component that owns the route checks them.
    """
    refs = sorted(
        {(command.zone_id, command.caller.agent_id) for command in commands if command.caller.agent_id is not None}
    )
    [rows] = await tx.read(Q.agents_auth_state(batch=[*refs]))
    agents = {
        (str(zone_id), str(agent_id)): (State(str(status)), int(str(registered_at)))
        for zone_id, agent_id, status, registered_at in rows
    }
    callers_agents = [agents.get((command.zone_id, command.caller.agent_id or "")) for command in commands]
    return [
        (agent is not None and rules.agent_token_problem(command.caller, *agent)) or True
        for command, agent in zip(commands, callers_agents, strict=True)
    ]


class _ReadCommand(msgspec.Struct, frozen=True):
    zone_id: str
    caller: Caller

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


async def require_permission(tx: Transaction, caller: Caller | None, zone_id: str, permission: str) -> None:
    """Raise a Problem if the caller does not have the permission. Call it before reading anything for the caller."""
    if caller is None:
        return
    command = _ReadCommand(zone_id, caller)
    caller_checks = CallerChecks([command])
    results = await tx.read(*caller_checks.statements())
    if problem := caller_checks.build_state(results, tx.now).problem(command, permission):
        raise problem
