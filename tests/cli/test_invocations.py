"""`qd invocation` and `qd explain invocation`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd
from tests.support.engine_marks import ON_BOTH
from tests.support.eventually import eventually_sync
from tests.support.zone import FreshZone


@pytest.fixture
def service(zone_qd: Qd) -> str:
    return zone_qd.run("service", "register", "--app", "researcher", "--endpoint", "https://research.example")


def send(qd: Qd, service: str, *words: str) -> str:
    return qd.run("invocation", "send", "--service", service, "--method", "summarise", *words)


def claim(qd: Qd, service: str, *words: str) -> dict[str, Any]:
    """Claims the only available invocation."""
    [lease] = qd.run_json("invocation", "claim", service, *words)["items"]
    assert isinstance(lease, dict)
    return lease


def complete(qd: Qd, lease: dict[str, Any], *words: str) -> str:
    return qd.run("invocation", "complete", lease["id"], "--attempt-token", lease["attempt_token"], *words)


def metric(zone: FreshZone, name: str) -> float:
    """Returns a metric of the zone's server, summed over its labels."""
    text = httpx.get(f"{zone.server.url}/metrics", trust_env=False).text
    values = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{")]
    assert values, f"no metric {name}"
    return sum(values)


# -- callers -----------------------------------------------------------------------------------------------------


def test_send_prints_only_the_id_and_is_idempotent_by_key(zone_qd: Qd, service: str) -> None:
    session = zone_qd.run("session", "spawn", "--app", "planner")
    words = ["--params", '{"page": 7}', "--key", "k1", "--source", session, "--target", session]
    words += ["--deadline", "2m", "--attempts", "5", "--backoff", "3", "--metadata", '{"source": "test"}']
    first = send(zone_qd, service, *words)
    assert send(zone_qd, service, *words) == first
    reply = zone_qd.run_json("invocation", "show", first)
    assert (reply["params"], reply["metadata"], reply["status"]) == ({"page": 7}, {"source": "test"}, "pending")
    assert (reply["source_session_id"], reply["target_session_id"]) == (session, session)
    assert (reply["timeout_ms"], reply["max_attempts"], reply["retry_policy"]["backoff_ms"]) == (120_000, 5, 3_000)
    other = zone_qd(
        "invocation", "send", "--service", service, "--method", "m", "--params", "[]", "--key", "k1", "--json"
    )
    assert (other.returncode, json.loads(other.stderr)["error"]) == (1, "idempotency_key_conflict")
    assert send(zone_qd, service) != send(zone_qd, service), "without a key every command creates an invocation"


def test_params_come_from_argument_file_or_stdin(zone_qd: Qd, service: str, tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text('{"from": "file"}')
    assert zone_qd.run_json("invocation", "show", send(zone_qd, service, "--params", f"@{file}"))["params"] == {
        "from": "file"
    }
    words = ["invocation", "send", "--service", service, "--method", "m", "--params", "-"]
    piped = subprocess.run(
        zone_qd.command(words), env=zone_qd.environment, input='["from", "pipe"]', capture_output=True, text=True
    )
    assert piped.returncode == 0, piped.stderr
    assert zone_qd.run_json("invocation", "show", piped.stdout.strip())["params"] == ["from", "pipe"]
    for params, expected in (("{", "is not valid JSON"), ("@no-such-file", "No such file"), ("-", "standard input")):
        result = zone_qd("invocation", "send", "--service", service, "--method", "m", "--params", params)
        assert result.returncode != 0
        assert expected in result.stderr
        assert "Traceback" not in result.stderr


@ON_BOTH
def test_list_filters_and_prints_attempts_and_duration(zone_qd: Qd, service: str) -> None:
    session = zone_qd.run("session", "spawn", "--app", "planner")
    succeeded = send(zone_qd, service, "--source", session)
    complete(zone_qd, claim(zone_qd, service))
    waiting = send(zone_qd, service)
    header, *rows = zone_qd.run("invocation", "list", "--service", service).splitlines()
    assert header.split() == ["ID", "SERVICE", "METHOD", "STATUS", "ATTEMPTS", "AGE", "DURATION"]
    cells = [re.split("  +", row) for row in rows]
    assert [item[:5] for item in cells] == [
        [waiting, service, "summarise", "pending", "0/3"],
        [succeeded, service, "summarise", "succeeded", "1/3"],
    ]
    assert cells[0][6] == "-"
    assert cells[1][6].endswith(" ms")
    for words, expected in (
        (("--status", "pending"), [waiting]),
        (("--source", session), [succeeded]),
        (("--target", session), []),
    ):
        items = zone_qd.run_json("invocation", "list", *words)["items"]
        assert [item["id"] for item in items] == expected
    assert zone_qd.run("invocation", "list", "--status", "dead").startswith("No invocations found in zone")


def test_wait_prints_the_result_when_the_invocation_ends(zone_qd: Qd, service: str, zone: FreshZone) -> None:
    invocation = send(zone_qd, service)
    waiter = zone_qd.start("invocation", "wait", invocation)
    eventually_sync(lambda: metric(zone, "quarterdeck_streams_open") > 0, "the waiter opened an event stream")
    complete(zone_qd, claim(zone_qd, service), "--result", '{"summary": "short"}')
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stderr) == (0, "")
    assert json.loads(stdout) == {"summary": "short"}
    assert json.loads(zone_qd.run("invocation", "wait", invocation)) == {"summary": "short"}
    assert zone_qd.run_json("invocation", "wait", invocation)["status"] == "succeeded"


def test_wait_fails_with_the_error_and_exits_with_5_on_timeout(zone_qd: Qd, service: str) -> None:
    failed = send(zone_qd, service)
    late = zone_qd("invocation", "wait", failed, "--timeout", "0.3")
    assert late.returncode == 5
    assert "has not ended within 0.3 s" in late.stderr
    complete(zone_qd, claim(zone_qd, service), "--status", "failed", "--error", "no such page", "--no-retry")
    result = zone_qd("invocation", "wait", failed)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "qd: The invocation is failed: no such page\n"
    json_result = zone_qd("invocation", "wait", failed, "--json")
    assert (json_result.returncode, json.loads(json_result.stdout)["error"]) == (1, "no such page")
    canceled = send(zone_qd, service)
    zone_qd.run("invocation", "cancel", canceled, "--reason", "no longer needed")
    result = zone_qd("invocation", "wait", canceled)
    assert (result.returncode, result.stderr) == (1, "qd: The invocation is canceled: no longer needed\n")
    assert zone_qd("invocation", "wait", "no-such").returncode == 4


def test_cancel_ends_pending_work_and_signals_running_work(zone_qd: Qd, service: str) -> None:
    waiting = send(zone_qd, service)
    assert zone_qd.run("invocation", "cancel", waiting) == f"Canceled {waiting}."
    running = send(zone_qd, service)
    lease = claim(zone_qd, service)
    assert zone_qd.run("invocation", "cancel", running).startswith(f"Requested cancellation of {running}")
    heartbeat = zone_qd("invocation", "heartbeat", running, "--attempt-token", lease["attempt_token"])
    assert heartbeat.returncode == 1
    assert heartbeat.stdout.startswith("Stop: cancellation was requested.")
    assert complete(zone_qd, lease, "--status", "canceled") == f"{running} is canceled."
    assert zone_qd.run("invocation", "cancel", running) == f"Canceled {running}.", "cancel is idempotent"
    succeeded = send(zone_qd, service)
    complete(zone_qd, claim(zone_qd, service))
    refused = zone_qd("invocation", "cancel", succeeded, "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "invocation_not_cancelable")


# -- workers -----------------------------------------------------------------------------------------------------


def test_claim_prints_leases_or_a_notice_without_work(zone_qd: Qd, service: str) -> None:
    empty = zone_qd("invocation", "claim", service)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "qd: No work is available.\n")
    assert zone_qd.run_json("invocation", "claim", service) == {"items": []}
    invocations = [send(zone_qd, service, "--params", str(n)) for n in range(3)]
    output = zone_qd.run("invocation", "claim", service, "--max", "2", "--claim-id", "c1")
    header, *rows = [re.split("  +", line) for line in output.splitlines()]
    assert header == ["ID", "METHOD", "ATTEMPT", "TOKEN", "LEASE EXPIRES", "PARAMS"]
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        (invocations[0], "summarise", "1/3", "0"),
        (invocations[1], "summarise", "1/3", "1"),
    ]
    assert zone_qd.run("invocation", "claim", service, "--max", "2", "--claim-id", "c1").splitlines()[1:] != []
    same_claim = zone_qd.run_json("invocation", "claim", service, "--max", "2", "--claim-id", "c1")["items"]
    assert [item["attempt_token"] for item in same_claim] == [row[3] for row in rows]


