"""Every command against a real server that the first command starts."""

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
from tests.cli.cli_support import Qd, http_response, run_qd, run_scripted_server

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    with run_qd(tmp_path_factory.mktemp("qd") / "data") as program:
        yield program


@pytest.fixture(scope="module")
def session_tree(qd: Qd) -> list[str]:
    """A root, two children, and a child of the first child."""
    root = qd.run("session", "spawn", "--app", "lead", "--ttl", "2h")
    first = qd.run("session", "spawn", "--app", "worker", "--parent", root)
    second = qd.run("session", "spawn", "--app", "worker", "--parent", root)
    return [root, first, second, qd.run("session", "spawn", "--app", "worker", "--parent", first)]


def terminal_output(qd: Qd, *words: str, **environment: str) -> str:
    """Returns what a command prints when its stdout is a terminal."""
    master_fd, terminal_fd = os.openpty()
    process = subprocess.Popen(
        qd.command(words),
        env={**qd.environment, "TERM": "xterm", **environment},
        stdout=terminal_fd,
        stderr=terminal_fd,
    )
    os.close(terminal_fd)
    output = b""
    try:
        while chunk := os.read(master_fd, 65536):
            output += chunk
    except OSError:
        pass  # Linux raises EIO when the other end of a terminal is closed.
    finally:
        os.close(master_fd)
    assert process.wait(60) == 0, output
    return output.decode().replace("\r\n", "\n")


# -- sessions
# ---------------------------------------------------------------------------------------------------


def test_spawn_prints_only_the_session_id(qd: Qd) -> None:
    assert ID.fullmatch(qd.run("session", "spawn", "--app", "demo"))


def test_spawn_sends_every_option(qd: Qd) -> None:
    words = ["--app", "demo", "--ttl", "15m", "--capability", "read", "--capability", "write", "--kind", "ephemeral"]
    reply = qd.run_json("session", "spawn", *words, "--metadata", '{"purpose": "test"}', "--sid", "sign-in")
    assert reply["ttl_seconds"] == 900
    assert reply["capabilities"] == ["read", "write"]
    assert reply["metadata"] == {"purpose": "test"}
    assert (reply["kind"], reply["session_sid"]) == ("ephemeral", "sign-in")


def test_spawn_with_the_same_key_returns_the_same_session(qd: Qd) -> None:
    first = qd.run("session", "spawn", "--app", "demo", "--key", "key-1")
    assert qd.run("session", "spawn", "--app", "demo", "--key", "key-1") == first


def test_show_prints_one_session(qd: Qd, session_tree: list[str]) -> None:
    output = qd.run("session", "show", session_tree[1])
    assert re.search(rf"^parent_id +{session_tree[0]}$", output, re.MULTILINE)
    assert re.search(r"^expires_at .*Z \(in \d+m", output, re.MULTILINE)
    assert qd.run_json("session", "show", session_tree[1])["parent_id"] == session_tree[0]


def test_list_filters_by_application_parent_root_and_status(qd: Qd, session_tree: list[str]) -> None:
    def ids(*words: str) -> set[str]:
        return {item["id"] for item in qd.run_json("session", "list", *words)["items"]}

    assert ids("--parent", session_tree[0]) == set(session_tree[1:3])
    assert ids("--root", session_tree[0]) == set(session_tree)
    assert ids("--root", session_tree[0], "--app", "lead") == {session_tree[0]}
    assert not ids("--root", session_tree[0], "--status", "terminated") & set(session_tree)


def test_list_prints_a_table_and_a_cursor_hint(qd: Qd, session_tree: list[str]) -> None:
    result = qd("session", "list", "--root", session_tree[0], "--limit", "1")
    header, row = result.stdout.splitlines()
    assert header.split() == ["ID", "APPLICATION", "STATUS", "DEPTH", "PARENT", "AGE", "EXPIRY"]
    assert row.split()[0] in session_tree
    assert "--cursor" in result.stderr


