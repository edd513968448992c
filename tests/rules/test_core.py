"""The pure part: each module's whole page of cases."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core import clock, errors, ids, paging, retry
from quarterdeck.core.caller import COORDINATOR_ADMIN, Bearer, Caller
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Fault, Invalid, Problem, Refusal
from quarterdeck.core.ids import IdGenerator, id_created_at, is_path_id
from quarterdeck.core.retry import Policy
from quarterdeck.core.state_machine import StateMachine
from tests.support.structs import build_struct

# -- errors


@pytest.mark.parametrize("kind", errors.concrete_types(), ids=lambda kind: kind.__name__)
def test_every_kind_of_problem_has_a_status_an_exit_code_and_a_title(kind: type[Problem]) -> None:
    assert 400 <= kind.status <= 599
    assert errors.EXIT_FAILED <= kind.exit_code <= errors.EXIT_TIMEOUT
    assert kind.title.strip()


@pytest.mark.parametrize("kind", errors.concrete_types(), ids=lambda kind: kind.__name__)
def test_a_refusal_is_the_callers_and_a_fault_is_ours(kind: type[Problem]) -> None:
    assert issubclass(kind, Refusal) == (kind.status < 500)
    assert issubclass(kind, Fault) == (kind.status >= 500)


def test_only_the_roots_of_the_tree_have_no_face() -> None:
    faceless = {Problem, Refusal, Fault}
    assert faceless.isdisjoint(errors.concrete_types())
    assert set(errors.concrete_types()) == _descendants(Problem) - faceless


def test_exit_codes_tell_a_script_what_it_may_do_next() -> None:
    # The client adds kinds of its own once it is imported; this is about the tree on the one page.
    kinds = [kind for kind in errors.concrete_types() if kind.__module__ == errors.__name__]
    by_code = {kind.exit_code: {k.__name__ for k in kinds if k.exit_code == kind.exit_code} for kind in kinds}
    assert by_code[errors.EXIT_REFUSED] == {"LimitReached", "Frozen"}
    assert by_code[errors.EXIT_NOT_FOUND] == {"NotFound"}
    assert by_code[errors.EXIT_TIMEOUT] == {"Unavailable", "OutcomeUnknown"}


def test_a_problem_is_a_value_and_an_exception() -> None:
    problem = errors.LimitReached("agent_limit_exceeded", "Too many.", bound="max_sessions", limit=8, used=8)
    with pytest.raises(Refusal, match="Too many"):
        raise problem
    assert problem.code == "agent_limit_exceeded"
    assert problem.members == {"bound": "max_sessions", "limit": 8, "used": 8}
    assert repr(problem) == "LimitReached('agent_limit_exceeded', 'Too many.')"


def test_waiting_is_advised_only_where_it_helps() -> None:
    assert errors.Unavailable("draining", "Try again.", retry_after=1).retry_after == 1
    assert errors.NotFound("agent_not_found", "There is none.").retry_after is None
    assert errors.Unavailable("draining", "Try again.", retry_after="soon").retry_after is None


def _descendants(kind: type[Problem]) -> set[type[Problem]]:
    return {kind}.union(*(_descendants(sub) for sub in kind.__subclasses__()))


# -- ids


def at(monkeypatch: pytest.MonkeyPatch, *milliseconds: int) -> None:
    """Has the ids' clock show these instants in turn, and the last one for ever."""
    left = list(milliseconds)
    monkeypatch.setattr(
        ids, "time", SimpleNamespace(time_ns=lambda: (left.pop(0) if len(left) > 1 else left[0]) * 1_000_000)
    )


def test_ids_have_the_form_of_uuid_version_7() -> None:
    make = IdGenerator()
    for text in (make() for _ in range(1_000)):
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", text)
        assert UUID(text).version == 7
        assert is_path_id(text)


def test_ids_carry_the_millisecond_they_were_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 1_767_323_045_678)
    made = IdGenerator()()
    assert UUID(made).int >> 80 == id_created_at(made) == 1_767_323_045_678


def test_ids_made_later_sort_later_and_none_repeats() -> None:
    make = IdGenerator()
    made = [make() for _ in range(20_000)]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_ids_stay_in_order_when_one_millisecond_has_more_than_the_counter_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at(monkeypatch, 1_000)
    make = IdGenerator()
    made = [make() for _ in range(10_000)]
    assert all(earlier < later for earlier, later in pairwise(made))
    assert UUID(made[-1]).int >> 80 == 1_002, "4,096 to a millisecond, the rest borrowed from the next ones"


