"""`qd invocation`: sent, waited for and worked on from the command line, on both engines."""

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


def sent(qd: Qd, service: str, *words: str) -> str:
    return qd.run("invocation", "send", "--service", service, "--method", "summarise", *words)


def claimed(qd: Qd, service: str, *words: str) -> dict[str, Any]:
    """The one lease there is to be had."""
    [lease] = qd.run_json("invocation", "claim", service, *words)["items"]
    assert isinstance(lease, dict)
    return lease


def completed(qd: Qd, lease: dict[str, Any], *words: str) -> str:
    return qd.run("invocation", "complete", lease["id"], "--attempt-token", lease["attempt_token"], *words)


def figure(zone: FreshZone, name: str) -> float:
    """One that the zone's server tells, whoever else uses it."""
    figures = httpx.get(f"{zone.server.url}/metrics", trust_env=False).text
    found = [float(line.rpartition(" ")[2]) for line in figures.splitlines() if line.startswith(f"{name}{{")]
    assert found, f"no such figure: {name}"
    return sum(found)


# -- calling -----------------------------------------------------------------------------------------------------


def test_send_prints_the_id_alone_and_the_same_key_is_the_same_invocation(zone_qd: Qd, service: str) -> None:
    session = zone_qd.run("session", "spawn", "--app", "planner")
    words = ["--params", '{"page": 7}', "--key", "k1", "--source", session, "--target", session]
    words += ["--deadline", "2m", "--attempts", "5", "--backoff", "3", "--metadata", '{"why": "test"}']
    first = sent(zone_qd, service, *words)
    assert sent(zone_qd, service, *words) == first
    told = zone_qd.run_json("invocation", "show", first)
    assert (told["params"], told["metadata"], told["status"]) == ({"page": 7}, {"why": "test"}, "pending")
    assert (told["source_session_id"], told["target_session_id"]) == (session, session)
    assert (told["timeout_ms"], told["max_attempts"], told["retry_policy"]["backoff_ms"]) == (120_000, 5, 3_000)
    other = zone_qd(
        "invocation", "send", "--service", service, "--method", "m", "--params", "[]", "--key", "k1", "--json"
    )
    assert (other.returncode, json.loads(other.stderr)["error"]) == (1, "idempotency_key_conflict")
    assert sent(zone_qd, service) != sent(zone_qd, service), "without a key every run is another invocation"


