"""Limits in three layers: the platform's defaults, a zone's overrides, the platform's ceilings."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import CEILINGS, Limits, Overrides, Zone, ZoneUsage

NAMES = tuple(CEILINGS)
CONTRACT = {
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


def given(text: str) -> Overrides:
    return msgspec.json.decode(text, type=Overrides)


def test_the_ceilings_are_the_contracts() -> None:
    assert CEILINGS == CONTRACT
    assert set(Overrides.__struct_fields__) == set(Limits.__struct_fields__) == set(CONTRACT)


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_may_be_set_up_to_its_ceiling_and_not_beyond(name: str) -> None:
    assert getattr(given(f'{{"{name}": {CEILINGS[name]}}}'), name) == CEILINGS[name]
    assert getattr(given(f'{{"{name}": 0}}'), name) == 0
    wrongs: tuple[object, ...] = (CEILINGS[name] + 1, -1, "5", 1.5, True, [])
    for wrong in wrongs:
        with pytest.raises(msgspec.ValidationError, match=name):
            given(msgspec.json.encode({name: wrong}).decode())


def test_a_limit_that_does_not_exist_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_fun"):
        given('{"max_fun": 1}')


@pytest.mark.parametrize("name", NAMES)
def test_an_override_sets_one_limit_and_leaves_the_others_at_their_defaults(name: str) -> None:
    defaults = Limits()
    inforce = rules.effective_limits(given(f'{{"{name}": 3}}'), defaults)
    assert inforce == msgspec.structs.replace(defaults, **{name: 3})


@pytest.mark.parametrize("name", NAMES)
def test_no_default_and_no_stored_override_passes_a_ceiling(name: str) -> None:
    # A ceiling may have been lowered since the override was stored.
    beyond = {name: CEILINGS[name] + 1}
    assert getattr(rules.effective_limits(Overrides(**beyond), Limits()), name) == CEILINGS[name]
    assert getattr(rules.effective_limits(Overrides(), Limits(**beyond)), name) == CEILINGS[name]


def test_merging_sets_what_is_named_takes_back_what_is_null_and_keeps_the_rest() -> None:
    old = given('{"max_depth": 1, "max_children": 2, "max_sessions": 3}')
    merged = rules.merge_overrides(old, given('{"max_depth": 9, "max_children": null, "max_concurrent": 4}'))
    assert merged == Overrides(max_depth=9, max_sessions=3, max_concurrent=4)
    assert merged.max_children is UNSET
    assert rules.merge_overrides(old, Overrides()) == old


def test_what_is_stored_is_only_what_is_overridden_and_reads_back_the_same() -> None:
    overrides = given('{"max_depth": 0, "max_sessions": 3}')
    text = rules.encode_overrides(overrides)
    assert msgspec.json.decode(text) == {"max_depth": 0, "max_sessions": 3}
    assert rules.overrides_of_zone(zone(text)) == overrides
    assert rules.encode_overrides(Overrides()) == "{}"


@pytest.mark.parametrize(("frozen", "said"), [(0, False), (1, True)])
def test_terms_say_the_limits_in_force_and_whether_the_zone_is_frozen(frozen: int, said: bool) -> None:
    terms = rules.admission_of_zone(zone('{"max_depth": 2}', frozen), Limits(max_children=7))
    assert terms.frozen is said
    assert terms.limits == Limits(max_depth=2, max_children=7)
    assert rules.view(zone(frozen=frozen)).frozen is said


def test_quotas_are_shown_with_what_is_in_force_overridden_possible_and_used() -> None:
    shown = rules.quotas_view(ZoneUsage(zone('{"max_depth": 2}'), 5, 4), Limits())
    assert shown.limits == Limits(max_depth=2)
    assert shown.overrides == Overrides(max_depth=2)
    assert shown.ceilings == CONTRACT
    assert (shown.used.sessions, shown.used.concurrent) == (5, 4)
    assert msgspec.to_builtins(shown)["overrides"] == {"max_depth": 2}


def test_a_zone_is_shown_with_instants_people_can_read() -> None:
    shown = rules.view(zone())
    assert (shown.created_at, shown.updated_at) == ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.500Z")
