"""Decides changes to role assignments, and builds their errors and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from quarterdeck.core.caller import Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict, Forbidden, LimitReached, NotFound, Problem
from quarterdeck.core.ids import Ref
from quarterdeck.core.views import view_of
from quarterdeck.domain.zones.model import (
    ROLE_ASSIGNMENTS_MAX,
    ChangeRole,
    MemberView,
    RoleAssignment,
    RoleAssignmentChange,
)


@dataclass(frozen=True, slots=True)
class RoleCounts:
    """The number of role assignments in a zone, and how many of them are OWNER."""

    total: int = 0
    owners: int = 0


class RoleAssignmentBatch:
    """The role assignments of a batch, loaded under the zones' locks. Each command sees the changes of earlier ones."""

    def __init__(self, rows: Iterable[RoleAssignment], counts: Mapping[str, RoleCounts], now: Millis) -> None:
        self._rows = {(row.zone_id, row.subject): row for row in rows}
        self._counts = {**counts}
        self._now = now
        self.changes: dict[Ref, RoleAssignmentChange] = {}
        """For each changed assignment, its rows before and after the batch."""
        self.applied: list[tuple[ChangeRole, RoleAssignmentChange]] = []
        """The commands that changed something, each with its change. One event is written for each."""

    def decide(self, command: ChangeRole, caller_role: Role) -> RoleAssignmentChange | Problem:
        """Decide a command. The caller must already have passed the check for the permission `members.change`."""
        before = self._rows.get((command.zone_id, command.subject))
        if before is None and command.role is None:
            return member_not_found(command.subject)
        if before is not None and before.role is command.role:
            return RoleAssignmentChange(before, before)
        counts = self._counts.get(command.zone_id, RoleCounts())
        if problem := _change_problem(before, command.role, caller_role, counts):
            return problem
        change = RoleAssignmentChange(before, self._updated_assignment(command, before))
        self._counts[command.zone_id] = RoleCounts(
            counts.total + (change.after is not None) - (before is not None),
            counts.owners + (command.role is Role.OWNER) - _is_owner(before),
        )
        self._record(command, change)
        return change

    def _updated_assignment(self, command: ChangeRole, before: RoleAssignment | None) -> RoleAssignment | None:
        if command.role is None:
            return None
        if before is not None:
            return msgspec.structs.replace(before, role=command.role, updated_at=self._now)
        return RoleAssignment(
            command.zone_id, command.subject, command.role, command.caller.subject, self._now, self._now
        )

    def _record(self, command: ChangeRole, change: RoleAssignmentChange) -> None:
        ref = (command.zone_id, command.subject)
        before_batch = self.changes[ref].before if ref in self.changes else change.before
        self.changes[ref] = RoleAssignmentChange(before_batch, change.after)
        self.applied.append((command, change))
        if change.after is None:
            del self._rows[ref]
        else:
            self._rows[ref] = change.after


def _is_owner(assignment: RoleAssignment | None) -> bool:
    return assignment is not None and assignment.role is Role.OWNER


def _change_problem(
    before: RoleAssignment | None, new_role: Role | None, caller_role: Role, counts: RoleCounts
) -> Problem | None:
    if caller_role is not Role.OWNER and (new_role is Role.OWNER or _is_owner(before)):
        return owner_required(caller_role)
    if _is_owner(before) and counts.owners == 1 and (new_role is not None or counts.total > 1):
        return last_owner()
    if before is None and counts.total >= ROLE_ASSIGNMENTS_MAX:
        return too_many_members(counts.total)
    return None


# -- errors ------------------------------------------------------------------------------------------------------


def member_not_found(subject: str) -> NotFound:
    return NotFound("member_not_found", f"{subject!r} is not a member of this workspace.")


def owner_required(caller_role: Role) -> Forbidden:
    return Forbidden(
        "forbidden_role",
        f"Only an OWNER may add, change or remove an OWNER. The caller's role is {caller_role}.",
        role=str(caller_role),
    )


def last_owner() -> Conflict:
    return Conflict(
        "last_owner",
        "The workspace would have members but no OWNER. Make another member OWNER first.",
        frees="another member is made OWNER",
    )


def too_many_members(used: int) -> LimitReached:
    return LimitReached(
        "too_many_members",
        f"The workspace has {used} of at most {ROLE_ASSIGNMENTS_MAX} members. Remove one first.",
        bound="max_members",
        limit=ROLE_ASSIGNMENTS_MAX,
        used=used,
        frees="a member is removed",
    )


# -- view --------------------------------------------------------------------------------------------------------

member_view = view_of(RoleAssignment, MemberView)
