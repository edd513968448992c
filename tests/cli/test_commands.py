"""Every command against a real server that the first of them started by itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
from base64 import urlsafe_b64decode as b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarterdeck import __version__
from quarterdeck.client.data_dir import DataDir
from tests.cli.cli_support import Qd, http_response, run_scripted_server

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    program = Qd(tmp_path_factory.mktemp("qd") / "data")
    yield program
    program.end_server()


@pytest.fixture
def fresh_qd(tmp_path: Path) -> Iterator[Qd]:
    """`qd` with a directory for this test alone, where nothing runs yet."""
    program = Qd(tmp_path / "data")
    yield program
    program.end_server()


@pytest.fixture(scope="module")
def session_tree(qd: Qd) -> list[str]:
    """A root, two children, and a grandchild under the first of them."""
    root = qd.run("session", "spawn", "--app", "lead", "--ttl", "2h")
    first = qd.run("session", "spawn", "--app", "worker", "--parent", root)
    second = qd.run("session", "spawn", "--app", "worker", "--parent", root)
    return [root, first, second, qd.run("session", "spawn", "--app", "worker", "--parent", first)]


def on_a_terminal(qd: Qd, *words: str, **environment: str) -> str:
    """What a command writes when its stdout is a terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        qd.command(words), env={**qd.environment, "TERM": "xterm", **environment}, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    told = b""
    try:
        while chunk := os.read(ours, 65536):
            told += chunk
    except OSError:
        pass  # Linux says "input/output error" where the other side of a terminal is gone
    finally:
        os.close(ours)
    assert process.wait(60) == 0, told
    return told.decode().replace("\r\n", "\n")


# -- sessions
# ---------------------------------------------------------------------------------------------------


def test_spawn_prints_the_id_alone_so_that_the_next_command_can_use_it(qd: Qd) -> None:
    assert ID.fullmatch(qd.run("session", "spawn", "--app", "demo"))


def test_spawn_hands_on_everything_that_was_said(qd: Qd) -> None:
    words = ["--app", "demo", "--ttl", "15m", "--capability", "read", "--capability", "write", "--kind", "ephemeral"]
    told = qd.run_json("session", "spawn", *words, "--metadata", '{"purpose": "test"}', "--sid", "sign-in")
    assert told["ttl_seconds"] == 900
    assert told["capabilities"] == ["read", "write"]
    assert told["metadata"] == {"purpose": "test"}
    assert (told["kind"], told["session_sid"]) == ("ephemeral", "sign-in")


def test_spawning_again_with_the_same_key_gives_the_same_session(qd: Qd) -> None:
    once = qd.run("session", "spawn", "--app", "demo", "--key", "only once")
    assert qd.run("session", "spawn", "--app", "demo", "--key", "only once") == once


def test_show_tells_one_session(qd: Qd, session_tree: list[str]) -> None:
    shown = qd.run("session", "show", session_tree[1])
    assert re.search(rf"^parent_id +{session_tree[0]}$", shown, re.MULTILINE)
    assert re.search(r"^expires_at .*Z \(in \d+m", shown, re.MULTILINE)
    assert qd.run_json("session", "show", session_tree[1])["parent_id"] == session_tree[0]


def test_list_filters_by_application_parent_root_and_status(qd: Qd, session_tree: list[str]) -> None:
    def ids(*words: str) -> set[str]:
        return {item["id"] for item in qd.run_json("session", "list", *words)["items"]}

    assert ids("--parent", session_tree[0]) == set(session_tree[1:3])
    assert ids("--root", session_tree[0]) == set(session_tree)
    assert ids("--root", session_tree[0], "--app", "lead") == {session_tree[0]}
    assert not ids("--root", session_tree[0], "--status", "terminated") & set(session_tree)


def test_list_draws_a_table_and_says_how_to_see_more(qd: Qd, session_tree: list[str]) -> None:
    done = qd("session", "list", "--root", session_tree[0], "--limit", "1")
    heads, row = done.stdout.splitlines()
    assert heads.split() == ["ID", "APPLICATION", "STATUS", "DEPTH", "PARENT", "AGE", "LIFE"]
    assert row.split()[0] in session_tree
    assert "--cursor" in done.stderr


