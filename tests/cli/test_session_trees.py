"""`qd session suspend`, `resume` and `stop` on session trees."""

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
from tests.cli.test_speed import HEAVY_MODULES
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone

NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z
RECEIPT: Document = {
    "zone_id": "z",
    "session_id": "root",
    "cascade_id": None,
    "reason": "done",
    "asked": 3,
    "stopped": 3,
    "already_stopped": 0,
    "duration_ms": 12,
    "joined": False,
    "left": [],
}


def spawn_chain(qd: Qd) -> tuple[str, str, str]:
    """Spawns a root, its child and its grandchild."""
    root = qd.run("session", "spawn", "--app", "lead")
    middle = qd.run("session", "spawn", "--app", "worker", "--parent", root)
    return root, middle, qd.run("session", "spawn", "--app", "worker", "--parent", middle)


def statuses(qd: Qd, *ids: str) -> list[str]:
    return [qd.run_json("session", "show", session_id)["status"] for session_id in ids]


# -- suspend and resume ------------------------------------------------------------------------------------------


@ON_BOTH
def test_suspend_and_resume_print_how_many_sessions_changed(zone_qd: Qd) -> None:
    root, middle, leaf = spawn_chain(zone_qd)
    assert zone_qd.run("session", "suspend", middle) == f"Suspended {middle}: 2 sessions suspended."
    assert statuses(zone_qd, root, middle, leaf) == ["active", "suspended", "suspended"]
    assert zone_qd.run("session", "suspend", root) == f"Suspended {root}: 1 session suspended."
    assert zone_qd.run("session", "resume", root) == f"Resumed {root}: 1 session resumed."
    assert zone_qd.run("session", "resume", middle) == f"Resumed {middle}: 2 sessions resumed."
    assert zone_qd.run_json("session", "suspend", root) == {"suspended": 3}
    assert zone_qd.run_json("session", "resume", root) == {"resumed": 3}


def test_suspending_a_suspended_session_still_adds_a_suspension(zone_qd: Qd) -> None:
    root, middle, leaf = spawn_chain(zone_qd)
    zone_qd.run("session", "suspend", root)
    assert zone_qd.run("session", "suspend", leaf) == f"Session {leaf} was already suspended."
    zone_qd.run("session", "resume", root)
    assert statuses(zone_qd, root, middle, leaf) == ["active", "active", "suspended"]


def test_resume_without_effect_suggests_how_to_find_the_holder(zone_qd: Qd) -> None:
    root, _, leaf = spawn_chain(zone_qd)
    zone_qd.run("session", "suspend", root)
    zone_qd.run("session", "suspend", leaf)
    result = zone_qd("session", "resume", leaf)
    assert (result.returncode, result.stdout) == (0, f"Session {leaf} is still suspended.\n")
    command = re.search("`(qd .+)`", result.stderr)
    assert command is not None
    assert root in zone_qd.run(*shlex.split(command[1])[1:])


@pytest.mark.parametrize("is_zone_named", [True, False])
def test_refused_resume_names_the_holder_and_the_command_to_resume_it(
    zone_qd: Qd, zone: FreshZone, is_zone_named: bool
) -> None:
    root, _, leaf = spawn_chain(zone_qd)
    zone_qd.run("session", "suspend", root)
    zone_option = ("--zone", zone.id) if is_zone_named else ()
    variables = {"QD_ZONE": ""} if is_zone_named else {}
    refused = zone_qd("session", "resume", leaf, *zone_option, **variables)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert root in refused.stderr.splitlines()[0]
    command = re.search("what frees it: `(qd .+)`", refused.stderr)
    assert command is not None
    # The suggested command works unchanged in the same environment.
    assert zone_qd.run(*shlex.split(command[1])[1:], **variables) == f"Resumed {root}: 3 sessions resumed."


def test_refused_resume_json_contains_held_by(zone_qd: Qd) -> None:
    root, _, leaf = spawn_chain(zone_qd)
    zone_qd.run("session", "suspend", root)
    refused = json.loads(zone_qd("session", "resume", leaf, "--json").stderr)
    assert (refused["error"], refused["held_by"]) == ("agent_not_found_or_not_suspended", root)


