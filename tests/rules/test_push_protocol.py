"""The push protocol: the request to an endpoint, and the outcome of its response."""

from __future__ import annotations

import base64
import hmac
import json
from datetime import UTC, datetime
from hashlib import sha256

import pytest
from hypothesis import given, strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from quarterdeck.core.clock import system_now
from quarterdeck.core.webhook_signing import secret_deriver, signature_headers
from quarterdeck.domain.invocations.model import AttemptOrigin, Enqueue, Invocation, RetryPolicy
from quarterdeck.domain.invocations.rules import push_protocol, states
from quarterdeck.domain.invocations.rules.push_protocol import (
    PushOutcome,
    body_to_json,
    build_request,
    oversized_outcome,
    response_outcome,
)
from quarterdeck.domain.invocations.rules.states import Attempt
from tests.support.builders import NOW, ZONE, caller
from tests.support.structs import build_struct

SECRETS = secret_deriver(b"r" * 32)
SECRET, OLDER_SECRET = SECRETS(ZONE, "s", 2), SECRETS(ZONE, "s", 1)
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def started_attempt(now: int = NOW, **fields: object) -> Invocation:
    """An invocation whose push attempt has started."""
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "caller": caller("invoker"),
        "trace": TRACE,
        "id": "i1",
        "service_id": "s",
        "idempotency_key": "k",
        "request_digest": "d",
        "method": "sum",
        "params": '{"a":[1,2]}',
        "metadata": '{"m":"ü"}',
        "source_session_id": "source",
        "target_session_id": "target",
        "timeout_ms": 1_000,
        "retry_policy": RetryPolicy(),
    }
    command = build_struct(Enqueue, **(defaults | fields))
    return states.start_attempt(
        states.new_invocation(command, "app", "invoker", now), Attempt(AttemptOrigin.PUSH, "push", "t", 1), now
    )


# -- request


def test_body_contains_the_invocation_and_the_attempt() -> None:
    _, body = build_request(started_attempt(), [SECRET])
    assert json.loads(body) == {
        "id": "i1",
        "zone_id": ZONE,
        "service_id": "s",
        "method": "sum",
        "params": {"a": [1, 2]},
        "metadata": {"m": "ü"},
        "attempt": 1,
        "deadline_at": "1970-01-12T13:46:41.000Z",
        "source_session_id": "source",
        "target_session_id": "target",
    }


def test_headers_contain_the_invocation_id_and_the_trace() -> None:
    headers = dict(build_request(started_attempt(), [SECRET])[0])
    assert headers["webhook-id"] == headers["Idempotency-Key"] == "i1"
    assert headers["webhook-timestamp"] == str(NOW // 1000)
    assert headers["Content-Type"] == "application/json"
    assert headers["traceparent"] == TRACE
    assert "traceparent" not in dict(build_request(started_attempt(trace=None), [SECRET])[0])


def test_signature_covers_id_timestamp_and_body() -> None:
    headers, body = build_request(started_attempt(), [SECRET])
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = b"i1." + str(NOW // 1000).encode() + b"." + body
    expected = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    assert dict(headers)["webhook-signature"] == f"v1,{expected}"


def test_standard_receiver_accepts_the_request_and_rejects_any_change() -> None:
    header_list, body = build_request(started_attempt(system_now()), [SECRET])
    headers = dict(header_list)
    assert Webhook(SECRET).verify(body, headers)["id"] == "i1"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"sum", b"sub"), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, {**headers, "webhook-id": "i2"})
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS(ZONE, "another", 2)).verify(body, headers)


def test_both_secrets_verify_during_rotation() -> None:
    assert push_protocol.secret_numbers(1) == (1,)
    assert push_protocol.secret_numbers(7) == (7, 6)
    headers = dict(signature_headers("i1", system_now(), b"{}", [SECRET, OLDER_SECRET]))
    for secret in (SECRET, OLDER_SECRET):
        assert Webhook(secret).verify("{}", headers) == {}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS(ZONE, "s", 3)).verify("{}", headers)


def test_signed_time_equals_the_timestamp_header() -> None:
    # The library takes a datetime and would interpret one without a time zone as local time.
    for at in (0, 999, 1_000, 1_700_000_000_999):
        headers = dict(signature_headers("i", at, b"x", [SECRET]))
        moment = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        assert headers["webhook-signature"] == Webhook(SECRET).sign("i", moment, "x")


# -- response


def test_every_response_status_has_one_outcome() -> None:
    for status in range(200, 300):
        outcome = response_outcome(status, "application/json", b'{"a":1}')
        assert outcome == PushOutcome("succeeded", "succeeded", result='{"a":1}')
    for status in [*range(100, 200), *range(300, 1_000)]:
        outcome = response_outcome(status, "application/json", b'{"a":1}')
        expected = {3: "push_redirected", 4: "push_rejected"}.get(status // 100, "push_failed")
        error = json.loads(outcome.error or "")
        assert error == {"code": expected, "status": status, "answer": {"a": 1}}
        assert (outcome.status, outcome.result, outcome.code) == ("failed", None, expected)
        assert outcome.retryable is (status // 100 != 4)


@pytest.mark.parametrize(
    ("content_type", "body", "value"),
    [
        ("application/json", b'{"a": [1, 2.5, null, true, "\xc3\xbc"]}', {"a": [1, 2.5, None, True, "ü"]}),
        ("application/json; charset=utf-8", b"[1]", [1]),
        ("application/problem+json", b"{}", {}),
        ("Application/JSON", b" 7 ", 7),
        (None, b'{"a":1}', {"a": 1}),
        (None, b"plain", "plain"),
        ("text/plain", b"7", "7"),
        ("text/html", b"<p>\xc3\xbc</p>", "<p>ü</p>"),
        ("application/json", b"", None),
        (None, b"", None),
        ("application/json", b"{broken", "{broken"),
        ("application/json", b'"\xff"', '"\ufffd"'),
        ("application/json", b'"\\ud800"', '"\\ud800"'),
        ("application/json", b'"a\\u0000b"', "a\0b"),
        ("application/octet-stream", b"\x00\xff", "\0\ufffd"),
        ("application/json", b"[" * 64 + b"]" * 64, None),
        ("application/json", b"[" * 66 + b"]" * 66, "[" * 66 + "]" * 66),
        ("application/json", b"[" * 90_000, "[" * 90_000),
        ("application/json", b"1e999", "1e999"),
    ],
)
def test_response_body_is_stored_as_json_or_as_a_json_string(
    content_type: str | None, body: bytes, value: object
) -> None:
    text = body_to_json(content_type, body)
    if value is None and body:
        assert text == body.decode()
    else:
        assert json.loads(text) == value


@given(st.none() | st.sampled_from(["application/json", "text/plain", "", ";", "a/b+json"]), st.binary())
def test_any_response_body_becomes_storable_json(content_type: str | None, body: bytes) -> None:
    text = body_to_json(content_type, body)
    json.loads(text)
    assert "\0" not in text
    text.encode()


def test_error_contains_the_start_of_a_long_response() -> None:
    outcome = response_outcome(500, "text/plain", "ü".encode() * 10_000)
    assert json.loads(outcome.error or "")["answer"] == "ü" * 2_048


def test_oversized_response_is_a_retryable_failure_unless_it_is_a_rejection() -> None:
    for status in (None, 200, 500, 302):
        assert (oversized_outcome(status).code, oversized_outcome(status).retryable) == ("push_answer_too_large", True)
    assert (oversized_outcome(413).code, oversized_outcome(413).retryable) == ("push_rejected", False)
