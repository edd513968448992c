"""Checks that the sessions of callers are live, in the transaction of the command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from quarterdeck.core.caller import Bearer
from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import BUSY, Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

Ref = tuple[str, str]
"""(zone, session)"""


class BearerCommand(Protocol):
    @property
    def zone_id(self) -> str: ...
    @property
    def bearer(self) -> Bearer | None: ...


A = TypeVar("A", bound=BearerCommand)
R = TypeVar("R")
Operation = Callable[[Transaction, Sequence[A]], Awaitable[Sequence[R | Problem | Busy]]]


def bearer_refs(commands: Iterable[BearerCommand]) -> set[Ref]:
    """The sessions that these callers act for. An agent's id is included, because its session may have the same id."""
    refs: set[Ref] = set()
    for command in commands:
        if bearer := command.bearer:
            refs |= _bearer_refs_of(bearer)
    return refs


def _bearer_refs_of(bearer: Bearer) -> set[Ref]:
    return {(bearer.zone_id, bearer_id) for bearer_id in (bearer.session_id, bearer.agent_id) if bearer_id is not None}


def load_statement(refs: Sequence[Ref]) -> BoundStatement:
    """The statement that loads sessions, for components that include it in their first round trip."""
    return Q.sessions_get(batch=[*refs])


def decode_sessions(rows: Sequence[Row]) -> dict[Ref, Session]:
    return {(session.zone_id, session.id): session for session in decode(rows, Session)}


def lock_problem(command: BearerCommand, lock_failures: Mapping[str, Problem | Busy]) -> Problem | Busy | None:
    """The lock failure because of which a command cannot be decided in this transaction, or None.

    Either its own zone was not locked, or the zone of its caller's session was busy and the session could end before
    the commit. If the caller's zone does not exist, neither does the session, and `bearer_problem` refuses the command.
    """
    bearer_zone_id = command.bearer.zone_id if command.bearer is not None else command.zone_id
    return lock_failures.get(command.zone_id) or (BUSY if lock_failures.get(bearer_zone_id) is BUSY else None)


async def require_bearer(tx: Transaction, bearer: Bearer | None) -> None:
    """Raise if the token's session has ended. Call it before reading anything for the caller."""
    if bearer is None:
        return
    [rows] = await tx.read(Q.sessions_get(batch=sorted(_bearer_refs_of(bearer))))
    if problem := rules.bearer_problem(bearer, decode_sessions(rows), tx.now):
        raise problem


def with_bearer_check(operation: Operation[A, R], *, writes: bool = True) -> Operation[A, R]:
    """Add the check of callers' sessions to an operation of a lower component, which cannot import sessions.

    If the operation writes, the zones of these sessions are locked first, so that no session can end between the check
    and the commit.
    """

    async def run(tx: Transaction, commands: Sequence[A]) -> Sequence[R | Problem | Busy]:
        refs = bearer_refs(commands)
        if not refs:
            return await operation(tx, commands)
        bearer_zone_ids = {zone_id for zone_id, _ in refs}
        lock_failures: dict[str, Problem | Busy] = {}
        if writes:
            [locked] = await tx.read(
                zones.lock_statement(tx, bearer_zone_ids | {command.zone_id for command in commands})
            )
            lock_failures = await zones.lock_failures(tx, bearer_zone_ids - zones.decode_zones(locked).keys())
        [rows] = await tx.read(Q.sessions_get(batch=sorted(refs)))
        sessions = decode_sessions(rows)
        problems = [
            rules.bearer_problem(command.bearer, sessions, tx.now)
            or (lock_problem(command, lock_failures) if writes else None)
            for command in commands
        ]
        allowed = [command for command, problem in zip(commands, problems, strict=True) if problem is None]
        outcomes = iter(await operation(tx, allowed) if allowed else ())
        return [problem or next(outcomes) for problem in problems]

    return run
