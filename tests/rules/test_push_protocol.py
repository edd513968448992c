"""What is said to an endpoint that is pushed to, and what its answer means."""

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
SECRET, OLDER = SECRETS(ZONE, "s", 2), SECRETS(ZONE, "s", 1)
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def begun(now: int = NOW, **asked: object) -> Invocation:
    """An attempt on its way to the endpoint."""
    plain: dict[str, object] = {
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
        "source_session_id": "one",
        "target_session_id": "other",
        "timeout_ms": 1_000,
        "retry_policy": RetryPolicy(),
    }
    ask = build_struct(Enqueue, **(plain | asked))
    return states.start_attempt(
        states.new_invocation(ask, "app", "invoker", now), Attempt(AttemptOrigin.PUSH, "push", "t", 1), now
    )


# -- what is said


def test_the_body_tells_what_is_called_and_which_attempt_it_is() -> None:
    _, body = build_request(begun(), [SECRET])
    assert json.loads(body) == {
        "id": "i1",
        "zone_id": ZONE,
        "service_id": "s",
        "method": "sum",
        "params": {"a": [1, 2]},
        "metadata": {"m": "ü"},
        "attempt": 1,
        "deadline_at": "1970-01-12T13:46:41.000Z",
        "source_session_id": "one",
        "target_session_id": "other",
    }


def test_the_headers_name_the_invocation_the_same_way_at_every_attempt_and_pass_its_trace_on() -> None:
    headers = dict(build_request(begun(), [SECRET])[0])
    assert headers["webhook-id"] == headers["Idempotency-Key"] == "i1"
    assert headers["webhook-timestamp"] == str(NOW // 1000)
    assert headers["Content-Type"] == "application/json"
    assert headers["traceparent"] == TRACE
    assert "traceparent" not in dict(build_request(begun(trace=None), [SECRET])[0])


def test_the_signature_is_over_id_time_and_body_by_the_secret_that_was_shown() -> None:
    headers, body = build_request(begun(), [SECRET])
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    told = b"i1." + str(NOW // 1000).encode() + b"." + body
    expected = base64.b64encode(hmac.new(key, told, sha256).digest()).decode()
    assert dict(headers)["webhook-signature"] == f"v1,{expected}"


def test_a_receiver_that_follows_the_standard_believes_it_and_nothing_that_was_changed() -> None:
    given, body = build_request(begun(system_now()), [SECRET])
    headers = dict(given)
    assert Webhook(SECRET).verify(body, headers)["id"] == "i1"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body.replace(b"sum", b"sub"), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, {**headers, "webhook-id": "i2"})
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS(ZONE, "another", 2)).verify(body, headers)


def test_while_a_secret_is_being_replaced_either_one_is_good() -> None:
    assert push_protocol.secret_numbers(1) == (1,)
    assert push_protocol.secret_numbers(7) == (7, 6)
    headers = dict(signature_headers("i1", system_now(), b"{}", [SECRET, OLDER]))
    for secret in (SECRET, OLDER):
        assert Webhook(secret).verify("{}", headers) == {}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS(ZONE, "s", 3)).verify("{}", headers)


def test_the_time_that_is_signed_is_the_time_that_is_told() -> None:
    # The library takes a time of day, and would take one without a zone for another.
    for at in (0, 999, 1_000, 1_700_000_000_999):
        headers = dict(signature_headers("i", at, b"x", [SECRET]))
        moment = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        assert headers["webhook-signature"] == Webhook(SECRET).sign("i", moment, "x")


# -- what is answered


def test_every_status_has_one_meaning() -> None:
    for status in range(200, 300):
        verdict = response_outcome(status, "application/json", b'{"a":1}')
        assert verdict == PushOutcome("succeeded", "succeeded", result='{"a":1}')
    for status in [*range(100, 200), *range(300, 1_000)]:
        verdict = response_outcome(status, "application/json", b'{"a":1}')
        expected = {3: "push_redirected", 4: "push_rejected"}.get(status // 100, "push_failed")
        error = json.loads(verdict.error or "")
        assert error == {"code": expected, "status": status, "answer": {"a": 1}}
        assert (verdict.status, verdict.result, verdict.code) == ("failed", None, expected)
        assert verdict.retryable is (status // 100 != 4)


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
def test_a_body_is_kept_as_the_json_it_is_or_as_a_string_of_it(
    content_type: str | None, body: bytes, value: object
) -> None:
    kept = body_to_json(content_type, body)
    if value is None and body:
        assert kept == body.decode()
    else:
        assert json.loads(kept) == value


@given(st.none() | st.sampled_from(["application/json", "text/plain", "", ";", "a/b+json"]), st.binary())
def test_whatever_comes_back_is_kept_as_json_that_can_be_stored(kind: str | None, body: bytes) -> None:
    kept = body_to_json(kind, body)
    json.loads(kept)
    assert "\0" not in kept
    kept.encode()


def test_an_error_quotes_the_beginning_of_a_long_answer() -> None:
    verdict = response_outcome(500, "text/plain", "ü".encode() * 10_000)
    assert json.loads(verdict.error or "")["answer"] == "ü" * 2_048


def test_an_answer_too_large_to_keep_is_no_result_but_a_rejection_all_the_same() -> None:
    for status in (None, 200, 500, 302):
        assert (oversized_outcome(status).code, oversized_outcome(status).retryable) == ("push_answer_too_large", True)
    assert (oversized_outcome(413).code, oversized_outcome(413).retryable) == ("push_rejected", False)
