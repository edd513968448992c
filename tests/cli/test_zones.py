"""Freezing, thawing, stopping and ending zones from the command line, on both engines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.cli_support import Qd, http_response, run_on_terminal, run_scripted_server
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone


def state(qd: Qd, zone: FreshZone) -> str:
    """What `qd zone list` says of a zone, in its one word."""
    [row] = [line.split() for line in qd.run("zone", "list").splitlines() if line.split()[0] == zone.id]
    return row[2]


def status(qd: Qd, session: str) -> str:
    return str(qd.run_json("session", "show", session)["status"])


# -- freeze and thaw ---------------------------------------------------------------------------------------------


def test_a_frozen_zone_refuses_every_spawn_until_it_is_thawed(zone_qd: Qd, zone: FreshZone) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    assert (
        zone_qd.run("zone", "freeze", zone.id)
        == f"froze zone {zone.id}: `qd zone thaw {zone.id}` admits sessions again"
    )
    refused = zone_qd("session", "spawn", "--app", "app")
    assert refused.returncode == 3
    assert "what frees it: an administrator thaws the zone" in refused.stderr
    assert (state(zone_qd, zone), status(zone_qd, running)) == ("frozen", "active")
    assert "frozen" in zone_qd("zone", "quotas").stderr
    assert zone_qd.run("zone", "thaw", zone.id) == f"thawed zone {zone.id}"
    assert state(zone_qd, zone) == "open"
    zone_qd.run("session", "spawn", "--app", "app")


def test_freeze_and_thaw_are_for_the_zone_one_works_in_unless_another_is_named(zone_qd: Qd, zone: FreshZone) -> None:
    told = zone_qd.run_json("zone", "freeze")
    assert (told["id"], told["frozen"]) == (zone.id, True)
    assert zone_qd.run_json("zone", "freeze")["frozen"] is True, "freezing twice is no mistake"
    told = zone_qd.run_json("zone", "thaw", zone.id, QD_ZONE="default")
    assert (told["id"], told["frozen"]) == (zone.id, False)


def test_a_zone_that_is_not_there_exits_with_4(zone_qd: Qd) -> None:
    for verb in ("freeze", "thaw"):
        assert zone_qd("zone", verb, "nowhere").returncode == 4
    for verb in ("stop", "delete"):
        missing = zone_qd("zone", verb, "nowhere", "--yes", "--json")
        assert missing.returncode == 4
        assert json.loads(missing.stderr)["error"] == "zone_not_found"


# -- stop --------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_stop_ends_every_session_of_a_zone_and_prints_the_receipt(zone_qd: Qd, zone: FreshZone) -> None:
    root = zone_qd.run("session", "spawn", "--app", "app")
    child = zone_qd.run("session", "spawn", "--app", "app", "--parent", root)
    told = zone_qd.run("zone", "stop", zone.id, "--yes", "--reason", "a bad day")
    assert re.search(rf"^zone +{zone.id}$", told, re.MULTILINE)
    assert re.search(r"^stopped +2$", told, re.MULTILINE)
    assert re.search(r"^left +nothing$", told, re.MULTILINE)
    assert zone_qd.run_json("session", "show", child)["termination_reason"] == "a bad day"
    assert (status(zone_qd, root), state(zone_qd, zone)) == ("terminated", "frozen")
    assert zone_qd("session", "spawn", "--app", "app").returncode == 3
    again = zone_qd.run_json("zone", "stop", zone.id, "--yes")
    assert (again["zone_id"], again["session_id"], again["stopped"]) == (zone.id, None, 0)


def test_a_stop_that_left_something_has_failed(zone_qd: Qd) -> None:
    receipt = {"zone_id": "z", "session_id": None, "left": [{"session_id": "late", "reason": "spawned since"}]}
    with run_scripted_server(http_response(200, receipt)) as server:
        done = zone_qd("zone", "stop", "z", "--yes", "--url", server.url, "--token", "t")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "late  spawned since"


# -- who may press the button ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_where_nobody_can_be_asked_yes_must_be_said(zone_qd: Qd, zone: FreshZone, verb: str) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    refused = zone_qd("zone", verb, zone.id)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give --yes" in refused.stderr
    assert json.loads(zone_qd("zone", verb, zone.id, "--json").stderr)["error"] == "usage"
    assert (status(zone_qd, running), state(zone_qd, zone)) == ("active", "open")


def test_a_stop_without_yes_starts_no_server(tmp_path: Path) -> None:
    own = Qd(tmp_path / "data")
    assert own("zone", "stop", "default").returncode == 2
    assert not own.data.exists()


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_on_a_terminal_the_zone_s_name_must_be_typed(zone_qd: Qd, zone: FreshZone, verb: str) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    for typed in (f"{zone.id}x\n", "y\n", "\n", "\x04"):
        asked = run_on_terminal(zone_qd, "zone", verb, zone.id, typed=typed)
        assert asked.code == 1
        assert "Live in it now: 1 session." in asked.output
        assert asked.output.endswith(f"qd: That is not the zone's name: nothing was done to {zone.id}.\n")
    assert (status(zone_qd, running), state(zone_qd, zone)) == ("active", "open")
    done = run_on_terminal(zone_qd, "zone", verb, zone.id, typed=f"{zone.id}\n")
    assert done.code == 0, done.output
    assert status(zone_qd, running) == "terminated"
    assert state(zone_qd, zone) == {"stop": "frozen", "delete": "ended"}[verb]


def test_on_a_terminal_nobody_is_asked_about_a_zone_that_is_not_there(zone_qd: Qd) -> None:
    asked = run_on_terminal(zone_qd, "zone", "stop", "nowhere", typed="nowhere\n")
    assert asked.code == 4
    assert "type the zone's name" not in asked.output


def test_yes_is_heeded_on_a_terminal_too(zone_qd: Qd, zone: FreshZone) -> None:
    done = run_on_terminal(zone_qd, "zone", "delete", zone.id, "--yes")
    assert (done.code, done.output) == (0, f"ended zone {zone.id}\n")


def test_a_zone_must_be_named_to_be_stopped_or_ended(zone_qd: Qd) -> None:
    for verb in ("stop", "delete"):
        refused = zone_qd("zone", verb, "--yes")
        assert refused.returncode == 2
        assert "ZONE" in refused.stderr


def test_an_application_may_not_press_the_button(zone_qd: Qd, zone: FreshZone) -> None:
    for words in (("freeze",), ("thaw",), ("stop", "--yes"), ("delete", "--yes")):
        verb, *options = words
        refused = zone_qd("zone", verb, zone.id, *options, "--token", zone.token(), "--json")
        assert refused.returncode == 1
        assert json.loads(refused.stderr)["error"] == "missing_scope"


# -- delete ------------------------------------------------------------------------------------------------------


def test_delete_ends_a_zone_and_all_in_it_for_good(zone_qd: Qd, zone: FreshZone) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    told = zone_qd.run_json("zone", "delete", zone.id, "--yes", "--receipt", "--reason", "moved away")
    assert (told["stopped"], told["reason"]) == (1, "moved away")
    assert (status(zone_qd, running), state(zone_qd, zone)) == ("terminated", "ended")
    assert zone_qd.run("zone", "delete", zone.id, "--yes") == f"ended zone {zone.id}", "twice is no mistake"
    assert zone_qd.run_json("zone", "delete", zone.id, "--yes") == {"id": zone.id, "status": "ended"}
    assert zone_qd.run_json("zone", "show", zone.id)["ended_at"]


def test_what_changes_an_ended_zone_is_refused_with_a_sentence(zone_qd: Qd, zone: FreshZone) -> None:
    zone_qd.run("zone", "delete", zone.id, "--yes")
    changes = [
        ("zone", "thaw", zone.id),
        ("zone", "freeze", zone.id),
        ("zone", "create", zone.id),
        ("zone", "quotas", zone.id, "--set", "max_depth=1"),
    ]
    for words in changes:
        refused = zone_qd(*words)
        assert refused.returncode == 1
        assert "has ended" in refused.stderr
    assert zone_qd("session", "spawn", "--app", "app").returncode == 4


def test_the_default_zone_cannot_be_ended(zone_qd: Qd) -> None:
    refused = zone_qd("zone", "delete", "default", "--yes", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["error"] == "zone_is_default"
