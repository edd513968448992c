"""Rules of webhooks: payloads, retry schedule, results of an attempt, and endpoint URLs."""

from __future__ import annotations

import ast
import json
import re

import msgspec
import pytest

from quarterdeck.core.clock import DAY, MINUTE, SECOND
from quarterdeck.domain.webhooks.model import (
    Delivery,
    DeliveryState,
    DeliveryVerb,
    DisableReason,
    Endpoint,
    ReportAttempt,
)
from quarterdeck.domain.webhooks.rules import endpoints, payloads, states
from quarterdeck.domain.webhooks.rules.endpoints import url_host
from quarterdeck.domain.webhooks.rules.payloads import Payload, build_payload
from quarterdeck.domain.webhooks.rules.states import DELIVERY_STATES, RetrySchedule
from quarterdeck.engine.event_log import Event
from tests.support.source import parse_modules
from tests.support.structs import build_struct

NOW = 1_738_161_000_000
HOUR = 60 * MINUTE


def payload_of(kind: str, before: str | None = None, after: str | None = None, **data: object) -> Payload:
    event = Event(7, "e1", "ws-1", kind, "task-123", "tester", before, after, json.dumps(data), None, NOW)
    message = build_payload(event)
    assert message is not None
    return message


ENDPOINT = Endpoint(
    "ws-1", "w1", "https://example.com/", None, '["*"]', 2, None, 1, None, 0, None, "tester", NOW, NOW, None
)


def delivery(**fields: object) -> Delivery:
    pending_delivery = states.new_delivery(
        ENDPOINT, payload_of("task.started", "ASSIGNED", "RUNNING"), ("e1", 7, None), NOW
    )
    return msgspec.structs.replace(pending_delivery, **fields)


def report(**fields: object) -> ReportAttempt:
    defaults = {"zone_id": "ws-1", "endpoint_id": "w1", "id": "e1", "lease_expires_at": 0, "attempt": 1}
    return build_struct(ReportAttempt, **(defaults | fields))


# -- payloads


def test_status_change_has_the_published_payload() -> None:
    payload = payload_of("task.completed", "RUNNING", "COMPLETED", taskType="review", agentId="a1", priority=5)
    assert json.loads(payload.body) == {
        "event": "task.status_changed",
        "taskId": "task-123",
        "previousStatus": "RUNNING",
        "newStatus": "COMPLETED",
        "workspaceId": "ws-1",
        "timestamp": "2025-01-29T14:30:00.000Z",
        "eventId": "e1",
        "type": "task.completed",
        "taskType": "review",
        "agentId": "a1",
    }
    assert payload.types == {"*", "task.completed", "task.status_changed"}


def test_other_events_keep_their_type_and_data_in_the_payload() -> None:
    payload = payload_of("task.created", None, "PENDING", priority=5)
    assert payload.event == "task.created"
    assert payload.types == {"*", "task.created"}
    assert json.loads(payload.body)["data"] == {"priority": 5}
    agent = json.loads(payload_of("agent.registered", None, "IDLE").body)
    assert (agent["event"], agent["agentId"], agent["type"]) == ("agent.registered", "task-123", "agent.registered")


@pytest.mark.parametrize(
    ("kind", "data", "alert"),
    [
        ("task.failed", {"exhausted": True}, "retries_exhausted"),
        ("task.failed", {"reason": "dependency_cycle", "cycle": ["a", "b"]}, "dependency_cycle"),
        ("agent.stale", {}, "agent_stale"),
        ("webhook.disabled", {"reason": "gone"}, "webhook_disabled"),
    ],
)
def test_critical_event_is_an_alert(kind: str, data: dict[str, object], alert: str) -> None:
    payload = payload_of(kind, "RUNNING", "FAILED", **data)
    assert json.loads(payload.body)["alert"] == alert
    assert payloads.ALERT in payload.types
    assert json.loads(payload.body).get("cycle") == data.get("cycle")


def test_retried_failure_is_no_alert_and_other_events_have_no_payload() -> None:
    assert payloads.ALERT not in payload_of("task.failed", "RUNNING", "FAILED", exhausted=False).types
    for kind in ("session.spawn", "webhook.created", "zone.end", "key.create"):
        event = Event(1, "e", "z", kind, "s", "a", None, None, "{}", None, NOW)
        assert build_payload(event) is None


def test_types_are_deduplicated_and_unknown_types_are_refused() -> None:
    assert endpoints.normalize_types(None) == ("task.status_changed", "alert")
    assert endpoints.normalize_types(["*", "*", "agent.stale"]) == ("*", "agent.stale")
    assert endpoints.types_problem(payloads.ALLOWED_TYPES) is None
    refused = endpoints.types_problem(["*", "task.finished"])
    assert refused is not None
    assert (refused.code, refused.members["field"]) == ("invalid_webhook_type", "types")


KEY_OPERATIONS = {"task.create", "task.claim", "task.progress", "agent.begin"}
"""Operations of idempotency keys, not events."""


