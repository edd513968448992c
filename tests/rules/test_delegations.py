"""Which edges are made: who may, by what authority, in which order it is judged, and what a body asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, Caller
from quarterdeck.core.errors import Invalid, Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import UNLIMITED_HOPS, Delegate, DelegateBody, DelegatedEdge, Edge, EdgeState
from quarterdeck.domain.delegations.rules import CREATE_OPERATION, DELEGATION_STATES, DelegationBatchInput
from quarterdeck.domain.delegations.rules.attenuation import requested_expiry
from quarterdeck.domain.sessions.model import State
from tests.support.builders import APP, NOW, ZONE, caller, session_row
from tests.support.delegations import EDGE_EXPIRES_AT, decide, delegate_command, delegation_input, edge_row


def lend_one(ask: Delegate, now: DelegationBatchInput) -> DelegatedEdge | Problem:
    [outcome] = decide([ask], now)
    return outcome


def made(ask: Delegate, now: DelegationBatchInput) -> Edge:
    outcome = lend_one(ask, now)
    assert isinstance(outcome, DelegatedEdge), outcome
    assert outcome.created
    return outcome.edge


def refused(ask: Delegate, now: DelegationBatchInput) -> Problem:
    outcome = lend_one(ask, now)
    assert isinstance(outcome, Problem), outcome
    return outcome


def held_to(edge_id: str) -> Caller:
    return msgspec.structs.replace(caller(APP, "a", "b"), delegation_edge_id=edge_id)


# -- who ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gone", [None, {"status": State.TERMINATED, "terminated_at": 1}, {"terminated_at": 1}, {"expires_at": NOW}]
)
@pytest.mark.parametrize("which", ["a", "b"])
def test_an_end_that_is_absent_ended_stamped_or_expired_is_not_found(
    gone: dict[str, object] | None, which: str
) -> None:
    now = delegation_input(sessions=[session_row(id=which, **gone)] if gone else ())
    if gone is None:
        now = delegation_input()
        ask = delegate_command("a" if which == "b" else "nobody", "b" if which == "a" else "nobody")
    else:
        ask = delegate_command("a", "b")
    problem = refused(ask, now)
    assert (problem.status, problem.code) == (404, "delegation_endpoint_not_found")


@pytest.mark.parametrize("which", ["a", "b"])
def test_nothing_is_delegated_from_or_to_a_suspended_session(which: str) -> None:
    problem = refused(
        delegate_command("a", "b"), delegation_input(sessions=[session_row(id=which, status=State.SUSPENDED)])
    )
    assert (problem.status, problem.code) == (409, "agent_suspended")
    assert problem.members["frees"] == "it is resumed"


def test_a_suspended_session_delegates_nothing_also_not_from_a_sibling() -> None:
    asleep = session_row(id="c", status=State.SUSPENDED)
    problem = refused(delegate_command("a", "b", caller=caller(session_id="c")), delegation_input(sessions=[asleep]))
    assert (problem.status, problem.code) == (409, "agent_suspended")


@pytest.mark.parametrize(
    ("client", "powers", "allowed"),
    [
        ("lender", (), False),
        ("receiver", (), False),
        ("lender", ("coordinator.delegate_to:receiver",), True),
        ("receiver", ("coordinator.delegate_from:lender",), True),
        ("third", ("coordinator.delegate_from:lender", "coordinator.delegate_to:receiver"), True),
        ("third", ("coordinator.delegate_from:receiver", "coordinator.delegate_to:lender"), False),
        ("lender", ("coordinator.spawn_for:receiver", "coordinator.delegate_from:receiver"), False),
        ("third", (COORDINATOR_ADMIN,), True),
    ],
)
def test_both_applications_must_be_ones_own_or_lent_by_a_power(
    client: str, powers: tuple[str, ...], allowed: bool
) -> None:
    now = delegation_input(
        sessions=[session_row(id="a", application_id="lender"), session_row(id="b", application_id="receiver")]
    )
    outcome = lend_one(delegate_command("a", "b", caller=caller(client, *powers)), now)
    if allowed:
        assert isinstance(outcome, DelegatedEdge)
        assert (outcome.edge.issuer_application_id, outcome.edge.receiver_application_id) == ("lender", "receiver")
    else:
        assert isinstance(outcome, Problem)
        assert (outcome.status, outcome.code) == (403, "application_ownership_required")


def test_applications_that_are_named_must_be_those_of_the_sessions() -> None:
    assert refused(delegate_command("a", "b", issuer_application_id="other"), delegation_input()).code == (
        "invalid_issuer_application"
    )
    assert refused(delegate_command("a", "b", receiver_application_id="other"), delegation_input()).code == (
        "invalid_receiver_application"
    )
    made(delegate_command("a", "b", issuer_application_id=APP, receiver_application_id=APP), delegation_input())


def test_a_token_whose_session_has_ended_is_told_that_before_all_else() -> None:
    ended = session_row(id="c", terminated_at=1, status=State.TERMINATED)
    ask = delegate_command("nobody", "b", caller=caller(session_id="c"))
    assert refused(ask, delegation_input(sessions=[ended])).code == "session_ended"


# -- by what authority -------------------------------------------------------------------------------------------


def test_where_no_edge_ever_led_to_the_source_the_token_is_what_can_be_lent() -> None:
    token = caller(APP, "a", "b")
    lent = made(delegate_command("a", "b", caller=token, scopes=("a",)), delegation_input())
    assert (lent.parent_edge_id, lent.hops, lent.resources) == (None, UNLIMITED_HOPS - 1, None)
    problem = refused(delegate_command("a", "b", caller=token, scopes=("a", "x")), delegation_input())
    assert (problem.status, problem.code) == (403, "delegation_exceeds_authority")
    assert "x" in str(problem.members["exceeds"])


def test_the_zones_administrator_lends_any_scope_and_only_where_no_edge_leads() -> None:
    assert made(delegate_command("a", "b", scopes=("x",)), delegation_input()).scopes == '["x"]'
    assert refused(delegate_command("a", "b", scopes=("x",)), delegation_input(edge_row("c", "a"))).code == (
        "delegation_exceeds_authority"
    )


@pytest.mark.parametrize("over", [{"status": EdgeState.REVOKED}, {"status": EdgeState.EXPIRED}, {"expires_at": NOW}])
def test_a_session_whose_edges_are_over_lends_nothing_out_of_its_token(over: dict[str, object]) -> None:
    problem = refused(
        delegate_command("a", "b", caller=caller(APP, "a"), scopes=("a",)), delegation_input(edge_row("c", "a", **over))
    )
    assert problem.code == "delegation_exceeds_authority"


def test_without_a_parent_the_covering_edge_that_expires_last_is_taken_and_of_those_the_lowest_id() -> None:
    edges = [
        edge_row("c", "a", id="e1", expires_at=EDGE_EXPIRES_AT - 1),
        edge_row("d", "a", id="e3"),
        edge_row("d", "a", id="e2"),
        edge_row("c", "a", id="e4", expires_at=EDGE_EXPIRES_AT + 1, scopes='["b"]'),
        edge_row("c", "a", id="e5", expires_at=EDGE_EXPIRES_AT + 1, status=EdgeState.REVOKED),
    ]
    assert made(delegate_command("a", "b", scopes=("a",)), delegation_input(*edges)).parent_edge_id == "e2"
    assert made(delegate_command("a", "b", scopes=("b",)), delegation_input(*edges)).parent_edge_id == "e4"


def test_an_edge_whose_lender_has_ended_covers_nothing_though_it_is_still_active() -> None:
    first, second = edge_row("c", "a", id="e1"), edge_row("c", "a", id="e2")
    assert made(delegate_command("a", "b"), delegation_input(first, second, orphaned=[first])).parent_edge_id == "e2"
    problem = refused(delegate_command("a", "b"), delegation_input(first, second, orphaned=[first, second]))
    assert "has ended" in str(problem.members["exceeds"])


def test_a_parent_that_is_named_is_the_one_though_another_would_cover() -> None:
    narrow, wide = edge_row("c", "a", id="e1", scopes='["a"]'), edge_row("c", "a", id="e2")
    assert (
        made(
            delegate_command("a", "b", parent_edge_id="e1", scopes=("a",)), delegation_input(narrow, wide)
        ).parent_edge_id
        == "e1"
    )
    problem = refused(delegate_command("a", "b", parent_edge_id="e1", scopes=("b",)), delegation_input(narrow, wide))
    assert (problem.code, problem.members["parent_edge_id"]) == ("delegation_exceeds_authority", "e1")


def test_a_parent_that_is_absent_or_leads_elsewhere_is_no_parent() -> None:
    assert refused(delegate_command("a", "b", parent_edge_id="none"), delegation_input()).code == "delegation_not_found"
    problem = refused(delegate_command("a", "b", parent_edge_id="e1"), delegation_input(edge_row("c", "d", id="e1")))
    assert (problem.status, problem.code) == (400, "invalid_parent_edge")


def test_a_token_that_names_an_edge_lends_by_that_edge_and_by_no_other() -> None:
    edges = [edge_row("c", "a", id="e1", scopes='["a"]'), edge_row("c", "a", id="e2"), edge_row("c", "d", id="e3")]
    assert (
        made(delegate_command("a", "b", caller=held_to("e1"), scopes=("a",)), delegation_input(*edges)).parent_edge_id
        == "e1"
    )
    for asked in (
        {"caller": held_to("e1"), "scopes": ("b",)},
        {"caller": held_to("e1"), "parent_edge_id": "e2"},
        {"caller": held_to("e3")},
        {"caller": held_to("none")},
    ):
        assert (
            refused(delegate_command("a", "b", **asked), delegation_input(*edges)).code
            == "delegation_exceeds_authority"
        )
    over = edge_row("c", "a", id="e1", status=EdgeState.REVOKED)
    assert (
        refused(delegate_command("a", "b", caller=held_to("e1")), delegation_input(over)).code
        == "delegation_exceeds_authority"
    )


def test_an_edge_made_a_moment_ago_can_be_lent_on_in_the_same_batch() -> None:
    asks = [
        delegate_command("a", "b", scopes=("a",)),
        delegate_command("b", "c", scopes=("a",)),
        delegate_command("b", "d", scopes=("x",)),
    ]
    first, second, third = decide(asks, delegation_input())
    assert isinstance(first, DelegatedEdge)
    assert isinstance(second, DelegatedEdge)
    assert second.edge.parent_edge_id == first.edge.id
    assert isinstance(third, Problem), "b is held to what was lent to it in this very batch"


# -- cycles ------------------------------------------------------------------------------------------------------


def test_an_edge_that_would_close_a_cycle_is_refused_and_one_beside_it_is_not() -> None:
    now = delegation_input(edge_row("a", "b"), edge_row("b", "c"))
    problem = refused(delegate_command("c", "a"), now)
    assert (problem.status, problem.code) == (409, "delegation_cycle_denied")
    made(delegate_command("a", "c"), now)


@pytest.mark.parametrize("over", [{"status": EdgeState.REVOKED}, {"expires_at": NOW}])
def test_an_edge_that_is_over_closes_no_cycle(over: dict[str, object]) -> None:
    made(delegate_command("b", "a"), delegation_input(edge_row("a", "b", **over), edge_row("c", "b")))


def test_of_two_edges_of_one_batch_that_would_close_a_cycle_the_second_is_refused() -> None:
    first, second = decide([delegate_command("a", "b"), delegate_command("b", "a")], delegation_input())
    assert isinstance(first, DelegatedEdge)
    assert isinstance(second, Problem)
    assert second.code == "delegation_cycle_denied"


# -- time --------------------------------------------------------------------------------------------------------


def test_an_edge_that_does_not_say_lasts_as_long_as_its_parent_and_both_sessions() -> None:
    both = [session_row(id="a", expires_at=NOW + 70), session_row(id="b", expires_at=NOW + 60)]
    assert made(delegate_command("a", "b"), delegation_input(sessions=both)).expires_at == NOW + 60
    parent = edge_row("c", "a", expires_at=NOW + 50)
    assert made(delegate_command("a", "b"), delegation_input(parent, sessions=both)).expires_at == NOW + 50


def test_an_edge_asked_for_longer_than_its_sessions_ends_with_the_first_of_them() -> None:
    # An edge that outlasted its lender would read as active and hold nothing, and so would all derived from it.
    short = [session_row(id="a", expires_at=NOW + 60)]
    assert (
        made(delegate_command("a", "b", expires_at=EDGE_EXPIRES_AT), delegation_input(sessions=short)).expires_at
        == NOW + 60
    )
    assert (
        made(delegate_command("c", "a", expires_at=EDGE_EXPIRES_AT), delegation_input(sessions=short)).expires_at
        == NOW + 60
    )


def test_an_edge_asked_for_longer_than_its_parent_is_refused() -> None:
    problem = refused(delegate_command("a", "b", expires_at=EDGE_EXPIRES_AT + 1), delegation_input(edge_row("c", "a")))
    assert "outlast" in str(problem.members["exceeds"])


def test_of_several_times_the_earliest_counts_and_one_that_has_passed_is_refused() -> None:
    ask = delegate_command("a", "b", expires_at=NOW + 5_000, ttl_seconds=3)
    assert requested_expiry(ask, NOW) == NOW + 3_000
    for passed in (NOW, NOW - 1, 0):
        problem = refused(delegate_command("a", "b", expires_at=passed, ttl_seconds=60), delegation_input())
        assert (problem.status, problem.code) == (400, "delegation_expired")


# -- keys --------------------------------------------------------------------------------------------------------


def bound(subject: Edge, digest: str = "d", application: str = APP) -> KeyRecord:
    return KeyRecord(ZONE, application, CREATE_OPERATION, "k", digest, subject.id)


def test_a_key_gives_the_same_edge_while_it_is_active_and_is_free_again_afterwards() -> None:
    ask = delegate_command("a", "b", idempotency_key="k", request_digest="d")
    there = edge_row("a", "b")
    assert lend_one(ask, delegation_input(there, key_records=[bound(there)])) == DelegatedEdge(there, created=False)
    for over in ({"status": EdgeState.REVOKED}, {"expires_at": NOW}):
        gone = edge_row("a", "b", **over)
        assert made(ask, delegation_input(gone, key_records=[bound(gone)])).id == ask.id


def test_a_key_decides_before_everything_that_is_judged_anew() -> None:
    there = edge_row("a", "b")
    asleep = session_row(id="a", status=State.SUSPENDED)
    replay = delegate_command("a", "b", idempotency_key="k", request_digest="d", scopes=("x",))
    now = delegation_input(there, sessions=[asleep], key_records=[bound(there)])
    assert lend_one(replay, now) == DelegatedEdge(there, created=False)
    stranger = delegate_command("a", "b", idempotency_key="k", request_digest="d", caller=caller("other"))
    assert refused(stranger, now).code == "application_ownership_required"


def test_one_key_with_another_body_is_a_conflict_also_within_a_batch() -> None:
    there = edge_row("a", "b")
    other = delegate_command("a", "b", idempotency_key="k", request_digest="other")
    assert refused(other, delegation_input(there, key_records=[bound(there)])).code == "idempotency_key_conflict"
    first, second, third = decide(
        [
            delegate_command("a", "b", idempotency_key="k", request_digest="d"),
            delegate_command("a", "b", idempotency_key="k", request_digest="d"),
            other,
        ],
        delegation_input(),
    )
    assert isinstance(first, DelegatedEdge)
    assert isinstance(second, DelegatedEdge)
    assert (first.edge, second.created) == (second.edge, False)
    assert isinstance(third, Problem)


# -- what a body asks for ----------------------------------------------------------------------------------------


def asked(**body: object) -> Delegate:
    plain: dict[str, object] = {"source_session_id": "a", "target_session_id": "b"}
    return rules.build_command(msgspec.convert(plain | body, DelegateBody), delegate_command("a", "b"))


def test_what_is_said_in_several_places_is_taken_at_its_narrowest() -> None:
    ask = asked(
        scopes=["b", "a", "b"],
        resource_id="r",
        constraints={"resources": ["q", "q"], "max_depth": 3, "max_hops": 4, "ttl_seconds": 9, "other": [1]},
        ttl_seconds=10,
        expires_at="2030-01-01T00:00:00Z",
    )
    assert (ask.scopes, ask.resources, ask.hops, ask.ttl_seconds) == (("a", "b"), ("q", "r"), 3, 9)
    assert msgspec.json.decode(ask.constraints)["other"] == [1]
    assert asked(constraints_json={"max_hops": 2}).hops == 2
    assert (asked().resources, asked().hops, asked().constraints) == (None, None, "{}")
    assert asked(constraints={"resources": []}).resources == ()


def test_instants_are_taken_to_the_millisecond_whatever_their_zone() -> None:
    moment = datetime(2030, 5, 6, 7, 8, 9, 123_987, tzinfo=UTC)
    expected = int(moment.replace(microsecond=0).timestamp()) * 1_000 + 123
    assert asked(expires_at=moment.isoformat()).expires_at == expected
    assert asked(expires_at=moment.astimezone(timezone(timedelta(hours=5))).isoformat()).expires_at == expected
    assert asked(expires_at="9999-12-31T23:59:59.999Z").expires_at == 253_402_300_799_999


@pytest.mark.parametrize(
    ("constraints", "field"),
    [
        ({"resources": ["r"] * 65}, "constraints.resources"),
        ({"resources": "r"}, "constraints.resources"),
        ({"resources": [""]}, "constraints.resources[0]"),
        ({"actions": [1]}, "constraints.actions[0]"),
        ({"max_hops": 0}, "constraints.max_hops"),
        ({"max_depth": 11}, "constraints.max_depth"),
        ({"ttl_seconds": 86_401}, "constraints.ttl_seconds"),
        ({"expires_at": "tomorrow"}, "constraints.expires_at"),
        ({"expires_at": "2030-01-01T00:00:00"}, "constraints.expires_at"),
    ],
)
def test_a_constraint_that_is_understood_must_be_what_it_is(constraints: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        asked(constraints=constraints)
    assert (refusal.value.code, refusal.value.members["field"]) == ("invalid_constraints", field)


def test_what_contradicts_itself_is_refused() -> None:
    for body, code in (
        ({"target_session_id": "a"}, "self_delegation_denied"),
        ({"constraints": {"x": 1}, "constraints_json": {"x": 2}}, "invalid_constraints"),
        ({"scopes": [ADMIN]}, "invalid_scope"),
    ):
        with pytest.raises(Invalid) as refusal:
            asked(**body)
        assert refusal.value.code == code
    assert asked(constraints={"x": 1}, constraints_json={"x": 1}).constraints == '{"x":1}'


def test_two_bodies_that_ask_for_the_same_in_other_words_are_the_same() -> None:
    one, other = (
        msgspec.convert({"source_session_id": "a", "target_session_id": "b", **said}, DelegateBody)
        for said in ({"constraints": {"x": 1}}, {"constraints_json": {"x": 1}, "idempotency_key": "k"})
    )
    assert rules.normalize_body(one) == rules.normalize_body(other)


# -- states ------------------------------------------------------------------------------------------------------


def test_an_edge_is_left_by_revoking_and_expiring_and_never_returns() -> None:
    assert DELEGATION_STATES.live_states() == (EdgeState.ACTIVE,)
    assert set(DELEGATION_STATES.terminal_states()) == {EdgeState.REVOKED, EdgeState.EXPIRED}


def test_an_edge_past_its_time_reads_as_expired_since_then_and_one_that_was_revoked_does_not() -> None:
    read = rules.with_current_status(edge_row("a", "b", expires_at=NOW), NOW)
    assert (read.status, read.ended_at, read.ended_reason) == (EdgeState.EXPIRED, NOW, "expired")
    assert rules.with_current_status(edge_row("a", "b", expires_at=NOW + 1), NOW).status is EdgeState.ACTIVE
    revoked = edge_row("a", "b", expires_at=NOW, status=EdgeState.REVOKED, ended_at=5)
    assert rules.with_current_status(revoked, NOW) == revoked


def test_an_edge_is_shown_with_both_names_of_everything_that_has_two() -> None:
    shown = rules.view(edge_row("a", "b", id="e", constraints_json='{"other":{"x":1}}', resources='["r"]'))
    assert shown.id == shown.delegation_edge_id == "e"
    assert shown.source_session_id == shown.source_agent_id == "a"
    assert shown.target_session_id == shown.target_agent_id == "b"
    assert (shown.scopes, shown.resources) == (["a", "b"], ["r"])
    assert msgspec.json.decode(msgspec.json.encode(shown))["constraints_json"] == {"other": {"x": 1}}
