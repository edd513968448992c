"""What a zone is, and what limits hold in it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Bearer, Caller, Role
from quarterdeck.core.clock import Millis

DEFAULT_ZONE = "default"
"""There from the start, and always."""
ROLE_ASSIGNMENTS_MAX = 10_000
"""Members of one zone."""
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
    """The limits in force for one admission. The defaults are the platform's."""

    max_depth: Annotated[int, _limit_range("max_depth")] = 10
    max_children: Annotated[int, _limit_range("max_children")] = 10
    max_tree_size: Annotated[int, _limit_range("max_tree_size")] = 50
    max_tree_spawns: Annotated[int, _limit_range("max_tree_spawns")] = 500
    max_concurrent: Annotated[int, _limit_range("max_concurrent")] = 50
    max_sessions: Annotated[int, _limit_range("max_sessions")] = 50
    max_sessions_per_application: Annotated[int, _limit_range("max_sessions_per_application")] = 200


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a zone sets for itself, each within its ceiling; null takes an override back."""

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
    """A row of `zones`, in the order of the select lists in `queries.sql`."""

    id: str
    name: str
    frozen: int
    quotas: str
    created_at: Millis
    updated_at: Millis
    ended_at: Millis | None


class ZoneAdmission(msgspec.Struct, frozen=True):
    """What admission must know of a zone."""

    limits: Limits
    frozen: bool
    ended: bool = False


class PutZone(msgspec.Struct, frozen=True):
    """Asked for: a zone by this name with these overrides, made or changed."""

    zone_id: str
    name: str | None
    quotas: Overrides | None
    actor: str
    trace: str | None = None
    create_missing: bool = True
    """Whether an absent zone is made (PUT of the zone) or refused (PUT of its quotas)."""
    bearer: Bearer | None = None


class PutZoneBody(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    quotas: Overrides | None = None


class SetZoneFrozen(msgspec.Struct, frozen=True):
    """Asked for: no admission to a zone, or admission again."""

    zone_id: str
    frozen: bool
    caller: Caller
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class ZoneRef(msgspec.Struct, frozen=True):
    """Asked for: one zone."""

    zone_id: str
    bearer: Bearer | None = None


class ZoneUsage(msgspec.Struct, frozen=True):
    """A zone together with what is live in it."""

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


class ZoneList(msgspec.Struct, frozen=True):
    items: list[ZoneView]
    next_cursor: str | None


class ListZonesQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None


# -- members of a zone, which is a workspace to them ----------------------------------------------------------------


class RoleAssignment(msgspec.Struct, frozen=True, array_like=True):
    """A row of `zone_members`, in the order of its `columns` line in `queries.sql`."""

    zone_id: str
    subject: str
    role: Role
    added_by: str
    created_at: Millis
    updated_at: Millis


class ChangeRole(msgspec.Struct, frozen=True):
    """Asked for: somebody with this role, or, without one, no member any more."""

    zone_id: str
    subject: str
    role: Role | None
    caller: Caller
    trace: str | None = None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class RoleChange(msgspec.Struct, frozen=True):
    """A member as it was and as it is; None where there is none."""

    before: RoleAssignment | None
    after: RoleAssignment | None


class RoleAssignmentRef(msgspec.Struct, frozen=True):
    zone_id: str
    subject: str
    caller: Caller


class RoleAssignmentFilter(msgspec.Struct, frozen=True):
    """Which members are wanted, in order of their names."""

    zone_id: str
    caller: Caller
    limit: int
    after: str = ""


class PutMemberBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role


class MemberView(msgspec.Struct, frozen=True, rename="camel"):
    subject: Annotated[str, Meta(description="the `sub` of their tokens")]
    zone_id: str = msgspec.field(name="workspaceId")
    role: Role
    added_by: str
    created_at: str
    updated_at: str


class MemberList(msgspec.Struct, frozen=True, rename="camel"):
    items: list[MemberView]
    next_cursor: str | None


class ListMembersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
