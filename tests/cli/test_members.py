"""`qd member`: what is asked of the server for a pane, and how its answers are told. What happens in tmux is tested
where tmux is; here the server is scripted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.cli_support import Qd, ScriptedServer, http_response, run_scripted_server

PLACEMENT = {"agent_id": 6, "tmux_pane_id": "%1", "coding_agent": "codex", "director_agent_id": 1}
MADE = {"agent_id": 6, "name": "alice", "registered_at": "2026-11-16T13:00:00.000Z", "placement": PLACEMENT}
CREATE = ("member", "create", "--agent-id", "1", "--name", "alice", "--description", "reviews")


@pytest.fixture
def qd(tmp_path: Path) -> Qd:
    return Qd(tmp_path / "data", QD_TOKEN="t", QD_FLEET_ID="1")


def asked(server: ScriptedServer, at: int = 0) -> tuple[str, dict[str, object]]:
    """The request line without its version, and the body."""
    head, _, body = server.requests[at].partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode().removesuffix(" HTTP/1.1"), json.loads(body) if body else {}


def test_a_member_is_created_beside_its_director_with_what_it_is_told_at_first(qd: Qd, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.md"
    prompt.write_text("You are {name}.\n")
    inside = {"TMUX": "/tmp/tmux,1000/default,4242,0", "TMUX_PANE": "%0"}
    options = ("--coding-agent", "codex", "--model", "m")
    with run_scripted_server(http_response(201, MADE), http_response(201, MADE), http_response(201, MADE)) as server:
        at = ("--url", server.url)
        words = (*CREATE, *options, *at)
        assert qd.run(*words, "--", "look", "at --all", **inside) == "6 alice backend=codex pane=%1"
        assert qd.run_json(*words, "--prompt-file", str(prompt)) == MADE
        qd.run(*CREATE, *at)
        line, body = asked(server)
        said = {"name": "alice", "description": "reviews", "director_id": 1}
        more = {"coding_agent": "codex", "model": "m"}
        assert line == "POST /api/v1/fleets/1/members"
        pane = {"socket": "/tmp/tmux,1000/default", "pane_id": "%0"}
        assert body == {**said, **more, "prompt": "look at --all", "pane": pane}
        assert asked(server, 1)[1] == {**said, **more, "prompt": "You are {name}.\n"}
        assert asked(server, 2)[1] == said


def test_a_prompt_is_a_whole_path_or_words_and_says_something(qd: Qd, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    nowhere = ("--url", "http://127.0.0.1:9")
    for words in (("--prompt-file", "prompt.md"), ("--prompt-file", str(empty), "--", "x")):
        assert qd(*CREATE, *nowhere, *words).returncode == 2
    done = qd(*CREATE, *nowhere, "--prompt-file", str(empty))
    assert (done.returncode, done.stderr) == (1, f"Error: {empty} is empty\n")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"pane_id": "%7", "pane": "exited"}, "Pane %7 has closed."),
        ({"pane_id": "%7", "pane": "killed"}, "Pane %7 was killed."),
        ({"pane_id": "%7", "pane": "pane_gone"}, "Pane %7 was gone already."),
        ({"pane_id": "%7", "pane": "other_host"}, "Pane %7 is on another host, and was left alone."),
        ({"pane_id": None, "pane": None}, "It had no pane."),
    ],
)
def test_delete_says_what_became_of_the_pane(qd: Qd, told: Mapping[str, object], said: str) -> None:
    with run_scripted_server(http_response(200, told)) as server:
        shown = qd.run("member", "delete", "--member-id", "6", "--force", "--url", server.url)
        assert asked(server)[0] == "DELETE /api/v1/fleets/1/members/6?force=true"
    assert shown == f"Member deleted.\n{said}"


def test_a_member_that_does_not_leave_in_time_is_told_of_with_its_pane_and_exits_with_2(qd: Qd) -> None:
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
        late = qd(*words)
        other = qd(*words)
    assert (late.returncode, late.stdout) == (2, "")
    first, second, *tail = late.stderr.splitlines()
    assert first == "Error: pane %7 did not close within 15 s after /exit"
    assert second == "    what frees it: qd member delete --force"
    assert tail == ["--- the last of its pane ---", "Really quit?", " \\x1b[1m1.\\x1b[0m yes", "---"]
    assert (other.returncode, other.stderr) == (1, "Error: agent 6 has no pane\n")


def test_the_list_tells_of_panes_and_when_each_was_last_heard_of(qd: Qd) -> None:
    members = [
        {"agent_id": 1, "name": "Director", "status": "active", "kind": "user", "placement": None},
        {"agent_id": 2, "name": "Administrator", "status": "active", "kind": "builtin-administrator"},
        {**MADE, "status": "active", "kind": "user", "unread": 3},
    ]
    message = {"created_at": "2020-01-01T00:00:00.000Z", "status_timestamp": "2020-01-01T00:00:00.000Z"}
    nothing, one = http_response(200, {"messages": []}), http_response(200, {"messages": [message]})
    answers = (http_response(200, {"members": members}), nothing, nothing, nothing, one, nothing, one)
    with run_scripted_server(http_response(200, {"members": members}), *answers) as server:
        words = ("member", "list", "--url", server.url)
        plain = [line.split() for line in qd.run(*words).splitlines()]
        assert plain == [["ID", "NAME", "BACKEND", "PANE"], ["1", "Director", "-", "-"], ["6", "alice", "codex", "%1"]]
        heads, director, alice = [line.split("  ") for line in qd.run(*words, "--activity").splitlines()]
        assert asked(server, -1)[0] == "GET /api/v1/fleets/1/members/6/inbox?status=completed&limit=1"
    assert heads[-1].strip() == "IDLE"
    assert director[-1].strip() == "-"
    assert alice[-1].strip().endswith("h") or alice[-1].strip().endswith("d")


def test_a_pane_is_looked_at_and_typed_into(qd: Qd) -> None:
    typed = http_response(200, {"agent_id": 6, "pane_id": "%1"})
    screen = http_response(200, {"agent_id": 6, "pane_id": "%1", "text": "> _\x1b[0m\n"})
    with run_scripted_server(screen, typed, typed, typed) as server:
        to = ("--member-id", "6", "--url", server.url)
        assert qd.run("member", "capture", *to, "--lines", "5") == "> _\\x1b[0m"
        assert qd.run("member", "send-input", *to, "--text", "yes", "--no-enter") == "Typed into member 6 (%1)."
        assert qd.run("member", "exec", *to, "git log -1") == "Sent a command to member 6 (%1)."
        assert qd.run("member", "ping", *to) == "Pinged member 6 (%1)."
        assert asked(server)[0] == "GET /api/v1/fleets/1/members/6/capture?lines=5"
        assert asked(server, 1) == ("POST /api/v1/fleets/1/members/6/send-input", {"text": "yes", "enter": False})
        assert asked(server, 2) == ("POST /api/v1/fleets/1/members/6/exec", {"text": "git log -1"})
        assert asked(server, 3) == ("POST /api/v1/fleets/1/members/6/ping", {})


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
def test_a_wrong_command_line_exits_with_2_and_asks_nobody(qd: Qd, words: tuple[str, ...]) -> None:
    done = qd(*words, "--url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr


def test_who_acts_and_where_is_said_before_or_after_the_words_or_by_the_environment(qd: Qd) -> None:
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
        assert {asked(server, at)[0] for at in range(4)} == {path}
    wrong = qd("message", "poll", QD_AGENT_ID="ada")
    assert (wrong.returncode, "QD_AGENT_ID" in wrong.stderr) == (2, True)
    assert qd("message", "poll", "--agent-id", "1", QD_FLEET_ID="").returncode == 2
