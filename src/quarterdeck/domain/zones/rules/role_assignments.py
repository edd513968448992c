"""Who may be made a member of a workspace, and as what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from quarterdeck.core.caller import Role
from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.errors import Conflict, Forbidden, LimitReached, NotFound, Problem
from quarterdeck.domain.zones.model import MEMBERS_MAX, ChangeMember, Member, MemberChange, MemberView

Ref = tuple[str, str]
"""(zone, subject)"""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rows a zone has, and how many of them are of owners."""

    members: int = 0
    owners: int = 0


class Roster:
    """The members of a batch's zones, read under the zones' locks, as they are after each decision."""

    def __init__(self, rows: Iterable[Member], counted: Mapping[str, Counted], now: Millis) -> None:
        self._rows = {(row.zone_id, row.subject): row for row in rows}
        self._counted = {**counted}
        self._now = now
        self.moved: dict[Ref, MemberChange] = {}
        """Each member from how it was before the batch to how it is after it."""
        self.told: list[tuple[ChangeMember, MemberChange]] = []

    def decide(self, ask: ChangeMember, role: Role) -> MemberChange | Problem:
        """For a caller who has this role, and by it the power to change members."""
        before = self._rows.get((ask.zone_id, ask.subject))
        if before is None and ask.role is None:
            return member_not_found(ask.subject)
        if before is not None and before.role is ask.role:
            return MemberChange(before, before)
        counted = self._counted.get(ask.zone_id, Counted())
        if problem := _refusal(before, ask.role, role, counted):
            return problem
        change = MemberChange(before, self._after(ask, before))
        self._counted[ask.zone_id] = Counted(
            counted.members + (change.after is not None) - (before is not None),
            counted.owners + (ask.role is Role.OWNER) - _is_owner(before),
        )
        self._keep(ask, change)
        return change

    def _after(self, ask: ChangeMember, before: Member | None) -> Member | None:
        if ask.role is None:
            return None
        if before is not None:
            return msgspec.structs.replace(before, role=ask.role, updated_at=self._now)
        return Member(ask.zone_id, ask.subject, ask.role, ask.caller.subject, self._now, self._now)

    def _keep(self, ask: ChangeMember, change: MemberChange) -> None:
        ref = (ask.zone_id, ask.subject)
        first = self.moved[ref].before if ref in self.moved else change.before
        self.moved[ref] = MemberChange(first, change.after)
        self.told.append((ask, change))
        if change.after is None:
            del self._rows[ref]
        else:
            self._rows[ref] = change.after


def _is_owner(member: Member | None) -> bool:
    return member is not None and member.role is Role.OWNER


def _refusal(before: Member | None, wanted: Role | None, role: Role, counted: Counted) -> Problem | None:
    if role is not Role.OWNER and (wanted is Role.OWNER or _is_owner(before)):
        return only_owners(role)
    if _is_owner(before) and counted.owners == 1 and (wanted is not None or counted.members > 1):
        return last_owner()
    if before is None and counted.members >= MEMBERS_MAX:
        return too_many(counted.members)
    return None


# -- refusals ----------------------------------------------------------------------------------------------------


def member_not_found(subject: str) -> NotFound:
    return NotFound("member_not_found", f"{subject!r} is no member of this workspace.")


def only_owners(role: Role) -> Forbidden:
    return Forbidden("forbidden_role", f"Only an OWNER makes or unmakes an OWNER; this is {role}.", role=str(role))


def last_owner() -> Conflict:
    return Conflict(
        "last_owner",
        "This is the last OWNER of the workspace, which has other members: they would be left without one.",
        frees="another member is made OWNER",
    )


def too_many(used: int) -> LimitReached:
    return LimitReached(
        "too_many_members",
        f"A workspace has at most {MEMBERS_MAX} members, and {used} are there.",
        bound="max_members",
        limit=MEMBERS_MAX,
        used=used,
        frees="a member is removed",
    )


# -- how it is shown ---------------------------------------------------------------------------------------------


def member_view(member: Member) -> MemberView:
    return MemberView(
        subject=member.subject,
        zone_id=member.zone_id,
        role=member.role,
        added_by=member.added_by,
        created_at=iso(member.created_at),
        updated_at=iso(member.updated_at),
    )