def test_suspend_and_resume_refuse_wrong_states(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    refused = zone_qd("session", "resume", root)
    assert refused.returncode == 1
    assert "is not suspended" in refused.stderr
    zone_qd.run("session", "stop", root)
    for verb in ("suspend", "resume"):
        ended = zone_qd("session", verb, root)
        assert ended.returncode == 1
        assert "has ended" in ended.stderr
        assert zone_qd("session", verb, "no-such-session").returncode == 4


def test_spawn_under_a_suspended_session_is_refused(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    zone_qd.run("session", "suspend", root)
    assert zone_qd("session", "spawn", "--app", "worker", "--parent", root).returncode == 4
    zone_qd.run("session", "resume", root)
    zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)


def test_trees_and_lists_show_suspended_sessions(zone_qd: Qd) -> None:
    root, middle, leaf = spawn_chain(zone_qd)
    zone_qd.run("session", "suspend", middle)
    lines = zone_qd.run("session", "tree", root).splitlines()
    assert ["suspended for" in line for line in lines] == [False, True, True]
    listed = zone_qd.run("session", "list", "--status", "suspended").splitlines()[1:]
    assert {line.split()[0] for line in listed} == {middle, leaf}
    assert all("suspended for" in line for line in listed)


def test_suspended_session_is_colored_with_its_suspension_time() -> None:
    suspended: Document = {
        "id": "r",
        "application_id": "app",
        "status": "suspended",
        "spawned_at": "2026-01-02T03:03:05.000Z",
        "expires_at": "2026-01-02T04:03:05.000Z",
        "suspended_at": "2026-01-02T03:03:35.000Z",
    }
    assert draw([suspended], NOW, TextStyler(False)) == "r  app  suspended  1m  59m left, suspended for 30s"
    assert "\x1b[33msuspended" in draw([suspended], NOW, TextStyler(True))
    # Termination keeps suspended_at, but a terminated session is not shown as suspended.
    ended: Document = {**suspended, "status": "terminated", "terminated_at": "2026-01-02T03:04:05.000Z"}
    assert draw([ended], NOW, TextStyler(False)) == "r  app  terminated  1m  ended"


# -- stop and its receipt ----------------------------------------------------------------------------------------


@ON_BOTH
def test_receipt_prints_requested_stopped_and_left(zone_qd: Qd) -> None:
    root, _, leaf = spawn_chain(zone_qd)
    zone_qd.run("session", "stop", leaf)
    output = zone_qd.run("session", "stop", root, "--reason", "work finished", "--receipt")
    pairs = dict(re.split(r"  +", line, maxsplit=1) for line in output.splitlines())
    took = pairs.pop("duration")
    assert re.fullmatch(r"\d+ ms", took)
    assert pairs == {
        "session": root,
        "reason": "work finished",
        "requested": "3",
        "stopped": "2",
        "already stopped": "1",
        "joined": "no",
        "left": "none",
    }


def test_second_stop_succeeds_with_nothing_stopped(zone_qd: Qd) -> None:
    root, *_ = spawn_chain(zone_qd)
    assert zone_qd.run("session", "stop", root) == f"Stopped session {root}."
    again = zone_qd.run_json("session", "stop", root, "--receipt")
    assert (again["asked"], again["stopped"], again["already_stopped"], again["left"]) == (3, 0, 3, [])
    assert zone_qd("session", "stop", "no-such-session", "--receipt").returncode == 4


def test_receipt_reports_a_joined_termination(zone_qd: Qd) -> None:
    with run_scripted_server(http_response(200, {**RECEIPT, "joined": True, "cascade_id": "c-1"})) as server:
        output = zone_qd.run("session", "stop", "root", "--receipt", "--url", server.url, "--token", "t")
    assert re.search(r"^joined +yes: another request had already started the termination$", output, re.MULTILINE)
    assert re.search(r"^cascade +c-1$", output, re.MULTILINE)


def test_incomplete_stop_names_the_left_sessions_and_fails(zone_qd: Qd) -> None:
    left = [{"session_id": "late", "reason": "spawned since"}, {"session_id": "slow", "reason": "evil\x1b[2J"}]
    document = http_response(200, {**RECEIPT, "left": left})
    words = ("session", "stop", "root", "--receipt", "--token", "t")
    with run_scripted_server(document, document) as server:
        text_result = zone_qd(*words, "--url", server.url)
        json_result = zone_qd(*words, "--url", server.url, "--json")
    assert (text_result.returncode, json_result.returncode) == (1, 1)
    assert re.search(r"^left +2 sessions$", text_result.stdout, re.MULTILINE)
    assert text_result.stdout.splitlines()[-2:] == ["late  spawned since", "slow  evil\\x1b[2J"]
    assert "2 sessions left" in text_result.stderr
    assert json.loads(json_result.stdout)["left"] == left
    assert json_result.stderr == ""


# -- cost ------------------------------------------------------------------------------------------------------


def test_suspend_resume_and_stop_import_no_heavy_modules(zone_qd: Qd) -> None:
    session = zone_qd.run("session", "spawn", "--app", "lead")
    for verb in ("suspend", "resume", "stop"):
        program, *rest = zone_qd.command(["session", verb, session])
        command = [program, "-X", "importtime", *rest]
        result = subprocess.run(command, env=zone_qd.environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}
        assert not imported & HEAVY_MODULES
