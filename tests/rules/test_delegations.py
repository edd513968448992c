"""Rules of new edges: permission, authority, cycles, expiry, idempotency keys, and how a body is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, Caller
from quarterdeck.core.errors import Invalid, Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.delegations.model import UNLIMITED_HOPS, Delegate, DelegateBody, DelegatedEdge, Edge, EdgeState
from quarterdeck.domain.delegations.rules import DELEGATION_STATES, states
from quarterdeck.domain.delegations.rules.attenuation import requested_expiry
from quarterdeck.domain.delegations.rules.constraints import build_command, normalize_body
from quarterdeck.domain.delegations.rules.creation import CREATE_OPERATION, DelegationBatchInput
from quarterdeck.domain.sessions.model import State
from tests.support.builders import APP, NOW, ZONE, caller, session_row
from tests.support.delegations import EDGE_EXPIRES_AT, decide, delegate_command, delegation_input, edge_row


def decide_one(command: Delegate, batch_input: DelegationBatchInput) -> DelegatedEdge | Problem:
    [outcome] = decide([command], batch_input)
    return outcome


def expect_created(command: Delegate, batch_input: DelegationBatchInput) -> Edge:
    outcome = decide_one(command, batch_input)
    assert isinstance(outcome, DelegatedEdge), outcome
    assert outcome.created
    return outcome.edge


def expect_refused(command: Delegate, batch_input: DelegationBatchInput) -> Problem:
    outcome = decide_one(command, batch_input)
    assert isinstance(outcome, Problem), outcome
    return outcome


def caller_with_edge(edge_id: str) -> Caller:
    return msgspec.structs.replace(caller(APP, "a", "b"), delegation_edge_id=edge_id)


# -- endpoints and permission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields", [None, {"status": State.TERMINATED, "terminated_at": 1}, {"terminated_at": 1}, {"expires_at": NOW}]
)
@pytest.mark.parametrize("session_id", ["a", "b"])
def test_missing_ended_marked_or_expired_endpoint_is_not_found(
    fields: dict[str, object] | None, session_id: str
) -> None:
    batch_input = delegation_input(sessions=[session_row(id=session_id, **fields)] if fields else ())
    if fields is None:
        batch_input = delegation_input()
        command = delegate_command("a" if session_id == "b" else "unknown", "b" if session_id == "a" else "unknown")
    else:
        command = delegate_command("a", "b")
    problem = expect_refused(command, batch_input)
    assert (problem.status, problem.code) == (404, "delegation_endpoint_not_found")


@pytest.mark.parametrize("session_id", ["a", "b"])
def test_delegation_from_or_to_a_suspended_session_is_refused(session_id: str) -> None:
    problem = expect_refused(
        delegate_command("a", "b"), delegation_input(sessions=[session_row(id=session_id, status=State.SUSPENDED)])
    )
    assert (problem.status, problem.code) == (409, "agent_suspended")
    assert problem.members["frees"] == "it is resumed"


def test_suspended_caller_cannot_delegate_for_other_sessions() -> None:
    suspended = session_row(id="c", status=State.SUSPENDED)
    problem = expect_refused(
        delegate_command("a", "b", caller=caller(session_id="c")), delegation_input(sessions=[suspended])
    )
    assert (problem.status, problem.code) == (409, "agent_suspended")


@pytest.mark.parametrize(
    ("client_id", "scopes", "allowed"),
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
def test_delegation_requires_ownership_or_a_scope_for_both_applications(
    client_id: str, scopes: tuple[str, ...], allowed: bool
) -> None:
    batch_input = delegation_input(
        sessions=[session_row(id="a", application_id="lender"), session_row(id="b", application_id="receiver")]
    )
    outcome = decide_one(delegate_command("a", "b", caller=caller(client_id, *scopes)), batch_input)
    if allowed:
        assert isinstance(outcome, DelegatedEdge)
        assert (outcome.edge.issuer_application_id, outcome.edge.receiver_application_id) == ("lender", "receiver")
    else:
        assert isinstance(outcome, Problem)
        assert (outcome.status, outcome.code) == (403, "application_ownership_required")


def test_named_applications_must_be_those_of_the_sessions() -> None:
    assert expect_refused(delegate_command("a", "b", issuer_application_id="other"), delegation_input()).code == (
        "invalid_issuer_application"
    )
    assert expect_refused(delegate_command("a", "b", receiver_application_id="other"), delegation_input()).code == (
        "invalid_receiver_application"
    )
    expect_created(
        delegate_command("a", "b", issuer_application_id=APP, receiver_application_id=APP), delegation_input()
    )


# -- authority ---------------------------------------------------------------------------------------------------


def test_source_without_inbound_edges_can_lend_the_scopes_of_the_token() -> None:
    token = caller(APP, "a", "b")
    edge = expect_created(delegate_command("a", "b", caller=token, scopes=("a",)), delegation_input())
    assert (edge.parent_edge_id, edge.hops, edge.resources) == (None, UNLIMITED_HOPS - 1, None)
    problem = expect_refused(delegate_command("a", "b", caller=token, scopes=("a", "x")), delegation_input())
    assert (problem.status, problem.code) == (403, "delegation_exceeds_authority")
    assert "x" in str(problem.members["exceeds"])


def test_zone_admin_lends_any_scope_only_from_a_source_without_inbound_edges() -> None:
    assert expect_created(delegate_command("a", "b", scopes=("x",)), delegation_input()).scopes == '["x"]'
    assert expect_refused(delegate_command("a", "b", scopes=("x",)), delegation_input(edge_row("c", "a"))).code == (
        "delegation_exceeds_authority"
    )


@pytest.mark.parametrize("fields", [{"status": EdgeState.REVOKED}, {"status": EdgeState.EXPIRED}, {"expires_at": NOW}])
def test_source_with_only_ended_inbound_edges_cannot_lend_from_its_token(fields: dict[str, object]) -> None:
    problem = expect_refused(
        delegate_command("a", "b", caller=caller(APP, "a"), scopes=("a",)),
        delegation_input(edge_row("c", "a", **fields)),
    )
    assert problem.code == "delegation_exceeds_authority"


def test_default_parent_is_the_covering_edge_with_latest_expiry_then_lowest_id() -> None:
    edges = [
        edge_row("c", "a", id="e1", expires_at=EDGE_EXPIRES_AT - 1),
        edge_row("d", "a", id="e3"),
        edge_row("d", "a", id="e2"),
        edge_row("c", "a", id="e4", expires_at=EDGE_EXPIRES_AT + 1, scopes='["b"]'),
        edge_row("c", "a", id="e5", expires_at=EDGE_EXPIRES_AT + 1, status=EdgeState.REVOKED),
    ]
    assert expect_created(delegate_command("a", "b", scopes=("a",)), delegation_input(*edges)).parent_edge_id == "e2"
    assert expect_created(delegate_command("a", "b", scopes=("b",)), delegation_input(*edges)).parent_edge_id == "e4"


def test_orphaned_edge_covers_nothing_although_it_is_active() -> None:
    first, second = edge_row("c", "a", id="e1"), edge_row("c", "a", id="e2")
    assert (
        expect_created(delegate_command("a", "b"), delegation_input(first, second, orphaned=[first])).parent_edge_id
        == "e2"
    )
    problem = expect_refused(delegate_command("a", "b"), delegation_input(first, second, orphaned=[first, second]))
    assert "has ended" in str(problem.members["exceeds"])


def test_named_parent_is_used_even_if_another_edge_would_cover() -> None:
    narrow, wide = edge_row("c", "a", id="e1", scopes='["a"]'), edge_row("c", "a", id="e2")
    assert (
        expect_created(
            delegate_command("a", "b", parent_edge_id="e1", scopes=("a",)), delegation_input(narrow, wide)
        ).parent_edge_id
        == "e1"
    )
    problem = expect_refused(
        delegate_command("a", "b", parent_edge_id="e1", scopes=("b",)), delegation_input(narrow, wide)
    )
    assert (problem.code, problem.members["parent_edge_id"]) == ("delegation_exceeds_authority", "e1")


def test_missing_parent_or_parent_of_another_session_is_refused() -> None:
    assert (
        expect_refused(delegate_command("a", "b", parent_edge_id="none"), delegation_input()).code
        == "delegation_not_found"
    )
    problem = expect_refused(
        delegate_command("a", "b", parent_edge_id="e1"), delegation_input(edge_row("c", "d", id="e1"))
    )
    assert (problem.status, problem.code) == (400, "invalid_parent_edge")


def test_token_with_an_edge_lends_only_under_that_edge() -> None:
    edges = [edge_row("c", "a", id="e1", scopes='["a"]'), edge_row("c", "a", id="e2"), edge_row("c", "d", id="e3")]
    assert (
        expect_created(
            delegate_command("a", "b", caller=caller_with_edge("e1"), scopes=("a",)), delegation_input(*edges)
        ).parent_edge_id
        == "e1"
    )
    for fields in (
        {"caller": caller_with_edge("e1"), "scopes": ("b",)},
        {"caller": caller_with_edge("e1"), "parent_edge_id": "e2"},
        {"caller": caller_with_edge("e3")},
        {"caller": caller_with_edge("none")},
    ):
        assert (
            expect_refused(delegate_command("a", "b", **fields), delegation_input(*edges)).code
            == "delegation_exceeds_authority"
        )
    revoked = edge_row("c", "a", id="e1", status=EdgeState.REVOKED)
    assert (
        expect_refused(delegate_command("a", "b", caller=caller_with_edge("e1")), delegation_input(revoked)).code
        == "delegation_exceeds_authority"
    )


def test_new_edge_can_be_the_parent_of_another_in_the_same_batch() -> None:
    commands = [
        delegate_command("a", "b", scopes=("a",)),
        delegate_command("b", "c", scopes=("a",)),
        delegate_command("b", "d", scopes=("x",)),
    ]
    first, second, third = decide(commands, delegation_input())
    assert isinstance(first, DelegatedEdge)
    assert isinstance(second, DelegatedEdge)
    assert second.edge.parent_edge_id == first.edge.id
    assert isinstance(third, Problem), "b can lend only what this batch lent to it"


# -- cycles ------------------------------------------------------------------------------------------------------


def test_only_an_edge_that_closes_a_cycle_is_refused() -> None:
    batch_input = delegation_input(edge_row("a", "b"), edge_row("b", "c"))
    problem = expect_refused(delegate_command("c", "a"), batch_input)
    assert (problem.status, problem.code) == (409, "delegation_cycle_denied")
    expect_created(delegate_command("a", "c"), batch_input)


@pytest.mark.parametrize("fields", [{"status": EdgeState.REVOKED}, {"expires_at": NOW}])
def test_ended_edge_closes_no_cycle(fields: dict[str, object]) -> None:
    expect_created(delegate_command("b", "a"), delegation_input(edge_row("a", "b", **fields), edge_row("c", "b")))


def test_second_edge_of_a_batch_that_closes_a_cycle_is_refused() -> None:
    first, second = decide([delegate_command("a", "b"), delegate_command("b", "a")], delegation_input())
    assert isinstance(first, DelegatedEdge)
    assert isinstance(second, Problem)
    assert second.code == "delegation_cycle_denied"


# -- expiry ------------------------------------------------------------------------------------------------------


def test_default_expiry_is_the_earliest_of_parent_and_both_sessions() -> None:
    sessions = [session_row(id="a", expires_at=NOW + 70), session_row(id="b", expires_at=NOW + 60)]
    assert expect_created(delegate_command("a", "b"), delegation_input(sessions=sessions)).expires_at == NOW + 60
    parent = edge_row("c", "a", expires_at=NOW + 50)
    assert (
        expect_created(delegate_command("a", "b"), delegation_input(parent, sessions=sessions)).expires_at == NOW + 50
    )


def test_edge_expires_with_the_first_of_its_sessions() -> None:
    # An edge that outlived its source would read as active but lend nothing, and so would every derived edge.
    sessions = [session_row(id="a", expires_at=NOW + 60)]
    assert (
        expect_created(
            delegate_command("a", "b", expires_at=EDGE_EXPIRES_AT), delegation_input(sessions=sessions)
        ).expires_at
        == NOW + 60
    )
    assert (
        expect_created(
            delegate_command("c", "a", expires_at=EDGE_EXPIRES_AT), delegation_input(sessions=sessions)
        ).expires_at
        == NOW + 60
    )


def test_edge_that_would_expire_after_its_parent_is_refused() -> None:
    problem = expect_refused(
        delegate_command("a", "b", expires_at=EDGE_EXPIRES_AT + 1), delegation_input(edge_row("c", "a"))
    )
    assert "expire after its parent" in str(problem.members["exceeds"])


def test_earliest_requested_expiry_counts_and_a_past_one_is_refused() -> None:
    command = delegate_command("a", "b", expires_at=NOW + 5_000, ttl_seconds=3)
    assert requested_expiry(command, NOW) == NOW + 3_000
    for expires_at in (NOW, NOW - 1, 0):
        problem = expect_refused(delegate_command("a", "b", expires_at=expires_at, ttl_seconds=60), delegation_input())
        assert (problem.status, problem.code) == (400, "delegation_expired")


# -- idempotency keys --------------------------------------------------------------------------------------------


def key_record(edge: Edge, digest: str = "d", application_id: str = APP) -> KeyRecord:
    return KeyRecord(ZONE, application_id, CREATE_OPERATION, "k", digest, edge.id)


def test_key_replays_an_active_edge_and_is_free_after_its_end() -> None:
    command = delegate_command("a", "b", idempotency_key="k", request_digest="d")
    active_edge = edge_row("a", "b")
    assert decide_one(command, delegation_input(active_edge, key_records=[key_record(active_edge)])) == DelegatedEdge(
        active_edge, created=False
    )
    for fields in ({"status": EdgeState.REVOKED}, {"expires_at": NOW}):
        ended_edge = edge_row("a", "b", **fields)
        assert (
            expect_created(command, delegation_input(ended_edge, key_records=[key_record(ended_edge)])).id == command.id
        )


def test_idempotency_key_is_checked_before_session_state() -> None:
    active_edge = edge_row("a", "b")
    suspended = session_row(id="a", status=State.SUSPENDED)
    replay = delegate_command("a", "b", idempotency_key="k", request_digest="d", scopes=("x",))
    batch_input = delegation_input(active_edge, sessions=[suspended], key_records=[key_record(active_edge)])
    assert decide_one(replay, batch_input) == DelegatedEdge(active_edge, created=False)
    other_caller = delegate_command("a", "b", idempotency_key="k", request_digest="d", caller=caller("other"))
    assert expect_refused(other_caller, batch_input).code == "application_ownership_required"


def test_same_key_with_another_body_is_a_conflict_even_within_a_batch() -> None:
    active_edge = edge_row("a", "b")
    other = delegate_command("a", "b", idempotency_key="k", request_digest="other")
    assert (
        expect_refused(other, delegation_input(active_edge, key_records=[key_record(active_edge)])).code
        == "idempotency_key_conflict"
    )
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


# -- request body ------------------------------------------------------------------------------------------------


def command_from_body(**body: object) -> Delegate:
    defaults: dict[str, object] = {"source_session_id": "a", "target_session_id": "b"}
    return build_command(msgspec.convert(defaults | body, DelegateBody), delegate_command("a", "b"))


def test_constraints_given_in_several_fields_are_combined_to_the_narrowest() -> None:
    command = command_from_body(
        scopes=["b", "a", "b"],
        resource_id="r",
        constraints={"resources": ["q", "q"], "max_depth": 3, "max_hops": 4, "ttl_seconds": 9, "other": [1]},
        ttl_seconds=10,
        expires_at="2030-01-01T00:00:00Z",
    )
    assert (command.scopes, command.resources, command.hops, command.ttl_seconds) == (("a", "b"), ("q", "r"), 3, 9)
    assert msgspec.json.decode(command.constraints)["other"] == [1]
    assert command_from_body(constraints_json={"max_hops": 2}).hops == 2
    assert (command_from_body().resources, command_from_body().hops, command_from_body().constraints) == (
        None,
        None,
        "{}",
    )
    assert command_from_body(constraints={"resources": []}).resources == ()


def test_times_are_truncated_to_milliseconds_in_any_time_zone() -> None:
    moment = datetime(2030, 5, 6, 7, 8, 9, 123_987, tzinfo=UTC)
    expected = int(moment.replace(microsecond=0).timestamp()) * 1_000 + 123
    assert command_from_body(expires_at=moment.isoformat()).expires_at == expected
    assert (
        command_from_body(expires_at=moment.astimezone(timezone(timedelta(hours=5))).isoformat()).expires_at == expected
    )
    assert command_from_body(expires_at="9999-12-31T23:59:59.999Z").expires_at == 253_402_300_799_999


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
def test_known_constraints_are_validated(constraints: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        command_from_body(constraints=constraints)
    assert (refusal.value.code, refusal.value.members["field"]) == ("invalid_constraints", field)


def test_contradictory_body_is_refused() -> None:
    for body, code in (
        ({"target_session_id": "a"}, "self_delegation_denied"),
        ({"constraints": {"x": 1}, "constraints_json": {"x": 2}}, "invalid_constraints"),
        ({"scopes": [ADMIN]}, "invalid_scope"),
    ):
        with pytest.raises(Invalid) as refusal:
            command_from_body(**body)
        assert refusal.value.code == code
    assert command_from_body(constraints={"x": 1}, constraints_json={"x": 1}).constraints == '{"x":1}'


def test_equivalent_bodies_normalize_to_the_same_body() -> None:
    first, second = (
        msgspec.convert({"source_session_id": "a", "target_session_id": "b", **fields}, DelegateBody)
        for fields in ({"constraints": {"x": 1}}, {"constraints_json": {"x": 1}, "idempotency_key": "k"})
    )
    assert normalize_body(first) == normalize_body(second)


# -- states ------------------------------------------------------------------------------------------------------


def test_revoked_and_expired_are_the_terminal_states_of_an_edge() -> None:
    assert DELEGATION_STATES.nonterminal_states() == (EdgeState.ACTIVE,)
    assert set(DELEGATION_STATES.terminal_states()) == {EdgeState.REVOKED, EdgeState.EXPIRED}


def test_expired_edge_reads_as_expired_and_a_revoked_one_stays_revoked() -> None:
    current = states.with_current_status(edge_row("a", "b", expires_at=NOW), NOW)
    assert (current.status, current.ended_at, current.ended_reason) == (EdgeState.EXPIRED, NOW, "expired")
    assert states.with_current_status(edge_row("a", "b", expires_at=NOW + 1), NOW).status is EdgeState.ACTIVE
    revoked = edge_row("a", "b", expires_at=NOW, status=EdgeState.REVOKED, ended_at=5)
    assert states.with_current_status(revoked, NOW) == revoked


def test_edge_view_has_both_names_of_fields_with_two_names() -> None:
    view = states.view(edge_row("a", "b", id="e", constraints_json='{"other":{"x":1}}', resources='["r"]'))
    assert view.id == view.delegation_edge_id == "e"
    assert view.source_session_id == view.source_agent_id == "a"
    assert view.target_session_id == view.target_agent_id == "b"
    assert (view.scopes, view.resources) == (["a", "b"], ["r"])
    assert msgspec.json.decode(msgspec.json.encode(view))["constraints_json"] == {"other": {"x": 1}}