def test_every_emitted_task_and_agent_event_type_is_allowed() -> None:
    modules = parse_modules("src/quarterdeck/domain/tasks", "src/quarterdeck/domain/agents")
    constants = {
        node.value
        for module in modules
        for node in module.walk()
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    emitted = {constant for constant in constants if re.fullmatch(r"(task|agent)\.[a-z_]+", constant)} - KEY_OPERATIONS
    named = {kind for kind in payloads.ALLOWED_TYPES if kind.startswith(payloads.EVENT_PREFIXES)}
    assert emitted == named - {payloads.STATUS_CHANGED}


# -- retries


def test_retry_schedule_is_the_standard_and_jitter_only_adds() -> None:
    schedule = RetrySchedule()
    delays = [schedule.delay(attempt, 0.0) for attempt in range(1, 11)]
    assert delays == [
        5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR, None,
    ]  # fmt: skip
    assert schedule.delay(1, 0.999) == 5_500
    assert sum(filter(None, delays)) > 3 * DAY


@pytest.mark.parametrize(
    ("fields", "state", "delay"),
    [
        ({"answer_status": 200}, DeliveryState.DELIVERED, None),
        ({"answer_status": 500, "error": "it answered 500"}, DeliveryState.PENDING, 5 * SECOND),
        ({"error": "no response within 15 s", "attempt": 3}, DeliveryState.PENDING, 30 * MINUTE),
        ({"answer_status": 429, "error": "…", "retry_after_ms": 60 * SECOND}, DeliveryState.PENDING, 60 * SECOND),
        ({"answer_status": 503, "error": "…", "retry_after_ms": SECOND}, DeliveryState.PENDING, 5 * SECOND),
        ({"answer_status": 503, "error": "…", "retry_after_ms": 9 * DAY}, DeliveryState.PENDING, DAY),
        ({"answer_status": 500, "error": "…", "attempt": 10}, DeliveryState.FAILED, None),
        ({"answer_status": 410, "error": "it answered 410"}, DeliveryState.FAILED, None),
    ],
)
def test_report_sets_delivery_state_and_next_attempt(
    fields: dict[str, object], state: DeliveryState, delay: int | None
) -> None:
    after = states.apply_report(delivery(), report(**fields), NOW, RetrySchedule())
    assert (after.status, after.next_at) == (state, None if delay is None else NOW + delay)
    assert (after.queue is not None) == (state is DeliveryState.PENDING)
    assert (after.delivered_at is not None) == (state is DeliveryState.DELIVERED)


def test_transitions_of_a_delivery_match_the_table() -> None:
    assert DELIVERY_STATES.next_state(DeliveryVerb.DELIVER, DeliveryState.DELIVERED) is None
    assert DELIVERY_STATES.next_state(DeliveryVerb.GIVE_UP, DeliveryState.FAILED) is None
    assert {DELIVERY_STATES.next_state(DeliveryVerb.REPLAY, state) for state in DeliveryState} == {
        DeliveryState.PENDING
    }
    assert states.replay(delivery(status=DeliveryState.FAILED, attempts=10), NOW).attempts == 0


@pytest.mark.parametrize(
    ("status", "header", "delay"),
    [
        (503, "120", 120 * SECOND),
        (429, "Wed, 29 Jan 2025 14:31:00 GMT", MINUTE),
        (429, "Wed, 29 Jan 2025 14:31:00", MINUTE),
        (429, "99999999999999999999", DAY),
        (429, "Wed, 29 Jan 2020 14:31:00 GMT", 0),
        (429, "soon", 0),
        (429, "-5", 0),
        (429, "٣", 0),
        (429, None, 0),
        (500, "120", 0),
    ],
)
def test_retry_after_is_read_only_for_429_and_503_and_valid_values(status: int, header: str | None, delay: int) -> None:
    assert states.retry_after_ms(status, header, NOW) == delay


@pytest.mark.parametrize(
    ("failing_since", "fields", "reason"),
    [
        (None, {"answer_status": 410, "error": "…"}, DisableReason.GONE),
        (NOW - 5 * DAY, {"error": "…"}, DisableReason.FAILING),
        (NOW - 5 * DAY + 1, {"error": "…"}, None),
        (None, {"error": "…"}, None),
        (NOW - 9 * DAY, {"answer_status": 200}, None),
    ],
)
def test_endpoint_is_disabled_when_gone_or_failing_too_long(
    failing_since: int | None, fields: dict[str, object], reason: DisableReason | None
) -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, failing_since=failing_since)
    assert states.disable_reason(endpoint, report(**fields), NOW, 5 * DAY) is reason


# -- endpoint URLs


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "https://127.0.0.1/", "https://10.0.0.1/x", "https://169.254.169.254/", "https://[::1]/",
        "https://localhost/", "https://2130706433/", "https://user:pass@example.com/", "ftp://example.com/",
        "https://exa mple.com/", "https://example.com/#x", "//example.com", "", "https://[::ffff:127.0.0.1]/",
        "https://metadata.google.internal/", "https://example.com:0/", "https://" + "x" * 3_000,
    ],
)  # fmt: skip
def test_private_or_non_https_url_is_refused(url: str) -> None:
    problem = endpoints.url_problem(url, private_allowed=False)
    assert problem is not None
    assert (problem.code, problem.members["field"]) == ("invalid_webhook_url", "url")
    assert problem.detail.endswith(".") and ".." not in problem.detail


def test_public_https_url_is_accepted_and_private_http_only_if_allowed() -> None:
    for url in ("https://example.com/hook?x=1", "https://93.184.216.34:8443/", "HTTPS://Example.com"):
        assert endpoints.url_problem(url, private_allowed=False) is None
    assert endpoints.url_problem("http://127.0.0.1:9/", private_allowed=True) is None
    assert endpoints.url_problem("ftp://127.0.0.1/", private_allowed=True) is not None


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com/secret", "example.com"),
        ("https://example.com:8443?token=x", "example.com"),
        ("https://[2606:4700::1111]:1/x", "[2606:4700::1111]"),
        ("https://example.com", "example.com"),
    ],
)
def test_url_host_reveals_only_the_host(url: str, host: str) -> None:
    assert url_host(url) == host