def test_ids_stay_in_order_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 5_000, 4_000, 4_001, 5_000, 5_001, 6_000)
    make = IdGenerator()
    made = [make() for _ in range(6)]
    assert made == sorted(made)
    assert [UUID(text).int >> 80 for text in made] == [5_000, 5_000, 5_000, 5_000, 5_001, 6_000]


def test_two_makers_of_the_same_millisecond_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 1_000)
    one, other = IdGenerator(), IdGenerator()
    made = [maker() for _ in range(500) for maker in (one, other)]
    assert len(set(made)) == 1_000


@pytest.mark.parametrize("text", ["a", "A-b_c.d:e", "0" * 128, "-", ".", "a:b"])
def test_a_path_id_is_made_of_the_contracts_characters(text: str) -> None:
    assert is_path_id(text)


@pytest.mark.parametrize("text", ["", "0" * 129, "a/b", "a b", "a\n", "\na", "a\x00", "ä", "a%2f", "٣"])
def test_anything_else_is_no_path_id(text: str) -> None:
    assert not is_path_id(text)


# -- clock


@pytest.mark.parametrize(
    ("instant", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (999, "1970-01-01T00:00:00.999Z"),
        (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
    ],
)
def test_instants_are_shown_with_milliseconds_and_z(instant: int, shown: str) -> None:
    assert clock.iso(instant) == shown


@given(st.lists(st.integers(-(10**12), 10**13), min_size=1))
def test_an_instant_is_shown_the_same_whatever_was_shown_before(instants: list[int]) -> None:
    for instant in instants:
        parsed = datetime.fromisoformat(clock.iso(instant))
        assert parsed.tzinfo == UTC
        assert round(parsed.timestamp() * 1_000) == instant


def test_no_instant_is_shown_as_none() -> None:
    assert clock.iso_or_none(None) is None
    assert clock.iso_or_none(0) == "1970-01-01T00:00:00.000Z"


def test_the_machines_clock_is_read_in_milliseconds() -> None:
    before = datetime.now(UTC).timestamp() * 1_000
    assert before - 1 <= clock.system_now() <= datetime.now(UTC).timestamp() * 1_000


# -- moves


class Lamp(StrEnum):
    OFF = "off"
    ON = "on"
    BROKEN = "broken"


class Act(StrEnum):
    SWITCH = "switch"
    DROP = "drop"


LAMP = StateMachine(
    "lamp",
    Lamp,
    Lamp.OFF,
    {Act.SWITCH: {Lamp.OFF: Lamp.ON, Lamp.ON: Lamp.OFF}, Act.DROP: {Lamp.OFF: Lamp.BROKEN, Lamp.ON: Lamp.BROKEN}},
)


@pytest.mark.parametrize("state", Lamp)
@pytest.mark.parametrize("verb", Act)
def test_every_verb_leads_somewhere_known_or_nowhere(verb: Act, state: Lamp) -> None:
    target = LAMP.next_state(verb, state)
    assert (target is None) == (state not in LAMP.source_states(verb))
    assert target is None or target in Lamp


def test_what_no_arrow_leaves_is_the_end() -> None:
    assert LAMP.terminal_states() == (Lamp.BROKEN,)
    assert LAMP.live_states() == (Lamp.OFF, Lamp.ON)
    assert LAMP.next_state(Act.SWITCH, Lamp.BROKEN) is None


def test_the_diagram_draws_every_arrow_once() -> None:
    assert LAMP.diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> off",
        "    off --> on: switch",
        "    on --> off: switch",
        "    off --> broken: drop",
        "    on --> broken: drop",
        "    broken --> [*]",
    ]


# -- retry

policies = st.builds(
    Policy,
    max_attempts=st.integers(1, 10_000),
    base_ms=st.integers(0, 10**7),
    multiplier=st.floats(0, 1e300),
    cap_ms=st.integers(0, 10**9),
    jitter=st.floats(0, 1),
)
attempts = st.integers(1, 10**6)
chances = st.floats(0, 1, exclude_max=True)


@given(policies, attempts, chances)
def test_a_delay_is_never_negative_and_never_beyond_the_cap(policy: Policy, attempt: int, chance: float) -> None:
    assert 0 <= retry.backoff(policy, attempt=attempt, jitter=chance) <= policy.cap_ms


@given(policies, attempts, chances)
def test_chance_takes_away_at_most_its_share(policy: Policy, attempt: int, chance: float) -> None:
    full = retry.backoff(policy, attempt=attempt, jitter=0)
    assert full * (1 - policy.jitter) - 1 <= retry.backoff(policy, attempt=attempt, jitter=chance) <= full


