"""`qd task`, `qd agent`, `qd cost`, `qd budget`, `qd coordinator` and `qd role`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd, run_on_terminal
from tests.support.engine_marks import ON_BOTH
from tests.support.eventually import eventually_sync
from tests.support.zone import FreshZone


def add_task(qd: Qd, title: str, *words: str) -> str:
    return qd.run("task", "add", title, "--type", "build", *words)


def claim_task(qd: Qd, agent: str = "ada", *words: str) -> dict[str, Any]:
    """Claims the only available task."""
    [lease] = qd.run_json("agent", "claim", agent, *words)["tasks"]
    assert isinstance(lease, dict)
    return lease


def open_streams(zone: FreshZone) -> float:
    metrics = httpx.get(f"{zone.server.url}/metrics", trust_env=False).text
    [line] = [line for line in metrics.splitlines() if line.startswith("quarterdeck_streams_open{")]
    return float(line.rpartition(" ")[2])


def write_task_file(folder: Path, *tasks: object) -> str:
    file = folder / "tasks.jsonl"
    file.write_text("".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in tasks))
    return str(file)


# -- adding --------------------------------------------------------------------------------------------------------


def test_add_prints_only_the_id_and_is_idempotent_by_key(zone_qd: Qd) -> None:
    first = add_task(zone_qd, "first")
    words = ["--priority", "8", "--input", '{"page": 7}', "--depends-on", first, "--tag", "a", "--tag", "b"]
    words += ["--capability", "python", "--max-retries", "1", "--backoff", "2m", "--deadline", "1h"]
    words += ["--estimate", "30", "--run-at", "+10m", "--metadata", '{"source": "test"}']
    task_id = add_task(zone_qd, "second", *words)
    reply = zone_qd.run_json("task", "show", task_id)
    assert (reply["title"], reply["taskType"], reply["status"], reply["priority"]) == ("second", "build", "PENDING", 8)
    assert (reply["dependsOn"], reply["tags"], reply["requiredCapabilities"]) == ([first], ["a", "b"], ["python"])
    assert (reply["maxRetries"], reply["retryBackoffSeconds"], reply["timeoutSeconds"]) == (1, 120, 3_600)
    assert (reply["inputContext"], reply["metadata"]) == ({"page": 7}, {"source": "test"})
    assert reply["estimatedDurationMinutes"] == 30
    same = [add_task(zone_qd, "same", "--key", "k2") for _ in range(2)]
    assert same[0] == same[1]
    assert add_task(zone_qd, "other") != add_task(zone_qd, "other"), "without a key every command creates a task"
    assert zone_qd.run_json("task", "show", first)["blocks"] == [task_id]


def test_add_suggests_the_next_command_only_on_a_terminal(zone_qd: Qd) -> None:
    result = run_on_terminal(zone_qd, "task", "add", "x", "--type", "build")
    assert re.search(r"`qd task wait [^ ]+`\.", result.output)
    assert zone_qd("task", "add", "x", "--type", "build").stderr == ""


def test_add_refuses_missing_dependencies_cycles_and_used_ids(zone_qd: Qd) -> None:
    result = zone_qd("task", "add", "x", "--type", "build", "--depends-on", "no-such")
    assert (result.returncode, result.stdout) == (1, "")
    assert "'no-such', which does not exist" in result.stderr
    first = add_task(zone_qd, "first", "--id", "t1")
    second = add_task(zone_qd, "second", "--id", "t2", "--depends-on", first)
    cycle = zone_qd("task", "set", first, "--depends-on", second)
    assert cycle.returncode == 1
    assert "t1 → t2 → t1" in cycle.stderr
    duplicate = zone_qd("task", "add", "x", "--type", "build", "--id", "t1", "--json")
    assert json.loads(duplicate.stderr)["error"] == "task_exists"


def test_add_file_creates_a_task_per_line_and_reports_refused_lines(zone_qd: Qd, tmp_path: Path) -> None:
    file = write_task_file(
        tmp_path,
        {"id": "build", "title": "build"},
        "",
        {"id": "test", "title": "test", "dependsOn": ["build"], "taskType": "check"},
        {"title": "lost", "dependsOn": ["no-such"]},
    )
    result = zone_qd("task", "add", "--file", file, "--type", "build", "--priority", "7")
    assert (result.returncode, result.stdout) == (1, "build\ntest\n")
    assert re.search(r"tasks\.jsonl, line 4: .*'no-such'", result.stderr)
    reply = zone_qd.run_json("task", "show", "test")
    assert (reply["taskType"], reply["priority"], reply["dependsOn"]) == ("check", 7, ["build"])
    command = zone_qd.command(["task", "add", "--file", "-", "--type", "build", "--json"])
    lines = '{"title": "piped"}\n' * 3
    piped = subprocess.run(command, env=zone_qd.environment, input=lines, capture_output=True, text=True)
    assert [item["title"] for item in json.loads(piped.stdout)["items"]] == ["piped"] * 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: not valid JSON"),
        ("[]", "line 2: not a JSON object"),
        ('{"title": 5}', "line 2: Expected `str`, got `int`"),
    ],
)
def test_invalid_line_in_a_file_adds_no_tasks(zone_qd: Qd, tmp_path: Path, line: str, expected: str) -> None:
    result = zone_qd("task", "add", "--type", "build", "--file", write_task_file(tmp_path, {"title": "good"}, line))
    assert result.returncode in (1, 2)
    assert expected in result.stderr
    assert zone_qd.run_json("task", "list")["items"] == []


# -- lists ---------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_list_filters_and_prints_progress(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    low = add_task(zone_qd, "low", "--priority", "2", "--tag", "x")
    high = add_task(zone_qd, "high", "--priority", "9", "--tag", "x", "--tag", "y")
    lease = claim_task(zone_qd)
    assert lease["id"] == high
    token = ("--attempt-token", lease["attemptToken"])
    assert zone_qd.run("task", "progress", high, "--percent", "40", "--step", "testing", *token) == f"{high} is at 40%."
    header, *rows = zone_qd.run("task", "list").splitlines()
    assert header.split() == ["ID", "TYPE", "STATUS", "PRIORITY", "PROGRESS", "RETRIES", "AGENT", "AGE", "TITLE"]
    cells = [re.split("  +", row) for row in rows]
    assert [item[:7] for item in cells] == [
        [high, "build", "RUNNING", "9", "40%", "0/3", "ada"],
        [low, "build", "PENDING", "2", "0%", "0/3", "-"],
    ]
    for words, expected in (
        (("--status", "running"), [high]),
        (("--priority", "3"), [high]),
        (("--tag", "x"), [high, low]),
        (("--tag", "x", "--tag", "y"), [high]),
        (("--agent", "ada"), [high]),
        (("--type", "other"), []),
        (("--since", "10m"), [high, low]),
        (("--limit", "1", "--all"), [high, low]),
    ):
        assert [item["id"] for item in zone_qd.run_json("task", "list", *words)["items"]] == expected, words
    page = zone_qd("task", "list", "--limit", "1")
    assert "Use --all, or --cursor " in page.stderr
    assert zone_qd.run("task", "list", "--status", "failed").startswith("No tasks found in zone")


# -- waiting -------------------------------------------------------------------------------------------------------


def test_wait_prints_the_result_when_the_task_ends(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    task = add_task(zone_qd, "work")
    waiter = zone_qd.start("task", "wait", task)
    eventually_sync(lambda: open_streams(zone) > 0, "the waiter opened an event stream")
    token = ("--attempt-token", claim_task(zone_qd)["attemptToken"])
    assert zone_qd.run("task", "complete", task, "--result", '{"pages": 3}', *token) == f"{task} is COMPLETED."
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stderr) == (0, "")
    assert json.loads(stdout) == {"pages": 3}
    assert zone_qd.run_json("task", "wait", task)["status"] == "COMPLETED"


def test_wait_for_several_tasks_fails_if_one_failed(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada", "--max-tasks", "2")
    good, bad = add_task(zone_qd, "good"), add_task(zone_qd, "bad", "--max-retries", "0")
    late = zone_qd("task", "wait", good, bad, "--timeout", "0.3")
    assert late.returncode == 5
    assert "2 tasks have not ended within 0.3 s" in late.stderr
    tokens = {
        item["id"]: item["attemptToken"] for item in zone_qd.run_json("agent", "claim", "ada", "--max", "2")["tasks"]
    }
    zone_qd.run("task", "complete", good, "--summary", "all well", "--attempt-token", tokens[good])
    zone_qd.run("task", "fail", bad, "--error", "no such page", "--attempt-token", tokens[bad])
    result = zone_qd("task", "wait", good, bad)
    assert result.returncode == 1
    header, first, second = [re.split("  +", line) for line in result.stdout.splitlines()]
    assert header == ["ID", "STATUS", "DURATION", "TITLE", "RESULT"]
    assert (first[0], first[1], first[4]) == (good, "COMPLETED", "all well")
    assert (second[0], second[1]) == (bad, "FAILED")
    assert second[4].endswith("no such page")
    single = zone_qd("task", "wait", bad)
    assert (single.returncode, single.stdout) == (1, "")
    assert re.fullmatch(r"qd: The task is FAILED: .*no such page\n", single.stderr)
    assert zone_qd("task", "wait", "no-such").returncode == 4


def test_wait_shows_progress_on_a_terminal_and_clears_it_at_the_end(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = add_task(zone_qd, "work")
    token = claim_task(zone_qd)["attemptToken"]
    zone_qd.run("task", "progress", task, "--percent", "45", "--step", "testing", "--attempt-token", token)
    result = run_on_terminal(zone_qd, "task", "wait", task, "--timeout", "0.5")
    assert result.code == 5
    assert "]  45%  running    work · testing\n" in result.output
    cleared, _, rest = result.output.rpartition("\x1b[J")
    assert cleared
    assert rest.startswith(f"qd: Task {task} has not ended")


def test_add_with_wait_prints_the_result_and_the_id_on_stderr(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    waiter = zone_qd.start("task", "add", "work", "--type", "build", "--wait")
    lease = claim_task(zone_qd, "ada", "--wait", "30")
    zone_qd.run("task", "complete", lease["id"], "--result", "done", "--attempt-token", lease["attemptToken"])
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stdout, stderr) == (0, '"done"\n', f"qd: Added task {lease['id']}.\n")


# -- state changes-------------------------------------------------------------------------------------------------


def test_tasks_are_paused_resumed_completed_canceled_retried_and_archived(zone_qd: Qd) -> None:
    first, second = add_task(zone_qd, "first"), add_task(zone_qd, "second")
    assert zone_qd.run("task", "pause", first, second) == f"{first} is PAUSED.\n{second} is PAUSED."
    assert zone_qd.run("task", "resume", first) == f"{first} is PENDING."
    assert zone_qd.run("task", "complete", second) == f"{second} is COMPLETED.", (
        "a paused task can be completed by a user"
    )
    assert zone_qd.run("task", "cancel", first, "--reason", "not needed") == f"{first} is ABORTED."
    canceled = zone_qd("task", "wait", first)
    assert (canceled.returncode, canceled.stderr) == (1, "qd: The task is ABORTED: not needed\n")
    assert zone_qd.run("task", "retry", first) == f"{first} is PENDING."
    assert zone_qd.run_json("task", "archive", second)["status"] == "ARCHIVED"
    refused = zone_qd("task", "archive", first, "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "task_state_conflict")


def test_fail_prints_the_next_retry_and_a_stale_token_is_refused(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = add_task(zone_qd, "work", "--backoff", "10m")
    token = ("--attempt-token", claim_task(zone_qd)["attemptToken"])
    output = zone_qd.run("task", "fail", task, "--error", "timeout", *token)
    assert re.fullmatch(rf"{task} is (FAILED|ABORTED)\. Retry 1 of 3 is due in .*\.", output)
    stale = zone_qd("task", "complete", task, *token, "--json")
    assert (stale.returncode, json.loads(stale.stderr)["error"]) == (1, "stale_attempt")


# -- logs, trees, costs --------------------------------------------------------------------------------------------


def test_task_log_contains_transitions_and_agent_entries(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = add_task(zone_qd, "work", "--max-retries", "0")
    token = ("--attempt-token", claim_task(zone_qd)["attemptToken"])
    assert zone_qd.run("task", "say", task, "half way", "--level", "warn", "--details", '{"n": 1}', *token)
    zone_qd.run("task", "fail", task, "--error", "boom", *token)
    lines = zone_qd.run("task", "logs", task).splitlines()
    levels = [line.split()[1] for line in lines]
    assert levels[:3] == ["INFO", "INFO", "WARN"]
    assert {*levels[3:]} <= {"ERROR", "CRITICAL"}
    assert lines[2].endswith('half way  {"n": 1}')
    assert "PENDING → RUNNING" in lines[1]
    assert "RUNNING → FAILED" in "".join(lines[3:])
    assert zone_qd.run("task", "logs", task, "--level", "warn").endswith('half way  {"n": 1}')
    assert zone_qd.run("task", "logs", task, "-n", "1") == lines[-1]
    assert zone_qd.run("task", "logs", task, "--since", "2100-01-01") == ""
    entries = [json.loads(line) for line in zone_qd.run("task", "logs", task, "--json").splitlines()]
    assert [item["message"] for item in entries if item["event"] == "log"] == ["half way"]


def test_followed_log_prints_new_entries(zone_qd: Qd) -> None:
    task = add_task(zone_qd, "work")
    follower = zone_qd.start("task", "logs", task, "--follow", "--json")
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["newStatus"] == "PENDING"
        zone_qd.run("task", "pause", task)
        assert json.loads(follower.stdout.readline())["newStatus"] == "PAUSED"
        zone_qd.run("task", "complete", task)
        assert json.loads(follower.stdout.readline())["newStatus"] == "COMPLETED"
    finally:
        follower.kill()
        follower.communicate(timeout=RUN_TIMEOUT_SECONDS)


@ON_BOTH
def test_explain_and_tree_show_the_dependencies_of_a_task(zone_qd: Qd) -> None:
    first = add_task(zone_qd, "first", "--id", "one")
    second = add_task(zone_qd, "second", "--id", "two", "--depends-on", first)
    output = zone_qd.run("explain", "task", second)
    assert output.splitlines()[0] == "task two, second (build): PENDING"
    assert "'one' (PENDING" in output
    assert "\nwhat happens next:\n" in output
    assert zone_qd.run("task", "explain", second) == output
    assert zone_qd.run_json("explain", "task", second)["code"] == "dependencies"
    lines = zone_qd.run("task", "tree", second, LC_ALL="C.UTF-8").splitlines()
    assert lines == ["two        PENDING  second", "└─ depends on", "   └─ one  PENDING  first"]
    lines = zone_qd.run("task", "tree", first, LC_ALL="C.UTF-8").splitlines()
    assert lines == ["one        PENDING  first", "└─ blocks", "   └─ two  PENDING  second"]


def test_costs_are_summed_and_a_spent_budget_blocks_claims(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada", "--max-tasks", "2")
    task = add_task(zone_qd, "expensive")
    lease = claim_task(zone_qd)
    costs = [{"model": "large", "inputTokens": 1_000, "outputTokens": 200, "usd": 0.25}]
    response = httpx.post(
        f"{zone.server.url}/api/v1/agent-tasks/{task}/complete",
        json={"attemptToken": lease["attemptToken"], "costs": costs},
        headers={"Authorization": f"Bearer {zone.token()}"},
        trust_env=False,
    )
    assert response.status_code == 200, response.text
    header, row = [re.split("  +", line) for line in zone_qd.run("cost", "--by", "model", "--since", "1d").splitlines()]
    assert (header, row) == (["MODEL", "USD", "TOKENS IN", "TOKENS OUT"], ["large", "0.2500", "1000", "200"])
    assert [item["key"] for item in zone_qd.run_json("cost", "--by", "task")["items"]] == [task]
    assert zone_qd.run("budget", "set", "--usd", "0.2") == "Set the budget for the zone, per month."
    zone_qd.run("budget", "set", "--scope", "type", "--for", "other", "--tokens", "50", "--period", "total")
    rows = zone_qd.run("budget", "list").splitlines()
    assert re.search(r"the zone, per month +0\.2000 +0\.2500 +- +1200 +spent", "\n".join(rows))
    blocked = add_task(zone_qd, "over budget")
    assert zone_qd.run_json("agent", "claim", "ada")["tasks"] == []
    assert zone_qd.run_json("explain", "task", blocked)["code"] == "budget_spent"
    assert zone_qd.run("budget", "remove", "--period", "month") == "Removed the budget for the zone, per month."
    assert zone_qd("budget", "remove", "--period", "month").returncode == 4
    assert claim_task(zone_qd, "ada", "--wait", "10")["id"] == blocked


def test_claim_uses_only_the_named_capabilities(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada", "--capability", "go", "--capability", "rust")
    needs_go, needs_rust = (add_task(zone_qd, word, "--capability", word) for word in ("go", "rust"))
    assert claim_task(zone_qd, "ada", "--capability", "rust", "--max", "500")["id"] == needs_rust
    assert zone_qd.run_json("agent", "claim", "ada", "--capability", "rust")["tasks"] == []
    zone_qd.run("agent", "register", "bob", "--capability", "go")
    assert claim_task(zone_qd, "bob")["id"] == needs_go


def test_coordinator_reports_status_and_takes_a_strategy(zone_qd: Qd, zone: FreshZone) -> None:
    add_task(zone_qd, "waits")
    reply = zone_qd.run_json("coordinator", "status")
    assert (reply["workspaces"], reply["stats"]["pendingTasks"]) == ([zone.id], 1)
    assert zone_qd.run("coordinator", "strategy") == "priority"
    assert zone_qd.run("coordinator", "strategy", "fair") == "fair"
    assert zone_qd.run("coordinator", "strategy") == "fair"
    assert zone_qd.run_json("coordinator", "recover")["staleAgents"] == 0
    zone_qd.run("task", "cancel", add_task(zone_qd, "lost"), "--reason", "not needed")
    assert "not needed" in zone_qd.run("coordinator", "logs")
    assert zone_qd.run("coordinator", "logs", "--level", "critical") == f"No log entries found in zone {zone.id}."
    member = zone_qd("coordinator", "status", "--json", QD_TOKEN=zone.token())
    assert (member.returncode, json.loads(member.stderr)["error"]) == (1, "forbidden_role")


# -- agents --------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_agent_is_registered_sends_heartbeats_and_is_terminated(zone_qd: Qd) -> None:
    words = ["--name", "Ada", "--capability", "python", "--capability", "sql", "--max-tasks", "2"]
    assert zone_qd.run("agent", "register", "ada", *words, "--heartbeat", "10", "--stale-after", "1m") == "ada"
    zone_qd.run("agent", "register", "bob", "--coordinator", "no")
    reply = zone_qd.run_json("agent", "show", "ada")
    assert (reply["capabilities"], reply["maxConcurrentTasks"]) == (["python", "sql"], 2)
    assert (reply["heartbeatIntervalSeconds"], reply["staleThresholdSeconds"]) == (10, 60)
    assert (
        zone_qd.run("agent", "heartbeat", "ada", "--memory", "512") == "Continue. Send the next heartbeat within 10s."
    )
    header, *rows = [re.split("  +", line) for line in zone_qd.run("agent", "list").splitlines()]
    assert header == ["ID", "NAME", "STATUS", "TASKS", "CAPABILITIES", "MODEL", "LAST SEEN"]
    assert [row[:5] for row in rows] == [
        ["ada", "Ada", "IDLE", "0/2", "python, sql"],
        ["bob", "bob", "IDLE", "0/1", "-"],
    ]
    for words, expected in (
        (["--capability", "sql"], ["ada"]),
        (["--coordinator", "no"], ["bob"]),
        (["--status", "working"], []),
    ):
        assert [item["id"] for item in zone_qd.run_json("agent", "list", *words)["items"]] == expected
    assert "memoryMb" in zone_qd.run("agent", "health", "ada")
    add_task(zone_qd, "work")
    claim_task(zone_qd)
    assert "ends after its last task" in zone_qd.run("agent", "terminate", "ada", "--graceful")
    assert zone_qd.run("agent", "terminate", "ada") == "Terminated agent ada."
    assert zone_qd("agent", "health", "ada").returncode == 1


def test_agent_token_replaces_the_attempt_token(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = add_task(zone_qd, "work")
    lease = claim_task(zone_qd)
    token = zone_qd.run("agent", "token", "ada", "--ttl", "10m", "--attempt-token", lease["attemptToken"])
    assert zone_qd.run("task", "progress", task, "--percent", "5", QD_TOKEN=token) == f"{task} is at 5%."
    zone_qd.run("task", "cancel", task)
    stale = zone_qd("agent", "heartbeat", "ada", "--task", task, QD_TOKEN=token)
    assert (stale.returncode, stale.stdout.splitlines()[0]) == (1, f"Stop: {task} was canceled.")
    canceled = zone_qd("agent", "heartbeat", "ada", "--task", task)
    assert (canceled.returncode, canceled.stdout) == (1, f"Stop: {task} was canceled.\n")
    nothing = zone_qd("agent", "claim", "ada", QD_TOKEN=token)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "qd: No work is available.\n")
    assert zone_qd("agent", "terminate", "ada", QD_TOKEN=token).returncode != 0


def test_roles_are_assigned_shown_and_removed(zone_qd: Qd, zone: FreshZone) -> None:
    assert zone_qd.run("role", "list").startswith(f"No roles assigned in zone {zone.id}")
    assert zone_qd.run("role", "set", "alice@example.com", "--role", "owner").startswith(
        "alice@example.com has role OWNER"
    )
    zone_qd.run("role", "set", "bob", "--role", "member")
    rows = [line.split()[:2] for line in zone_qd.run("role", "list").splitlines()[1:]]
    assert rows == [["alice@example.com", "OWNER"], ["bob", "MEMBER"]]
    assert zone_qd.run_json("role", "show", "bob")["role"] == "MEMBER"
    assert zone_qd.run("role", "remove", "bob") == f"Removed the role of bob in zone {zone.id}."
    for verb in ("show", "remove"):
        assert zone_qd("role", verb, "bob").returncode == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("task", "add", "x"), 2),
        (("task", "add", "--type", "t"), 2),
        (("task", "add", "x", "--type", "t", "--input", "{"), 2),
        (("task", "add", "x", "--type", "t", "--run-at", "soon"), 2),
        (("task", "add", "x", "--file", "f"), 2),
        (("task", "add", "x", "--type", "t", "--priority", "11"), 1),
        (("task", "add", "--file", "no-such-file", "--type", "t"), 1),
        (("task", "show", "no-such"), 4),
        (("task", "cancel", "no-such"), 4),
        (("task", "set", "no-such"), 2),
        (("task", "list", "--status", "fine"), 2),
        (("task", "progress", "no-such"), 2),
        (("task", "complete", "no-such"), 4),
        (("agent", "show", "no-such"), 4),
        (("agent", "claim", "no-such"), 4),
        (("agent", "heartbeat", "no-such"), 4),
        (("role", "set", "x", "--role", "no-such-role"), 2),
        (("budget", "set"), 2),
        (("budget", "set", "--scope", "type", "--usd", "1"), 2),
        (("budget", "set", "--usd", "much"), 2),
    ],
)
def test_failed_command_prints_an_error_and_sets_the_exit_code(zone_qd: Qd, words: tuple[str, ...], code: int) -> None:
    result = zone_qd(*words)
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    assert "Traceback" not in result.stderr
