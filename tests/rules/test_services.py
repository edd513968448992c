"""Services, the pure part: which endpoints there may be, and what registering, changing, beating and leaving make."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Problem
from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.services import rules
from quarterdeck.domain.services.model import (
    NO_SESSION,
    URL_MAX,
    DeliveryMode,
    Ref,
    Register,
    RegisteredService,
    Service,
    ServiceHealth,
    ServiceHeartbeatBody,
    ServiceUpdate,
    Update,
    UpdateServiceBody,
)
from quarterdeck.domain.services.rules import (
    BatchChanges,
    RegistrationBatchInput,
    RegistrationDecider,
    RegistrationRemoval,
    ServiceBatchInput,
)
from quarterdeck.domain.services.rules.update import changed_fields
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
def test_an_http_url_may_be_an_endpoint(url: str) -> None:
    assert rules.endpoint_problem(url) is None


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
def test_what_is_not_plainly_an_http_url_is_none(url: str) -> None:
    problem = rules.endpoint_problem(url)
    assert isinstance(problem, Invalid)
    assert (problem.code, problem.members) == ("invalid_endpoint_url", {"field": "endpoint_url"})


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "http://localhost:80/", "http://10.1.2.3/x", "http://169.254.169.254/latest/meta-data",
     "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://2130706433/",
     "http://0x7f.1/", "http://0177.0.0.1/", "https://metadata.google.internal/", "http://0/"],
)  # fmt: skip
def test_the_server_is_not_sent_into_its_own_network_unless_it_is_allowed(url: str) -> None:
    assert rules.endpoint_problem(url) is None, "a worker may stand there and claim"
    problem = rules.push_problem(url, private_allowed=False)
    assert isinstance(problem, Invalid)
    assert (problem.code, problem.members["field"]) == ("invalid_endpoint_url", "endpoint_url")
    assert rules.push_problem(url, private_allowed=True) is None


@pytest.mark.parametrize("url", ["http://example.com/", "https://8.8.8.8:8443/x?y", "http://[2606:4700::1111]/"])
def test_the_server_may_be_sent_to_public_hosts(url: str) -> None:
    assert rules.push_problem(url, private_allowed=False) is None


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("htps:/.@[]#?%\\127localx0", max_size=40).map(lambda t: f"http://{t}"))
def test_any_text_is_judged_without_a_fault_and_what_passes_has_one_host(url: str) -> None:
    if rules.endpoint_problem(url) is None:
        authority = url.partition("://")[2].partition("/")[0].partition("?")[0]
        assert authority
        assert url.isascii()
        assert not set(authority) & set("@\\# \t%")


# -- secrets -----------------------------------------------------------------------------------------------------


def test_a_secret_follows_from_its_root_zone_service_and_number_and_from_nothing_else() -> None:
    secret = secret_deriver(b"r" * 32)
    assert secret("z", "s", 1) == secret_deriver(b"r" * 32)("z", "s", 1)
    others = [secret("z", "s", 2), secret("z", "t", 1), secret("y", "s", 1), secret_deriver(b"q" * 32)("z", "s", 1)]
    # Where one name ends and the next begins is told, too.
    others += [secret("zs", "", 1), secret("", "zs", 1), secret('z","s', "", 1), secret("z", "s,1", 1)]
    assert len({secret("z", "s", 1), *others}) == 9


def test_a_secret_has_the_form_of_standard_webhooks() -> None:
    prefix, _, rest = secret_deriver(b"r" * 32)("z", "s", 1).partition("_")
    assert prefix == "whsec"
    assert len(base64.b64decode(rest, validate=True)) == 32


# -- registering -------------------------------------------------------------------------------------------------


def registry(*services: Service, sessions: Sequence[Session] = (), **known: object) -> RegistrationDecider:
    plain: dict[str, object] = {
        "now": NOW,
        "zone_problems": {ZONE: None},
        "sessions": {(one.zone_id, one.id): one for one in sessions},
        "services": services,
    }
    return RegistrationDecider(build_struct(RegistrationBatchInput, **(plain | known)), private_allowed=False)


def decided(made: RegistrationDecider, ask: Register) -> RegisteredService:
    outcome = made.decide(ask)
    assert isinstance(outcome, RegisteredService)
    return outcome


def refused(outcome: object) -> str:
    assert isinstance(outcome, Problem)
    return outcome.code


def test_a_service_nobody_knew_is_made_with_what_is_said_and_plain_defaults() -> None:
    own = session_row()
    made = registry(sessions=[own])
    ask = register_command(own.id, update=ServiceUpdate(capabilities='["a"]', health=ServiceHealth.HEALTHY))
    outcome = decided(made, ask)
    assert outcome == RegisteredService(outcome.service, created=True, include_secret=False)
    assert outcome.service == service_row(
        id=ask.id,
        agent_id=own.id,
        capabilities='["a"]',
        health=ServiceHealth.HEALTHY,
        created_at=NOW,
        updated_at=NOW,
        secret_number=0,
    )
    assert made.changes.inserts() == [outcome.service]
    assert made.new_registrations == [(ZONE, ask.id, own.id)]
    [(_, told)] = made.events
    assert (told.verb, told.service) == ("register", outcome.service)
    assert service_row().health is ServiceHealth.STARTING


def test_registered_again_it_keeps_what_is_not_said_and_is_told_only_if_something_differs() -> None:
    own = session_row()
    known = service_row(agent_id=own.id, health=ServiceHealth.HEALTHY, framework_name="f", metadata_json='{"a":1}')
    there = {"with_live_agent": {known.ref}, "registrations": {(*known.ref, own.id)}}
    same = registry(known, sessions=[own], **there)
    assert decided(same, register_command(own.id)) == RegisteredService(known)
    assert (same.events, same.new_registrations, same.changes.inserts(), [*same.changes.updates()]) == ([], [], [], [])
    other = registry(known, sessions=[own], **there)
    outcome = decided(other, register_command(own.id, update=ServiceUpdate(metadata_json="{}", framework_version="2")))
    assert outcome == RegisteredService(replace(known, metadata_json="{}", framework_version="2", updated_at=NOW))
    [(_, told)] = other.events
    assert (told.verb, told.changed_fields) == ("change", ("framework_version", "metadata_json"))


def test_the_first_session_leads_while_it_lives_and_then_the_one_that_comes() -> None:
    first, second = session_row(), session_row()
    known = service_row(agent_id=first.id)
    there = {(*known.ref, first.id)}
    lives = registry(known, sessions=[second], with_live_agent={known.ref}, registrations=there)
    assert decided(lives, register_command(second.id)).service.agent_id == first.id
    assert lives.new_registrations == [(*known.ref, second.id)]
    assert [told.verb for _, told in lives.events] == ["change"]
    # Another registration keeps it alive, but its leader has ended.
    ended = registry(known, sessions=[second], registrations=there)
    assert decided(ended, register_command(second.id)).service.agent_id == second.id


def test_in_one_batch_the_first_makes_it_and_the_others_join() -> None:
    people = [session_row() for _ in range(3)]
    made = registry(sessions=people)
    asks = [register_command(one.id) for one in people]
    outcomes = [decided(made, ask) for ask in [*asks, register_command(), *asks]]
    assert [outcome.created for outcome in outcomes] == [True, *[False] * 6]
    assert {outcome.service.id for outcome in outcomes} == {asks[0].id}
    assert {outcome.service.agent_id for outcome in outcomes} == {people[0].id}
    assert made.new_registrations == [(ZONE, asks[0].id, name) for name in (*(p.id for p in people), NO_SESSION)]
    assert [told.verb for _, told in made.events] == ["register", "change", "change", "change"]


def test_applications_endpoints_and_zones_keep_services_apart() -> None:
    made = registry(service_row(), zone_problems={ZONE: None, "y": None})
    for ask in (
        register_command(application_id="other"),
        register_command(endpoint_url=ENDPOINT_URL + "/"),
        register_command(zone_id="y"),
    ):
        assert decided(made, ask).created


def test_what_was_gone_comes_back_under_its_id_and_nothing_else_of_it() -> None:
    own = session_row()
    gone = service_row(
        unregistered_at=NOW - 5, is_live=0, agent_id="old", health=ServiceHealth.UNHEALTHY, metadata_json='{"a":1}',
        delivery=DeliveryMode.PUSH, secret_number=7, active_invocations=3, last_heartbeat_at=5, framework_name="f",
    )  # fmt: skip
    made = registry(gone, sessions=[own])
    outcome = decided(made, register_command(own.id))
    assert outcome == RegisteredService(
        service_row(id=gone.id, agent_id=own.id, secret_number=7, updated_at=NOW), created=True
    )
    assert [(told.verb, told.before) for _, told in made.events] == [("register", None)]
    assert made.stale_registrations == []
    assert [*made.changes.updates()] == [(gone, outcome.service)]


def test_what_only_ended_sessions_registered_ends_before_it_comes_back() -> None:
    own, ended = session_row(), session_row()
    dead = service_row(is_live=0, agent_id=ended.id)
    made = registry(dead, sessions=[own], registrations={(*dead.ref, own.id)})
    outcome = decided(made, register_command(own.id))
    assert outcome.created
    assert outcome.service.agent_id == own.id
    assert [(told.verb, told.reason) for _, told in made.events] == [
        ("unregister", "session_ended"),
        ("register", None),
    ]
    assert made.stale_registrations == [dead.ref]
    assert made.new_registrations == [(*dead.ref, own.id)], "what stood there goes with the rest"


def test_a_secret_is_shown_when_push_begins_and_not_again() -> None:
    push, pull = ServiceUpdate(delivery=DeliveryMode.PUSH), ServiceUpdate(delivery=DeliveryMode.PULL)
    made = registry()
    outcomes = [
        decided(made, register_command(update=said))
        for said in (push, push, ServiceUpdate(), pull, ServiceUpdate(), push)
    ]
    assert [outcome.include_secret for outcome in outcomes] == [True, False, False, False, False, True]
    assert [outcome.service.secret_number for outcome in outcomes] == [1, 1, 1, 1, 1, 2]


def test_what_comes_back_to_be_pushed_to_has_another_secret() -> None:
    gone = service_row(unregistered_at=NOW - 5, is_live=0, delivery=DeliveryMode.PUSH, secret_number=7)
    outcome = decided(registry(gone), register_command(update=ServiceUpdate(delivery=DeliveryMode.PUSH)))
    assert (outcome.include_secret, outcome.service.secret_number) == (True, 8)


def test_no_endpoint_of_the_servers_own_network_is_pushed_to_by_whatever_way() -> None:
    url, push = "http://127.0.0.1:8080/hook", ServiceUpdate(delivery=DeliveryMode.PUSH)
    made = registry()
    assert refused(made.decide(register_command(endpoint_url=url, update=push))) == "invalid_endpoint_url"
    assert (made.events, made.new_registrations) == ([], [])
    decided(made, register_command(endpoint_url=url))
    assert refused(made.decide(register_command(endpoint_url=url, update=push))) == "invalid_endpoint_url"
    known = service_row(endpoint_url=url, delivery=DeliveryMode.PUSH)
    assert refused(registry(known).decide(register_command(endpoint_url=url))) == "invalid_endpoint_url"
    allowed = RegistrationDecider(RegistrationBatchInput(NOW, {ZONE: None}), private_allowed=True)
    assert decided(allowed, register_command(endpoint_url=url, update=push)).include_secret


def test_whoever_may_not_register_is_told_why() -> None:
    live, suspended = session_row(), session_row(status=State.SUSPENDED)
    people = [live, suspended, session_row(id="ended", terminated_at=NOW, status=State.TERMINATED)]
    people += [session_row(id="stamped", terminated_at=NOW), session_row(id="expired", expires_at=NOW)]
    made = registry(sessions=people)
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
        *((register_command(name), NotFound, "agent_not_found") for name in ("ended", "stamped", "expired", "nobody")),
    ]
    for ask, kind, code in cases:
        outcome = made.decide(ask)
        assert isinstance(outcome, kind)
        assert refused(outcome) == code
    assert (made.events, made.new_registrations) == ([], [])
    for who in (caller(), caller("x", f"coordinator.spawn_for:{APP}"), admin()):
        decided(made, register_command(caller=who))
        decided(made, register_command(live.id, caller=who, application_id=APP))
    ended = RegistrationDecider(RegistrationBatchInput(NOW, {ZONE: zone_ended(ZONE)}), private_allowed=False)
    assert refused(ended.decide(register_command())) == "zone_ended"


# -- reaching one ------------------------------------------------------------------------------------------------


def test_a_service_is_reached_by_itself_while_registered_and_through_those_who_registered_it() -> None:
    own, other, ended = session_row(), session_row(), session_row(terminated_at=NOW)
    there, gone, dead = service_row(), service_row(unregistered_at=NOW, is_live=1), service_row(is_live=0)
    people = {(one.zone_id, one.id): one for one in (own, other, ended)}
    registrations = {(*one.ref, p) for one in (there, gone) for p in (own.id, ended.id)}
    seen = ServiceBatchInput(NOW, people, BatchChanges([there, gone, dead]), registrations)
    assert rules.resolve_service(seen, there.ref, None) == there
    assert rules.resolve_service(seen, there.ref, own.id) == there
    missing: list[tuple[Ref, str | None]] = [
        (gone.ref, None),
        (dead.ref, None),
        ((ZONE, "none"), None),
        (("y", there.id), None),
    ]
    missing += [(there.ref, other.id), (there.ref, ended.id), (gone.ref, own.id)]
    for ref, name in missing:
        assert refused(rules.resolve_service(seen, ref, name)) == "agent_service_not_found"
    assert refused(rules.resolve_service(seen, there.ref, "nobody")) == "agent_not_found"
    assert refused(rules.no_services_problem(seen, ZONE, own.id)) == "agent_service_not_found"
    assert refused(rules.no_services_problem(seen, ZONE, "nobody")) == "agent_not_found"


@pytest.mark.parametrize(
    ("who", "may"),
    [(caller(), True), (admin(), True), (caller("x", "coordinator.spawn_for:app"), True), (caller("x"), False),
     (caller("x", "coordinator.spawn_for:other"), False), (caller("x", "coordinator.delegate_from:app"), False)],
)  # fmt: skip
def test_a_service_is_changed_by_its_application_and_whoever_may_act_for_it(who: Caller, may: bool) -> None:
    assert (rules.ownership_problem(who, service_row()) is None) is may


# -- changing ----------------------------------------------------------------------------------------------------


def changing(said: ServiceUpdate | None = None, *, rotates: bool = False) -> Update:
    return Update(zone_id=ZONE, caller=admin(), service_id="v", update=said or ServiceUpdate(), rotate_secret=rotates)


def outcome_of(ask: Update, before: Service) -> RegisteredService:
    outcome = rules.update_service(ask, before, NOW, private_allowed=False)
    assert isinstance(outcome, RegisteredService)
    return outcome


def test_every_field_that_may_be_said_is_changed_alone_and_the_others_stay() -> None:
    before = service_row()
    values = {
        "protocol_versions": '["2"]', "framework_name": "f", "framework_version": "v", "capabilities": '["c"]',
        "health": ServiceHealth.DEGRADED, "metadata_json": '{"m":1}', "delivery": DeliveryMode.PUSH, "active_invocations": 3,
    }  # fmt: skip
    assert {*values} == {*ServiceUpdate.__struct_fields__}
    for name, value in values.items():
        after = outcome_of(changing(build_struct(ServiceUpdate, **{name: value})), before).service
        # Whoever begins to be pushed to is given a secret with it.
        along = {"secret_number": 2} if name == "delivery" else {}
        assert after == replace(before, updated_at=NOW, **{name: value}, **along)
        assert changed_fields(before, after) == (name, *along)
    assert outcome_of(changing(), before) == RegisteredService(before)
    cleared = rules.apply_update(replace(before, framework_name="f"), ServiceUpdate(framework_name=None))
    assert cleared.framework_name is None


def test_rotating_raises_the_number_and_shows_the_secret() -> None:
    before = service_row(delivery=DeliveryMode.PUSH, secret_number=4)
    outcome = outcome_of(changing(rotates=True), before)
    assert (outcome.service.secret_number, outcome.include_secret) == (5, True)
    assert not outcome_of(changing(ServiceUpdate(health=ServiceHealth.HEALTHY)), before).include_secret
    assert not outcome_of(changing(ServiceUpdate(delivery=DeliveryMode.PUSH)), before).include_secret


@pytest.mark.parametrize("rotates", [False, True])
def test_a_secret_that_was_shown_is_not_shown_again_when_push_begins_again(rotates: bool) -> None:
    begun = outcome_of(
        changing(ServiceUpdate(delivery=DeliveryMode.PUSH), rotates=rotates), service_row(secret_number=4)
    )
    assert (begun.include_secret, begun.service.secret_number) == (True, 5)


def test_push_is_not_turned_on_for_an_endpoint_of_the_servers_own_network() -> None:
    inside = service_row(endpoint_url="http://[::1]/")
    ask = changing(ServiceUpdate(delivery=DeliveryMode.PUSH))
    assert refused(rules.update_service(ask, inside, NOW, private_allowed=False)) == "invalid_endpoint_url"
    assert isinstance(rules.update_service(ask, inside, NOW, private_allowed=True), RegisteredService)
    # What was turned on when that was allowed may still be changed otherwise, and turned off.
    pushed = replace(inside, delivery=DeliveryMode.PUSH)
    for said in (ServiceUpdate(health=ServiceHealth.HEALTHY), ServiceUpdate(delivery=DeliveryMode.PULL)):
        assert isinstance(rules.update_service(changing(said), pushed, NOW, private_allowed=False), RegisteredService)


# -- what a body says --------------------------------------------------------------------------------------------


def test_what_a_body_does_not_say_is_not_said() -> None:
    assert rules.update_from_body(UpdateServiceBody()) == ServiceUpdate()
    assert rules.update_from_body(ServiceHeartbeatBody()) == ServiceUpdate()


def test_two_names_of_one_thing_say_it_once_or_not_at_all() -> None:
    said = ServiceUpdate(metadata_json='{"a":1}')
    assert rules.update_from_body(UpdateServiceBody(metadata={"a": 1})) == said
    assert rules.update_from_body(UpdateServiceBody(metadata_json={"a": 1})) == said
    assert rules.update_from_body(UpdateServiceBody(metadata_json={"a": 1}, metadata={"a": 1})) == said
    assert rules.update_from_body(ServiceHeartbeatBody(status=ServiceHealth.HEALTHY)) == ServiceUpdate(
        health=ServiceHealth.HEALTHY
    )
    assert (
        rules.update_from_body(ServiceHeartbeatBody(health=ServiceHealth.HEALTHY, status=ServiceHealth.HEALTHY)).health
        is ServiceHealth.HEALTHY
    )
    for body in (
        UpdateServiceBody(metadata_json={"a": 1}, metadata={}),
        ServiceHeartbeatBody(health=ServiceHealth.HEALTHY, status=ServiceHealth.STARTING),
    ):
        with pytest.raises(Invalid, match="said twice"):
            rules.update_from_body(body)


# -- heartbeats --------------------------------------------------------------------------------------------------


def test_a_heartbeat_notes_the_time_and_changes_nothing_else_by_itself() -> None:
    before = service_row(active_invocations=2)
    assert rules.apply_heartbeat(before, ServiceUpdate(), NOW) == replace(before, last_heartbeat_at=NOW)
    told = rules.apply_heartbeat(before, ServiceUpdate(active_invocations=5, health=before.health), NOW)
    assert told == replace(before, last_heartbeat_at=NOW, active_invocations=5)


def test_a_heartbeat_that_tells_of_health_or_metadata_changes_them() -> None:
    before = service_row()
    for said in (ServiceUpdate(health=ServiceHealth.HEALTHY), ServiceUpdate(metadata_json='{"a":1}')):
        after = rules.apply_heartbeat(before, said, NOW)
        assert after == replace(rules.apply_update(before, said), last_heartbeat_at=NOW, updated_at=NOW)


# -- leaving -----------------------------------------------------------------------------------------------------


def test_a_service_that_nobody_is_left_of_is_unregistered_and_only_once() -> None:
    there = service_row(agent_id="s1")
    told = rules.apply_removal(RegistrationRemoval(there, {"s1"}, False, None), "why", NOW)
    assert told is not None
    assert (told.verb, told.reason, told.before) == ("unregister", "why", there)
    assert told.service == replace(there, unregistered_at=NOW, updated_at=NOW, is_live=0)
    assert not rules.is_registered(told.service)
    assert rules.apply_removal(RegistrationRemoval(told.service, {"s1"}, False, None), "why", NOW) is None


def test_a_service_that_others_registered_stays_and_is_led_by_one_of_them() -> None:
    there = service_row(agent_id="s1")
    told = rules.apply_removal(RegistrationRemoval(there, {"s1"}, True, "s2"), "why", NOW)
    assert told is not None
    assert (told.verb, told.changed_fields, told.service.agent_id) == ("change", ("agent_id",), "s2")
    follower = rules.apply_removal(RegistrationRemoval(there, {"s3"}, True, "s1"), "why", NOW)
    assert follower is not None
    assert (follower.verb, follower.changed_fields, follower.service.agent_id) == ("change", (), "s1")
    application = rules.apply_removal(RegistrationRemoval(there, {"s1"}, True, None), "why", NOW)
    assert application is not None
    assert (application.verb, application.service.agent_id) == ("change", None)