def test_a_cursor_continues_and_all_follows_every_page(qd: Qd, session_tree: list[str]) -> None:
    first = qd.run_json("session", "list", "--root", session_tree[0], "--limit", "3")
    rest = qd.run_json("session", "list", "--root", session_tree[0], "--limit", "3", "--cursor", first["next_cursor"])
    every = qd.run_json("session", "list", "--root", session_tree[0], "--limit", "1", "--all")
    ids = [item["id"] for page in (first, rest) for item in page["items"]]
    assert sorted(ids) == sorted(session_tree)
    assert [item["id"] for item in every["items"]] == ids
    assert every["next_cursor"] is None


def test_an_empty_list_says_so(qd: Qd) -> None:
    assert qd.run("session", "list", "--app", "nobody") == "no such sessions in zone default"


def test_tree_draws_the_branches(qd: Qd, session_tree: list[str]) -> None:
    root, first, second, grandchild = session_tree
    drawn = qd.run("session", "tree", root).splitlines()
    assert [line.split("  worker")[0].split("  lead")[0].rstrip() for line in drawn] == [
        root,
        f"├─ {first}",
        f"│  └─ {grandchild}",
        f"└─ {second}",
    ]
    assert all("active" in line and "left" in line for line in drawn)
    assert "\x1b" not in "".join(drawn)


def test_a_tree_is_coloured_on_a_terminal_unless_one_would_rather_not(qd: Qd, session_tree: list[str]) -> None:
    assert "\x1b[32mactive" in on_a_terminal(qd, "session", "tree", session_tree[0])
    assert "\x1b" not in on_a_terminal(qd, "session", "tree", session_tree[0], NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(qd, "session", "tree", session_tree[0], "--no-color")
    assert "\x1b" not in on_a_terminal(qd, "session", "tree", session_tree[0], TERM="dumb")


def test_a_tree_is_plain_where_box_lines_cannot_be_shown(qd: Qd, session_tree: list[str]) -> None:
    assert f"`- {session_tree[2]}" in qd.run("session", "tree", session_tree[0], PYTHONIOENCODING="ascii")


def test_stop_ends_a_session_and_all_below_it_and_may_be_repeated(qd: Qd) -> None:
    root = qd.run("session", "spawn", "--app", "demo")
    child = qd.run("session", "spawn", "--app", "demo", "--parent", root)
    receipt = qd.run_json("session", "stop", root, "--reason", "done", "--receipt")
    assert (receipt["stopped"], receipt["reason"]) == (2, "done")
    assert qd.run_json("session", "show", child)["status"] == "terminated"
    assert qd.run("session", "stop", root) == f"stopped {root}"
    assert qd.run_json("session", "stop", root) == {"id": root, "status": "terminated"}


# -- zones and events
# -------------------------------------------------------------------------------------------


def test_zones_are_created_listed_and_shown(qd: Qd) -> None:
    assert qd.run("zone", "create", "acme", "--name", "Acme & Sons", "--set", "max_depth=2") == "created zone acme"
    assert qd.run("zone", "create", "acme") == "there already is a zone acme"
    assert {"acme", "default"} <= {zone["id"] for zone in qd.run_json("zone", "list")["items"]}
    assert "Acme & Sons" in qd.run("zone", "list")
    assert qd.run_json("zone", "show", "acme")["name"] == "Acme & Sons"
    assert qd.run_json("zone", "show")["id"] == "default"
    assert qd.run_json("zone", "show", QD_ZONE="acme")["id"] == "acme"


def test_zones_are_listed_to_the_last_page(fresh_qd: Qd) -> None:
    def page(number: int, cursor: str | None) -> bytes:
        return http_response(200, {"items": [{"id": f"zone-{number}"}], "next_cursor": cursor})

    pages = [page(1, "a"), page(2, "b"), page(3, None)]
    with run_scripted_server(*pages, *pages) as server:
        told = fresh_qd.run_json("zone", "list", "--url", server.url, "--token", "t")
        assert [zone["id"] for zone in told["items"]] == ["zone-1", "zone-2", "zone-3"]
        shown = fresh_qd.run("zone", "list", "--url", server.url, "--token", "t")
        assert [line.split()[0] for line in shown.splitlines()[1:]] == ["zone-1", "zone-2", "zone-3"]
        asked = [request.partition(b"\r\n")[0] for request in server.requests]
    assert asked[1] == b"GET /zones?limit=500&cursor=a HTTP/1.1"


def test_the_log_of_an_automatic_start_has_no_line_per_request(fresh_qd: Qd) -> None:
    fresh_qd.run("zone", "list")
    fresh_qd.run("stop")
    assert "/zones" not in (fresh_qd.data / "server.log").read_text()


def test_quotas_show_limit_and_use_and_can_be_set_and_unset(qd: Qd) -> None:
    qd.run("zone", "create", "small")
    qd.run("session", "spawn", "--zone", "small", "--app", "demo")
    shown = qd.run("zone", "quotas", "small", "--set", "max_sessions=7", "--set", "max_depth=3")
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in shown.splitlines()}
    assert rows["max_sessions"] == ["7", "1", "this zone"]
    assert rows["max_depth"] == ["3", "-", "this zone"]
    assert rows["max_children"][2] == "default"
    assert qd.run_json("zone", "quotas", "small", "--set", "max_depth=default")["overrides"] == {"max_sessions": 7}


