"""The pure part: how overrides and defaults become the limits in force."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.core.errors import Conflict, NotFound, Problem
from quarterdeck.domain.zones.model import CEILINGS, Limits, Overrides, QuotasView, Terms, Used, Zone, ZoneUse, ZoneView

ZONE_NOT_FOUND = "zone_not_found"
_decode_overrides = msgspec.json.Decoder(Overrides).decode


def stored(overrides: Overrides) -> str:
    return msgspec.json.encode(overrides).decode()


def overrides_of(zone: Zone) -> Overrides:
    return _decode_overrides(zone.quotas)


def merge(old: Overrides, new: Overrides) -> Overrides:
    """The new ones set what they name, and take back what they name as null; the rest stays."""
    values = {name: getattr(old, name) for name in Overrides.__struct_fields__}
    for name in Overrides.__struct_fields__:
        value = getattr(new, name)
        if value is not UNSET:
            values[name] = UNSET if value is None else value
    return Overrides(**values)


def in_force(overrides: Overrides, defaults: Limits) -> Limits:
    """What the zone sets, else the platform's default; never beyond a ceiling, should a ceiling have been lowered."""
    chosen = {}
    for name, ceiling in CEILINGS.items():
        own = getattr(overrides, name)
        chosen[name] = min(getattr(defaults, name) if own is UNSET or own is None else own, ceiling)
    return Limits(**chosen)


@lru_cache(maxsize=4096)
def limits_by(quotas: str, defaults: Limits) -> Limits:
    """The limits of a zone whose overrides are stored so. Remembered: every batch asks this of each of its zones."""
    return in_force(_decode_overrides(quotas), defaults)


def terms(zone: Zone, defaults: Limits) -> Terms:
    return Terms(limits_by(zone.quotas, defaults), bool(zone.frozen), zone.ended_at is not None)


def not_found(zone_id: str) -> NotFound:
    return NotFound(ZONE_NOT_FOUND, f"There is no zone {zone_id!r}.")


def has_ended(zone_id: str) -> Conflict:
    return Conflict(
        "zone_ended", f"The zone {zone_id!r} has ended. What happened in it can be read; its id is not used again."
    )


def endings(zones: Iterable[Zone]) -> dict[str, Problem | None]:
    """Of each zone why nothing can begin in it any more, if so."""
    return {zone.id: has_ended(zone.id) if zone.ended_at is not None else None for zone in zones}


def view(zone: Zone) -> ZoneView:
    return ZoneView(
        zone.id,
        zone.name,
        bool(zone.frozen),
        overrides_of(zone),
        iso(zone.created_at),
        iso(zone.updated_at),
        iso_or_none(zone.ended_at),
    )


def quotas_view(use: ZoneUse, defaults: Limits) -> QuotasView:
    overrides = overrides_of(use.zone)
    return QuotasView(
        zone_id=use.zone.id,
        limits=in_force(overrides, defaults),
        overrides=overrides,
        ceilings=CEILINGS,
        used=Used(use.sessions, use.concurrent),
        frozen=bool(use.zone.frozen),
    )
