"""`qd key`: a key is printed once, alone, and is good until it is revoked. And `qd` passes a trace on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.cli_support import Qd, http_response, run_scripted_server

KEY = re.compile(r"qd_default\.([0-9a-f-]{36})\.([0-9a-f]{64})")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    program = Qd(tmp_path_factory.mktemp("qd-key") / "data")
    program.run("zone", "list")
    yield program
    program.end_server()


def made(text: str) -> re.Match[str]:
    found = KEY.fullmatch(text)
    assert found is not None, text
    return found


def test_create_prints_the_key_alone_and_says_beside_it_that_it_is_shown_once(qd: Qd) -> None:
    done = qd("key", "create", "--app", "demo")
    assert done.returncode == 0, done.stderr
    key = made(done.stdout.rstrip("\n"))
    assert key[1] in done.stderr and "once" in done.stderr
    assert key[2] not in done.stderr


def test_create_hands_on_everything_that_was_said(qd: Qd) -> None:
    session = qd.run("session", "spawn", "--app", "demo")
    words = ["--name", "nightly job", "--scope", "a", "--scope", "b", "--session", session, "--ttl", "30d"]
    told = qd.run_json("key", "create", "--app", "demo", *words)
    assert (told["name"], told["scopes"], told["session_id"]) == ("nightly job", ["a", "b"], session)
    assert told["expires_at"] > told["created_at"]
    made(told["key"])


def test_list_shows_what_there_is_and_never_a_key(qd: Qd) -> None:
    key = made(qd.run("key", "create", "--app", "lister", "--name", "plain"))
    listed = qd("key", "list")
    heads, *rows = listed.stdout.splitlines()
    assert heads.split() == ["ID", "NAME", "APPLICATION", "SCOPES", "SESSION", "STATUS", "LIFE"]
    [row] = [row.split() for row in rows if key[1] in row]
    assert row == [key[1], "plain", "lister", "agent:lifecycle", "-", "live", "no", "end"]
    for told in (listed.stdout, listed.stderr, qd.run("key", "list", "--json"), qd.run("events", "list")):
        assert key[2] not in told
    page = qd.run_json("key", "list", "--limit", "1")
    assert page["next_cursor"] and len(page["items"]) == 1
    every = qd.run_json("key", "list", "--limit", "1", "--all")
    assert len(every["items"]) == len(qd.run_json("key", "list")["items"])


def test_a_key_works_wherever_a_token_does_until_it_is_revoked(qd: Qd) -> None:
    text = qd.run("key", "create", "--app", "worker")
    session = qd.run("session", "spawn", "--app", "worker", QD_TOKEN=text)
    assert qd.run_json("session", "show", session, "--token", text)["session_sid"] == f"key:{made(text)[1]}"
    assert qd.run("key", "revoke", made(text)[1]) == f"revoked {made(text)[1]}"
    assert qd.run("key", "revoke", made(text)[1], "--json")
    refused = qd("session", "list", QD_TOKEN=text)
    assert refused.returncode == 1
    assert "revoked" in refused.stderr
    assert made(text)[2] not in refused.stderr


def test_what_cannot_be_is_a_sentence_and_an_exit_code(qd: Qd) -> None:
    for words, code in (
        (("key", "revoke", "no-such-key"), 4),
        (("key", "create", "--app", "a", "--session", "no-such-session"), 4),
        (("key", "create", "--app", "a", "--zone", "no-such-zone"), 4),
        (("key", "create", "--app", "a", "--scope", "quarterdeck.admin"), 1),
        (("key", "create"), 2),
        (("key", "revoke"), 2),
        (("key",), 2),
    ):
        done = qd(*words)
        assert done.returncode == code, (words, done.stderr)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr


def test_an_empty_list_says_so(qd: Qd) -> None:
    qd.run("zone", "create", "quiet")
    assert qd.run("key", "list", "--zone", "quiet") == "no keys in zone quiet"


# -- a trace -----------------------------------------------------------------------------------------------------


def test_what_a_command_causes_bears_the_trace_it_was_run_in(qd: Qd) -> None:
    session = qd.run("session", "spawn", "--app", "demo", TRACEPARENT=TRACE)
    qd.run("session", "stop", session)
    told = qd.run_json("events", "list", "--subject", session)["items"]
    assert [event["trace"] for event in told] == [TRACE, None]


@pytest.mark.parametrize("given", ["", "nonsense", TRACE.upper(), f"{TRACE}-x", f"{TRACE}\r\nX-Evil: 1"])
def test_a_trace_that_cannot_be_understood_is_not_sent_and_stops_no_command(qd: Qd, given: str) -> None:
    page = http_response(200, {"items": [], "next_cursor": None})
    with run_scripted_server(page) as server:
        words = ("key", "list", "--url", server.url, "--token", "t")
        assert qd.run_json(*words, TRACEPARENT=given) == {"items": [], "next_cursor": None}
    assert b"traceparent" not in server.requests[0].lower()
    assert b"X-Evil" not in server.requests[0]


def test_a_key_is_sent_as_a_key_and_a_token_as_a_token(qd: Qd) -> None:
    for credential, header in (
        (f"qd_z.{'0' * 36}.{'f' * 64}", b"X-API-Key: qd_z."),
        ("eyJ.a.b", b"Authorization: Bearer eyJ"),
    ):
        with run_scripted_server(http_response(200, {"items": []})) as server:
            qd.run("key", "list", "--url", server.url, "--token", credential, TRACEPARENT=TRACE)
        [sent] = server.requests
        assert header in sent
        assert (b"X-API-Key" in sent) != (b"Authorization" in sent)
        assert f"Traceparent: {TRACE}".encode() in sent


def test_a_line_break_in_a_credential_writes_no_header_of_its_own(qd: Qd) -> None:
    for credential in ("qd_x\r\nX-Evil: 1", "t\r\nX-Evil: 1"):
        done = qd("key", "list", "--url", "http://127.0.0.1:9", "--token", credential, "--json")
        assert json.loads(done.stderr)["error"] == "invalid_header"
        assert "Evil" not in done.stderr
