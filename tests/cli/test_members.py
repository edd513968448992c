"""`qd member`: the requests it sends and how it prints the replies, against a scripted server.

The effects in tmux are tested elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.cli_support import Qd, ScriptedServer, http_response, run_scripted_server

PLACEMENT = {"agent_id": 6, "tmux_pane_id": "%1", "coding_agent": "codex", "director_agent_id": 1}
MEMBER = {"agent_id": 6, "name": "alice", "registered_at": "2026-11-16T13:00:00.000Z", "placement": PLACEMENT}
CREATE = ("member", "create", "--agent-id", "1", "--name", "alice", "--description", "reviews")


@pytest.fixture
def qd(tmp_path: Path) -> Qd:
    return Qd(tmp_path / "data", QD_TOKEN="t", QD_FLEET_ID="1")


def sent_request(server: ScriptedServer, index: int = 0) -> tuple[str, dict[str, object]]:
    """Returns the request line without its version, and the body."""
    head, _, body = server.requests[index].partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode().removesuffix(" HTTP/1.1"), json.loads(body) if body else {}


def test_create_sends_director_prompt_and_pane(qd: Qd, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("You are {name}.\n")
    tmux_variables = {"TMUX": "/tmp/tmux,1000/default,4242,0", "TMUX_PANE": "%0"}
    options = ("--coding-agent", "codex", "--model", "m")
    with run_scripted_server(
        http_response(201, MEMBER), http_response(201, MEMBER), http_response(201, MEMBER)
    ) as server:
        url_option = ("--url", server.url)
        words = (*CREATE, *options, *url_option)
        assert qd.run(*words, "--", "look", "at --all", **tmux_variables) == "6 alice backend=codex pane=%1"
        assert qd.run_json(*words, "--prompt-file", str(prompt)) == MEMBER
        qd.run(*CREATE, *url_option)
        line, body = sent_request(server)
        fields = {"name": "alice", "description": "reviews", "director_id": 1}
        agent_fields = {"coding_agent": "codex", "model": "m"}
        assert line == "POST /api/v1/fleets/1/members"
        pane = {"socket": "/tmp/tmux,1000/default", "pane_id": "%0"}
        assert body == {**fields, **agent_fields, "prompt": "look at --all", "pane": pane}
        assert sent_request(server, 1)[1] == {**fields, **agent_fields, "prompt": "You are {name}.\n"}
        assert sent_request(server, 2)[1] == fields


def test_prompt_must_be_an_absolute_path_or_words_and_not_empty(qd: Qd, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    closed_port = ("--url", "http://127.0.0.1:9")
    for words in (("--prompt-file", "prompt.md"), ("--prompt-file", str(empty), "--", "x")):
        assert qd(*CREATE, *closed_port, *words).returncode == 2
    result = qd(*CREATE, *closed_port, "--prompt-file", str(empty))
    assert (result.returncode, result.stderr) == (1, f"Error: {empty} is empty\n")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"pane_id": "%7", "pane": "exited"}, "Pane %7 was closed."),
        ({"pane_id": "%7", "pane": "killed"}, "Pane %7 was killed."),
        ({"pane_id": "%7", "pane": "pane_gone"}, "Pane %7 no longer existed."),
        ({"pane_id": "%7", "pane": "other_host"}, "Pane %7 is on another host and was not closed."),
        ({"pane_id": None, "pane": None}, "The member had no pane."),
    ],
)
def test_delete_prints_what_happened_to_the_pane(qd: Qd, reply: Mapping[str, object], expected: str) -> None:
    with run_scripted_server(http_response(200, reply)) as server:
        output = qd.run("member", "delete", "--member-id", "6", "--force", "--url", server.url)
        assert sent_request(server)[0] == "DELETE /api/v1/fleets/1/members/6?force=true"
    assert output == f"Member deleted.\n{expected}"


def test_delete_timeout_prints_the_pane_text_and_exits_with_2(qd: Qd) -> None:
    problem = {
        "error": "member_still_there",
        "detail": "pane %7 did not close within 15 s after /exit",
        "frees": "qd member delete --force",
        "tail": "Really quit?\n \x1b[1m1.\x1b[0m yes\n\n\n",
    }
    with run_scripted_server(
        http_response(409, problem), http_response(409, {"error": "no_placement", "detail": "agent 6 has no pane"})
    ) as server:
        words = ("member", "delete", "--member-id", "6", "--url", server.url)
        timed_out = qd(*words)
        no_pane = qd(*words)
    assert (timed_out.returncode, timed_out.stdout) == (2, "")
    first, second, *tail = timed_out.stderr.splitlines()
    assert first == "Error: pane %7 did not close within 15 s after /exit"
    assert second == "    what frees it: qd member delete --force"
    assert tail == ["--- end of its pane ---", "Really quit?", " \\x1b[1m1.\\x1b[0m yes", "---"]
    assert (no_pane.returncode, no_pane.stderr) == (1, "Error: agent 6 has no pane\n")


def test_list_prints_panes_and_idle_times(qd: Qd) -> None:
    members = [
        {"agent_id": 1, "name": "Director", "status": "active", "kind": "user", "placement": None},
        {"agent_id": 2, "name": "Administrator", "status": "active", "kind": "builtin-administrator"},
        {**MEMBER, "status": "active", "kind": "user", "unread": 3},
    ]
    message = {"created_at": "2020-01-01T00:00:00.000Z", "status_timestamp": "2020-01-01T00:00:00.000Z"}
    nothing, one = http_response(200, {"messages": []}), http_response(200, {"messages": [message]})
    responses = (http_response(200, {"members": members}), nothing, nothing, nothing, one, nothing, one)
    with run_scripted_server(http_response(200, {"members": members}), *responses) as server:
        words = ("member", "list", "--url", server.url)
        rows = [line.split() for line in qd.run(*words).splitlines()]
        assert rows == [["ID", "NAME", "BACKEND", "PANE"], ["1", "Director", "-", "-"], ["6", "alice", "codex", "%1"]]
        header, director, alice = [line.split("  ") for line in qd.run(*words, "--activity").splitlines()]
        assert sent_request(server, -1)[0] == "GET /api/v1/fleets/1/members/6/inbox?status=completed&limit=1"
    assert header[-1].strip() == "IDLE"
    assert director[-1].strip() == "-"
    assert alice[-1].strip().endswith("h") or alice[-1].strip().endswith("d")


def test_capture_send_input_exec_and_ping_reach_the_pane(qd: Qd) -> None:
    typed = http_response(200, {"agent_id": 6, "pane_id": "%1"})
    screen = http_response(200, {"agent_id": 6, "pane_id": "%1", "text": "> _\x1b[0m\n"})
    with run_scripted_server(screen, typed, typed, typed) as server:
        member = ("--member-id", "6", "--url", server.url)
        assert qd.run("member", "capture", *member, "--lines", "5") == "> _\\x1b[0m"
        assert qd.run("member", "send-input", *member, "--text", "yes", "--no-enter") == "Typed into member 6 (%1)."
        assert qd.run("member", "exec", *member, "git log -1") == "Sent a command to member 6 (%1)."
        assert qd.run("member", "ping", *member) == "Pinged member 6 (%1)."
        assert sent_request(server)[0] == "GET /api/v1/fleets/1/members/6/capture?lines=5"
        assert sent_request(server, 1) == (
            "POST /api/v1/fleets/1/members/6/send-input",
            {"text": "yes", "enter": False},
        )
        assert sent_request(server, 2) == ("POST /api/v1/fleets/1/members/6/exec", {"text": "git log -1"})
        assert sent_request(server, 3) == ("POST /api/v1/fleets/1/members/6/ping", {})


@pytest.mark.parametrize(
    "words",
    [
        ("member", "capture"),
        ("member", "capture", "--member-id", "0"),
        ("member", "exec", "--member-id", "6"),
        ("member", "send-input", "--member-id", "6"),
        ("member", "send-input", "--member-id", "6", "--text", "a", "b"),
        ("member", "create", "--name", "a", "--description", "b"),
        ("message", "poll"),
        ("message", "send", "--to", "1", "--text", "x"),
        ("message", "ack", "--agent-id", "1"),
        ("message", "ack", "--agent-id", "1", "--task-id", "1", "--message-id", "2"),
        ("message", "send", "--agent-id", "1", "--to", "1"),
        ("message", "send", "--agent-id", "1", "--to", "1", "--text", "x", "-"),
        ("message", "send", "--agent-id", "1", "--to", "bob", "--text", "x"),
        ("fleet", "delete"),
    ],
)
def test_usage_error_exits_with_2_without_a_request(qd: Qd, words: tuple[str, ...]) -> None:
    result = qd(*words, "--url", "http://127.0.0.1:9")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr


def test_fleet_and_agent_ids_come_from_options_anywhere_or_environment(qd: Qd) -> None:
    empty = http_response(200, {"messages": []})
    lines = (
        ("--fleet-id", "8", "message", "poll", "--agent-id", "5"),
        ("message", "--fleet-id=8", "poll", "--agent-id=5"),
        ("message", "poll", "--agent-id", "5", "--fleet-id", "8"),
    )
    with run_scripted_server(empty, empty, empty, empty) as server:
        for words in lines:
            assert qd.run(*words, "--url", server.url) == "No messages found."
        qd.run("message", "poll", "--url", server.url, QD_AGENT_ID="5", QD_FLEET_ID="8")
        path = "GET /api/v1/fleets/8/members/5/inbox?status=input_required&order=desc&wait_ms=0"
        assert {sent_request(server, index)[0] for index in range(4)} == {path}
    refused = qd("message", "poll", QD_AGENT_ID="ada")
    assert (refused.returncode, "QD_AGENT_ID" in refused.stderr) == (2, True)
    assert qd("message", "poll", "--agent-id", "1", QD_FLEET_ID="").returncode == 2