def test_claim_may_wait_longer_than_the_request_timeout(zone_qd: Qd, service: str, zone: FreshZone) -> None:
    # --timeout is shorter than --wait: the wait must not count as a time-out.
    waiter = zone_qd.start("invocation", "claim", service, "--wait", "60", "--timeout", "3", "--json")

    def is_waiting() -> bool:
        assert waiter.poll() is None, waiter.communicate()
        return metric(zone, "quarterdeck_claims_waiting") == 1

    eventually_sync(is_waiting, "the claim waited")
    invocation = send(zone_qd, service)
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert waiter.returncode == 0, stderr
    assert [item["id"] for item in json.loads(stdout)["items"]] == [invocation]


@ON_BOTH
def test_failed_attempt_is_retried_until_the_invocation_is_dead(zone_qd: Qd, service: str) -> None:
    invocation = send(zone_qd, service, "--attempts", "2", "--backoff", "0")
    output = complete(zone_qd, claim(zone_qd, service), "--status", "failed", "--error", '{"code": 1}')
    assert re.fullmatch(rf"{invocation} will be retried: due .*, 1 of 2 attempts started\.", output)
    lease = claim(zone_qd, service, "--wait", "10")
    assert lease["attempt"] == 2
    assert complete(zone_qd, lease, "--status", "failed", "--error", "again") == f"{invocation} is dead."