def test_params_come_from_the_line_a_file_or_standard_input(zone_qd: Qd, service: str, tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text('{"from": "file"}')
    assert zone_qd.run_json("invocation", "show", sent(zone_qd, service, "--params", f"@{file}"))["params"] == {
        "from": "file"
    }
    words = ["invocation", "send", "--service", service, "--method", "m", "--params", "-"]
    piped = subprocess.run(
        zone_qd.command(words), env=zone_qd.environment, input='["from", "pipe"]', capture_output=True, text=True
    )
    assert piped.returncode == 0, piped.stderr
    assert zone_qd.run_json("invocation", "show", piped.stdout.strip())["params"] == ["from", "pipe"]
    for given, said in (("{", "is not JSON"), ("@no-such-file", "No such file"), ("-", "standard input")):
        done = zone_qd("invocation", "send", "--service", service, "--method", "m", "--params", given)
        assert done.returncode != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@ON_BOTH
def test_a_list_is_narrowed_and_shows_how_often_and_how_long(zone_qd: Qd, service: str) -> None:
    session = zone_qd.run("session", "spawn", "--app", "planner")
    done = sent(zone_qd, service, "--source", session)
    completed(zone_qd, claimed(zone_qd, service))
    waiting = sent(zone_qd, service)
    heads, *rows = zone_qd.run("invocation", "list", "--service", service).splitlines()
    assert heads.split() == ["ID", "SERVICE", "METHOD", "STATUS", "TRIED", "AGE", "TOOK"]
    cells = [re.split("  +", row) for row in rows]
    assert [one[:5] for one in cells] == [
        [waiting, service, "summarise", "pending", "0/3"],
        [done, service, "summarise", "succeeded", "1/3"],
    ]
    assert cells[0][6] == "-"
    assert cells[1][6].endswith(" ms")
    for words, found in (
        (("--status", "pending"), [waiting]),
        (("--source", session), [done]),
        (("--target", session), []),
    ):
        items = zone_qd.run_json("invocation", "list", *words)["items"]
        assert [one["id"] for one in items] == found
    assert zone_qd.run("invocation", "list", "--status", "dead").startswith("no such invocations in zone")


def test_wait_prints_the_result_of_what_ends_while_it_waits(zone_qd: Qd, service: str, zone: FreshZone) -> None:
    invocation = sent(zone_qd, service)
    waiter = zone_qd.start("invocation", "wait", invocation)
    eventually_sync(lambda: figure(zone, "quarterdeck_streams_open") > 0, "it followed what happens")
    completed(zone_qd, claimed(zone_qd, service), "--result", '{"summary": "short"}')
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert (waiter.returncode, stderr) == (0, "")
    assert json.loads(stdout) == {"summary": "short"}
    assert json.loads(zone_qd.run("invocation", "wait", invocation)) == {"summary": "short"}
    assert zone_qd.run_json("invocation", "wait", invocation)["status"] == "succeeded"


def test_wait_fails_with_what_went_wrong_and_with_5_when_its_time_is_up(zone_qd: Qd, service: str) -> None:
    failed = sent(zone_qd, service)
    late = zone_qd("invocation", "wait", failed, "--timeout", "0.3")
    assert late.returncode == 5
    assert "has not ended within 0.3 s" in late.stderr
    completed(zone_qd, claimed(zone_qd, service), "--status", "failed", "--error", "no such page", "--no-retry")
    done = zone_qd("invocation", "wait", failed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "qd: the invocation is failed: no such page\n"
    told = zone_qd("invocation", "wait", failed, "--json")
    assert (told.returncode, json.loads(told.stdout)["error"]) == (1, "no such page")
    canceled = sent(zone_qd, service)
    zone_qd.run("invocation", "cancel", canceled, "--reason", "not any more")
    done = zone_qd("invocation", "wait", canceled)
    assert (done.returncode, done.stderr) == (1, "qd: the invocation is canceled: not any more\n")
    assert zone_qd("invocation", "wait", "no-such").returncode == 4


def test_what_waits_is_canceled_at_once_and_what_runs_when_its_holder_says_so(zone_qd: Qd, service: str) -> None:
    waiting = sent(zone_qd, service)
    assert zone_qd.run("invocation", "cancel", waiting) == f"canceled {waiting}"
    running = sent(zone_qd, service)
    lease = claimed(zone_qd, service)
    assert zone_qd.run("invocation", "cancel", running).startswith(f"asked for the end of {running}")
    kept = zone_qd("invocation", "heartbeat", running, "--attempt-token", lease["attempt_token"])
    assert kept.returncode == 1
    assert kept.stdout.startswith("stop: its cancellation was asked for")
    assert completed(zone_qd, lease, "--status", "canceled") == f"{running} is canceled"
    assert zone_qd.run("invocation", "cancel", running) == f"canceled {running}", "said twice, answered twice"
    done = sent(zone_qd, service)
    completed(zone_qd, claimed(zone_qd, service))
    again = zone_qd("invocation", "cancel", done, "--json")
    assert (again.returncode, json.loads(again.stderr)["error"]) == (1, "invocation_not_cancelable")


# -- working -----------------------------------------------------------------------------------------------------


def test_claim_prints_the_leases_and_nothing_where_there_is_nothing(zone_qd: Qd, service: str) -> None:
    empty = zone_qd("invocation", "claim", service)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "qd: there is nothing to do\n")
    assert zone_qd.run_json("invocation", "claim", service) == {"items": []}
    made = [sent(zone_qd, service, "--params", str(n)) for n in range(3)]
    told = zone_qd.run("invocation", "claim", service, "--max", "2", "--claim-id", "c1")
    heads, *rows = [re.split("  +", line) for line in told.splitlines()]
    assert heads == ["ID", "METHOD", "ATTEMPT", "TOKEN", "LEASE ENDS", "PARAMS"]
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        (made[0], "summarise", "1/3", "0"),
        (made[1], "summarise", "1/3", "1"),
    ]
    assert zone_qd.run("invocation", "claim", service, "--max", "2", "--claim-id", "c1").splitlines()[1:] != []
    again = zone_qd.run_json("invocation", "claim", service, "--max", "2", "--claim-id", "c1")["items"]
    assert [one["attempt_token"] for one in again] == [row[3] for row in rows]