def test_cursor_continues_the_list_and_all_fetches_every_page(qd: Qd, session_tree: list[str]) -> None:
    first = qd.run_json("session", "list", "--root", session_tree[0], "--limit", "3")
    rest = qd.run_json("session", "list", "--root", session_tree[0], "--limit", "3", "--cursor", first["next_cursor"])
    all_pages = qd.run_json("session", "list", "--root", session_tree[0], "--limit", "1", "--all")
    ids = [item["id"] for page in (first, rest) for item in page["items"]]
    assert sorted(ids) == sorted(session_tree)
    assert [item["id"] for item in all_pages["items"]] == ids
    assert all_pages["next_cursor"] is None


def test_empty_list_prints_a_message(qd: Qd) -> None:
    assert qd.run("session", "list", "--app", "no-such-app") == "No sessions found in zone default."


def test_tree_draws_branches(qd: Qd, session_tree: list[str]) -> None:
    root, first, second, grandchild = session_tree
    lines = qd.run("session", "tree", root).splitlines()
    assert [line.split("  worker")[0].split("  lead")[0].rstrip() for line in lines] == [
        root,
        f"├─ {first}",
        f"│  └─ {grandchild}",
        f"└─ {second}",
    ]
    assert all("active" in line and "left" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_tree_is_colored_on_a_terminal_unless_color_is_disabled(qd: Qd, session_tree: list[str]) -> None:
    assert "\x1b[32mactive" in terminal_output(qd, "session", "tree", session_tree[0])
    assert "\x1b" not in terminal_output(qd, "session", "tree", session_tree[0], NO_COLOR="1")
    assert "\x1b" not in terminal_output(qd, "session", "tree", session_tree[0], "--no-color")
    assert "\x1b" not in terminal_output(qd, "session", "tree", session_tree[0], TERM="dumb")


def test_tree_uses_ascii_lines_without_a_unicode_encoding(qd: Qd, session_tree: list[str]) -> None:
    assert f"`- {session_tree[2]}" in qd.run("session", "tree", session_tree[0], PYTHONIOENCODING="ascii")


def test_stop_terminates_the_session_and_its_descendants_and_is_idempotent(qd: Qd) -> None:
    root = qd.run("session", "spawn", "--app", "demo")
    child = qd.run("session", "spawn", "--app", "demo", "--parent", root)
    receipt = qd.run_json("session", "stop", root, "--reason", "done", "--receipt")
    assert (receipt["stopped"], receipt["reason"]) == (2, "done")
    assert qd.run_json("session", "show", child)["status"] == "terminated"
    assert qd.run("session", "stop", root) == f"Stopped session {root}."
    assert qd.run_json("session", "stop", root) == {"id": root, "status": "terminated"}


# -- zones and events
# -------------------------------------------------------------------------------------------


def test_zones_are_created_listed_and_shown(qd: Qd) -> None:
    assert qd.run("zone", "create", "acme", "--name", "Acme & Sons", "--set", "max_depth=2") == "Created zone acme."
    assert qd.run("zone", "create", "acme") == "Zone acme already exists."
    assert {"acme", "default"} <= {zone["id"] for zone in qd.run_json("zone", "list")["items"]}
    assert "Acme & Sons" in qd.run("zone", "list")
    assert qd.run_json("zone", "show", "acme")["name"] == "Acme & Sons"
    assert qd.run_json("zone", "show")["id"] == "default"
    assert qd.run_json("zone", "show", QD_ZONE="acme")["id"] == "acme"


def test_zone_list_fetches_every_page(fresh_qd: Qd) -> None:
    def page(number: int, cursor: str | None) -> bytes:
        return http_response(200, {"items": [{"id": f"zone-{number}"}], "next_cursor": cursor})

    pages = [page(1, "a"), page(2, "b"), page(3, None)]
    with run_scripted_server(*pages, *pages) as server:
        reply = fresh_qd.run_json("zone", "list", "--url", server.url, "--token", "t")
        assert [zone["id"] for zone in reply["items"]] == ["zone-1", "zone-2", "zone-3"]
        output = fresh_qd.run("zone", "list", "--url", server.url, "--token", "t")
        assert [line.split()[0] for line in output.splitlines()[1:]] == ["zone-1", "zone-2", "zone-3"]
        request_lines = [request.partition(b"\r\n")[0] for request in server.requests]
    assert request_lines[1] == b"GET /zones?limit=500&cursor=a HTTP/1.1"


def test_auto_started_server_does_not_log_requests(fresh_qd: Qd) -> None:
    fresh_qd.run("zone", "list")
    fresh_qd.run("stop")
    assert "/zones" not in (fresh_qd.data / "server.log").read_text()


def test_quotas_print_limit_and_usage_and_can_be_set_and_reset(qd: Qd) -> None:
    qd.run("zone", "create", "small")
    qd.run("session", "spawn", "--zone", "small", "--app", "demo")
    output = qd.run("zone", "quotas", "small", "--set", "max_sessions=7", "--set", "max_depth=3")
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in output.splitlines()}
    assert rows["max_sessions"] == ["7", "1", "this zone"]
    assert rows["max_depth"] == ["3", "-", "this zone"]
    assert rows["max_children"][2] == "default"
    assert qd.run_json("zone", "quotas", "small", "--set", "max_depth=default")["overrides"] == {"max_sessions": 7}


