"""`qd task` and `qd agent`: work added, taken, waited for and moved by hand from the command line."""

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


def added(qd: Qd, title: str, *words: str) -> str:
    return qd.run("task", "add", title, "--type", "build", *words)


def claimed(qd: Qd, agent: str = "ada", *words: str) -> dict[str, Any]:
    """The one task there is to be had."""
    [lease] = qd.run_json("agent", "claim", agent, *words)["tasks"]
    assert isinstance(lease, dict)
    return lease


def streams(zone: FreshZone) -> float:
    figures = httpx.get(f"{zone.server.url}/metrics", trust_env=False).text
    [line] = [line for line in figures.splitlines() if line.startswith("quarterdeck_streams_open{")]
    return float(line.rpartition(" ")[2])


def file_of(folder: Path, *tasks: object) -> str:
    file = folder / "tasks.jsonl"
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in tasks))
    return str(file)


# -- adding --------------------------------------------------------------------------------------------------------


def test_add_prints_the_id_alone_and_the_same_key_is_the_same_task(zone_qd: Qd) -> None:
    first = added(zone_qd, "first")
    words = ["--priority", "8", "--input", '{"page": 7}', "--depends-on", first, "--tag", "a", "--tag", "b"]
    words += ["--capability", "python", "--max-retries", "1", "--backoff", "2m", "--deadline", "1h"]
    words += ["--estimate", "30", "--run-at", "+10m", "--metadata", '{"why": "test"}']
    name = added(zone_qd, "second", *words)
    told = zone_qd.run_json("task", "show", name)
    assert (told["title"], told["taskType"], told["status"], told["priority"]) == ("second", "build", "PENDING", 8)
    assert (told["dependsOn"], told["tags"], told["requiredCapabilities"]) == ([first], ["a", "b"], ["python"])
    assert (told["maxRetries"], told["retryBackoffSeconds"], told["timeoutSeconds"]) == (1, 120, 3_600)
    assert (told["inputContext"], told["metadata"]) == ({"page": 7}, {"why": "test"})
    assert told["estimatedDurationMinutes"] == 30
    same = [added(zone_qd, "same", "--key", "k2") for _ in range(2)]
    assert same[0] == same[1]
    assert added(zone_qd, "other") != added(zone_qd, "other"), "without a key every run is another task"
    assert zone_qd.run_json("task", "show", first)["blocks"] == [name]


def test_on_a_terminal_it_says_what_to_do_next_and_elsewhere_it_does_not(zone_qd: Qd) -> None:
    shown = run_on_terminal(zone_qd, "task", "add", "x", "--type", "build")
    assert re.search("`qd task wait [^ ]+` waits for its end", shown.output)
    assert zone_qd("task", "add", "x", "--type", "build").stderr == ""


def test_what_it_depends_on_must_exist_and_a_cycle_is_named(zone_qd: Qd) -> None:
    done = zone_qd("task", "add", "x", "--type", "build", "--depends-on", "no-such")
    assert (done.returncode, done.stdout) == (1, "")
    assert "'no-such', which does not exist" in done.stderr
    first = added(zone_qd, "first", "--id", "t1")
    second = added(zone_qd, "second", "--id", "t2", "--depends-on", first)
    closed = zone_qd("task", "set", first, "--depends-on", second)
    assert closed.returncode == 1
    assert "t1 → t2 → t1" in closed.stderr
    taken = zone_qd("task", "add", "x", "--type", "build", "--id", "t1", "--json")
    assert json.loads(taken.stderr)["error"] == "task_exists"