def test_a_claim_waits_for_work_longer_than_an_answer_usually_may(zone_qd: Qd, service: str, zone: FreshZone) -> None:
    # An answer may take a twentieth of what it is asked to wait: that is no time-out.
    waiter = zone_qd.start("invocation", "claim", service, "--wait", "60", "--timeout", "3", "--json")

    def waits() -> bool:
        assert waiter.poll() is None, waiter.communicate()
        return figure(zone, "quarterdeck_claims_waiting") == 1

    eventually_sync(waits, "the claim waited")
    invocation = sent(zone_qd, service)
    stdout, stderr = waiter.communicate(timeout=RUN_TIMEOUT_SECONDS)
    assert waiter.returncode == 0, stderr
    assert [one["id"] for one in json.loads(stdout)["items"]] == [invocation]


@ON_BOTH
def test_a_failed_attempt_is_followed_by_another_until_it_is_dead(zone_qd: Qd, service: str) -> None:
    invocation = sent(zone_qd, service, "--attempts", "2", "--backoff", "0")
    told = completed(zone_qd, claimed(zone_qd, service), "--status", "failed", "--error", '{"code": 1}')
    assert re.fullmatch(rf"{invocation} is tried again .*: 1 of 2 attempts have begun", told)
    lease = claimed(zone_qd, service, "--wait", "10")
    assert lease["attempt"] == 2
    assert completed(zone_qd, lease, "--status", "failed", "--error", "again") == f"{invocation} is dead"


def test_a_token_of_an_earlier_attempt_is_refused_and_a_lease_may_be_given_back(zone_qd: Qd, service: str) -> None:
    invocation = sent(zone_qd, service, "--attempts", "1")
    first = claimed(zone_qd, service)
    kept = zone_qd.run("invocation", "heartbeat", invocation, "--attempt-token", first["attempt_token"])
    assert re.fullmatch(r"go on; the lease ends in \d+s", kept)
    given = zone_qd.run("invocation", "release", invocation, "--attempt-token", first["attempt_token"])
    assert given == f"gave {invocation} back: the attempt does not count"
    second = claimed(zone_qd, service)
    assert second["attempt"] == 1
    stale = zone_qd("invocation", "complete", invocation, "--attempt-token", first["attempt_token"], "--json")
    assert (stale.returncode, json.loads(stale.stderr)["error"]) == (1, "stale_attempt")
    refused = zone_qd("invocation", "release", invocation, "--attempt-token", first["attempt_token"], "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "stale_attempt")
    assert completed(zone_qd, second) == f"{invocation} is succeeded"


def test_start_prints_the_token_alone_and_its_bearer_may_complete_without_it(zone_qd: Qd, service: str) -> None:
    invocation = sent(zone_qd, service)
    token = zone_qd.run("invocation", "start", invocation)
    assert zone_qd.run_json("invocation", "show", invocation)["status"] == "running"
    assert re.fullmatch(r"[\w-]{10,}", token)
    assert zone_qd.run("invocation", "complete", invocation, "--result", "true") == f"{invocation} is succeeded"
    again = zone_qd("invocation", "start", invocation, "--json")
    assert (again.returncode, json.loads(again.stderr)["error"]) == (1, "invocation_not_startable")


# -- why ---------------------------------------------------------------------------------------------------------


def test_an_invocation_is_explained_in_sentences_with_what_would_move_it(zone_qd: Qd, service: str) -> None:
    invocation = sent(zone_qd, service)
    told = zone_qd.run("explain", "invocation", invocation)
    assert told.splitlines()[0] == f"invocation {invocation}, summarise of service {service}: pending"
    assert "  It waits for a worker of its service.\n" in told
    assert "\nwhat would move it:\n  A claim of the service" in told
    completed(zone_qd, claimed(zone_qd, service), "--status", "failed", "--error", "no such page", "--no-retry")
    told = zone_qd.run("explain", "invocation", invocation)
    assert told.splitlines()[0].endswith(": failed")
    assert "must not be tried again" in told
    assert "no such page" in told
    assert "what would move it" not in told
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
def test_what_cannot_be_is_a_sentence_and_an_exit_code(zone_qd: Qd, words: tuple[str, ...], code: int) -> None:
    done = zone_qd("invocation", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