def test_events_tell_what_happened_in_order(qd: Qd, session_tree: list[str]) -> None:
    told = qd.run_json("events", "--subject", session_tree[0])
    assert [(event["type"], event["to"]) for event in told["items"]] == [("session.spawn", "active")]
    every = [event["pos"] for event in qd.run_json("events", "list")["items"]]
    assert every == sorted(every)
    after = [event["pos"] for event in qd.run_json("events", "--after", str(every[0]), "--limit", "2")["items"]]
    assert after == every[1:3]
    assert "session.spawn" in qd.run("events")


def test_events_can_be_filtered_by_several_types(qd: Qd, session_tree: list[str]) -> None:
    told = qd.run_json("events", "--type", "zone.create", "--type", "session.spawn")
    assert {event["type"] for event in told["items"]} == {"zone.create", "session.spawn"}
    assert qd.run_json("events", "--type", "no.such")["items"] == []


# -- how commands fail
# --------------------------------------------------------------------------------------------


def test_a_refusal_by_a_bound_exits_with_3_and_names_the_bound(qd: Qd) -> None:
    qd.run("zone", "create", "tiny", "--set", "max_sessions=1")
    qd.run("session", "spawn", "--zone", "tiny", "--app", "demo")
    refused = qd("session", "spawn", "--zone", "tiny", "--app", "demo")
    assert (refused.returncode, refused.stdout) == (3, "")
    first, second = refused.stderr.splitlines()
    assert first.startswith("qd: ")
    assert second.startswith("    max_sessions: limit 1, used 1; what frees it: ")
    told = json.loads(qd("session", "spawn", "--zone", "tiny", "--app", "demo", "--json").stderr)
    assert (told["error"], told["bound"], told["status"]) == ("agent_zone_limit_exceeded", "max_sessions", 429)


def test_what_is_not_there_exits_with_4(qd: Qd) -> None:
    missing = qd("session", "show", "nobody")
    assert missing.returncode == 4
    assert missing.stderr.startswith("qd: ")
    assert qd("session", "tree", "nobody").returncode == 4
    assert json.loads(qd("--json", "session", "show", "nobody").stderr)["error"] == "agent_not_found"


def test_a_wrong_value_exits_with_1_and_a_wrong_command_line_with_2(qd: Qd) -> None:
    refused = qd("zone", "quotas", "--set", "max_depth=100000")
    assert refused.returncode == 1
    assert "max_depth" in refused.stderr
    wrong = qd("session", "shwo", "x")
    assert wrong.returncode == 2
    assert "qd session show" in wrong.stderr
    assert json.loads(qd("session", "shwo", "x", "--json").stderr)["error"] == "usage"


