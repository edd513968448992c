"""What a zone is, and what limits hold in it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.clock import Millis

CEILINGS = {
    "max_depth": 100,
    "max_children": 10_000,
    "max_tree_size": 1_000_000,
    "max_tree_spawns": 10_000_000,
    "max_concurrent": 1_000_000,
    "max_sessions": 1_000_000,
    "max_sessions_per_application": 1_000_000,
}
Depth = Annotated[int, Meta(ge=0, le=CEILINGS["max_depth"])]
Children = Annotated[int, Meta(ge=0, le=CEILINGS["max_children"])]
Million = Annotated[int, Meta(ge=0, le=1_000_000)]
Spawns = Annotated[int, Meta(ge=0, le=CEILINGS["max_tree_spawns"])]


class Limits(msgspec.Struct, frozen=True):
    """The limits in force for one admission. The defaults are the platform's."""

    max_depth: Depth = 10
    max_children: Children = 10
    max_tree_size: Million = 50
    max_tree_spawns: Spawns = 500
    max_concurrent: Million = 50
    max_sessions: Million = 50
    max_sessions_per_application: Million = 200


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a zone sets for itself, each within its ceiling; null takes an override back."""

    max_depth: Depth | UnsetType | None = UNSET
    max_children: Children | UnsetType | None = UNSET
    max_tree_size: Million | UnsetType | None = UNSET
    max_tree_spawns: Spawns | UnsetType | None = UNSET
    max_concurrent: Million | UnsetType | None = UNSET
    max_sessions: Million | UnsetType | None = UNSET
    max_sessions_per_application: Million | UnsetType | None = UNSET


class Zone(msgspec.Struct, frozen=True, array_like=True):
    """A row of `zones`, in the order of the select lists in `queries.sql`."""

    id: str
    name: str
    frozen: int
    quotas: str
    created_at: Millis
    updated_at: Millis


class Terms(msgspec.Struct, frozen=True):
    """What admission must know of a zone."""

    limits: Limits
    frozen: bool


class PutZone(msgspec.Struct, frozen=True):
    """Asked for: a zone by this name with these overrides, made or changed."""

    zone_id: str
    name: str | None
    quotas: Overrides | None
    actor: str
    trace: str | None = None
    creates: bool = True
    """Whether an absent zone is made (PUT of the zone) or refused (PUT of its quotas)."""


class PutZoneBody(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    quotas: Overrides | None = None


class ZoneRef(msgspec.Struct, frozen=True):
    """Asked for: one zone."""

    zone_id: str


class ZoneUse(msgspec.Struct, frozen=True):
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


class Used(msgspec.Struct, frozen=True):
    sessions: int
    concurrent: int


class QuotasView(msgspec.Struct, frozen=True):
    zone_id: str
    limits: Limits
    overrides: Overrides
    ceilings: dict[str, int]
    used: Used
    frozen: bool


class ZoneList(msgspec.Struct, frozen=True):
    items: list[ZoneView]
    next_cursor: str | None


class ListZonesQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
