"""`qd zone freeze`, `thaw`, `stop` and `delete`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.cli_support import Qd, http_response, run_on_terminal, run_scripted_server
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone


def state(qd: Qd, zone: FreshZone) -> str:
    """Returns the state of a zone in `qd zone list`."""
    [row] = [line.split() for line in qd.run("zone", "list").splitlines() if line.split()[0] == zone.id]
    return row[2]


def status(qd: Qd, session: str) -> str:
    return str(qd.run_json("session", "show", session)["status"])


# -- freeze and thaw ---------------------------------------------------------------------------------------------


def test_frozen_zone_refuses_spawns_until_thawed(zone_qd: Qd, zone: FreshZone) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    assert zone_qd.run("zone", "freeze", zone.id) == f"Froze zone {zone.id}. Undo with `qd zone thaw {zone.id}`."
    refused = zone_qd("session", "spawn", "--app", "app")
    assert refused.returncode == 3
    assert "what frees it: an administrator thaws the zone" in refused.stderr
    assert (state(zone_qd, zone), status(zone_qd, running)) == ("frozen", "active")
    assert "frozen" in zone_qd("zone", "quotas").stderr
    assert zone_qd.run("zone", "thaw", zone.id) == f"Thawed zone {zone.id}."
    assert state(zone_qd, zone) == "open"
    zone_qd.run("session", "spawn", "--app", "app")


def test_freeze_and_thaw_default_to_the_current_zone(zone_qd: Qd, zone: FreshZone) -> None:
    reply = zone_qd.run_json("zone", "freeze")
    assert (reply["id"], reply["frozen"]) == (zone.id, True)
    assert zone_qd.run_json("zone", "freeze")["frozen"] is True, "freeze is idempotent"
    reply = zone_qd.run_json("zone", "thaw", zone.id, QD_ZONE="default")
    assert (reply["id"], reply["frozen"]) == (zone.id, False)


def test_missing_zone_exits_with_4(zone_qd: Qd) -> None:
    for verb in ("freeze", "thaw"):
        assert zone_qd("zone", verb, "no-such-zone").returncode == 4
    for verb in ("stop", "delete"):
        missing = zone_qd("zone", verb, "no-such-zone", "--yes", "--json")
        assert missing.returncode == 4
        assert json.loads(missing.stderr)["error"] == "zone_not_found"


# -- stop --------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_stop_terminates_every_session_and_prints_the_receipt(zone_qd: Qd, zone: FreshZone) -> None:
    root = zone_qd.run("session", "spawn", "--app", "app")
    child = zone_qd.run("session", "spawn", "--app", "app", "--parent", root)
    output = zone_qd.run("zone", "stop", zone.id, "--yes", "--reason", "a bad day")
    assert re.search(rf"^zone +{zone.id}$", output, re.MULTILINE)
    assert re.search(r"^stopped +2$", output, re.MULTILINE)
    assert re.search(r"^left +none$", output, re.MULTILINE)
    assert zone_qd.run_json("session", "show", child)["termination_reason"] == "a bad day"
    assert (status(zone_qd, root), state(zone_qd, zone)) == ("terminated", "frozen")
    assert zone_qd("session", "spawn", "--app", "app").returncode == 3
    again = zone_qd.run_json("zone", "stop", zone.id, "--yes")
    assert (again["zone_id"], again["session_id"], again["stopped"]) == (zone.id, None, 0)


def test_incomplete_stop_fails(zone_qd: Qd) -> None:
    receipt = {"zone_id": "z", "session_id": None, "left": [{"session_id": "late", "reason": "spawned since"}]}
    with run_scripted_server(http_response(200, receipt)) as server:
        result = zone_qd("zone", "stop", "z", "--yes", "--url", server.url, "--token", "t")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "late  spawned since"


# -- confirmation and permission ---------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_without_a_terminal_yes_is_required(zone_qd: Qd, zone: FreshZone, verb: str) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    refused = zone_qd("zone", verb, zone.id)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Give --yes" in refused.stderr
    assert json.loads(zone_qd("zone", verb, zone.id, "--json").stderr)["error"] == "usage"
    assert (status(zone_qd, running), state(zone_qd, zone)) == ("active", "open")


def test_stop_without_yes_starts_no_server(tmp_path: Path) -> None:
    qd = Qd(tmp_path / "data")
    assert qd("zone", "stop", "default").returncode == 2
    assert not qd.data.exists()


@pytest.mark.parametrize("verb", ["stop", "delete"])
def test_on_a_terminal_the_zone_id_must_be_typed(zone_qd: Qd, zone: FreshZone, verb: str) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    for typed in (f"{zone.id}x\n", "y\n", "\n", "\x04"):
        declined = run_on_terminal(zone_qd, "zone", verb, zone.id, typed=typed)
        assert declined.code == 1
        assert "Live sessions: 1." in declined.output
        assert declined.output.endswith(f"qd: The id does not match. Zone {zone.id} was not changed.\n")
    assert (status(zone_qd, running), state(zone_qd, zone)) == ("active", "open")
    result = run_on_terminal(zone_qd, "zone", verb, zone.id, typed=f"{zone.id}\n")
    assert result.code == 0, result.output
    assert status(zone_qd, running) == "terminated"
    assert state(zone_qd, zone) == {"stop": "frozen", "delete": "ended"}[verb]


def test_missing_zone_needs_no_confirmation(zone_qd: Qd) -> None:
    result = run_on_terminal(zone_qd, "zone", "stop", "no-such-zone", typed="no-such-zone\n")
    assert result.code == 4
    assert "type the zone's id" not in result.output


def test_yes_skips_the_confirmation_on_a_terminal(zone_qd: Qd, zone: FreshZone) -> None:
    result = run_on_terminal(zone_qd, "zone", "delete", zone.id, "--yes")
    assert (result.code, result.output) == (0, f"Deleted zone {zone.id}.\n")


def test_stop_and_delete_require_a_zone(zone_qd: Qd) -> None:
    for verb in ("stop", "delete"):
        refused = zone_qd("zone", verb, "--yes")
        assert refused.returncode == 2
        assert "ZONE" in refused.stderr


def test_application_token_cannot_freeze_thaw_stop_or_delete(zone_qd: Qd, zone: FreshZone) -> None:
    for words in (("freeze",), ("thaw",), ("stop", "--yes"), ("delete", "--yes")):
        verb, *options = words
        refused = zone_qd("zone", verb, zone.id, *options, "--token", zone.token(), "--json")
        assert refused.returncode == 1
        assert json.loads(refused.stderr)["error"] == "missing_scope"


# -- delete ------------------------------------------------------------------------------------------------------


def test_delete_ends_the_zone_and_its_sessions(zone_qd: Qd, zone: FreshZone) -> None:
    running = zone_qd.run("session", "spawn", "--app", "app")
    reply = zone_qd.run_json("zone", "delete", zone.id, "--yes", "--receipt", "--reason", "moved away")
    assert (reply["stopped"], reply["reason"]) == (1, "moved away")
    assert (status(zone_qd, running), state(zone_qd, zone)) == ("terminated", "ended")
    assert zone_qd.run("zone", "delete", zone.id, "--yes") == f"Deleted zone {zone.id}.", "delete is idempotent"
    assert zone_qd.run_json("zone", "delete", zone.id, "--yes") == {"id": zone.id, "status": "ended"}
    assert zone_qd.run_json("zone", "show", zone.id)["ended_at"]


def test_ended_zone_refuses_changes(zone_qd: Qd, zone: FreshZone) -> None:
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


def test_default_zone_cannot_be_deleted(zone_qd: Qd) -> None:
    refused = zone_qd("zone", "delete", "default", "--yes", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["error"] == "zone_is_default"