def test_a_server_that_does_not_answer_in_time_exits_with_5(qd: Qd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = qd("session", "list", "--url", url, "--token", "t", "--timeout", "0.2")
    assert done.returncode == 5
    assert "did not answer within 0.2 s" in done.stderr


def test_an_address_without_a_server_fails_and_starts_none(fresh_qd: Qd) -> None:
    done = fresh_qd("session", "list", "--url", "http://127.0.0.1:1", "--token", "t")
    assert done.returncode == 1
    assert "No server answers" in done.stderr
    assert not fresh_qd.data.exists()


def test_the_admin_token_is_not_sent_to_an_address_that_is_not_its_server(qd: Qd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        done = qd("session", "list", "--url", f"http://127.0.0.1:{stranger.getsockname()[1]}")
    assert done.returncode == 1
    assert "QD_TOKEN" in done.stderr


def test_a_token_that_is_not_believed_is_refused_with_a_sentence(qd: Qd) -> None:
    done = qd("session", "list", "--token", "rubbish", "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr)["status"] == 401


def test_a_directory_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = Qd(tmp_path / "file" / "data")("session", "list")
    assert done.returncode == 1
    assert done.stderr.startswith("qd: ")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(qd: Qd, session_tree: list[str]) -> None:
    process = qd.start("session", "list", "--all", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) == -signal.SIGPIPE


def test_a_full_disk_is_a_failure_and_no_traceback(qd: Qd) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has a disk that is always full")
    for words in (["version"], ["--version"], ["zone", "list"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(qd.command(words), env=qd.environment, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert done.stderr == "qd: No space left on device.\n"


def test_a_closed_stdout_swallows_the_answer_and_no_more(qd: Qd) -> None:
    for word in ("version", "--version"):
        line = shlex.join(qd.command([word])) + " >&-"
        done = subprocess.run(["sh", "-c", line], env=qd.environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_the_command_as_that_signal_does_and_without_a_word(qd: Qd, session_tree: list[str]) -> None:
    process = qd.start("logs", "--follow", "--lines", "1")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (-signal.SIGINT, "")


# -- the server
# -----------------------------------------------------------------------------------------------------


def test_status_tells_where_the_server_is(qd: Qd, session_tree: list[str]) -> None:
    told = qd.run_json("status")
    assert (told["running"], told["ready"], told["database"]) == (True, True, "sqlite")
    assert told["data"] == str(qd.data)
    assert re.search(r"^status +ready$", qd.run("status"), re.MULTILINE)
    assert qd.run_json("status", "--url", told["url"])["ready"] is True


def test_the_server_can_be_reached_by_its_address_and_a_token(qd: Qd, session_tree: list[str]) -> None:
    url = qd.run_json("status")["url"]
    token = qd.run("token", "--app", "lead", "--ttl", "10m")
    assert token.count(".") == 2
    assert qd.run_json("session", "show", session_tree[0], QD_URL=url, QD_TOKEN=token)["id"] == session_tree[0]
    # Its own address needs no token beside the directory's.
    assert qd.run_json("session", "show", session_tree[0], "--url", url)["id"] == session_tree[0]


def test_a_token_is_for_the_zone_that_the_environment_names(qd: Qd, session_tree: list[str]) -> None:
    url = qd.run_json("status")["url"]
    qd.run("zone", "create", "other")
    token = qd.run("token", "--app", "demo", QD_ZONE="other")
    assert qd("session", "list", "--zone", "other", "--url", url, "--token", token).returncode == 0
    refused = qd("session", "list", "--zone", "default", "--url", url, "--token", token, "--json")
    assert json.loads(refused.stderr)["error"] == "zone_mismatch"


def test_a_token_says_the_role_and_the_agent_it_was_asked_for(qd: Qd, session_tree: list[str]) -> None:
    def said(*words: str) -> dict[str, object]:
        claims: dict[str, object] = json.loads(b64decode(qd.run("token", *words).split(".")[1] + "=="))
        return claims

    ruling = said("--role", "admin")
    assert (ruling["role"], ruling["sub"], ruling["scope"]) == ("ADMIN", "local", "agent:lifecycle")
    agent = said("--agent", "a1")
    assert (agent["agent_id"], agent["sub"], agent["scope"]) == ("a1", "agent:a1", "agent:lifecycle")
    assert qd("token", "--role", "root").returncode == 2


def test_the_log_of_an_automatic_start_is_printed_from_its_end(qd: Qd, session_tree: list[str]) -> None:
    whole = (qd.data / "server.log").read_text().splitlines()
    shown = qd.run("logs", "--lines", "3").splitlines()
    assert len(shown) == 3
    assert qd.run("logs", "-n", "1000").splitlines()[: len(whole)] == whole
    assert all(isinstance(json.loads(line), dict) for line in qd.run("logs", "--json").splitlines())


def test_what_is_done_where_the_server_runs_is_refused_for_an_address(qd: Qd, session_tree: list[str]) -> None:
    for word in ("stop", "logs"):
        refused = qd(word, QD_URL="http://127.0.0.1:1")
        assert refused.returncode == 2
        assert "http://127.0.0.1:1 was given" in refused.stderr
    assert qd("status").returncode == 0


def test_where_nothing_ever_ran_status_stop_and_logs_say_so_and_start_nothing(fresh_qd: Qd) -> None:
    status = fresh_qd("status")
    assert (status.returncode, "not running" in status.stdout) == (1, True)
    assert fresh_qd.run_json("stop") == {"stopped": False, "running": False, "data": str(fresh_qd.data)}
    assert fresh_qd("logs").returncode == 4
    assert not fresh_qd.data.exists()


def test_commands_at_once_start_one_server_and_stop_waits_for_its_end(fresh_qd: Qd) -> None:
    running = [fresh_qd.start("session", "spawn", "--app", f"a{at}") for at in range(4)]
    told = [process.communicate(timeout=90) for process in running]
    assert [process.returncode for process in running] == [0] * 4, told
    assert sum("starting one" in err for _, err in told) == 1
    place, record = DataDir(str(fresh_qd.data)), fresh_qd.run_json("status")
    assert fresh_qd.run_json("stop")["pid"] == record["pid"]
    assert not place.has_running_server()
    assert fresh_qd("status").returncode == 1
    # The sessions were durable, and the next command brings the server back.
    assert len(fresh_qd.run_json("session", "list")["items"]) == 4


def test_a_killed_server_is_brought_back_by_the_next_command_with_all_it_had_answered(fresh_qd: Qd) -> None:
    session = fresh_qd.run("session", "spawn", "--app", "demo")
    fresh_qd.end_server(signal.SIGKILL)
    assert fresh_qd("status").returncode == 1
    assert fresh_qd.run_json("session", "show", session)["status"] == "active"


def test_up_serves_until_stop_and_a_second_one_is_refused(fresh_qd: Qd) -> None:
    serving = fresh_qd.start("up", "--port", "0")
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith("ready http://127.0.0.1:")
    second = fresh_qd("up", "--port", "0")
    assert (second.returncode, "Another server runs" in second.stderr) == (1, True)
    assert fresh_qd.run_json("status")["pid"] == serving.pid, "the process was replaced, not wrapped"
    assert fresh_qd.run_json("stop")["pid"] == serving.pid
    serving.communicate(timeout=60)
    assert serving.returncode == 0


def test_settings_and_schema_are_told_without_a_server(fresh_qd: Qd) -> None:
    assert fresh_qd.run_json("config", "show", PORT="7")["port"] == {"value": "7", "source": "PORT"}
    plain = fresh_qd.run_json("config", "show", "--only-own-variables", PORT="7")
    assert plain["port"] == {"value": "4000", "source": "default"}
    assert fresh_qd("db", "status").returncode == 1
    fresh_qd.data.mkdir()
    fresh_qd.run("db", "upgrade")
    assert "up to date" in fresh_qd.run("db", "status")


# -- the program itself
# ---------------------------------------------------------------------------------------------


def test_the_version_is_told_by_option_and_by_command(fresh_qd: Qd) -> None:
    assert fresh_qd.run("--version") == fresh_qd.run("version") == f"quarterdeck {__version__}"
    assert fresh_qd.run_json("version") == {"version": __version__}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_completion_script(fresh_qd: Qd, shell: str) -> None:
    assert "_QD_COMPLETE" in fresh_qd.run("completion", shell)


def test_completion_offers_commands_options_and_choices(fresh_qd: Qd) -> None:
    def offered(line: str) -> set[str]:
        words = line.split(" ")
        answer = fresh_qd.run(_QD_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
        return {one.partition(",")[2] for one in answer.splitlines()}

    assert {"session", "zone", "events"} <= offered("qd ")
    assert offered("qd session s") == {"spawn", "show", "suspend", "stop"}
    assert offered("qd session list --st") == {"--status"}
    assert offered("qd session list --status ") == {"active", "suspended", "terminated"}
    assert offered("qd --json completion z") == {"zsh"}
