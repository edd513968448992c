"""Zones, their limits and their role assignments: commands, rows and views."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Bearer, Caller, Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.paging import PageQuery
from quarterdeck.core.views import JsonText

DEFAULT_ZONE = "default"
"""The zone that the server creates when it first starts."""
ROLE_ASSIGNMENTS_MAX = 10_000
"""Maximum role assignments in one zone."""
CEILINGS = {
    "max_depth": 100,
    "max_children": 10_000,
    "max_tree_size": 1_000_000,
    "max_tree_spawns": 10_000_000,
    "max_concurrent": 1_000_000,
    "max_sessions": 1_000_000,
    "max_sessions_per_application": 1_000_000,
}


def _limit_range(name: str) -> Meta:
    return Meta(ge=0, le=CEILINGS[name])


class Limits(msgspec.Struct, frozen=True):
    """The limits that admission checks. The default values are the platform defaults."""

    max_depth: Annotated[int, _limit_range("max_depth")] = 10
    max_children: Annotated[int, _limit_range("max_children")] = 10
    max_tree_size: Annotated[int, _limit_range("max_tree_size")] = 50
    max_tree_spawns: Annotated[int, _limit_range("max_tree_spawns")] = 500
    max_concurrent: Annotated[int, _limit_range("max_concurrent")] = 50
    max_sessions: Annotated[int, _limit_range("max_sessions")] = 50
    max_sessions_per_application: Annotated[int, _limit_range("max_sessions_per_application")] = 200


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits that a zone overrides, each up to its ceiling. In a request, null removes an override."""

    max_depth: Annotated[int, _limit_range("max_depth")] | UnsetType | None = UNSET
    max_children: Annotated[int, _limit_range("max_children")] | UnsetType | None = UNSET
    max_tree_size: Annotated[int, _limit_range("max_tree_size")] | UnsetType | None = UNSET
    max_tree_spawns: Annotated[int, _limit_range("max_tree_spawns")] | UnsetType | None = UNSET
    max_concurrent: Annotated[int, _limit_range("max_concurrent")] | UnsetType | None = UNSET
    max_sessions: Annotated[int, _limit_range("max_sessions")] | UnsetType | None = UNSET
    max_sessions_per_application: Annotated[int, _limit_range("max_sessions_per_application")] | UnsetType | None = (
        UNSET
    )


class Zone(msgspec.Struct, frozen=True, array_like=True):
    """A row of `zones`, in the order of its `columns` line in `queries.sql`."""

    id: str
    name: str
    frozen: int
    quotas: JsonText
    created_at: Millis
    updated_at: Millis
    ended_at: Millis | None


class ZoneAdmissionState(msgspec.Struct, frozen=True):
    """The part of a zone's state that admission checks."""

    limits: Limits
    frozen: bool
    ended: bool = False


class PutZone(msgspec.Struct, frozen=True):
    """Create a zone, or change its name and overrides."""

    zone_id: str
    name: str | None
    quotas: Overrides | None
    actor: str
    trace: str | None = None
    create_missing: bool = True
    """Whether a missing zone is created (PUT of the zone) or refused (PUT of its quotas)."""
    bearer: Bearer | None = None


class PutZoneBody(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    quotas: Overrides | None = None


class SetZoneFrozen(msgspec.Struct, frozen=True):
    """Freeze or thaw a zone."""

    zone_id: str
    frozen: bool
    caller: Caller
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class ShowZone(msgspec.Struct, frozen=True):
    zone_id: str
    bearer: Bearer | None = None


class ZoneUsage(msgspec.Struct, frozen=True):
    """A zone with the counts of its live sessions and live child sessions."""

    zone: Zone
    sessions: int
    concurrent: int


class ZoneView(msgspec.Struct, frozen=True):
    id: str
    name: str
    frozen: bool
    quotas: Overrides
    created_at: str
    updated_at: str
    ended_at: str | None


class QuotaUsage(msgspec.Struct, frozen=True):
    sessions: int
    concurrent: int


class QuotasView(msgspec.Struct, frozen=True):
    zone_id: str
    limits: Limits
    overrides: Overrides
    ceilings: dict[str, int]
    used: QuotaUsage
    frozen: bool


# -- role assignments (the API calls them members of a workspace) ---------------------------------------------------


class RoleAssignment(msgspec.Struct, frozen=True, array_like=True):
    """A row of `zone_members`, in the order of its `columns` line in `queries.sql`."""

    zone_id: str
    subject: str
    role: Role
    added_by: str
    created_at: Millis
    updated_at: Millis


class ChangeRole(msgspec.Struct, frozen=True):
    """Assign a role to a subject. Role None removes the assignment."""

    zone_id: str
    subject: str
    role: Role | None
    caller: Caller
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class RoleAssignmentChange(msgspec.Struct, frozen=True):
    """A subject's role assignment before and after a change."""

    before: RoleAssignment | None
    """None if the subject had no assignment."""
    after: RoleAssignment | None
    """None if the assignment was removed."""


class ShowRoleAssignment(msgspec.Struct, frozen=True):
    zone_id: str
    subject: str
    caller: Caller


class RoleAssignmentFilter(msgspec.Struct, frozen=True):
    """Filter for a page of assignments, ordered by subject."""

    zone_id: str
    caller: Caller
    limit: int
    after: str = ""


class PutMemberBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role


class MemberView(msgspec.Struct, frozen=True, rename="camel"):
    subject: Annotated[str, Meta(description="`sub` claim of the member's tokens")]
    zone_id: str = msgspec.field(name="workspaceId")
    role: Role
    added_by: str
    created_at: str
    updated_at: str


class ListMembersQuery(PageQuery, frozen=True, forbid_unknown_fields=True):
    pass
