"""The effective limits of a zone, from its overrides, the defaults and the ceilings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import UNSET

from quarterdeck.core.errors import Conflict, NotFound, Problem
from quarterdeck.core.views import view_of
from quarterdeck.domain.zones.model import (
    CEILINGS,
    Limits,
    Overrides,
    QuotasView,
    QuotaUsage,
    Zone,
    ZoneAdmissionState,
    ZoneUsage,
    ZoneView,
)

ZONE_NOT_FOUND = "zone_not_found"
_decode_overrides = msgspec.json.Decoder(Overrides).decode


def encode_overrides(overrides: Overrides) -> str:
    return msgspec.json.encode(overrides).decode()


def overrides_of_zone(zone: Zone) -> Overrides:
    return _decode_overrides(zone.quotas)


def merge_overrides(old: Overrides, new: Overrides) -> Overrides:
    """Apply `new` to `old`: a value sets an override, None removes it, and an unset field changes nothing."""
    values = {name: getattr(old, name) for name in Overrides.__struct_fields__}
    for name in Overrides.__struct_fields__:
        value = getattr(new, name)
        if value is not UNSET:
            values[name] = UNSET if value is None else value
    return Overrides(**values)


def effective_limits(overrides: Overrides, defaults: Limits) -> Limits:
    """Each limit is the zone's override or else the default, capped at the ceiling: a release may lower a ceiling."""
    values = {}
    for name, ceiling in CEILINGS.items():
        override = getattr(overrides, name)
        values[name] = min(getattr(defaults, name) if override is UNSET or override is None else override, ceiling)
    return Limits(**values)


@lru_cache(maxsize=4096)
def limits_from_quotas(quotas: str, defaults: Limits) -> Limits:
    """The effective limits for stored overrides. Cached, because every batch needs them for each of its zones."""
    return effective_limits(_decode_overrides(quotas), defaults)


def zone_admission_state(zone: Zone, defaults: Limits) -> ZoneAdmissionState:
    return ZoneAdmissionState(limits_from_quotas(zone.quotas, defaults), bool(zone.frozen), zone.ended_at is not None)


def zone_not_found(zone_id: str) -> NotFound:
    return NotFound(ZONE_NOT_FOUND, f"Zone {zone_id!r} does not exist.")


def zone_ended(zone_id: str) -> Conflict:
    return Conflict(
        "zone_ended", f"Zone {zone_id!r} has ended. Its history stays readable, but its id cannot be used again."
    )


def ended_zone_problems(zones: Iterable[Zone]) -> dict[str, Problem | None]:
    """For each zone, the error if it has ended, or None. Nothing new may start in an ended zone."""
    return {zone.id: zone_ended(zone.id) if zone.ended_at is not None else None for zone in zones}


view = view_of(Zone, ZoneView, quotas=overrides_of_zone)


def quotas_view(usage: ZoneUsage, defaults: Limits) -> QuotasView:
    overrides = overrides_of_zone(usage.zone)
    return QuotasView(
        zone_id=usage.zone.id,
        limits=effective_limits(overrides, defaults),
        overrides=overrides,
        ceilings=CEILINGS,
        used=QuotaUsage(usage.sessions, usage.concurrent),
        frozen=bool(usage.zone.frozen),
    )
