"""Locks the zones of a batch and checks its callers, in the transaction of the commands.

    batch, [rows] = await access.lock(tx, commands, Q.delegations_get(batch=refs))
    outcomes = [batch.problem(command) or decide(command) for command in commands]

    batch, [rows] = await access.lock_with_roles(tx, commands, Q.webhooks_of_zones(batch=zone_ids))
    outcomes = [batch.permission_problem(command, "webhooks.change") or decide(command) for command in commands]

Reads use `load` and `load_with_roles`, which take no locks. Each of the four is one round trip, unless a zone could not
be locked. The results are the rows of the given statements; a statement that is None is not sent and has no rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quarterdeck.core.caller import Bearer, Caller, Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import rules
from quarterdeck.domain.access.model import AccessCommand, CallerAgent, CallerCommand, CallerSession
from quarterdeck.domain.access.queries import Q
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import Zone
from quarterdeck.engine.lanes import BUSY, Busy, LaneCommand, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

C = TypeVar("C", bound=AccessCommand)
R = TypeVar("R")
Operation = Callable[[Transaction, Sequence[C]], Awaitable[Sequence[R | Problem | Busy]]]
Results = list[list[Row]]


@dataclass(frozen=True, slots=True)
class Batch:
    """The locked zones of a batch, and the sessions and agents that its callers act for."""

    now: Millis
    zones: Mapping[str, Zone]
    """The zones that this transaction has locked."""
    lock_failures: Mapping[str, Problem | Busy]
    """Why each of the other zones was not locked."""
    sessions: Mapping[Ref, CallerSession]
    agents: Mapping[Ref, CallerAgent]

    def problem(self, command: AccessCommand) -> Problem | Busy | None:
        """Why a command is not decided: a zone is busy, the token is no longer valid, or the zone does not exist."""
        return self.caller_problem(command) or self.lock_failures.get(command.zone_id)

    def caller_problem(self, command: AccessCommand) -> Problem | Busy | None:
        """Like `problem`, except that the zone of the command may be missing."""
        bearer = command.bearer
        if self.lock_failures and (
            self.lock_failures.get(command.zone_id) is BUSY
            # The caller's session could end before the commit.
            or (bearer is not None and self.lock_failures.get(bearer.zone_id) is BUSY)
        ):
            return BUSY
        return rules.token_problem(bearer, self.sessions, self.agents, self.now)

    def can_decide(self, waiting: AccessCommand) -> bool:
        """Whether a `waiting` command has no problem, and its zone and its caller's zone happen to be locked."""
        is_locked = zones_of([waiting]) <= self.zones.keys()
        return is_locked and self.problem(waiting) is None

    def ended_zone_problem(self, command: LaneCommand) -> Problem | None:
        """The problem if the zone of a command has ended. The zone must be locked."""
        zone = self.zones[command.zone_id]
        return zone_rules.zone_ended(zone.id) if zone.ended_at is not None else None


@dataclass(frozen=True, slots=True)
class BatchWithRoles(Batch):
    """A batch with the roles of its callers."""

    roles: dict[Ref, Role]
    """The stored roles, by zone and subject."""

    def permission_problem(self, command: CallerCommand, permission: str) -> Problem | Busy | None:
        """Like `problem`, or the problem if the caller lacks the permission. The server itself has all permissions."""
        return self.problem(command) or self.role_problem(command, permission)

    def role_problem(self, command: CallerCommand, permission: str) -> Problem | None:
        """The last part of `permission_problem`, for deciders that know the permission."""
        caller = command.caller
        if caller is None:
            return None
        return zone_rules.permission_problem(caller, command.zone_id, self._assigned_role(caller), permission)

    def role(self, command: CallerCommand) -> Role | None:
        """The caller's role in the zone of the command. None if it has no role, or if the server sent the command."""
        caller = command.caller
        if caller is None:
            return None
        return zone_rules.effective_role(caller, command.zone_id, self._assigned_role(caller))

    def set_role(self, ref: Ref, role: Role | None) -> None:
        """Record a role change of this transaction."""
        if role is None:
            self.roles.pop(ref, None)
        else:
            self.roles[ref] = role

    def _assigned_role(self, caller: Caller) -> Role | None:
        return self.roles.get((caller.zone_id, caller.subject))


async def lock(
    tx: Transaction,
    commands: Sequence[LaneCommand],
    *statements: BoundStatement | None,
    waiting: Sequence[LaneCommand] = (),
) -> tuple[Batch, Results]:
    """Lock the zones of the commands and of their callers, then load the callers and run the statements.

    The callers of `waiting` commands are loaded too, but their zones are not locked.
    """
    return await _run(tx, _Scope([*commands, *waiting], zones_of(commands)), statements)


async def lock_with_roles(
    tx: Transaction,
    commands: Sequence[CallerCommand],
    *statements: BoundStatement | None,
    waiting: Sequence[CallerCommand] = (),
    before: Sequence[BoundStatement | None] = (),
) -> tuple[BatchWithRoles, Results]:
    """Like `lock`, with the roles of the callers. Statements in `before` run before the locks; their rows are first."""
    callers = [*commands, *waiting]
    return await _run(tx, _Scope(callers, zones_of(commands), _subject_refs(callers)), statements, before)


