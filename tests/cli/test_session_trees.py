"""Suspending, resuming and stopping trees of sessions from the command line, on both engines."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import pytest

from quarterdeck.cli.output import TextStyler
from quarterdeck.cli.session_tree import draw
from quarterdeck.client.api import Document
from tests.cli.cli_support import Qd, http_response, run_scripted_server
from tests.cli.test_speed import HEAVY
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone

NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z
RECEIPT: Document = {
    "zone_id": "z",
    "session_id": "root",
    "cascade_id": None,
    "reason": "enough",
    "asked": 3,
    "stopped": 3,
    "already_stopped": 0,
    "duration_ms": 12,
    "joined": False,
    "left": [],
}


def line_of_three(qd: Qd) -> tuple[str, str, str]:
    """A root, a session under it, and one under that."""
    root = qd.run("session", "spawn", "--app", "lead")
    middle = qd.run("session", "spawn", "--app", "worker", "--parent", root)
    return root, middle, qd.run("session", "spawn", "--app", "worker", "--parent", middle)


def states(qd: Qd, *ids: str) -> list[str]:
    return [qd.run_json("session", "show", one)["status"] for one in ids]


# -- suspend and resume ------------------------------------------------------------------------------------------


@ON_BOTH
def test_suspend_and_resume_say_how_many_fell_asleep_and_woke(zone_qd: Qd) -> None:
    root, middle, leaf = line_of_three(zone_qd)
    assert zone_qd.run("session", "suspend", middle) == f"suspended {middle}: 2 sessions fell asleep"
    assert states(zone_qd, root, middle, leaf) == ["active", "suspended", "suspended"]
    assert zone_qd.run("session", "suspend", root) == f"suspended {root}: 1 session fell asleep"
    assert zone_qd.run("session", "resume", root) == f"resumed {root}: 1 session woke"
    assert zone_qd.run("session", "resume", middle) == f"resumed {middle}: 2 sessions woke"
    assert zone_qd.run_json("session", "suspend", root) == {"suspended": 3}
    assert zone_qd.run_json("session", "resume", root) == {"resumed": 3}


def test_suspending_what_sleeps_already_says_so_and_holds_it_all_the_same(zone_qd: Qd) -> None:
    root, middle, leaf = line_of_three(zone_qd)
    zone_qd.run("session", "suspend", root)
    assert zone_qd.run("session", "suspend", leaf) == f"suspended {leaf}: it slept already"
    zone_qd.run("session", "resume", root)
    assert states(zone_qd, root, middle, leaf) == ["active", "active", "suspended"]


def test_a_resume_that_wakes_nobody_says_how_to_find_who_still_holds_it(zone_qd: Qd) -> None:
    root, _, leaf = line_of_three(zone_qd)
    zone_qd.run("session", "suspend", root)
    zone_qd.run("session", "suspend", leaf)
    done = zone_qd("session", "resume", leaf)
    assert (done.returncode, done.stdout) == (0, f"resumed {leaf}: it sleeps on\n")
    told = re.search("`(qd .+)`", done.stderr)
    assert told is not None
    assert root in zone_qd.run(*shlex.split(told[1])[1:])


@pytest.mark.parametrize("named", [True, False])
def test_a_refused_resume_names_the_holder_and_the_command_that_wakes_it(
    zone_qd: Qd, zone: FreshZone, named: bool
) -> None:
    root, _, leaf = line_of_three(zone_qd)
    zone_qd.run("session", "suspend", root)
    elsewhere = ("--zone", zone.id) if named else ()
    variables = {"QD_ZONE": ""} if named else {}
    refused = zone_qd("session", "resume", leaf, *elsewhere, **variables)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert root in refused.stderr.splitlines()[0]
    told = re.search("what frees it: `(qd .+)`", refused.stderr)
    assert told is not None
    # Typed as it is told, where it is told.
    assert zone_qd.run(*shlex.split(told[1])[1:], **variables) == f"resumed {root}: 3 sessions woke"


def test_a_program_is_told_the_holder_as_a_member_of_the_refusal(zone_qd: Qd) -> None:
    root, _, leaf = line_of_three(zone_qd)
    zone_qd.run("session", "suspend", root)
    refused = json.loads(zone_qd("session", "resume", leaf, "--json").stderr)
    assert (refused["error"], refused["held_by"]) == ("agent_not_found_or_not_suspended", root)


def test_what_is_in_no_state_to_be_suspended_or_resumed_is_refused_with_a_sentence(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    awake = zone_qd("session", "resume", root)
    assert awake.returncode == 1
    assert "is not suspended" in awake.stderr
    zone_qd.run("session", "stop", root)
    for verb in ("suspend", "resume"):
        ended = zone_qd("session", verb, root)
        assert ended.returncode == 1
        assert "has ended" in ended.stderr
        assert zone_qd("session", verb, "nobody").returncode == 4


def test_nothing_is_spawned_under_who_sleeps(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    zone_qd.run("session", "suspend", root)
    assert zone_qd("session", "spawn", "--app", "worker", "--parent", root).returncode == 4
    zone_qd.run("session", "resume", root)
    zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)


def test_trees_and_lists_show_who_sleeps(zone_qd: Qd) -> None:
    root, middle, leaf = line_of_three(zone_qd)
    zone_qd.run("session", "suspend", middle)
    drawn = zone_qd.run("session", "tree", root).splitlines()
    assert ["asleep" in line for line in drawn] == [False, True, True]
    listed = zone_qd.run("session", "list", "--status", "suspended").splitlines()[1:]
    assert {line.split()[0] for line in listed} == {middle, leaf}
    assert all("asleep" in line for line in listed)


def test_a_sleeper_is_drawn_in_its_colour_with_how_long_it_has_slept() -> None:
    sleeper: Document = {
        "id": "r",
        "application_id": "app",
        "status": "suspended",
        "spawned_at": "2026-01-02T03:03:05.000Z",
        "expires_at": "2026-01-02T04:03:05.000Z",
        "suspended_at": "2026-01-02T03:03:35.000Z",
    }
    assert draw([sleeper], NOW, TextStyler(False)) == "r  app  suspended  1m  59m left, asleep 30s"
    assert "\x1b[33msuspended" in draw([sleeper], NOW, TextStyler(True))
    # An ending keeps the instant of the suspension; what has ended does not sleep.
    ended: Document = {**sleeper, "status": "terminated", "terminated_at": "2026-01-02T03:04:05.000Z"}
    assert draw([ended], NOW, TextStyler(False)) == "r  app  terminated  1m  ended"


# -- stop and its receipt ----------------------------------------------------------------------------------------


@ON_BOTH
def test_a_receipt_tells_what_was_asked_stopped_and_left(zone_qd: Qd) -> None:
    root, _, leaf = line_of_three(zone_qd)
    zone_qd.run("session", "stop", leaf)
    told = zone_qd.run("session", "stop", root, "--reason", "that is enough", "--receipt")
    pairs = dict(re.split(r"  +", line, maxsplit=1) for line in told.splitlines())
    took = pairs.pop("took")
    assert re.fullmatch(r"\d+ ms", took)
    assert pairs == {
        "session": root,
        "reason": "that is enough",
        "asked": "3",
        "stopped": "2",
        "already stopped": "1",
        "joined": "no",
        "left": "nothing",
    }


def test_stopping_again_succeeds_and_its_receipt_says_that_nothing_was_left_to_stop(zone_qd: Qd) -> None:
    root, *_ = line_of_three(zone_qd)
    assert zone_qd.run("session", "stop", root) == f"stopped {root}"
    again = zone_qd.run_json("session", "stop", root, "--receipt")
    assert (again["asked"], again["stopped"], again["already_stopped"], again["left"]) == (3, 0, 3, [])
    assert zone_qd("session", "stop", "nobody", "--receipt").returncode == 4


def test_a_receipt_says_when_somebody_else_had_begun(zone_qd: Qd) -> None:
    with run_scripted_server(http_response(200, {**RECEIPT, "joined": True, "cascade_id": "c-1"})) as server:
        told = zone_qd.run("session", "stop", "root", "--receipt", "--url", server.url, "--token", "t")
    assert re.search(r"^joined +yes: somebody else had begun it$", told, re.MULTILINE)
    assert re.search(r"^cascade +c-1$", told, re.MULTILINE)


def test_an_ending_that_left_something_names_it_and_has_failed(zone_qd: Qd) -> None:
    left = [{"session_id": "late", "reason": "spawned since"}, {"session_id": "slow", "reason": "evil\x1b[2J"}]
    document = http_response(200, {**RECEIPT, "left": left})
    words = ("session", "stop", "root", "--receipt", "--token", "t")
    with run_scripted_server(document, document) as server:
        for_people = zone_qd(*words, "--url", server.url)
        for_programs = zone_qd(*words, "--url", server.url, "--json")
    assert (for_people.returncode, for_programs.returncode) == (1, 1)
    assert re.search(r"^left +2 sessions$", for_people.stdout, re.MULTILINE)
    assert for_people.stdout.splitlines()[-2:] == ["late  spawned since", "slow  evil\\x1b[2J"]
    assert "2 sessions left" in for_people.stderr
    assert json.loads(for_programs.stdout)["left"] == left
    assert for_programs.stderr == ""


# -- what they cost ----------------------------------------------------------------------------------------------


def test_agents_that_suspend_resume_and_stop_all_day_import_nothing_heavy(zone_qd: Qd) -> None:
    session = zone_qd.run("session", "spawn", "--app", "lead")
    for verb in ("suspend", "resume", "stop"):
        program, *rest = zone_qd.command(["session", verb, session])
        command = [program, "-X", "importtime", *rest]
        done = subprocess.run(command, env=zone_qd.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
        assert not imported & HEAVY
