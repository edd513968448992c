"""`qd key`: keys are printed once and work until revoked. `qd` also passes on TRACEPARENT."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.cli_support import Qd, http_response, run_qd, run_scripted_server

KEY = re.compile(r"qd_default\.([0-9a-f-]{36})\.([0-9a-f]{64})")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    with run_qd(tmp_path_factory.mktemp("qd-key") / "data") as program:
        program.run("zone", "list")
        yield program


def match_key(text: str) -> re.Match[str]:
    match = KEY.fullmatch(text)
    assert match is not None, text
    return match


def test_create_prints_only_the_key_with_a_notice_on_stderr(qd: Qd) -> None:
    result = qd("key", "create", "--app", "demo")
    assert result.returncode == 0, result.stderr
    key = match_key(result.stdout.rstrip("\n"))
    assert key[1] in result.stderr and "once" in result.stderr
    assert key[2] not in result.stderr


def test_create_sends_every_option(qd: Qd) -> None:
    session = qd.run("session", "spawn", "--app", "demo")
    words = ["--name", "nightly job", "--scope", "a", "--scope", "b", "--session", session, "--ttl", "30d"]
    reply = qd.run_json("key", "create", "--app", "demo", *words)
    assert (reply["name"], reply["scopes"], reply["session_id"]) == ("nightly job", ["a", "b"], session)
    assert reply["expires_at"] > reply["created_at"]
    match_key(reply["key"])


def test_list_never_prints_a_secret(qd: Qd) -> None:
    key = match_key(qd.run("key", "create", "--app", "lister", "--name", "plain"))
    result = qd("key", "list")
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["ID", "NAME", "APPLICATION", "SCOPES", "SESSION", "STATUS", "EXPIRES"]
    [row] = [row.split() for row in rows if key[1] in row]
    assert row == [key[1], "plain", "lister", "agent:lifecycle", "-", "live", "never"]
    for output in (result.stdout, result.stderr, qd.run("key", "list", "--json"), qd.run("events", "list")):
        assert key[2] not in output
    page = qd.run_json("key", "list", "--limit", "1")
    assert page["next_cursor"] and len(page["items"]) == 1
    all_pages = qd.run_json("key", "list", "--limit", "1", "--all")
    assert len(all_pages["items"]) == len(qd.run_json("key", "list")["items"])


def test_key_works_like_a_token_until_revoked(qd: Qd) -> None:
    text = qd.run("key", "create", "--app", "worker")
    session = qd.run("session", "spawn", "--app", "worker", QD_TOKEN=text)
    assert qd.run_json("session", "show", session, "--token", text)["session_sid"] == f"key:{match_key(text)[1]}"
    assert qd.run("key", "revoke", match_key(text)[1]) == f"Revoked key {match_key(text)[1]}."
    assert qd.run("key", "revoke", match_key(text)[1], "--json")
    refused = qd("session", "list", QD_TOKEN=text)
    assert refused.returncode == 1
    assert "revoked" in refused.stderr
    assert match_key(text)[2] not in refused.stderr


def test_failed_command_prints_an_error_and_sets_the_exit_code(qd: Qd) -> None:
    for words, code in (
        (("key", "revoke", "no-such-key"), 4),
        (("key", "create", "--app", "a", "--session", "no-such-session"), 4),
        (("key", "create", "--app", "a", "--zone", "no-such-zone"), 4),
        (("key", "create", "--app", "a", "--scope", "quarterdeck.admin"), 1),
        (("key", "create"), 2),
        (("key", "revoke"), 2),
        (("key",), 2),
    ):
        result = qd(*words)
        assert result.returncode == code, (words, result.stderr)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_empty_list_prints_a_message(qd: Qd) -> None:
    qd.run("zone", "create", "quiet")
    assert qd.run("key", "list", "--zone", "quiet") == "No API keys in zone quiet."


# -- tracing -----------------------------------------------------------------------------------------------------


def test_events_contain_the_traceparent_of_the_command(qd: Qd) -> None:
    session = qd.run("session", "spawn", "--app", "demo", TRACEPARENT=TRACE)
    qd.run("session", "stop", session)
    events = qd.run_json("events", "list", "--subject", session)["items"]
    assert [event["trace"] for event in events] == [TRACE, None]


@pytest.mark.parametrize("traceparent", ["", "invalid", TRACE.upper(), f"{TRACE}-x", f"{TRACE}\r\nX-Evil: 1"])
def test_invalid_traceparent_is_not_sent(qd: Qd, traceparent: str) -> None:
    page = http_response(200, {"items": [], "next_cursor": None})
    with run_scripted_server(page) as server:
        words = ("key", "list", "--url", server.url, "--token", "t")
        assert qd.run_json(*words, TRACEPARENT=traceparent) == {"items": [], "next_cursor": None}
    assert b"traceparent" not in server.requests[0].lower()
    assert b"X-Evil" not in server.requests[0]


def test_key_and_token_use_different_headers(qd: Qd) -> None:
    for credential, header in (
        (f"qd_z.{'0' * 36}.{'f' * 64}", b"X-API-Key: qd_z."),
        ("eyJ.a.b", b"Authorization: Bearer eyJ"),
    ):
        with run_scripted_server(http_response(200, {"items": []})) as server:
            qd.run("key", "list", "--url", server.url, "--token", credential, TRACEPARENT=TRACE)
        [request] = server.requests
        assert header in request
        assert (b"X-API-Key" in request) != (b"Authorization" in request)
        assert f"Traceparent: {TRACE}".encode() in request


def test_line_break_in_a_credential_is_refused(qd: Qd) -> None:
    for credential in ("qd_x\r\nX-Evil: 1", "t\r\nX-Evil: 1"):
        result = qd("key", "list", "--url", "http://127.0.0.1:9", "--token", credential, "--json")
        assert json.loads(result.stderr)["error"] == "invalid_header"
        assert "Evil" not in result.stderr
