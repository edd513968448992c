"""Modules of `core` without I/O: errors, ids, clock, state machines, retries, paging, callers and commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from types import SimpleNamespace
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core import clock, errors, ids, paging, retry
from quarterdeck.core.caller import COORDINATOR_ADMIN, Bearer, Caller
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Fault, Invalid, Problem, Refusal
from quarterdeck.core.ids import IdGenerator, id_created_at, is_path_id
from quarterdeck.core.paging import CamelPage, Listing, Page, PageQuery
from quarterdeck.core.retry import Policy
from quarterdeck.core.routing import Call
from quarterdeck.core.state_machine import StateMachine
from tests.support.structs import build_struct

# -- errors


@pytest.mark.parametrize("kind", errors.concrete_types(), ids=lambda kind: kind.__name__)
def test_every_problem_type_has_a_status_an_exit_code_and_a_title(kind: type[Problem]) -> None:
    assert 400 <= kind.status <= 599
    assert errors.EXIT_FAILED <= kind.exit_code <= errors.EXIT_TIMEOUT
    assert kind.title.strip()


@pytest.mark.parametrize("kind", errors.concrete_types(), ids=lambda kind: kind.__name__)
def test_refusals_have_4xx_and_faults_5xx_status(kind: type[Problem]) -> None:
    assert issubclass(kind, Refusal) == (kind.status < 500)
    assert issubclass(kind, Fault) == (kind.status >= 500)


def test_only_the_base_classes_of_problems_are_not_concrete() -> None:
    base_classes = {Problem, Refusal, Fault}
    assert base_classes.isdisjoint(errors.concrete_types())
    assert set(errors.concrete_types()) == _descendants(Problem) - base_classes


def test_exit_codes_of_problem_types_are_the_published_ones() -> None:
    # Other modules define further types when imported. This test is about core/errors.py only.
    kinds = [kind for kind in errors.concrete_types() if kind.__module__ == errors.__name__]
    by_code = {kind.exit_code: {k.__name__ for k in kinds if k.exit_code == kind.exit_code} for kind in kinds}
    assert by_code[errors.EXIT_REFUSED] == {"LimitReached", "Frozen"}
    assert by_code[errors.EXIT_NOT_FOUND] == {"NotFound"}
    assert by_code[errors.EXIT_TIMEOUT] == {"Unavailable", "OutcomeUnknown"}


def test_problem_is_a_value_and_an_exception() -> None:
    problem = errors.LimitReached("agent_limit_exceeded", "Too many.", bound="max_sessions", limit=8, used=8)
    with pytest.raises(Refusal, match="Too many"):
        raise problem
    assert problem.code == "agent_limit_exceeded"
    assert problem.members == {"bound": "max_sessions", "limit": 8, "used": 8}
    assert repr(problem) == "LimitReached('agent_limit_exceeded', 'Too many.')"


def test_retry_after_is_none_unless_it_is_a_number() -> None:
    assert errors.Unavailable("draining", "Try again.", retry_after=1).retry_after == 1
    assert errors.NotFound("agent_not_found", "There is none.").retry_after is None
    assert errors.Unavailable("draining", "Try again.", retry_after="soon").retry_after is None


def _descendants(kind: type[Problem]) -> set[type[Problem]]:
    return {kind}.union(*(_descendants(sub) for sub in kind.__subclasses__()))


# -- ids


def set_clock(monkeypatch: pytest.MonkeyPatch, *milliseconds: int) -> None:
    """Make the clock of the ids return these times in turn, then the last one repeatedly."""
    remaining = list(milliseconds)
    monkeypatch.setattr(
        ids,
        "time",
        SimpleNamespace(time_ns=lambda: (remaining.pop(0) if len(remaining) > 1 else remaining[0]) * 1_000_000),
    )


def test_ids_are_uuid_version_7() -> None:
    generate = IdGenerator()
    for text in (generate() for _ in range(1_000)):
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", text)
        assert UUID(text).version == 7
        assert is_path_id(text)


def test_ids_contain_the_millisecond_of_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, 1_767_323_045_678)
    created_id = IdGenerator()()
    assert UUID(created_id).int >> 80 == id_created_at(created_id) == 1_767_323_045_678


def test_later_ids_sort_later_and_are_unique() -> None:
    generate = IdGenerator()
    created_ids = [generate() for _ in range(20_000)]
    assert all(earlier < later for earlier, later in pairwise(created_ids))


def test_ids_stay_in_order_when_the_counter_of_a_millisecond_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, 1_000)
    generate = IdGenerator()
    created_ids = [generate() for _ in range(10_000)]
    assert all(earlier < later for earlier, later in pairwise(created_ids))
    assert UUID(created_ids[-1]).int >> 80 == 1_002, "4,096 ids per millisecond, the rest use the next milliseconds"


def test_ids_stay_in_order_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, 5_000, 4_000, 4_001, 5_000, 5_001, 6_000)
    generate = IdGenerator()
    created_ids = [generate() for _ in range(6)]
    assert created_ids == sorted(created_ids)
    assert [UUID(text).int >> 80 for text in created_ids] == [5_000, 5_000, 5_000, 5_000, 5_001, 6_000]


def test_two_generators_in_the_same_millisecond_do_not_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, 1_000)
    first, second = IdGenerator(), IdGenerator()
    created_ids = [generate() for _ in range(500) for generate in (first, second)]
    assert len(set(created_ids)) == 1_000


@pytest.mark.parametrize("text", ["a", "A-b_c.d:e", "0" * 128, "-", ".", "a:b"])
def test_path_id_accepts_the_allowed_characters(text: str) -> None:
    assert is_path_id(text)


@pytest.mark.parametrize("text", ["", "0" * 129, "a/b", "a b", "a\n", "\na", "a\x00", "ä", "a%2f", "٣"])
def test_path_id_rejects_everything_else(text: str) -> None:
    assert not is_path_id(text)


# -- clock


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (999, "1970-01-01T00:00:00.999Z"),
        (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
    ],
)
def test_iso_time_has_milliseconds_and_z(instant: int, text: str) -> None:
    assert clock.iso(instant) == text


@given(st.lists(st.integers(-(10**12), 10**13), min_size=1))
def test_iso_time_does_not_depend_on_earlier_calls(instants: list[int]) -> None:
    for instant in instants:
        parsed = datetime.fromisoformat(clock.iso(instant))
        assert parsed.tzinfo == UTC
        assert round(parsed.timestamp() * 1_000) == instant


def test_iso_or_none_of_none_is_none() -> None:
    assert clock.iso_or_none(None) is None
    assert clock.iso_or_none(0) == "1970-01-01T00:00:00.000Z"


def test_system_clock_returns_milliseconds() -> None:
    before = datetime.now(UTC).timestamp() * 1_000
    assert before - 1 <= clock.system_now() <= datetime.now(UTC).timestamp() * 1_000


# -- state machines


class Lamp(StrEnum):
    OFF = "off"
    ON = "on"
    BROKEN = "broken"


class LampVerb(StrEnum):
    SWITCH = "switch"
    DROP = "drop"


LAMP = StateMachine(
    "lamp",
    Lamp,
    Lamp.OFF,
    {
        LampVerb.SWITCH: {Lamp.OFF: Lamp.ON, Lamp.ON: Lamp.OFF},
        LampVerb.DROP: {Lamp.OFF: Lamp.BROKEN, Lamp.ON: Lamp.BROKEN},
    },
)


@pytest.mark.parametrize("state", Lamp)
@pytest.mark.parametrize("verb", LampVerb)
def test_next_state_is_a_known_state_or_none(verb: LampVerb, state: Lamp) -> None:
    target = LAMP.next_state(verb, state)
    assert (target is None) == (state not in LAMP.transitions[verb])
    assert target is None or target in Lamp


def test_states_without_outgoing_transitions_are_terminal() -> None:
    assert LAMP.terminal_states() == (Lamp.BROKEN,)
    assert LAMP.nonterminal_states() == (Lamp.OFF, Lamp.ON)
    assert LAMP.next_state(LampVerb.SWITCH, Lamp.BROKEN) is None


def test_diagram_contains_every_transition_once() -> None:
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
    jitter_ratio=st.floats(0, 1),
)
attempts = st.integers(1, 10**6)
jitters = st.floats(0, 1, exclude_max=True)


@given(policies, attempts, jitters)
def test_delay_is_between_zero_and_the_cap(policy: Policy, attempt: int, jitter: float) -> None:
    assert 0 <= retry.backoff(policy, attempt=attempt, jitter=jitter) <= policy.cap_ms


@given(policies, attempts, jitters)
def test_jitter_shortens_the_delay_by_at_most_its_share(policy: Policy, attempt: int, jitter: float) -> None:
    without_jitter = retry.backoff(policy, attempt=attempt, jitter=0)
    assert (
        without_jitter * (1 - policy.jitter_ratio) - 1
        <= retry.backoff(policy, attempt=attempt, jitter=jitter)
        <= without_jitter
    )


@given(policies, attempts)
def test_delays_grow_or_shrink_with_the_multiplier(policy: Policy, attempt: int) -> None:
    first, second = (retry.backoff(policy, attempt=n, jitter=0) for n in (attempt, attempt + 1))
    assert first <= second if policy.multiplier >= 1 else first >= second


@given(policies, attempts, st.integers(0, 10**13), jitters)
def test_no_attempt_follows_the_last(policy: Policy, attempt: int, now: int, jitter: float) -> None:
    next_at = retry.next_attempt_at(policy, attempt=attempt, now=now, jitter=jitter)
    if attempt >= policy.max_attempts:
        assert next_at is None
    else:
        assert next_at == now + retry.backoff(policy, attempt=attempt, jitter=jitter)


def test_backoff_doubles_up_to_the_cap() -> None:
    policy = Policy(max_attempts=9, base_ms=1_000, cap_ms=5_000, jitter_ratio=0)
    assert [retry.backoff(policy, attempt=n, jitter=0) for n in (1, 2, 3, 4, 5_000)] == [
        1_000,
        2_000,
        4_000,
        5_000,
        5_000,
    ]


def test_zero_backoff_stays_zero() -> None:
    assert retry.backoff(Policy(max_attempts=9, base_ms=0), attempt=10_000, jitter=0) == 0


# -- paging

keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=200)


@given(keys)
def test_cursor_decodes_to_its_key(after: str) -> None:
    assert paging.decode("sessions", paging.encode("sessions", after)) == after


@given(keys)
def test_cursor_needs_no_url_encoding(after: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", paging.encode("sessions", after))


@given(keys)
def test_cursor_of_another_list_is_refused(after: str) -> None:
    with pytest.raises(Invalid) as refused:
        paging.decode("sessions", paging.encode("children", after))
    assert refused.value.code == "invalid_cursor"
    assert refused.value.members["field"] == "cursor"


@given(st.text() | st.from_regex(r"[A-Za-z0-9_\-]{1,512}", fullmatch=True))
def test_invalid_cursor_is_refused_without_another_error(cursor: str) -> None:
    try:
        after = paging.decode("sessions", cursor)
    except Invalid as refused:
        assert refused.code == "invalid_cursor"
    else:
        assert after.isprintable()


@pytest.mark.parametrize("after", ["", "\x00", "a\nb", "a\x1f"])
def test_forged_cursor_with_control_characters_is_refused(after: str) -> None:
    with pytest.raises(Invalid):
        paging.decode("sessions", paging.encode("sessions", after))


def test_too_long_cursor_is_refused() -> None:
    with pytest.raises(Invalid):
        paging.decode("sessions", paging.encode("sessions", "a" * 1_000))


ROWS = Listing[str]("rows", str)


def _list_call(limit: int) -> Call[None, PageQuery]:
    return Call(Caller("a", "b", "z", frozenset()), {"zone": "z"}, None, PageQuery(limit=limit), url="/rows?limit=1")


@given(st.lists(keys, unique=True, max_size=30), st.integers(1, 10))
def test_pages_together_contain_every_row_once(rows: list[str], limit: int) -> None:
    rows = sorted(rows)
    collected: list[str] = []
    after: str | None = ""
    while after is not None:
        page = [row for row in rows if row > after][: limit + 1]
        reply = ROWS.reply(_list_call(limit), page, str, Page)
        collected += reply.body.items
        assert bool(reply.headers) == (reply.body.next_cursor is not None)
        after = reply.body.next_cursor and paging.decode("rows", reply.body.next_cursor)
    assert collected == rows


def test_list_links_to_the_next_page_only_if_there_is_one() -> None:
    full = ROWS.reply(_list_call(2), ["a", "b"], str.upper, CamelPage)
    assert (full.body, full.headers) == (CamelPage(["A", "B"], None), [])
    more = ROWS.reply(_list_call(2), ["a", "b", "c"], str.upper, CamelPage)
    cursor = paging.encode("rows", "b")
    assert (more.body, more.headers) == (
        CamelPage(["A", "B"], cursor),
        [("link", f'</rows?limit=1&cursor={cursor}>; rel="next"')],
    )


def test_truncated_list_has_a_next_page_although_it_is_short() -> None:
    reply = ROWS.reply(_list_call(2), ["a"], str, Page, is_truncated=True)
    assert reply.body == Page(["a"], paging.encode("rows", "a"))


def test_page_writes_its_cursor_in_the_case_of_its_routes() -> None:
    assert msgspec.json.encode(Page([1], None)) == b'{"items":[1],"next_cursor":null}'
    assert msgspec.json.encode(CamelPage([1], "c")) == b'{"items":[1],"nextCursor":"c"}'


def test_cursor_of_another_list_is_refused_as_the_start_of_a_page() -> None:
    assert ROWS.start_key(PageQuery()) is None
    assert ROWS.start_key(PageQuery(cursor=paging.encode("rows", "b"))) == "b"
    with pytest.raises(Invalid):
        ROWS.start_key(PageQuery(cursor=paging.encode("others", "b")))


# -- callers


@pytest.mark.parametrize(
    ("fields", "is_allowed"),
    [
        ({"client_id": "app-1"}, True),
        ({"client_id": "other"}, False),
        ({"scopes": frozenset({"coordinator.spawn_for:app-1"})}, True),
        ({"scopes": frozenset({"coordinator.spawn_for:app-"})}, False),
        ({"scopes": frozenset({"coordinator.spawn_under:app-1"})}, False),
        ({"scopes": frozenset({COORDINATOR_ADMIN})}, True),
        ({"is_admin": True}, True),
    ],
)
def test_application_owner_scope_or_admin_can_act_for_an_application(
    fields: dict[str, object], is_allowed: bool
) -> None:
    defaults: dict[str, object] = {"subject": "s", "client_id": "other", "zone_id": "z", "scopes": frozenset()}
    assert build_struct(Caller, **{**defaults, **fields}).can_act_for("app-1", "spawn_for") is is_allowed


# -- commands


def test_command_without_a_caller_has_actor_server_and_no_bearer() -> None:
    session_caller = Caller("user-1", "app", "z", frozenset(), session_id="s", is_local=True)
    command = Command(zone_id="y", caller=session_caller)
    assert (command.actor, command.bearer) == ("user-1", Bearer("z", "s"))
    assert (Command(zone_id="y").actor, Command(zone_id="y").bearer) == ("server", None)
