"""`qd fleet`, `qd message` and `qd agent --fleet-id`: exact output."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone

ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def fleet(zone_qd: Qd, zone: FreshZone) -> Qd:
    """`qd` in fleet 1: director 1, administrator 2, alice 3 and bob 4."""
    headers = {"Authorization": f"Bearer {zone.server.admin_token}", "X-Workspace-ID": zone.id}
    with httpx.Client(base_url=zone.server.url, headers=headers, trust_env=False) as client:
        for path, body in (
            ("/api/v1/fleets", {"label": "review"}),
            ("/api/v1/fleets/1/members", {"name": "alice", "description": "reviews"}),
            ("/api/v1/fleets/1/members", {"name": "bob", "description": "tests"}),
        ):
            client.post(path, json=body).raise_for_status()
    return Qd(zone_qd.data, QD_ZONE=zone.id, QD_FLEET_ID="1")


def run_with_stdin(qd: Qd, stdin: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        qd.command(words), env=qd.environment, input=stdin, capture_output=True, timeout=RUN_TIMEOUT_SECONDS
    )


def error_of(qd: Qd, *words: str) -> str:
    """Returns the error text of a command that must fail."""
    result = qd(*words)
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    assert result.stderr.startswith("Error: ")
    return result.stderr.removeprefix("Error: ").rstrip("\n")


# -- fleets ----------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_fleet_is_created_listed_shown_and_deleted(zone_qd: Qd) -> None:
    result = zone_qd("--json", "fleet", "create", "--label", "PR-42", "--no-pane")
    assert (result.returncode, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    assert ": " not in result.stdout.replace("Root Director of fleet 1", ""), "compact"
    reply = json.loads(result.stdout)
    assert [*reply] == ["fleet_id", "label", "created_at", "administrator_agent_id", "director"]
    assert [*reply["director"]] == ["agent_id", "name", "description", "registered_at", "placement"]
    assert (reply["fleet_id"], reply["label"], reply["administrator_agent_id"]) == (1, "PR-42", 2)
    assert (reply["director"]["agent_id"], reply["director"]["placement"]) == (1, None)
    assert reply["created_at"] == reply["director"]["registered_at"]
    assert zone_qd.run("fleet", "create", "--no-pane") == "2 director=3 admin=4"
    assert [item["fleet_id"] for item in zone_qd.run_json("fleet", "list")] == [2, 1]
    header, second, first = zone_qd.run("fleet", "list").splitlines()
    assert header.split() == ["ID", "DIRECTOR", "MEMBERS", "CREATED", "LABEL"]
    assert (first.split()[:3], first.split()[-1]) == (["1", "1", "2"], "PR-42")
    assert second.split()[:2] == ["2", "3"]
    assert re.search(r"^label +PR-42$", zone_qd.run("fleet", "show", "1"), re.MULTILINE)
    assert zone_qd.run_json("fleet", "show", QD_FLEET_ID="1") == zone_qd.run_json("fleet", "show", "1")
    assert zone_qd.run("fleet", "delete", "1") == "Deleted fleet 1. Deregistered 2 agents."
    assert zone_qd.run("fleet", "delete", "1") == "Deleted fleet 1. Deregistered 0 agents."
    assert [item["fleet_id"] for item in zone_qd.run_json("fleet", "list")] == [2]
    assert zone_qd.run_json("fleet", "show", "1")["deleted_at"]
    assert error_of(zone_qd, "agent", "register", "--name", "a", "--description", "b", "--fleet-id", "1") == (
        "fleet 1 is deleted"
    )
    assert error_of(zone_qd, "fleet", "delete", "7") == "fleet 7 not found."


def test_same_key_returns_the_same_fleet_and_full_prints_every_field(zone_qd: Qd) -> None:
    assert error_of(zone_qd, "fleet", "create", "--no-pane", "--coding-agent", "no-such").startswith(
        "Unknown coding agent 'no-such'. Configured: claude, "
    )
    words = ("fleet", "create", "--no-pane", "--coding-agent", "codex", "--key", "k")
    assert zone_qd.run(*words) == zone_qd.run(*words) == "1 director=1 admin=2"
    output = zone_qd.run(*words, "--full")
    assert re.search(r"^director\.agent_id +1$", output, re.MULTILINE)
    assert re.search(r"^deleted_at +-$", output, re.MULTILINE)


# -- agents of a fleet -----------------------------------------------------------------------------------------------


def test_fleet_members_are_registered_listed_shown_and_deregistered(fleet: Qd) -> None:
    words = ("agent", "register", "--name", "carol", "--description", "writes", "--skills", '[{"name": "prose"}]')
    reply = fleet.run_json(*words)
    assert fleet.run("agent", "register", "--name", "dave", "--description", "") == "6 dave"
    assert ([*reply], reply["agent_id"], reply["name"]) == (["agent_id", "name", "registered_at"], 5, "carol")
    assert fleet.run("agent", "list").splitlines() == [
        "1 Director active",
        "2 Administrator active",
        "3 alice active",
        "4 bob active",
        "5 carol active",
        "6 dave active",
    ]
    assert fleet.run("agent", "show", "5") == fleet.run("agent", "show", "--agent-id", "5") == "5 carol active"
    card = fleet.run_json("agent", "show", "5", "--full")["agent_card"]
    assert card["skills"] == [{"name": "prose"}]
    assert fleet.run_json("agent", "show", "2")["kind"] == "builtin-administrator"
    assert fleet.run("agent", "deregister", "5") == "Agent 5 deregistered."
    assert "carol" not in fleet.run("agent", "list")
    assert error_of(fleet, "agent", "deregister", "2") == "Administrator cannot be deregistered"
    assert error_of(fleet, "agent", "deregister", "1") == (
        "cannot deregister the root Director; use 'qd fleet delete' instead"
    )
    assert error_of(fleet, "agent", "deregister", "5") == "agent 5 is not a member of fleet 1."
    assert fleet("agent", "register", "ada").returncode == 2
    assert fleet("agent", "show", "ada").returncode == 2


def test_options_of_the_other_agent_kind_are_refused(zone_qd: Qd, fleet: Qd) -> None:
    register_words = ("register", "--name", "a", "--description", "b")
    for words in (
        (*register_words, "--capability", "x"),
        (*register_words, "--max-tasks", "0"),
        ("list", "--status", "TERMINATED"),
        ("list", "--limit", "1"),
        ("deregister", "3", "--graceful"),
        ("deregister", "3", "--reason", "r"),
    ):
        result = fleet("agent", *words)
        option = next(word for word in words if word.startswith("--") and word not in register_words)
        assert (result.returncode, result.stdout) == (2, ""), words
        assert f"{option} cannot be used with a fleet" in result.stderr
    for words in (("register", "ada", "--skills", "[]"), ("show", "fleet-1-3", "--agent-id", "3")):
        assert zone_qd("agent", *words).returncode == 2
    assert len(fleet.run("agent", "list", "--all").splitlines()) == 4
    assert error_of(fleet, "agent", "register", "--name", "", "--description", "b") == "--name is empty"
    assert zone_qd("agent", "deregister", "fleet-1-3").stderr.startswith("qd: Agent 'fleet-1-3' is a member of fleet 1")


def test_deregistered_members_and_deleted_fleets_cannot_read_messages(fleet: Qd) -> None:
    fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", "hello")
    follower = fleet.start("message", "follow", "--agent-id", "3", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["text"] == "hello"
    fleet.run("agent", "deregister", "3")
    not_a_member = "agent 3 is not a member of fleet 1."
    assert follower.communicate(timeout=RUN_TIMEOUT_SECONDS)[1].count(not_a_member) == 1
    assert follower.returncode == 1
    for words in (("poll",), ("poll", "--wait", "5m"), ("follow",), ("show", "--task-id", "1")):
        assert error_of(fleet, "message", *words, "--agent-id", "3") == not_a_member
    fleet.run("fleet", "delete", "1")
    for words in (("poll",), ("poll", "--wait", "5m"), ("follow",)):
        assert error_of(fleet, "message", *words, "--agent-id", "4") == "fleet 1 is deleted"
    assert fleet.run("agent", "list") == "No members found."
    assert fleet.run_json("agent", "list") == []


def test_without_a_fleet_id_agent_commands_use_the_registry(zone_qd: Qd, fleet: Qd) -> None:
    assert zone_qd.run("agent", "register", "ada") == "ada"
    assert "ada" in zone_qd.run("agent", "list")
    assert zone_qd.run_json("agent", "show", "ada")["status"] == "IDLE"
    assert zone_qd.run("agent", "deregister", "ada") == "Terminated agent ada."
    assert zone_qd("agent", "show").returncode == 2
    assert zone_qd.run_json("agent", "show", "fleet-1-3")["name"] == "alice", "fleet members are in the registry"
    assert "alice" in zone_qd.run("agent", "list", "--fleet-id", "1")


# -- sending, polling, acknowledging -----------------------------------------------------------------------------------


@ON_BOTH
def test_message_is_sent_polled_shown_and_acknowledged_once(fleet: Qd) -> None:
    sent = fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", "look at page 7")
    notice, envelope, body = sent.splitlines()
    assert (notice, body) == ("Message sent.", "look at page 7")
    assert re.fullmatch(rf"\[1 \| from:1 \| {ISO}\]", envelope)
    assert fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", "b", "--quiet") == "2"
    assert fleet.run("message", "poll", "--agent-id", "1") == "No messages found."
    assert fleet.run_json("message", "poll", "--agent-id", "1") == []
    second, first = fleet.run("message", "poll", QD_AGENT_ID="3").split("\n\n")
    assert (first, second.splitlines()[1]) == (f"{envelope}\nlook at page 7", "b")
    output = fleet("--json", "message", "poll", "--agent-id", "3", "--oldest-first", "--limit", "1").stdout
    [message] = json.loads(output)
    assert (output.count("\n"), [*message]) == (1, ["id", "from", "ts", "text"])
    assert (message["id"], message["from"], message["text"]) == (1, 1, "look at page 7")
    assert [entry["id"] for entry in fleet.run_json("message", "poll", "--agent-id", "3", "--after", "1")] == [2]
    assert fleet.run("message", "show", "--agent-id", "4", "--task-id", "1") == f"{envelope}\nlook at page 7"
    ack = ("message", "ack", "--agent-id", "3")
    assert error_of(fleet, "message", "ack", "--agent-id", "1", "--task-id", "1") == (
        "Only the recipient can ACK a task"
    )
    assert fleet.run(*ack, "--task-id", "1") == "Message acknowledged."
    assert error_of(fleet, *ack, "--message-id", "1") == "Cannot ACK task in state completed"
    assert fleet.run_json(*ack, "--message-id", "2")["id"] == 2
    assert fleet.run("message", "poll", "--agent-id", "3") == "No messages found."


def test_full_prints_all_ten_columns(fleet: Qd) -> None:
    reply = fleet.run_json("message", "send", "--agent-id", "1", "--to", "3", "--text", "hi", "--full")
    columns = ["task_id", "context_id", "from_agent_id", "to_agent_id", "type", "created_at", "status_state"]
    assert [*reply] == [*columns, "status_timestamp", "origin_task_id", "text"]
    created_at = reply["created_at"]
    assert [*reply.values()] == [1, 3, 1, 3, "unicast", created_at, "input_required", created_at, None, "hi"]
    lines = fleet.run("message", "poll", "--agent-id", "3", "--full").splitlines()
    assert lines[:3] == ["task_id: 1", "context_id: 3", "from_agent_id: 1"]
    assert lines[-1] == "text: hi"
    assert fleet("message", "send", "--to", "3", "--text", "x", "--full", "--quiet").returncode == 2


def test_broadcast_reaches_all_but_sender_and_administrator(fleet: Qd) -> None:
    words = ("message", "broadcast", "--agent-id", "3", "--text", "stop all")
    assert fleet.run(*words) == "broadcast id=1 recipients=2 delivered=0"
    reply = fleet.run_json(*words)
    assert (reply["id"], reply["kind"], reply["origin"]) == (4, "broadcast_summary", 4)
    assert (reply["text"], reply["recipients"], reply["delivered"]) == ("Broadcast sent to 2 recipients", 2, 0)
    [second, first] = fleet.run_json("message", "poll", "--agent-id", "4")
    assert (first["text"], first["origin"], second["origin"], "kind" in first) == ("stop all", 1, 4, False)
    assert fleet.run("message", "poll", "--agent-id", "4").splitlines()[0].endswith(" | origin:4]")
    summary = fleet.run("message", "show", "--task-id", "1").splitlines()
    assert summary[0].endswith(" | kind:broadcast_summary | origin:1]")
    assert fleet.run("message", "broadcast", "--agent-id", "2", "--text", "x") == (
        "broadcast id=7 recipients=3 delivered=0"
    ), "the administrator may send"


def test_only_the_sender_can_cancel_a_message(fleet: Qd) -> None:
    fleet.run("message", "send", "--agent-id", "3", "--to", "4", "--text", "hello")
    assert error_of(fleet, "message", "cancel", "--agent-id", "4", "--task-id", "1") == (
        "Only the sender can cancel a task"
    )
    assert fleet.run("message", "cancel", "--agent-id", "3", "--task-id", "1") == "Message canceled."
    assert error_of(fleet, "message", "ack", "--agent-id", "4", "--task-id", "1") == (
        "Cannot ACK task in state canceled"
    )


def test_failed_message_command_prints_an_error_and_exits_with_1(fleet: Qd) -> None:
    not_a_member = "agent 77 is not a member of fleet 1."
    for words, expected in (
        (("send", "--agent-id", "1", "--to", "77", "--text", "x"), "Destination agent not found: 77"),
        (("send", "--agent-id", "1", "--to", "2", "--text", "x"), "Administrator cannot receive messages"),
        (("send", "--agent-id", "77", "--to", "3", "--text", "x"), not_a_member),
        (("poll", "--agent-id", "77"), not_a_member),
        (("show", "--agent-id", "77", "--task-id", "1"), not_a_member),
        (("show", "--agent-id", "1", "--task-id", "77"), "Task 77 not found"),
        (("poll", "--agent-id", "1", "--fleet-id", "9"), "fleet 9 not found."),
        (("send", "--agent-id", "1", "--to", "3", "--text", ""), "the text is empty"),
        (("broadcast", "--agent-id", "1", "--text-file", "/dev/null"), "/dev/null is empty"),
        (("send", "--agent-id", "1", "--to", "3", "--text-file", "/no/file"), "/no/file: No such file or directory"),
    ):
        assert error_of(fleet, "message", *words) == expected


def test_json_error_is_a_problem_document(fleet: Qd) -> None:
    result = fleet("message", "ack", "--agent-id", "1", "--task-id", "5", "--json")
    assert (result.returncode, result.stdout) == (1, "")
    assert json.loads(result.stderr)["error"] == "message_not_found"


def test_monitor_config_takes_the_agent_from_option_or_environment(fleet: Qd) -> None:
    for words, environment in ((("--agent-id", "3"), {}), ((), {"QD_AGENT_ID": "3"})):
        assert fleet("monitor", "config", *words, **environment).stderr == "Error: agent 3 has no pane\n"
    assert fleet("monitor", "config").returncode == 2


# -- message texts ---------------------------------------------------------------------------------------------------


def test_long_text_is_clipped_unless_full(fleet: Qd) -> None:
    text = "\U0001f600" * 201 + "end"
    sent = fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", text)
    assert sent.splitlines()[2] == "\U0001f600" * 200 + "…"
    poll = ("message", "poll", "--agent-id", "3")
    [message] = fleet.run_json(*poll)
    assert message["text"] == "\U0001f600" * 200 + "…"
    assert fleet.run_json(*poll, QD_MAX_TEXT_LEN="2")[0]["text"] == "\U0001f600" * 2 + "…"
    assert fleet.run_json(*poll, QD_MAX_TEXT_LEN="204")[0]["text"] == text
    assert fleet.run_json(*poll, "--full")[0]["text"] == text
    assert fleet(*poll, QD_MAX_TEXT_LEN="many").returncode == 2


def test_text_is_read_unchanged_from_file_or_stdin(fleet: Qd, tmp_path: Path) -> None:
    text = 'it\'s "two" lines: $(true)\nand `more` ü\n'
    file = tmp_path / "text.txt"
    file.write_text(text)
    send = ("message", "send", "--agent-id", "1", "--to", "3", "--quiet")
    assert fleet.run(*send, "--text-file", str(file)) == "1"
    for words in (("-",), ("--text", "-"), ("--text-file", "-")):
        assert run_with_stdin(fleet, text.encode(), *send, *words).returncode == 0
        empty = run_with_stdin(fleet, b"", *send, *words)
        assert (empty.returncode, empty.stderr) == (1, b"Error: standard input is empty\n")
    assert [item["text"] for item in fleet.run_json("message", "poll", "--agent-id", "3")] == [text] * 4
    broken = run_with_stdin(fleet, b"\xff\xfe", *send, "-")
    assert (broken.returncode, broken.stderr) == (1, b"Error: standard input is not valid UTF-8\n")


def test_control_characters_in_a_message_are_escaped(fleet: Qd) -> None:
    fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", "a\x1b[2Jb\r\n\tc\u202e", "--quiet")
    assert fleet.run("message", "poll", "--agent-id", "3").splitlines()[1:] == ["a\\x1b[2Jb\\r", "\tc\\u202e"]
    assert fleet.run_json("message", "poll", "--agent-id", "3")[0]["text"] == "a\x1b[2Jb\r\n\tc\u202e"


def test_repeated_key_sends_the_message_once(fleet: Qd) -> None:
    send = ("message", "send", "--agent-id", "1", "--to", "3", "--text", "once", "--quiet", "--key", "k")
    assert fleet.run(*send) == fleet.run(*send) == "1"
    assert len(fleet.run_json("message", "poll", "--agent-id", "3")) == 1


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_poll_waits_for_a_message_up_to_its_wait_time(fleet: Qd) -> None:
    assert fleet.run("message", "poll", "--agent-id", "3", "--wait", "1") == "No messages found."
    waiter = fleet.start("message", "poll", "--agent-id", "3", "--wait", "5m", "--json")
    fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", "hello")
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stderr) == (0, "")
    assert [item["text"] for item in json.loads(stdout)] == ["hello"]


def test_follow_prints_waiting_and_new_messages_until_interrupted(fleet: Qd) -> None:
    send = ("message", "send", "--agent-id", "1", "--to", "3", "--text")
    fleet.run(*send, "first")
    fleet.run(*send, "second")
    follower = fleet.start("message", "follow", "--agent-id", "3", "--json")
    assert follower.stdout is not None
    assert [json.loads(follower.stdout.readline())["text"] for _ in range(2)] == ["first", "second"]
    fleet.run(*send, "third")
    assert json.loads(follower.stdout.readline())["text"] == "third"
    follower.send_signal(signal.SIGINT)
    assert follower.wait(RUN_TIMEOUT_SECONDS) == -signal.SIGINT
    follower.communicate()


# -- completion --------------------------------------------------------------------------------------------------------


def test_completion_offers_fleets_members_and_messages(fleet: Qd) -> None:
    fleet.run("message", "send", "--agent-id", "1", "--to", "3", "--text", "look", "--quiet")

    def completions(command_line: str, **environment: str) -> list[str]:
        words = command_line.split(" ")
        output = fleet.run(
            _QD_COMPLETE="bash_complete", COMP_WORDS=command_line, COMP_CWORD=str(len(words) - 1), **environment
        )
        return [entry.partition(",")[2] for entry in output.splitlines()]

    assert completions("qd fleet show ") == completions("qd --fleet-id ") == ["1"]
    assert completions("qd message send --to ") == ["1", "2", "3", "4"]
    assert completions("qd message send --to al") == ["3"], "a name is completed to its id"
    assert completions("qd --fleet-id 9 message send --to ") == []
    assert completions("qd message ack --agent-id 3 --task-id ") == ["1"]
    assert completions("qd message ack --task-id ", QD_AGENT_ID="4") == []
    assert completions("qd fleet show ", QD_DATA="/nowhere") == [], "completion starts no server"