async def load(
    tx: Transaction,
    commands: Sequence[AccessCommand],
    *statements: BoundStatement | None,
    before: Sequence[BoundStatement | None] = (),
) -> tuple[Batch, Results]:
    """Load the callers and run the statements. Those in `before` run before the callers; their rows are first."""
    return await _run(tx, _Scope(commands), statements, before)


async def load_with_roles(
    tx: Transaction,
    commands: Sequence[CallerCommand],
    *statements: BoundStatement | None,
    before: Sequence[BoundStatement | None] = (),
) -> tuple[BatchWithRoles, Results]:
    """Like `load`, with the roles of the callers."""
    return await _run(tx, _Scope(commands, subject_refs=_subject_refs(commands)), statements, before)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What to lock and to load."""

    callers: Sequence[LaneCommand]
    zone_ids: Set[str] = frozenset()
    subject_refs: Sequence[Ref] = ()
    optional_zone_ids: Set[str] = frozenset()
    """Zones that need not be locked."""


async def _run(
    tx: Transaction,
    scope: _Scope,
    statements: Sequence[BoundStatement | None],
    before: Sequence[BoundStatement | None] = (),
) -> tuple[BatchWithRoles, Results]:
    session_refs, agent_refs = _bearer_refs(scope.callers)
    results = await tx.read_some(
        *before,
        zones.lock_statement(tx, scope.zone_ids) if scope.zone_ids else None,
        Q.sessions_auth_state(batch=session_refs) if session_refs else None,
        Q.agents_auth_state(batch=agent_refs) if agent_refs else None,
        zones.role_assignments_statement(scope.subject_refs) if scope.subject_refs else None,
        *statements,
    )
    start = len(before)
    zone_rows, session_rows, agent_rows, role_rows = results[start : start + 4]
    locked = zones.decode_zones(zone_rows)
    batch = BatchWithRoles(
        now=tx.now,
        zones=locked,
        lock_failures=await zones.lock_failures(tx, {*scope.zone_ids} - locked.keys() - scope.optional_zone_ids),
        sessions={(session.zone_id, session.id): session for session in decode(session_rows, CallerSession)},
        agents={(agent.zone_id, agent.id): agent for agent in decode(agent_rows, CallerAgent)},
        roles={ref: assignment.role for ref, assignment in zones.decode_role_assignments(role_rows).items()},
    )
    return batch, results[:start] + results[start + 4 :]


def _bearer_refs(callers: Sequence[LaneCommand]) -> tuple[list[Ref], list[Ref]]:
    """The sessions and the agents that these callers act for. A session may have the id of its agent."""
    session_refs: set[Ref] = set()
    agent_refs: set[Ref] = set()
    for bearer in {bearer for command in callers if (bearer := getattr(command, "bearer", None)) is not None}:
        if bearer.session_id is not None:
            session_refs.add((bearer.zone_id, bearer.session_id))
        if bearer.agent_id is not None:
            agent_refs.add((bearer.zone_id, bearer.agent_id))
    return sorted(session_refs | agent_refs), sorted(agent_refs)


def _subject_refs(commands: Sequence[CallerCommand]) -> list[Ref]:
    """The callers whose stored role decides. Agents and administrators have a fixed role."""
    return sorted(
        {
            (caller.zone_id, caller.subject)
            for command in commands
            if (caller := command.caller) is not None
            and caller.agent_id is None
            and not caller.is_admin
            and caller.zone_id == command.zone_id
        }
    )


# -- one caller --------------------------------------------------------------------------------------------------


class _ReadCommand(msgspec.Struct, frozen=True):
    zone_id: str
    bearer: Bearer | None
    caller: Caller | None = None


async def require_token(tx: Transaction, bearer: Bearer | None) -> None:
    """Raise if the token is no longer valid. Call it before reading anything for the caller."""
    if bearer is None:
        return
    command = _ReadCommand(bearer.zone_id, bearer)
    batch, _ = await load(tx, [command])
    if problem := rules.token_problem(bearer, batch.sessions, batch.agents, batch.now):
        raise problem


async def require_permission(tx: Transaction, caller: Caller | None, zone_id: str, permission: str) -> None:
    """Raise a Problem if the caller does not have the permission. Call it before reading anything for the caller."""
    if caller is None:
        return
    command = _ReadCommand(zone_id, caller.bearer, caller)
    batch, _ = await load_with_roles(tx, [command])
    if isinstance(problem := batch.permission_problem(command, permission), Problem):
        raise problem


# -- operations of zones -----------------------------------------------------------------------------------------


def with_caller_check(operation: Operation[C, R], *, writes: bool = True) -> Operation[C, R]:
    """Add the check of callers to an operation of zones, which cannot import this component.

    If the operation writes, the zones of the callers' sessions are locked first, so that no session can end between the
    check and the commit.
    """

    async def run(tx: Transaction, commands: Sequence[C]) -> Sequence[R | Problem | Busy]:
        bearer_zones = {command.bearer.zone_id for command in commands if command.bearer is not None}
        if not bearer_zones:
            return await operation(tx, commands)
        # The operation itself finds out whether its other zones exist, or creates them.
        other_zones = zones_of(commands) - bearer_zones
        batch, _ = await _run(tx, _Scope(commands, zones_of(commands) if writes else set(), (), other_zones), ())
        problems = [batch.caller_problem(command) for command in commands]
        allowed = [command for command, problem in zip(commands, problems, strict=True) if problem is None]
        outcomes = iter(await operation(tx, allowed) if allowed else ())
        return [problem or next(outcomes) for problem in problems]

    return run