def test_every_line_of_a_file_is_a_task_and_what_is_refused_is_named_by_its_line(zone_qd: Qd, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        {"id": "build", "title": "build"},
        "",
        {"id": "test", "title": "test", "dependsOn": ["build"], "taskType": "check"},
        {"title": "lost", "dependsOn": ["no-such"]},
    )
    done = zone_qd("task", "add", "--file", file, "--type", "build", "--priority", "7")
    assert (done.returncode, done.stdout) == (1, "build\ntest\n")
    assert re.search(r"tasks\.jsonl, line 4: .*'no-such'", done.stderr)
    told = zone_qd.run_json("task", "show", "test")
    assert (told["taskType"], told["priority"], told["dependsOn"]) == ("check", 7, ["build"])
    command = zone_qd.command(["task", "add", "--file", "-", "--type", "build", "--json"])
    lines = '{"title": "piped"}\n' * 3
    piped = subprocess.run(command, env=zone_qd.environment, input=lines, capture_output=True, text=True)
    assert [one["title"] for one in json.loads(piped.stdout)["items"]] == ["piped"] * 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: this is not JSON"),
        ("[]", "line 2: this is no task"),
        ('{"title": 5}', "line 2: Expected `str`, got `int`"),
    ],
)
def test_a_file_with_a_line_that_is_no_task_adds_nothing(zone_qd: Qd, tmp_path: Path, line: str, said: str) -> None:
    done = zone_qd("task", "add", "--type", "build", "--file", file_of(tmp_path, {"title": "good"}, line))
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert zone_qd.run_json("task", "list")["items"] == []


# -- looking -------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_a_list_is_narrowed_and_shows_how_far_each_has_come(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    low = added(zone_qd, "low", "--priority", "2", "--tag", "x")
    high = added(zone_qd, "high", "--priority", "9", "--tag", "x", "--tag", "y")
    lease = claimed(zone_qd)
    assert lease["id"] == high
    token = ("--attempt-token", lease["attemptToken"])
    assert zone_qd.run("task", "progress", high, "--percent", "40", "--step", "testing", *token) == f"{high} is at 40%"
    heads, *rows = zone_qd.run("task", "list").splitlines()
    assert heads.split() == ["ID", "TYPE", "STATUS", "PRIO", "DONE", "RETRIES", "AGENT", "AGE", "TITLE"]
    cells = [re.split("  +", row) for row in rows]
    assert [one[:7] for one in cells] == [
        [high, "build", "RUNNING", "9", "40%", "0/3", "ada"],
        [low, "build", "PENDING", "2", "0%", "0/3", "-"],
    ]
    for words, found in (
        (("--status", "running"), [high]),
        (("--priority", "3"), [high]),
        (("--tag", "x"), [high, low]),
        (("--tag", "x", "--tag", "y"), [high]),
        (("--agent", "ada"), [high]),
        (("--type", "other"), []),
        (("--since", "10m"), [high, low]),
        (("--limit", "1", "--all"), [high, low]),
    ):
        assert [one["id"] for one in zone_qd.run_json("task", "list", *words)["items"]] == found, words
    page = zone_qd("task", "list", "--limit", "1")
    assert "there are more: --all, or --cursor " in page.stderr
    assert zone_qd.run("task", "list", "--status", "failed").startswith("no such tasks in zone")


# -- waiting -------------------------------------------------------------------------------------------------------


def test_wait_prints_the_result_of_what_ends_while_it_waits(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    task = added(zone_qd, "work")
    waiter = zone_qd.start("task", "wait", task)
    eventually_sync(lambda: streams(zone) > 0, "it followed what happens")
    token = ("--attempt-token", claimed(zone_qd)["attemptToken"])
    assert zone_qd.run("task", "complete", task, "--result", '{"pages": 3}', *token) == f"{task} is COMPLETED"
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stderr) == (0, "")
    assert json.loads(stdout) == {"pages": 3}
    assert zone_qd.run_json("task", "wait", task)["status"] == "COMPLETED"