def test_events_are_listed_in_log_order(qd: Qd, session_tree: list[str]) -> None:
    reply = qd.run_json("events", "--subject", session_tree[0])
    assert [(event["type"], event["to"]) for event in reply["items"]] == [("session.spawn", "active")]
    positions = [event["pos"] for event in qd.run_json("events", "list")["items"]]
    assert positions == sorted(positions)
    after = [event["pos"] for event in qd.run_json("events", "--after", str(positions[0]), "--limit", "2")["items"]]
    assert after == positions[1:3]
    assert "session.spawn" in qd.run("events")


def test_events_filter_by_several_types(qd: Qd, session_tree: list[str]) -> None:
    reply = qd.run_json("events", "--type", "zone.create", "--type", "session.spawn")
    assert {event["type"] for event in reply["items"]} == {"zone.create", "session.spawn"}
    assert qd.run_json("events", "--type", "no.such")["items"] == []


# -- how commands fail
# --------------------------------------------------------------------------------------------


def test_exceeded_bound_exits_with_3_and_names_the_bound(qd: Qd) -> None:
    qd.run("zone", "create", "tiny", "--set", "max_sessions=1")
    qd.run("session", "spawn", "--zone", "tiny", "--app", "demo")
    refused = qd("session", "spawn", "--zone", "tiny", "--app", "demo")
    assert (refused.returncode, refused.stdout) == (3, "")
    first, second = refused.stderr.splitlines()
    assert first.startswith("qd: ")
    assert second.startswith("    max_sessions: limit 1, used 1; what frees it: ")
    problem = json.loads(qd("session", "spawn", "--zone", "tiny", "--app", "demo", "--json").stderr)
    assert (problem["error"], problem["bound"], problem["status"]) == ("agent_zone_limit_exceeded", "max_sessions", 429)


def test_missing_object_exits_with_4(qd: Qd) -> None:
    missing = qd("session", "show", "no-such-session")
    assert missing.returncode == 4
    assert missing.stderr.startswith("qd: ")
    assert qd("session", "tree", "no-such-session").returncode == 4
    assert json.loads(qd("--json", "session", "show", "no-such-session").stderr)["error"] == "agent_not_found"


def test_invalid_value_exits_with_1_and_usage_error_with_2(qd: Qd) -> None:
    refused = qd("zone", "quotas", "--set", "max_depth=100000")
    assert refused.returncode == 1
    assert "max_depth" in refused.stderr
    usage_error = qd("session", "shwo", "x")
    assert usage_error.returncode == 2
    assert "qd session show" in usage_error.stderr
    assert json.loads(qd("session", "shwo", "x", "--json").stderr)["error"] == "usage"


