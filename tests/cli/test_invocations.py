"""`qd invocation`: sent, waited for and worked on from the command line, on both engines."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.cli_support import RUN_LIMIT, Qd
from tests.support.engines import ON_BOTH
from tests.support.eventually import eventually_sync
from tests.support.zone import FreshZone


@pytest.fixture
def service(here: Qd) -> str:
    return here.good("service", "register", "--app", "researcher", "--endpoint", "https://research.example")


def sent(qd: Qd, service: str, *words: str) -> str:
    return qd.good("invocation", "send", "--service", service, "--method", "summarise", *words)


def claimed(qd: Qd, service: str, *words: str) -> dict[str, Any]:
    """The one lease there is to be had."""
    [lease] = qd.json("invocation", "claim", service, *words)["items"]
    assert isinstance(lease, dict)
    return lease


def completed(qd: Qd, lease: dict[str, Any], *words: str) -> str:
    return qd.good("invocation", "complete", lease["id"], "--attempt-token", lease["attempt_token"], *words)


def figure(zone: FreshZone, name: str) -> float:
    """One that the zone's server tells, whoever else uses it."""
    figures = httpx.get(f"{zone.server.url}/metrics", trust_env=False).text
    found = [float(line.rpartition(" ")[2]) for line in figures.splitlines() if line.startswith(f"{name}{{")]
    assert found, f"no such figure: {name}"
    return sum(found)


# -- calling -----------------------------------------------------------------------------------------------------


def test_send_prints_the_id_alone_and_the_same_key_is_the_same_invocation(here: Qd, service: str) -> None:
    session = here.good("session", "spawn", "--app", "planner")
    words = ["--params", '{"page": 7}', "--key", "k1", "--source", session, "--target", session]
    words += ["--deadline", "2m", "--attempts", "5", "--backoff", "3", "--metadata", '{"why": "test"}']
    first = sent(here, service, *words)
    assert sent(here, service, *words) == first
    told = here.json("invocation", "show", first)
    assert (told["params"], told["metadata"], told["status"]) == ({"page": 7}, {"why": "test"}, "pending")
    assert (told["source_session_id"], told["target_session_id"]) == (session, session)
    assert (told["timeout_ms"], told["max_attempts"], told["retry_policy"]["backoff_ms"]) == (120_000, 5, 3_000)
    other = here("invocation", "send", "--service", service, "--method", "m", "--params", "[]", "--key", "k1", "--json")
    assert (other.returncode, json.loads(other.stderr)["error"]) == (1, "idempotency_key_conflict")
    assert sent(here, service) != sent(here, service), "without a key every run is another invocation"