def test_wait_for_several_tells_of_each_and_fails_if_one_has_failed(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada", "--max-tasks", "2")
    good, bad = added(zone_qd, "good"), added(zone_qd, "bad", "--max-retries", "0")
    late = zone_qd("task", "wait", good, bad, "--timeout", "0.3")
    assert late.returncode == 5
    assert "2 tasks have not ended within 0.3 s" in late.stderr
    tokens = {
        one["id"]: one["attemptToken"] for one in zone_qd.run_json("agent", "claim", "ada", "--max", "2")["tasks"]
    }
    zone_qd.run("task", "complete", good, "--summary", "all well", "--attempt-token", tokens[good])
    zone_qd.run("task", "fail", bad, "--error", "no such page", "--attempt-token", tokens[bad])
    done = zone_qd("task", "wait", good, bad)
    assert done.returncode == 1
    heads, first, second = [re.split("  +", line) for line in done.stdout.splitlines()]
    assert heads == ["ID", "STATUS", "TOOK", "TITLE", "RESULT"]
    assert (first[0], first[1], first[4]) == (good, "COMPLETED", "all well")
    assert (second[0], second[1]) == (bad, "FAILED")
    assert second[4].endswith("no such page")
    alone = zone_qd("task", "wait", bad)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert re.fullmatch(r"qd: the task is FAILED: .*no such page\n", alone.stderr)
    assert zone_qd("task", "wait", "no-such").returncode == 4


def test_on_a_terminal_it_shows_how_far_a_task_has_come_and_wipes_that_away_at_the_end(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = added(zone_qd, "work")
    token = claimed(zone_qd)["attemptToken"]
    zone_qd.run("task", "progress", task, "--percent", "45", "--step", "testing", "--attempt-token", token)
    shown = run_on_terminal(zone_qd, "task", "wait", task, "--timeout", "0.5")
    assert shown.code == 5
    assert "]  45%  running    work · testing\n" in shown.output
    wiped, _, rest = shown.output.rpartition("\x1b[J")
    assert wiped
    assert rest.startswith(f"qd: The task {task} has not ended")


def test_add_with_wait_prints_the_result_and_names_the_task_beside_it(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada")
    waiter = zone_qd.start("task", "add", "work", "--type", "build", "--wait")
    lease = claimed(zone_qd, "ada", "--wait", "30")
    zone_qd.run("task", "complete", lease["id"], "--result", "done", "--attempt-token", lease["attemptToken"])
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stdout, stderr) == (0, '"done"\n', f"qd: added task {lease['id']}\n")


# -- by hand -------------------------------------------------------------------------------------------------------


def test_tasks_are_canceled_begun_anew_paused_resumed_and_put_away(zone_qd: Qd) -> None:
    first, second = added(zone_qd, "first"), added(zone_qd, "second")
    assert zone_qd.run("task", "pause", first, second) == f"{first} is PAUSED\n{second} is PAUSED"
    assert zone_qd.run("task", "resume", first) == f"{first} is PENDING"
    assert zone_qd.run("task", "complete", second) == f"{second} is COMPLETED", "a paused one, by hand"
    assert zone_qd.run("task", "cancel", first, "--reason", "not needed") == f"{first} is ABORTED"
    canceled = zone_qd("task", "wait", first)
    assert (canceled.returncode, canceled.stderr) == (1, "qd: the task is ABORTED: not needed\n")
    assert zone_qd.run("task", "retry", first) == f"{first} is PENDING"
    assert zone_qd.run_json("task", "archive", second)["status"] == "ARCHIVED"
    refused = zone_qd("task", "archive", first, "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "task_state_conflict")


def test_a_failed_attempt_says_when_the_next_begins_and_an_old_token_is_refused(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = added(zone_qd, "work", "--backoff", "10m")
    token = ("--attempt-token", claimed(zone_qd)["attemptToken"])
    told = zone_qd.run("task", "fail", task, "--error", "no luck", *token)
    assert re.fullmatch(rf"{task} is (FAILED|ABORTED): it is tried again in .*, retry 1 of 3", told)
    stale = zone_qd("task", "complete", task, *token, "--json")
    assert (stale.returncode, json.loads(stale.stderr)["error"]) == (1, "stale_attempt")


# -- why, and what happened ----------------------------------------------------------------------------------------


def test_the_log_of_a_task_tells_its_moves_and_what_its_agent_says(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = added(zone_qd, "work", "--max-retries", "0")
    token = ("--attempt-token", claimed(zone_qd)["attemptToken"])
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
    told = [json.loads(line) for line in zone_qd.run("task", "logs", task, "--json").splitlines()]
    assert [one["message"] for one in told if one["event"] == "log"] == ["half way"]


def test_a_log_that_is_followed_goes_on_with_what_happens(zone_qd: Qd) -> None:
    task = added(zone_qd, "work")
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
def test_a_task_is_explained_and_drawn_with_what_it_waits_for(zone_qd: Qd) -> None:
    first = added(zone_qd, "first", "--id", "one")
    second = added(zone_qd, "second", "--id", "two", "--depends-on", first)
    told = zone_qd.run("explain", "task", second)
    assert told.splitlines()[0] == "task two, second (build): PENDING"
    assert "'one' (PENDING" in told
    assert "\nwhat would move it:\n" in told
    assert zone_qd.run("task", "explain", second) == told
    assert zone_qd.run_json("explain", "task", second)["code"] == "dependencies"
    drawn = zone_qd.run("task", "tree", second, LC_ALL="C.UTF-8").splitlines()
    assert drawn == ["two        PENDING  second", "└─ depends on", "   └─ one  PENDING  first"]
    drawn = zone_qd.run("task", "tree", first, LC_ALL="C.UTF-8").splitlines()
    assert drawn == ["one        PENDING  first", "└─ blocks", "   └─ two  PENDING  second"]


def test_what_was_spent_is_summed_up_and_a_spent_budget_is_told(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("agent", "register", "ada", "--max-tasks", "2")
    task = added(zone_qd, "dear")
    lease = claimed(zone_qd)
    costs = [{"model": "large", "inputTokens": 1_000, "outputTokens": 200, "usd": 0.25}]
    said = httpx.post(
        f"{zone.server.url}/api/v1/agent-tasks/{task}/complete",
        json={"attemptToken": lease["attemptToken"], "costs": costs},
        headers={"Authorization": f"Bearer {zone.token()}"},
        trust_env=False,
    )
    assert said.status_code == 200, said.text
    heads, row = [re.split("  +", line) for line in zone_qd.run("cost", "--by", "model", "--since", "1d").splitlines()]
    assert (heads, row) == (["MODEL", "USD", "TOKENS IN", "TOKENS OUT"], ["large", "0.2500", "1000", "200"])
    assert [one["key"] for one in zone_qd.run_json("cost", "--by", "task")["items"]] == [task]
    assert zone_qd.run("budget", "set", "--usd", "0.2") == "set the budget of the zone, each month"
    zone_qd.run("budget", "set", "--scope", "type", "--for", "other", "--tokens", "50", "--period", "total")
    rows = zone_qd.run("budget", "list").splitlines()
    assert re.search(r"the zone, each month +0\.2000 +0\.2500 +- +1200 +spent", "\n".join(rows))
    waits = added(zone_qd, "too dear")
    assert zone_qd.run_json("agent", "claim", "ada")["tasks"] == []
    assert zone_qd.run_json("explain", "task", waits)["code"] == "budget_spent"
    assert zone_qd.run("budget", "remove", "--period", "month") == "removed the budget of the zone, each month"
    assert zone_qd("budget", "remove", "--period", "month").returncode == 4
    assert claimed(zone_qd, "ada", "--wait", "10")["id"] == waits


def test_a_claim_uses_the_capabilities_it_names_and_no_others(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada", "--capability", "go", "--capability", "rust")
    needs_go, needs_rust = (added(zone_qd, word, "--capability", word) for word in ("go", "rust"))
    assert claimed(zone_qd, "ada", "--capability", "rust", "--max", "500")["id"] == needs_rust
    assert zone_qd.run_json("agent", "claim", "ada", "--capability", "rust")["tasks"] == []
    zone_qd.run("agent", "register", "bob", "--capability", "go")
    assert claimed(zone_qd, "bob")["id"] == needs_go


def test_the_coordinator_tells_what_it_sees_and_is_told_in_what_order(zone_qd: Qd, zone: FreshZone) -> None:
    added(zone_qd, "waits")
    told = zone_qd.run_json("coordinator", "status")
    assert (told["workspaces"], told["stats"]["pendingTasks"]) == ([zone.id], 1)
    assert zone_qd.run("coordinator", "strategy") == "priority"
    assert zone_qd.run("coordinator", "strategy", "fair") == "fair"
    assert zone_qd.run("coordinator", "strategy") == "fair"
    assert zone_qd.run_json("coordinator", "recover")["staleAgents"] == 0
    zone_qd.run("task", "cancel", added(zone_qd, "lost"), "--reason", "not needed")
    assert "not needed" in zone_qd.run("coordinator", "logs")
    assert zone_qd.run("coordinator", "logs", "--level", "critical") == f"nothing of that kind in zone {zone.id}"
    member = zone_qd("coordinator", "status", "--json", QD_TOKEN=zone.token())
    assert (member.returncode, json.loads(member.stderr)["error"]) == (1, "forbidden_role")


# -- agents --------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_an_agent_is_registered_heard_of_and_ended(zone_qd: Qd) -> None:
    words = ["--name", "Ada", "--capability", "python", "--capability", "sql", "--max-tasks", "2"]
    assert zone_qd.run("agent", "register", "ada", *words, "--heartbeat", "10", "--stale-after", "1m") == "ada"
    zone_qd.run("agent", "register", "bob", "--coordinator", "no")
    told = zone_qd.run_json("agent", "show", "ada")
    assert (told["capabilities"], told["maxConcurrentTasks"]) == (["python", "sql"], 2)
    assert (told["heartbeatIntervalSeconds"], told["staleThresholdSeconds"]) == (10, 60)
    assert zone_qd.run("agent", "heartbeat", "ada", "--memory", "512") == "go on; be heard of again within 10s"
    heads, *rows = [re.split("  +", line) for line in zone_qd.run("agent", "list").splitlines()]
    assert heads == ["ID", "NAME", "STATUS", "TASKS", "CAPABILITIES", "MODEL", "HEARD OF"]
    assert [row[:5] for row in rows] == [
        ["ada", "Ada", "IDLE", "0/2", "python, sql"],
        ["bob", "bob", "IDLE", "0/1", "-"],
    ]
    for words, found in (
        (["--capability", "sql"], ["ada"]),
        (["--coordinator", "no"], ["bob"]),
        (["--status", "working"], []),
    ):
        assert [one["id"] for one in zone_qd.run_json("agent", "list", *words)["items"]] == found
    assert "memoryMb" in zone_qd.run("agent", "health", "ada")
    added(zone_qd, "work")
    claimed(zone_qd)
    assert "ends with its last task" in zone_qd.run("agent", "terminate", "ada", "--graceful")
    assert zone_qd.run("agent", "terminate", "ada") == "terminated ada"
    assert zone_qd("agent", "health", "ada").returncode == 1


def test_a_token_speaks_as_its_agent_and_stands_in_for_the_attempts_own(zone_qd: Qd) -> None:
    zone_qd.run("agent", "register", "ada")
    task = added(zone_qd, "work")
    lease = claimed(zone_qd)
    token = zone_qd.run("agent", "token", "ada", "--ttl", "10m", "--attempt-token", lease["attemptToken"])
    assert zone_qd.run("task", "progress", task, "--percent", "5", QD_TOKEN=token) == f"{task} is at 5%"
    zone_qd.run("task", "cancel", task)
    stale = zone_qd("agent", "heartbeat", "ada", "--task", task, QD_TOKEN=token)
    assert (stale.returncode, stale.stdout.splitlines()[0]) == (1, f"stop: {task} was canceled")
    told = zone_qd("agent", "heartbeat", "ada", "--task", task)
    assert (told.returncode, told.stdout) == (1, f"stop: {task} was canceled\n")
    nothing = zone_qd("agent", "claim", "ada", QD_TOKEN=token)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "qd: there is nothing to do\n")
    assert zone_qd("agent", "terminate", "ada", QD_TOKEN=token).returncode != 0


def test_roles_are_given_shown_and_taken_away(zone_qd: Qd, zone: FreshZone) -> None:
    assert zone_qd.run("role", "list").startswith(f"no roles in zone {zone.id}")
    assert zone_qd.run("role", "set", "alice@example.com", "--role", "owner").startswith("alice@example.com is OWNER")
    zone_qd.run("role", "set", "bob", "--role", "member")
    rows = [line.split()[:2] for line in zone_qd.run("role", "list").splitlines()[1:]]
    assert rows == [["alice@example.com", "OWNER"], ["bob", "MEMBER"]]
    assert zone_qd.run_json("role", "show", "bob")["role"] == "MEMBER"
    assert zone_qd.run("role", "remove", "bob") == f"removed bob from zone {zone.id}"
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
        (("role", "set", "x", "--role", "king"), 2),
        (("budget", "set"), 2),
        (("budget", "set", "--scope", "type", "--usd", "1"), 2),
        (("budget", "set", "--usd", "much"), 2),
    ],
)
def test_what_cannot_be_is_a_sentence_and_an_exit_code(zone_qd: Qd, words: tuple[str, ...], code: int) -> None:
    done = zone_qd(*words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
