"""Rules of services: endpoint URLs, registration, update, heartbeat and unregistration."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Problem
from quarterdeck.core.ids import Ref
from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.services.model import (
    NO_SESSION,
    URL_MAX,
    DeliveryMode,
    Register,
    RegisteredService,
    Service,
    ServiceHealth,
    ServiceHeartbeatBody,
    ServiceUpdate,
    Update,
    UpdateServiceBody,
)
from quarterdeck.domain.services.rules import endpoint_urls, states
from quarterdeck.domain.services.rules.registration import RegistrationBatchInput, RegistrationDecider
from quarterdeck.domain.services.rules.states import BatchChanges, ServiceBatchInput
from quarterdeck.domain.services.rules.update import (
    RegistrationRemoval,
    apply_heartbeat,
    apply_removal,
    apply_update,
    changed_fields,
    update_from_body,
    update_service,
)
from quarterdeck.domain.sessions.model import Session, State
from quarterdeck.domain.zones.rules import zone_ended
from tests.support.builders import APP, NOW, ZONE, admin, caller, session_row
from tests.support.services import ENDPOINT_URL, register_command, service_row
from tests.support.structs import build_struct

replace = msgspec.structs.replace


# -- endpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "https://example.com/", "HTTPS://Example.COM:8443/a/b", "http://localhost:8080/hook",
     "http://10.0.0.7/", "http://[::1]:9/x", "https://my_service.internal/?a=b&c=%2F", "http://a/b;c=d,e/@x:y",
     "http://a?query", "http://a/?", "https://xn--mnchen-3ya.de/%C3%BC", "http://a/" + "b" * (URL_MAX - 9)],
)  # fmt: skip
def test_valid_http_url_is_accepted_as_endpoint(url: str) -> None:
    assert endpoint_urls.endpoint_problem(url) is None


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "//example.com/", "/path", "http:", "http:/example.com", "http://", "http:///x", "ftp://a/b",
     "file:///etc/passwd", "gopher://a/", "javascript:alert(1)", "ws://a/", "unix:///run/x.sock", "http+unix://a/",
     "http://user@example.com/", "http://user:pass@example.com/", "http://:@example.com/", "http://a@b@c/",
     "http://example.com#fragment", "http://example.com/#", "http://example.com\\@10.0.0.1/", "http://a\\b/",
     "http://a b/", " http://a/", "http://a/ ", "http://a/\n", "http://a\t/", "http://a/\x00", "http://a/\x7f",
     "http://exämple.com/", "http://a/ü", "http://a/\u2028", "http://１２７.0.0.1/", "http://a/%", "http://a/%2",
     "http://a/%zz", "http://a%2eb/", "http://a:0/", "http://a:65536/", "http://a:999999/", "http://a:/", "http://a:x/",
     "http://a:-1/", "http://[::1/", "http://[::1]x/", "http://[]/", "http://[::g]/", "http://[v1.x]/", "http://::1/",
     "http://[fe80::1%25eth0]/", "http://a..b/", "http://.a/", "http://-a/", "http://a/<b>", 'http://a/"', "http://a/{b}",
     "http://a/^", "http://a/|", "http://a/`", "http://a/[b]", "http://a/" + "b" * (URL_MAX - 8)],
)  # fmt: skip
def test_invalid_or_ambiguous_url_is_refused_as_endpoint(url: str) -> None:
    problem = endpoint_urls.endpoint_problem(url)
    assert isinstance(problem, Invalid)
    assert (problem.code, problem.members) == ("invalid_endpoint_url", {"field": "endpoint_url"})


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "http://localhost:80/", "http://10.1.2.3/x", "http://169.254.169.254/latest/meta-data",
     "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://2130706433/",
     "http://0x7f.1/", "http://0177.0.0.1/", "https://metadata.google.internal/", "http://0/"],
)  # fmt: skip
def test_push_to_a_private_address_is_refused_unless_allowed(url: str) -> None:
    assert endpoint_urls.endpoint_problem(url) is None, "a pull worker may have a private address"
    problem = endpoint_urls.push_problem(url, private_allowed=False)
    assert isinstance(problem, Invalid)
    assert (problem.code, problem.members["field"]) == ("invalid_endpoint_url", "endpoint_url")
    assert endpoint_urls.push_problem(url, private_allowed=True) is None


@pytest.mark.parametrize("url", ["http://example.com/", "https://8.8.8.8:8443/x?y", "http://[2606:4700::1111]/"])
def test_push_to_a_public_host_is_allowed(url: str) -> None:
    assert endpoint_urls.push_problem(url, private_allowed=False) is None


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("htps:/.@[]#?%\\127localx0", max_size=40).map(lambda t: f"http://{t}"))
def test_any_text_is_checked_without_error_and_accepted_urls_have_one_ascii_host(url: str) -> None:
    if endpoint_urls.endpoint_problem(url) is None:
        authority = url.partition("://")[2].partition("/")[0].partition("?")[0]
        assert authority
        assert url.isascii()
        assert not set(authority) & set("@\\# \t%")


# -- secrets -----------------------------------------------------------------------------------------------------


def test_secret_depends_on_root_zone_service_and_number_only() -> None:
    secret = secret_deriver(b"r" * 32)
    assert secret("z", "s", 1) == secret_deriver(b"r" * 32)("z", "s", 1)
    others = [secret("z", "s", 2), secret("z", "t", 1), secret("y", "s", 1), secret_deriver(b"q" * 32)("z", "s", 1)]
    # The boundaries between the names are part of the input.
    others += [secret("zs", "", 1), secret("", "zs", 1), secret('z","s', "", 1), secret("z", "s,1", 1)]
    assert len({secret("z", "s", 1), *others}) == 9


def test_secret_has_the_standard_webhooks_format() -> None:
    prefix, _, rest = secret_deriver(b"r" * 32)("z", "s", 1).partition("_")
    assert prefix == "whsec"
    assert len(base64.b64decode(rest, validate=True)) == 32


# -- registration ------------------------------------------------------------------------------------------------


def new_decider(*services: Service, sessions: Sequence[Session] = (), **fields: object) -> RegistrationDecider:
    sessions_by_ref = {(session.zone_id, session.id): session for session in sessions}
    defaults: dict[str, object] = {
        "now": NOW,
        "zone_problems": {ZONE: None},
        "sessions": sessions_by_ref,
        "caller_sessions": sessions_by_ref,
        "services": services,
    }
    return RegistrationDecider(build_struct(RegistrationBatchInput, **(defaults | fields)), private_allowed=False)


def decide_registered(decider: RegistrationDecider, command: Register) -> RegisteredService:
    outcome = decider.decide(command)
    assert isinstance(outcome, RegisteredService)
    return outcome


def problem_code(outcome: object) -> str:
    assert isinstance(outcome, Problem)
    return outcome.code


def test_new_service_gets_the_given_fields_and_defaults() -> None:
    session = session_row()
    decider = new_decider(sessions=[session])
    command = register_command(session.id, update=ServiceUpdate(capabilities='["a"]', health=ServiceHealth.HEALTHY))
    outcome = decide_registered(decider, command)
    assert outcome == RegisteredService(outcome.service, created=True, include_secret=False)
    assert outcome.service == service_row(
        id=command.id,
        agent_id=session.id,
        capabilities='["a"]',
        health=ServiceHealth.HEALTHY,
        created_at=NOW,
        updated_at=NOW,
        secret_number=0,
    )
    assert decider.changes.inserts() == [outcome.service]
    assert decider.new_registrations == [(ZONE, command.id, session.id)]
    [(_, event)] = decider.events
    assert (event.verb, event.service) == ("register", outcome.service)
    assert service_row().health is ServiceHealth.STARTING


def test_repeated_registration_keeps_omitted_fields_and_logs_only_changes() -> None:
    session = session_row()
    stored = service_row(agent_id=session.id, health=ServiceHealth.HEALTHY, framework_name="f", metadata_json='{"a":1}')
    fields = {"services_with_live_agent": {stored.ref}, "registrations": {(*stored.ref, session.id)}}
    unchanged = new_decider(stored, sessions=[session], **fields)
    assert decide_registered(unchanged, register_command(session.id)) == RegisteredService(stored)
    assert (
        unchanged.events,
        unchanged.new_registrations,
        unchanged.changes.inserts(),
        [*unchanged.changes.updates()],
    ) == ([], [], [], [])
    changed = new_decider(stored, sessions=[session], **fields)
    outcome = decide_registered(
        changed, register_command(session.id, update=ServiceUpdate(metadata_json="{}", framework_version="2"))
    )
    assert outcome == RegisteredService(replace(stored, metadata_json="{}", framework_version="2", updated_at=NOW))
    [(_, event)] = changed.events
    assert (event.verb, event.changed_fields) == ("change", ("framework_version", "metadata_json"))


def test_first_session_leads_until_it_ends_then_the_next_registrant() -> None:
    first, second = session_row(), session_row()
    stored = service_row(agent_id=first.id)
    registrations = {(*stored.ref, first.id)}
    live = new_decider(stored, sessions=[second], services_with_live_agent={stored.ref}, registrations=registrations)
    assert decide_registered(live, register_command(second.id)).service.agent_id == first.id
    assert live.new_registrations == [(*stored.ref, second.id)]
    assert [event.verb for _, event in live.events] == ["change"]
    # Another registration keeps the service registered, but its leading session has ended.
    ended = new_decider(stored, sessions=[second], registrations=registrations)
    assert decide_registered(ended, register_command(second.id)).service.agent_id == second.id


def test_first_registration_of_a_batch_creates_and_the_others_join() -> None:
    sessions = [session_row() for _ in range(3)]
    decider = new_decider(sessions=sessions)
    commands = [register_command(session.id) for session in sessions]
    outcomes = [decide_registered(decider, command) for command in [*commands, register_command(), *commands]]
    assert [outcome.created for outcome in outcomes] == [True, *[False] * 6]
    assert {outcome.service.id for outcome in outcomes} == {commands[0].id}
    assert {outcome.service.agent_id for outcome in outcomes} == {sessions[0].id}
    assert decider.new_registrations == [
        (ZONE, commands[0].id, session_id) for session_id in (*(session.id for session in sessions), NO_SESSION)
    ]
    assert [event.verb for _, event in decider.events] == ["register", "change", "change", "change"]


def test_service_is_unique_per_zone_application_and_endpoint() -> None:
    decider = new_decider(service_row(), zone_problems={ZONE: None, "y": None})
    for command in (
        register_command(application_id="other"),
        register_command(endpoint_url=ENDPOINT_URL + "/"),
        register_command(zone_id="y"),
    ):
        assert decide_registered(decider, command).created


def test_reregistered_service_keeps_only_its_id_and_secret_number() -> None:
    session = session_row()
    unregistered = service_row(
        unregistered_at=NOW - 5, is_live=0, agent_id="old", health=ServiceHealth.UNHEALTHY, metadata_json='{"a":1}',
        delivery=DeliveryMode.PUSH, secret_number=7, active_invocations=3, last_heartbeat_at=5, framework_name="f",
    )  # fmt: skip
    decider = new_decider(unregistered, sessions=[session])
    outcome = decide_registered(decider, register_command(session.id))
    assert outcome == RegisteredService(
        service_row(id=unregistered.id, agent_id=session.id, secret_number=7, updated_at=NOW), created=True
    )
    assert [(event.verb, event.before) for _, event in decider.events] == [("register", None)]
    assert decider.services_with_stale_registrations == []
    assert [*decider.changes.updates()] == [(unregistered, outcome.service)]


def test_service_of_ended_sessions_is_unregistered_before_it_is_registered_again() -> None:
    session, ended = session_row(), session_row()
    dead = service_row(is_live=0, agent_id=ended.id)
    decider = new_decider(dead, sessions=[session], registrations={(*dead.ref, session.id)})
    outcome = decide_registered(decider, register_command(session.id))
    assert outcome.created
    assert outcome.service.agent_id == session.id
    assert [(event.verb, event.reason) for _, event in decider.events] == [
        ("unregister", "session_ended"),
        ("register", None),
    ]
    assert decider.services_with_stale_registrations == [dead.ref]
    assert decider.new_registrations == [(*dead.ref, session.id)], (
        "the session's old registration is deleted with the stale ones"
    )


def test_secret_is_returned_only_when_push_is_turned_on() -> None:
    push, pull = ServiceUpdate(delivery=DeliveryMode.PUSH), ServiceUpdate(delivery=DeliveryMode.PULL)
    decider = new_decider()
    outcomes = [
        decide_registered(decider, register_command(update=update))
        for update in (push, push, ServiceUpdate(), pull, ServiceUpdate(), push)
    ]
    assert [outcome.include_secret for outcome in outcomes] == [True, False, False, False, False, True]
    assert [outcome.service.secret_number for outcome in outcomes] == [1, 1, 1, 1, 1, 2]


def test_reregistered_push_service_gets_a_new_secret() -> None:
    unregistered = service_row(unregistered_at=NOW - 5, is_live=0, delivery=DeliveryMode.PUSH, secret_number=7)
    outcome = decide_registered(
        new_decider(unregistered), register_command(update=ServiceUpdate(delivery=DeliveryMode.PUSH))
    )
    assert (outcome.include_secret, outcome.service.secret_number) == (True, 8)


def test_registration_never_enables_push_to_a_private_address() -> None:
    url, push = "http://127.0.0.1:8080/hook", ServiceUpdate(delivery=DeliveryMode.PUSH)
    decider = new_decider()
    assert problem_code(decider.decide(register_command(endpoint_url=url, update=push))) == "invalid_endpoint_url"
    assert (decider.events, decider.new_registrations) == ([], [])
    decide_registered(decider, register_command(endpoint_url=url))
    assert problem_code(decider.decide(register_command(endpoint_url=url, update=push))) == "invalid_endpoint_url"
    stored = service_row(endpoint_url=url, delivery=DeliveryMode.PUSH)
    assert problem_code(new_decider(stored).decide(register_command(endpoint_url=url))) == "invalid_endpoint_url"
    allowed = RegistrationDecider(RegistrationBatchInput(NOW, {ZONE: None}), private_allowed=True)
    assert decide_registered(allowed, register_command(endpoint_url=url, update=push)).include_secret


def test_refused_registration_names_its_reason() -> None:
    live, suspended = session_row(), session_row(status=State.SUSPENDED)
    sessions = [live, suspended, session_row(id="ended", terminated_at=NOW, status=State.TERMINATED)]
    sessions += [session_row(id="stamped", terminated_at=NOW), session_row(id="expired", expires_at=NOW)]
    decider = new_decider(sessions=sessions)
    cases: list[tuple[Register, type[Problem], str]] = [
        (register_command(caller=caller("x")), Forbidden, "application_ownership_required"),
        (
            register_command(caller=caller("x", "coordinator.spawn_under:app")),
            Forbidden,
            "application_ownership_required",
        ),
        (register_command(live.id, caller=caller("x")), Forbidden, "application_ownership_required"),
        (register_command(suspended.id), Conflict, "agent_suspended"),
        (register_command(caller=caller(session_id=suspended.id)), Conflict, "agent_suspended"),
        (register_command(live.id, application_id="other"), Invalid, "application_mismatch"),
        *(
            (register_command(session_id), NotFound, "agent_not_found")
            for session_id in ("ended", "stamped", "expired", "unknown")
        ),
    ]
    for command, problem_type, code in cases:
        outcome = decider.decide(command)
        assert isinstance(outcome, problem_type)
        assert problem_code(outcome) == code
    assert (decider.events, decider.new_registrations) == ([], [])
    for as_caller in (caller(), caller("x", f"coordinator.spawn_for:{APP}"), admin()):
        decide_registered(decider, register_command(caller=as_caller))
        decide_registered(decider, register_command(live.id, caller=as_caller, application_id=APP))
    ended = RegistrationDecider(RegistrationBatchInput(NOW, {ZONE: zone_ended(ZONE)}), private_allowed=False)
    assert problem_code(ended.decide(register_command())) == "zone_ended"


# -- lookup ------------------------------------------------------------------------------------------------------


def test_service_resolves_by_id_or_through_a_live_registered_session() -> None:
    registrant, other, ended = session_row(), session_row(), session_row(terminated_at=NOW)
    registered, unregistered, dead = service_row(), service_row(unregistered_at=NOW, is_live=1), service_row(is_live=0)
    sessions = {(session.zone_id, session.id): session for session in (registrant, other, ended)}
    registrations = {
        (*service.ref, session_id) for service in (registered, unregistered) for session_id in (registrant.id, ended.id)
    }
    loaded = ServiceBatchInput(NOW, sessions, BatchChanges([registered, unregistered, dead]), registrations)
    assert states.resolve_service(loaded, registered.ref, None) == registered
    assert states.resolve_service(loaded, registered.ref, registrant.id) == registered
    missing: list[tuple[Ref, str | None]] = [
        (unregistered.ref, None),
        (dead.ref, None),
        ((ZONE, "none"), None),
        (("y", registered.id), None),
    ]
    missing += [(registered.ref, other.id), (registered.ref, ended.id), (unregistered.ref, registrant.id)]
    for ref, session_id in missing:
        assert problem_code(states.resolve_service(loaded, ref, session_id)) == "agent_service_not_found"
    assert problem_code(states.resolve_service(loaded, registered.ref, "unknown")) == "agent_not_found"
    assert problem_code(states.no_services_problem(loaded, ZONE, registrant.id)) == "agent_service_not_found"
    assert problem_code(states.no_services_problem(loaded, ZONE, "unknown")) == "agent_not_found"


@pytest.mark.parametrize(
    ("as_caller", "allowed"),
    [(caller(), True), (admin(), True), (caller("x", "coordinator.spawn_for:app"), True), (caller("x"), False),
     (caller("x", "coordinator.spawn_for:other"), False), (caller("x", "coordinator.delegate_from:app"), False)],
)  # fmt: skip
def test_only_its_application_or_a_permitted_caller_may_change_a_service(as_caller: Caller, allowed: bool) -> None:
    assert (states.ownership_problem(as_caller, service_row()) is None) is allowed


# -- update ------------------------------------------------------------------------------------------------------


def update_command(update: ServiceUpdate | None = None, *, rotate_secret: bool = False) -> Update:
    return Update(
        zone_id=ZONE, caller=admin(), service_id="v", update=update or ServiceUpdate(), rotate_secret=rotate_secret
    )


def decide_update(command: Update, before: Service) -> RegisteredService:
    outcome = update_service(command, before, NOW, private_allowed=False)
    assert isinstance(outcome, RegisteredService)
    return outcome


def test_update_of_one_field_leaves_the_others_unchanged() -> None:
    before = service_row()
    values = {
        "protocol_versions": '["2"]', "framework_name": "f", "framework_version": "v", "capabilities": '["c"]',
        "health": ServiceHealth.DEGRADED, "metadata_json": '{"m":1}', "delivery": DeliveryMode.PUSH,
        "active_invocations": 3,
    }  # fmt: skip
    assert {*values} == {*ServiceUpdate.__struct_fields__}
    for name, value in values.items():
        after = decide_update(update_command(build_struct(ServiceUpdate, **{name: value})), before).service
        # Turning push on creates a secret.
        side_effects = {"secret_number": 2} if name == "delivery" else {}
        assert after == replace(before, updated_at=NOW, **{name: value}, **side_effects)
        assert changed_fields(before, after) == (name, *side_effects)
    assert decide_update(update_command(), before) == RegisteredService(before)
    cleared = apply_update(replace(before, framework_name="f"), ServiceUpdate(framework_name=None))
    assert cleared.framework_name is None


def test_rotation_increments_the_secret_number_and_returns_the_secret() -> None:
    before = service_row(delivery=DeliveryMode.PUSH, secret_number=4)
    outcome = decide_update(update_command(rotate_secret=True), before)
    assert (outcome.service.secret_number, outcome.include_secret) == (5, True)
    assert not decide_update(update_command(ServiceUpdate(health=ServiceHealth.HEALTHY)), before).include_secret
    assert not decide_update(update_command(ServiceUpdate(delivery=DeliveryMode.PUSH)), before).include_secret


@pytest.mark.parametrize("rotate_secret", [False, True])
def test_turning_push_on_again_returns_a_new_secret(rotate_secret: bool) -> None:
    outcome = decide_update(
        update_command(ServiceUpdate(delivery=DeliveryMode.PUSH), rotate_secret=rotate_secret),
        service_row(secret_number=4),
    )
    assert (outcome.include_secret, outcome.service.secret_number) == (True, 5)


def test_update_cannot_turn_on_push_to_a_private_address() -> None:
    private = service_row(endpoint_url="http://[::1]/")
    command = update_command(ServiceUpdate(delivery=DeliveryMode.PUSH))
    assert problem_code(update_service(command, private, NOW, private_allowed=False)) == "invalid_endpoint_url"
    assert isinstance(update_service(command, private, NOW, private_allowed=True), RegisteredService)
    # A service with push from before the restriction can still change other fields and turn push off.
    pushed = replace(private, delivery=DeliveryMode.PUSH)
    for update in (ServiceUpdate(health=ServiceHealth.HEALTHY), ServiceUpdate(delivery=DeliveryMode.PULL)):
        assert isinstance(update_service(update_command(update), pushed, NOW, private_allowed=False), RegisteredService)


# -- request bodies ----------------------------------------------------------------------------------------------


def test_empty_body_changes_no_field() -> None:
    assert update_from_body(UpdateServiceBody()) == ServiceUpdate()
    assert update_from_body(ServiceHeartbeatBody()) == ServiceUpdate()


def test_alias_and_field_may_both_be_given_only_with_equal_values() -> None:
    expected = ServiceUpdate(metadata_json='{"a":1}')
    assert update_from_body(UpdateServiceBody(metadata={"a": 1})) == expected
    assert update_from_body(UpdateServiceBody(metadata_json={"a": 1})) == expected
    assert update_from_body(UpdateServiceBody(metadata_json={"a": 1}, metadata={"a": 1})) == expected
    assert update_from_body(ServiceHeartbeatBody(status=ServiceHealth.HEALTHY)) == ServiceUpdate(
        health=ServiceHealth.HEALTHY
    )
    assert (
        update_from_body(ServiceHeartbeatBody(health=ServiceHealth.HEALTHY, status=ServiceHealth.HEALTHY)).health
        is ServiceHealth.HEALTHY
    )
    for body in (
        UpdateServiceBody(metadata_json={"a": 1}, metadata={}),
        ServiceHeartbeatBody(health=ServiceHealth.HEALTHY, status=ServiceHealth.STARTING),
    ):
        with pytest.raises(Invalid, match="different values"):
            update_from_body(body)


# -- heartbeats --------------------------------------------------------------------------------------------------


def test_heartbeat_updates_only_its_time_and_active_invocations() -> None:
    before = service_row(active_invocations=2)
    assert apply_heartbeat(before, ServiceUpdate(), NOW) == replace(before, last_heartbeat_at=NOW)
    after = apply_heartbeat(before, ServiceUpdate(active_invocations=5, health=before.health), NOW)
    assert after == replace(before, last_heartbeat_at=NOW, active_invocations=5)


def test_heartbeat_with_health_or_metadata_updates_them() -> None:
    before = service_row()
    for update in (ServiceUpdate(health=ServiceHealth.HEALTHY), ServiceUpdate(metadata_json='{"a":1}')):
        after = apply_heartbeat(before, update, NOW)
        assert after == replace(apply_update(before, update), last_heartbeat_at=NOW, updated_at=NOW)


# -- unregistration ----------------------------------------------------------------------------------------------


def test_service_without_registrations_is_unregistered_exactly_once() -> None:
    service = service_row(agent_id="s1")
    event = apply_removal(RegistrationRemoval(service, {"s1"}, False, None), "reason", NOW)
    assert event is not None
    assert (event.verb, event.reason, event.before) == ("unregister", "reason", service)
    assert event.service == replace(service, unregistered_at=NOW, updated_at=NOW, is_live=0)
    assert not states.is_registered(event.service)
    assert apply_removal(RegistrationRemoval(event.service, {"s1"}, False, None), "reason", NOW) is None


def test_service_with_other_registrations_stays_and_gets_a_new_leader() -> None:
    service = service_row(agent_id="s1")
    event = apply_removal(RegistrationRemoval(service, {"s1"}, True, "s2"), "reason", NOW)
    assert event is not None
    assert (event.verb, event.changed_fields, event.service.agent_id) == ("change", ("agent_id",), "s2")
    follower = apply_removal(RegistrationRemoval(service, {"s3"}, True, "s1"), "reason", NOW)
    assert follower is not None
    assert (follower.verb, follower.changed_fields, follower.service.agent_id) == ("change", (), "s1")
    application = apply_removal(RegistrationRemoval(service, {"s1"}, True, None), "reason", NOW)
    assert application is not None
    assert (application.verb, application.service.agent_id) == ("change", None)