def test_params_come_from_the_line_a_file_or_standard_input(here: Qd, service: str, tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    file.write_text('{"from": "file"}')
    assert here.json("invocation", "show", sent(here, service, "--params", f"@{file}"))["params"] == {"from": "file"}
    words = ["invocation", "send", "--service", service, "--method", "m", "--params", "-"]
    piped = subprocess.run(
        here.command(words), env=here.environment, input='["from", "pipe"]', capture_output=True, text=True
    )
    assert piped.returncode == 0, piped.stderr
    assert here.json("invocation", "show", piped.stdout.strip())["params"] == ["from", "pipe"]
    for given, said in (("{", "is not JSON"), ("@no-such-file", "No such file"), ("-", "standard input")):
        done = here("invocation", "send", "--service", service, "--method", "m", "--params", given)
        assert done.returncode != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@ON_BOTH
def test_a_list_is_narrowed_and_shows_how_often_and_how_long(here: Qd, service: str) -> None:
    session = here.good("session", "spawn", "--app", "planner")
    done = sent(here, service, "--source", session)
    completed(here, claimed(here, service))
    waiting = sent(here, service)
    heads, *rows = here.good("invocation", "list", "--service", service).splitlines()
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
        items = here.json("invocation", "list", *words)["items"]
        assert [one["id"] for one in items] == found
    assert here.good("invocation", "list", "--status", "dead").startswith("no such invocations in zone")


def test_wait_prints_the_result_of_what_ends_while_it_waits(here: Qd, service: str, zone: FreshZone) -> None:
    invocation = sent(here, service)
    waiter = here.begin("invocation", "wait", invocation)
    eventually_sync(lambda: figure(zone, "quarterdeck_streams_open") > 0, "it followed what happens")
    completed(here, claimed(here, service), "--result", '{"summary": "short"}')
    stdout, stderr = waiter.communicate(timeout=RUN_LIMIT)
    assert (waiter.returncode, stderr) == (0, "")
    assert json.loads(stdout) == {"summary": "short"}
    assert json.loads(here.good("invocation", "wait", invocation)) == {"summary": "short"}
    assert here.json("invocation", "wait", invocation)["status"] == "succeeded"


def test_wait_fails_with_what_went_wrong_and_with_5_when_its_time_is_up(here: Qd, service: str) -> None:
    failed = sent(here, service)
    late = here("invocation", "wait", failed, "--timeout", "0.3")
    assert late.returncode == 5
    assert "has not ended within 0.3 s" in late.stderr
    completed(here, claimed(here, service), "--status", "failed", "--error", "no such page", "--no-retry")
    done = here("invocation", "wait", failed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "qd: the invocation is failed: no such page\n"
    told = here("invocation", "wait", failed, "--json")
    assert (told.returncode, json.loads(told.stdout)["error"]) == (1, "no such page")
    canceled = sent(here, service)
    here.good("invocation", "cancel", canceled, "--reason", "not any more")
    done = here("invocation", "wait", canceled)
    assert (done.returncode, done.stderr) == (1, "qd: the invocation is canceled: not any more\n")
    assert here("invocation", "wait", "no-such").returncode == 4


def test_what_waits_is_canceled_at_once_and_what_runs_when_its_holder_says_so(here: Qd, service: str) -> None:
    waiting = sent(here, service)
    assert here.good("invocation", "cancel", waiting) == f"canceled {waiting}"
    running = sent(here, service)
    lease = claimed(here, service)
    assert here.good("invocation", "cancel", running).startswith(f"asked for the end of {running}")
    kept = here("invocation", "heartbeat", running, "--attempt-token", lease["attempt_token"])
    assert kept.returncode == 1
    assert kept.stdout.startswith("stop: its cancellation was asked for")
    assert completed(here, lease, "--status", "canceled") == f"{running} is canceled"
    assert here.good("invocation", "cancel", running) == f"canceled {running}", "said twice, answered twice"
    done = sent(here, service)
    completed(here, claimed(here, service))
    again = here("invocation", "cancel", done, "--json")
    assert (again.returncode, json.loads(again.stderr)["error"]) == (1, "invocation_not_cancelable")


# -- working -----------------------------------------------------------------------------------------------------


def test_claim_prints_the_leases_and_nothing_where_there_is_nothing(here: Qd, service: str) -> None:
    empty = here("invocation", "claim", service)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "qd: there is nothing to do\n")
    assert here.json("invocation", "claim", service) == {"items": []}
    made = [sent(here, service, "--params", str(n)) for n in range(3)]
    told = here.good("invocation", "claim", service, "--max", "2", "--claim-id", "c1")
    heads, *rows = [re.split("  +", line) for line in told.splitlines()]
    assert heads == ["ID", "METHOD", "ATTEMPT", "TOKEN", "LEASE ENDS", "PARAMS"]
    assert [(row[0], row[1], row[2], row[5]) for row in rows] == [
        (made[0], "summarise", "1/3", "0"),
        (made[1], "summarise", "1/3", "1"),
    ]
    assert here.good("invocation", "claim", service, "--max", "2", "--claim-id", "c1").splitlines()[1:] != []
    again = here.json("invocation", "claim", service, "--max", "2", "--claim-id", "c1")["items"]
    assert [one["attempt_token"] for one in again] == [row[3] for row in rows]


def test_a_claim_waits_for_work_longer_than_an_answer_usually_may(here: Qd, service: str, zone: FreshZone) -> None:
    # An answer may take a twentieth of what it is asked to wait: that is no time-out.
    waiter = here.begin("invocation", "claim", service, "--wait", "60", "--timeout", "3", "--json")

    def waits() -> bool:
        assert waiter.poll() is None, waiter.communicate()
        return figure(zone, "quarterdeck_claims_waiting") == 1

    eventually_sync(waits, "the claim waited")
    invocation = sent(here, service)
    stdout, stderr = waiter.communicate(timeout=RUN_LIMIT)
    assert waiter.returncode == 0, stderr
    assert [one["id"] for one in json.loads(stdout)["items"]] == [invocation]


@ON_BOTH
def test_a_failed_attempt_is_followed_by_another_until_it_is_dead(here: Qd, service: str) -> None:
    invocation = sent(here, service, "--attempts", "2", "--backoff", "0")
    told = completed(here, claimed(here, service), "--status", "failed", "--error", '{"code": 1}')
    assert re.fullmatch(rf"{invocation} is tried again .*: 1 of 2 attempts have begun", told)
    lease = claimed(here, service, "--wait", "10")
    assert lease["attempt"] == 2
    assert completed(here, lease, "--status", "failed", "--error", "again") == f"{invocation} is dead"


def test_a_token_of_an_earlier_attempt_is_refused_and_a_lease_may_be_given_back(here: Qd, service: str) -> None:
    invocation = sent(here, service, "--attempts", "1")
    first = claimed(here, service)
    kept = here.good("invocation", "heartbeat", invocation, "--attempt-token", first["attempt_token"])
    assert re.fullmatch(r"go on; the lease ends in \d+s", kept)
    given = here.good("invocation", "release", invocation, "--attempt-token", first["attempt_token"])
    assert given == f"gave {invocation} back: the attempt does not count"
    second = claimed(here, service)
    assert second["attempt"] == 1
    stale = here("invocation", "complete", invocation, "--attempt-token", first["attempt_token"], "--json")
    assert (stale.returncode, json.loads(stale.stderr)["error"]) == (1, "stale_attempt")
    refused = here("invocation", "release", invocation, "--attempt-token", first["attempt_token"], "--json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "stale_attempt")
    assert completed(here, second) == f"{invocation} is succeeded"


def test_start_prints_the_token_alone_and_its_bearer_may_complete_without_it(here: Qd, service: str) -> None:
    invocation = sent(here, service)
    token = here.good("invocation", "start", invocation)
    assert here.json("invocation", "show", invocation)["status"] == "running"
    assert re.fullmatch(r"[\w-]{10,}", token)
    assert here.good("invocation", "complete", invocation, "--result", "true") == f"{invocation} is succeeded"
    again = here("invocation", "start", invocation, "--json")
    assert (again.returncode, json.loads(again.stderr)["error"]) == (1, "invocation_not_startable")


# -- why ---------------------------------------------------------------------------------------------------------


def test_an_invocation_is_explained_in_sentences_with_what_would_move_it(here: Qd, service: str) -> None:
    invocation = sent(here, service)
    told = here.good("explain", "invocation", invocation)
    assert told.splitlines()[0] == f"invocation {invocation}, summarise of service {service}: pending"
    assert "  It waits for a worker of its service.\n" in told
    assert "\nwhat would move it:\n  A claim of the service" in told
    completed(here, claimed(here, service), "--status", "failed", "--error", "no such page", "--no-retry")
    told = here.good("explain", "invocation", invocation)
    assert told.splitlines()[0].endswith(": failed")
    assert "must not be tried again" in told
    assert "no such page" in told
    assert "what would move it" not in told
    assert here.json("explain", "invocation", invocation)["invocation"]["id"] == invocation
    assert here("explain", "invocation", "no-such").returncode == 4


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
def test_what_cannot_be_is_a_sentence_and_an_exit_code(here: Qd, words: tuple[str, ...], code: int) -> None:
    done = here("invocation", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
