"""Creates, changes, removes and reads role assignments. `domain.zones` stores them."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.caller import Role
from quarterdeck.core.errors import Problem
from quarterdeck.domain.access.operations.callers import BatchWithRoles, lock_with_roles, require_permission
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.domain.zones.model import (
    ChangeRole,
    RoleAssignment,
    RoleAssignmentChange,
    RoleAssignmentFilter,
    ShowRoleAssignment,
)
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction

READ_PERMISSION = "members.read"
CHANGE_PERMISSION = "members.change"


async def change_roles(tx: Transaction, commands: Sequence[ChangeRole]) -> list[RoleAssignmentChange | Problem | Busy]:
    """Create, change and remove role assignments, in order of arrival.

    Takes the zones' locks, as do all writes that check a role, except heartbeats. So after this commit, no such write
    uses the old role.
    """
    batch, [rows, count_rows] = await lock_with_roles(
        tx,
        commands,
        zones.role_assignments_statement(sorted({(command.zone_id, command.subject) for command in commands})),
        zones.role_counts_statement({command.zone_id for command in commands}),
    )
    assignments = zone_rules.RoleAssignmentBatch(
        zones.decode_role_assignments(rows).values(), zones.decode_role_counts(count_rows), tx.now
    )
    outcomes = [
        batch.permission_problem(command, CHANGE_PERMISSION)
        or batch.ended_zone_problem(command)
        or _decide(assignments, batch, command)
        for command in commands
    ]
    await zones.persist_role_changes(tx, assignments.changes.values())
    for command, change in assignments.applied:
        tx.emit(_role_event(command, change))
    return outcomes


def _decide(
    assignments: zone_rules.RoleAssignmentBatch, batch: BatchWithRoles, command: ChangeRole
) -> RoleAssignmentChange | Problem:
    role = batch.role(command)
    assert role is not None  # the permission check has refused callers without a role
    change = assignments.decide(command, role)
    if isinstance(change, RoleAssignmentChange):
        # Later commands of this batch are checked against the new role.
        batch.set_role((command.zone_id, command.subject), _role_of(change.after))
    return change


def _role_event(command: ChangeRole, change: RoleAssignmentChange) -> NewEvent:
    before, after = _role_of(change.before), _role_of(change.after)
    action = "added" if before is None else "removed" if after is None else "changed"
    return NewEvent(
        f"member.{action}", command.zone_id, command.subject, command.caller.subject, before, after, trace=command.trace
    )


def _role_of(assignment: RoleAssignment | None) -> Role | None:
    return None if assignment is None else assignment.role


async def show_role_assignment(tx: Transaction, ref: ShowRoleAssignment) -> RoleAssignment:
    await require_permission(tx, ref.caller, ref.zone_id, READ_PERMISSION)
    key = (ref.zone_id, ref.subject)
    [rows] = await tx.read(zones.role_assignments_statement([key]))
    assignment = zones.decode_role_assignments(rows).get(key)
    if assignment is None:
        await zones.require_zone(tx, ref.zone_id)
        raise zone_rules.member_not_found(ref.subject)
    return assignment


async def list_role_assignments(tx: Transaction, filters: RoleAssignmentFilter) -> list[RoleAssignment]:
    """Return up to `limit` role assignments, ordered by subject."""
    await require_permission(tx, filters.caller, filters.zone_id, READ_PERMISSION)
    assignments = await zones.list_role_assignments(tx, filters)
    if not assignments:
        await zones.require_zone(tx, filters.zone_id)
    return assignments