def test_stale_attempt_token_is_refused_after_release(zone_qd: Qd, service: str) -> None:
    invocation = send(zone_qd, service, "--attempts", "1")
    first = claim(zone_qd, service)
    heartbeat = zone_qd.run("invocation", "heartbeat", invocation, "--attempt-token", first["attempt_token"])
    assert re.fullmatch(r"Continue\. The lease expires in \d+s\.", heartbeat)
    released = zone_qd.run("invocation", "release", invocation, "--attempt-token", first["attempt_token"])
    assert released == f"Released {invocation}. The attempt does not count."
    second = claim(zone_qd, service)
    assert second["attempt"] == 1
    stale = zone_qd("invocation", "complete", invocation, "--attempt-token", first["attempt_token"], "--json")
    assert (stale.returncode, json.loads(stale.stderr)["error"]) == (1, "stale_attempt")
    refused = zone_qd("invocation", "release", invocation, "--attempt-token", first["attempt_token"], "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "stale_attempt")
    assert complete(zone_qd, second) == f"{invocation} is succeeded."


def test_start_prints_only_the_token_and_complete_works_without_it(zone_qd: Qd, service: str) -> None:
    invocation = send(zone_qd, service)
    token = zone_qd.run("invocation", "start", invocation)
    assert zone_qd.run_json("invocation", "show", invocation)["status"] == "running"
    assert re.fullmatch(r"[\w-]{10,}", token)
    assert zone_qd.run("invocation", "complete", invocation, "--result", "true") == f"{invocation} is succeeded."
    again = zone_qd("invocation", "start", invocation, "--json")
    assert (again.returncode, json.loads(again.stderr)["error"]) == (1, "invocation_not_startable")


# -- explain -----------------------------------------------------------------------------------------------------


def test_explain_invocation_prints_state_and_next_steps(zone_qd: Qd, service: str) -> None:
    invocation = send(zone_qd, service)
    output = zone_qd.run("explain", "invocation", invocation)
    assert output.splitlines()[0] == f"invocation {invocation}, summarise of service {service}: pending"
    assert "  It is waiting for a worker of its service.\n" in output
    assert "\nwhat happens next:\n  A worker's claim for the service" in output
    complete(zone_qd, claim(zone_qd, service), "--status", "failed", "--error", "no such page", "--no-retry")
    output = zone_qd.run("explain", "invocation", invocation)
    assert output.splitlines()[0].endswith(": failed")
    assert "not retryable" in output
    assert "no such page" in output
    assert "what happens next" not in output
    assert zone_qd.run_json("explain", "invocation", invocation)["invocation"]["id"] == invocation
    assert zone_qd("explain", "invocation", "no-such").returncode == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("send", "--method", "m"), 2),
        (("send", "--service", "s"), 2),
        (("send", "--service", "no-such", "--method", "m"), 4),
        (("send", "--service", "s", "--method", "m", "--attempts", "many"), 2),
        (("show", "no-such"), 4),
        (("cancel", "no-such"), 4),
        (("claim", "no-such"), 4),
        (("start", "no-such"), 4),
        (("complete", "no-such", "--attempt-token", "t"), 4),
        (("complete", "no-such", "--status", "fine"), 2),
        (("release", "no-such"), 2),
        (("release", "no-such", "--attempt-token", "t"), 4),
        (("heartbeat", "no-such", "--attempt-token", "t"), 4),
    ],
)
def test_failed_command_prints_an_error_and_sets_the_exit_code(zone_qd: Qd, words: tuple[str, ...], code: int) -> None:
    result = zone_qd("invocation", *words)
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    assert "Traceback" not in result.stderr