def test_request_timeout_exits_with_5(qd: Qd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        url = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        result = qd("session", "list", "--url", url, "--token", "t", "--timeout", "0.2")
    assert result.returncode == 5
    assert "did not answer within 0.2 s" in result.stderr


def test_unreachable_url_fails_and_starts_no_server(fresh_qd: Qd) -> None:
    result = fresh_qd("session", "list", "--url", "http://127.0.0.1:1", "--token", "t")
    assert result.returncode == 1
    assert "Cannot connect to" in result.stderr
    assert not fresh_qd.data.exists()


def test_admin_token_is_not_sent_to_another_server(qd: Qd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        result = qd("session", "list", "--url", f"http://127.0.0.1:{other_server.getsockname()[1]}")
    assert result.returncode == 1
    assert "QD_TOKEN" in result.stderr


def test_invalid_token_is_refused_with_401(qd: Qd) -> None:
    result = qd("session", "list", "--token", "not-a-token", "--json")
    assert result.returncode == 1
    assert json.loads(result.stderr)["status"] == 401


def test_uncreatable_data_directory_is_reported_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = Qd(tmp_path / "file" / "data")("session", "list")
    assert result.returncode == 1
    assert result.stderr.startswith("qd: ")
    assert "Traceback" not in result.stderr


def test_closed_output_pipe_ends_the_command_silently(qd: Qd, session_tree: list[str]) -> None:
    process = qd.start("session", "list", "--all", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) == -signal.SIGPIPE


def test_full_disk_is_reported_without_traceback(qd: Qd) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("only Linux has /dev/full")
    for words in (["version"], ["--version"], ["zone", "list"]):
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                qd.command(words), env=qd.environment, stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert result.returncode == 1
        assert result.stderr == "qd: No space left on device.\n"


def test_closed_stdout_discards_the_output_without_error(qd: Qd) -> None:
    for word in ("version", "--version"):
        line = shlex.join(qd.command([word])) + " >&-"
        result = subprocess.run(["sh", "-c", line], env=qd.environment, capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")


def test_ctrl_c_ends_the_command_by_sigint_without_output(qd: Qd, session_tree: list[str]) -> None:
    process = qd.start("logs", "--follow", "--lines", "1")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (-signal.SIGINT, "")


# -- the server
# -----------------------------------------------------------------------------------------------------


def test_status_prints_the_server_location(qd: Qd, session_tree: list[str]) -> None:
    reply = qd.run_json("status")
    assert (reply["running"], reply["ready"], reply["database"]) == (True, True, "sqlite")
    assert reply["data"] == str(qd.data)
    assert re.search(r"^status +ready$", qd.run("status"), re.MULTILINE)
    assert qd.run_json("status", "--url", reply["url"])["ready"] is True


def test_server_is_reachable_by_url_and_token(qd: Qd, session_tree: list[str]) -> None:
    url = qd.run_json("status")["url"]
    token = qd.run("token", "--app", "lead", "--ttl", "10m")
    assert token.count(".") == 2
    assert qd.run_json("session", "show", session_tree[0], QD_URL=url, QD_TOKEN=token)["id"] == session_tree[0]
    # For the server's own address the token of the data directory is used.
    assert qd.run_json("session", "show", session_tree[0], "--url", url)["id"] == session_tree[0]


def test_token_is_issued_for_the_zone_of_the_environment(qd: Qd, session_tree: list[str]) -> None:
    url = qd.run_json("status")["url"]
    qd.run("zone", "create", "other")
    token = qd.run("token", "--app", "demo", QD_ZONE="other")
    assert qd("session", "list", "--zone", "other", "--url", url, "--token", token).returncode == 0
    refused = qd("session", "list", "--zone", "default", "--url", url, "--token", token, "--json")
    assert json.loads(refused.stderr)["error"] == "zone_mismatch"


def test_token_contains_the_requested_role_and_agent(qd: Qd, session_tree: list[str]) -> None:
    def claims_of(*words: str) -> dict[str, object]:
        claims: dict[str, object] = json.loads(b64decode(qd.run("token", *words).split(".")[1] + "=="))
        return claims

    admin = claims_of("--role", "admin")
    assert (admin["role"], admin["sub"], admin["scope"]) == ("ADMIN", "local", "agent:lifecycle")
    agent = claims_of("--agent", "a1")
    assert (agent["agent_id"], agent["sub"], agent["scope"]) == ("a1", "agent:a1", "agent:lifecycle")
    assert qd("token", "--role", "root").returncode == 2


def test_logs_prints_the_last_lines_of_the_server_log(qd: Qd, session_tree: list[str]) -> None:
    log_lines = (qd.data / "server.log").read_text().splitlines()
    printed = qd.run("logs", "--lines", "3").splitlines()
    assert len(printed) == 3
    assert qd.run("logs", "-n", "1000").splitlines()[: len(log_lines)] == log_lines
    assert all(isinstance(json.loads(line), dict) for line in qd.run("logs", "--json").splitlines())


def test_stop_and_logs_refuse_a_remote_url(qd: Qd, session_tree: list[str]) -> None:
    for word in ("stop", "logs"):
        refused = qd(word, QD_URL="http://127.0.0.1:1")
        assert refused.returncode == 2
        assert "QD_URL (http://127.0.0.1:1)" in refused.stderr
    assert qd("status").returncode == 0


def test_status_stop_and_logs_without_a_server_start_nothing(fresh_qd: Qd) -> None:
    status = fresh_qd("status")
    assert (status.returncode, "not running" in status.stdout) == (1, True)
    assert fresh_qd.run_json("stop") == {"stopped": False, "running": False, "data": str(fresh_qd.data)}
    assert fresh_qd("logs").returncode == 4
    assert not fresh_qd.data.exists()


def test_concurrent_commands_start_one_server_and_stop_waits_for_its_exit(fresh_qd: Qd) -> None:
    running = [fresh_qd.start("session", "spawn", "--app", f"a{number}") for number in range(4)]
    outputs = [process.communicate(timeout=90) for process in running]
    assert [process.returncode for process in running] == [0] * 4, outputs
    assert sum("starting one" in err for _, err in outputs) == 1
    data_dir, record = DataDir(str(fresh_qd.data)), fresh_qd.run_json("status")
    assert fresh_qd.run_json("stop")["pid"] == record["pid"]
    assert not data_dir.has_running_server()
    assert fresh_qd("status").returncode == 1
    # The sessions are durable; the next command starts the server again.
    assert len(fresh_qd.run_json("session", "list")["items"]) == 4


def test_next_command_restarts_a_killed_server_without_data_loss(fresh_qd: Qd) -> None:
    session = fresh_qd.run("session", "spawn", "--app", "demo")
    fresh_qd.end_server(signal.SIGKILL)
    assert fresh_qd("status").returncode == 1
    assert fresh_qd.run_json("session", "show", session)["status"] == "active"


def test_up_runs_until_stop_and_a_second_server_is_refused(fresh_qd: Qd) -> None:
    serving = fresh_qd.start("up", "--port", "0")
    assert serving.stdout is not None
    assert serving.stdout.readline().startswith("ready http://127.0.0.1:")
    second = fresh_qd("up", "--port", "0")
    assert (second.returncode, "Another server is running" in second.stderr) == (1, True)
    assert fresh_qd.run_json("status")["pid"] == serving.pid, "the process was replaced, not wrapped"
    assert fresh_qd.run_json("stop")["pid"] == serving.pid
    serving.communicate(timeout=60)
    assert serving.returncode == 0


def test_config_and_db_status_need_no_server(fresh_qd: Qd) -> None:
    assert fresh_qd.run_json("config", "show", PORT="7")["port"] == {"value": "7", "source": "PORT"}
    own_only = fresh_qd.run_json("config", "show", "--only-own-variables", PORT="7")
    assert own_only["port"] == {"value": "4000", "source": "default"}
    assert fresh_qd("db", "status").returncode == 1
    fresh_qd.data.mkdir()
    fresh_qd.run("db", "upgrade")
    assert "up to date" in fresh_qd.run("db", "status")


# -- the program itself
# ---------------------------------------------------------------------------------------------


def test_version_is_printed_by_option_and_command(fresh_qd: Qd) -> None:
    assert fresh_qd.run("--version") == fresh_qd.run("version") == f"quarterdeck {__version__}"
    assert fresh_qd.run_json("version") == {"version": __version__}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion_script(fresh_qd: Qd, shell: str) -> None:
    assert "_QD_COMPLETE" in fresh_qd.run("completion", shell)


def test_completion_offers_commands_options_and_choices(fresh_qd: Qd) -> None:
    def completions(command_line: str) -> set[str]:
        words = command_line.split(" ")
        output = fresh_qd.run(_QD_COMPLETE="bash_complete", COMP_WORDS=command_line, COMP_CWORD=str(len(words) - 1))
        return {line.partition(",")[2] for line in output.splitlines()}

    assert {"session", "zone", "events"} <= completions("qd ")
    assert completions("qd session s") == {"spawn", "show", "suspend", "stop"}
    assert completions("qd session list --st") == {"--status"}
    assert completions("qd session list --status ") == {"active", "suspended", "terminated"}
    assert completions("qd --json completion z") == {"zsh"}
