"""Limits in three layers: the platform's defaults, a zone's overrides, the platform's ceilings."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import CEILINGS, Limits, Overrides, Zone, ZoneUsage
from quarterdeck.domain.zones.rules import limits

NAMES = tuple(CEILINGS)
DOCUMENTED_CEILINGS = {
    "max_depth": 100,
    "max_children": 10_000,
    "max_tree_size": 1_000_000,
    "max_tree_spawns": 10_000_000,
    "max_concurrent": 1_000_000,
    "max_sessions": 1_000_000,
    "max_sessions_per_application": 1_000_000,
}


def zone(quotas: str = "{}", frozen: int = 0) -> Zone:
    return Zone("z", "name", frozen, quotas, 0, 1_500, None)


def overrides_from(text: str) -> Overrides:
    return msgspec.json.decode(text, type=Overrides)


def test_ceilings_have_the_documented_values() -> None:
    assert CEILINGS == DOCUMENTED_CEILINGS
    assert set(Overrides.__struct_fields__) == set(Limits.__struct_fields__) == set(DOCUMENTED_CEILINGS)


@pytest.mark.parametrize("name", NAMES)
def test_limit_can_be_set_up_to_its_ceiling_but_not_above(name: str) -> None:
    assert getattr(overrides_from(f'{{"{name}": {CEILINGS[name]}}}'), name) == CEILINGS[name]
    assert getattr(overrides_from(f'{{"{name}": 0}}'), name) == 0
    invalid_values: tuple[object, ...] = (CEILINGS[name] + 1, -1, "5", 1.5, True, [])
    for value in invalid_values:
        with pytest.raises(msgspec.ValidationError, match=name):
            overrides_from(msgspec.json.encode({name: value}).decode())


def test_unknown_limit_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_fun"):
        overrides_from('{"max_fun": 1}')


@pytest.mark.parametrize("name", NAMES)
def test_override_sets_one_limit_and_keeps_the_other_defaults(name: str) -> None:
    defaults = Limits()
    effective = limits.effective_limits(overrides_from(f'{{"{name}": 3}}'), defaults)
    assert effective == msgspec.structs.replace(defaults, **{name: 3})


@pytest.mark.parametrize("name", NAMES)
def test_default_or_stored_override_above_the_ceiling_is_capped(name: str) -> None:
    # A ceiling may have been lowered since the override was stored.
    beyond = {name: CEILINGS[name] + 1}
    assert getattr(limits.effective_limits(Overrides(**beyond), Limits()), name) == CEILINGS[name]
    assert getattr(limits.effective_limits(Overrides(), Limits(**beyond)), name) == CEILINGS[name]


def test_merge_sets_given_limits_removes_null_ones_and_keeps_the_rest() -> None:
    old = overrides_from('{"max_depth": 1, "max_children": 2, "max_sessions": 3}')
    merged = limits.merge_overrides(old, overrides_from('{"max_depth": 9, "max_children": null, "max_concurrent": 4}'))
    assert merged == Overrides(max_depth=9, max_sessions=3, max_concurrent=4)
    assert merged.max_children is UNSET
    assert limits.merge_overrides(old, Overrides()) == old


def test_only_overridden_limits_are_stored_and_they_round_trip() -> None:
    overrides = overrides_from('{"max_depth": 0, "max_sessions": 3}')
    text = limits.encode_overrides(overrides)
    assert msgspec.json.decode(text) == {"max_depth": 0, "max_sessions": 3}
    assert limits.overrides_of_zone(zone(text)) == overrides
    assert limits.encode_overrides(Overrides()) == "{}"


@pytest.mark.parametrize(("frozen", "expected"), [(0, False), (1, True)])
def test_admission_has_the_effective_limits_and_the_frozen_flag(frozen: int, expected: bool) -> None:
    admission = rules.zone_admission_state(zone('{"max_depth": 2}', frozen), Limits(max_children=7))
    assert admission.frozen is expected
    assert admission.limits == Limits(max_depth=2, max_children=7)
    assert limits.view(zone(frozen=frozen)).frozen is expected


def test_quotas_view_has_limits_overrides_ceilings_and_usage() -> None:
    view = limits.quotas_view(ZoneUsage(zone('{"max_depth": 2}'), 5, 4), Limits())
    assert view.limits == Limits(max_depth=2)
    assert view.overrides == Overrides(max_depth=2)
    assert view.ceilings == DOCUMENTED_CEILINGS
    assert (view.used.sessions, view.used.concurrent) == (5, 4)
    assert msgspec.to_builtins(view)["overrides"] == {"max_depth": 2}


def test_zone_view_has_iso_timestamps() -> None:
    view = limits.view(zone())
    assert (view.created_at, view.updated_at) == ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.500Z")