@given(policies, attempts)
def test_delays_grow_with_the_attempts_when_the_multiplier_says_so(policy: Policy, attempt: int) -> None:
    now, then = (retry.backoff(policy, attempt=n, jitter=0) for n in (attempt, attempt + 1))
    assert now <= then if policy.multiplier >= 1 else now >= then


@given(policies, attempts, st.integers(0, 10**13), chances)
def test_the_last_attempt_is_followed_by_none(policy: Policy, attempt: int, now: int, chance: float) -> None:
    due = retry.next_attempt_at(policy, attempt=attempt, now=now, jitter=chance)
    if attempt >= policy.max_attempts:
        assert due is None
    else:
        assert due == now + retry.backoff(policy, attempt=attempt, jitter=chance)


def test_backoff_doubles_up_to_the_cap() -> None:
    policy = Policy(max_attempts=9, base_ms=1_000, cap_ms=5_000, jitter=0)
    assert [retry.backoff(policy, attempt=n, jitter=0) for n in (1, 2, 3, 4, 5_000)] == [
        1_000,
        2_000,
        4_000,
        5_000,
        5_000,
    ]


def test_no_backoff_stays_none_however_often_it_is_multiplied() -> None:
    assert retry.backoff(Policy(max_attempts=9, base_ms=0), attempt=10_000, jitter=0) == 0


# -- paging

keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=200)


@given(keys)
def test_a_cursor_gives_back_the_place_it_was_made_from(after: str) -> None:
    assert paging.decode("sessions", paging.encode("sessions", after)) == after


@given(keys)
def test_a_cursor_can_stand_in_a_query_string_as_it_is(after: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", paging.encode("sessions", after))


@given(keys)
def test_a_cursor_of_another_list_is_refused(after: str) -> None:
    with pytest.raises(Invalid) as refused:
        paging.decode("sessions", paging.encode("children", after))
    assert refused.value.code == "invalid_cursor"
    assert refused.value.members["field"] == "cursor"


@given(st.text() | st.from_regex(r"[A-Za-z0-9_\-]{1,512}", fullmatch=True))
def test_garbage_is_refused_or_a_place_and_never_an_error(cursor: str) -> None:
    try:
        after = paging.decode("sessions", cursor)
    except Invalid as refused:
        assert refused.code == "invalid_cursor"
    else:
        assert after.isprintable()


@pytest.mark.parametrize("after", ["", "\x00", "a\nb", "a\x1f"])
def test_a_forged_cursor_with_control_characters_is_refused(after: str) -> None:
    with pytest.raises(Invalid):
        paging.decode("sessions", paging.encode("sessions", after))


def test_an_endless_cursor_is_refused() -> None:
    with pytest.raises(Invalid):
        paging.decode("sessions", paging.encode("sessions", "a" * 1_000))


@given(st.lists(keys, unique=True, max_size=30), st.integers(1, 10))
def test_pages_together_show_every_row_once(rows: list[str], limit: int) -> None:
    rows = sorted(rows)
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        found = [row for row in rows if row > after][: limit + 1]
        shown, after = paging.trim_page(found, limit)
        seen += found[:shown]
    assert seen == rows


# -- wire


@pytest.mark.parametrize(
    ("caller", "may"),
    [
        ({"client_id": "crew"}, True),
        ({"client_id": "other"}, False),
        ({"scopes": frozenset({"coordinator.spawn_for:crew"})}, True),
        ({"scopes": frozenset({"coordinator.spawn_for:cre"})}, False),
        ({"scopes": frozenset({"coordinator.spawn_under:crew"})}, False),
        ({"scopes": frozenset({COORDINATOR_ADMIN})}, True),
        ({"is_admin": True}, True),
    ],
)
def test_who_may_act_for_an_application(caller: dict[str, object], may: bool) -> None:
    plain: dict[str, object] = {"subject": "s", "client_id": "other", "zone_id": "z", "scopes": frozenset()}
    assert build_struct(Caller, **{**plain, **caller}).can_act_for("crew", "spawn_for") is may


# -- asking


def test_without_a_caller_it_is_the_server_that_asks_and_nobody_is_borne() -> None:
    crew = Caller("crew", "app", "z", frozenset(), session_id="s", is_local=True)
    asked = Command(zone_id="y", caller=crew)
    assert (asked.actor, asked.bearer) == ("crew", Bearer("z", "s"))
    assert (Command(zone_id="y").actor, Command(zone_id="y").bearer) == ("server", None)
