"""`qd explain`: the state of a session, and whether a spawn would be admitted."""

from __future__ import annotations

import json
import re

import pytest

from quarterdeck.cli.output import width
from tests.cli.cli_support import Qd, http_response, run_on_terminal, run_scripted_server
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone


def bounds(output: str) -> dict[str, list[str]]:
    """Returns used, limit and left of each bound in the table, by name."""
    rows = [re.split("  +", line) for line in output.splitlines() if line.startswith("max_")]
    return {name: numbers for name, *numbers in rows}


# -- sessions ----------------------------------------------------------------------------------------------------


def test_active_session_is_explained_with_its_spawn_bounds(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_children=2", "--set", "max_depth=3")
    root = zone_qd.run("session", "spawn", "--app", "lead")
    zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    output = zone_qd.run("explain", "session", root)
    assert output.splitlines()[0] == f"session {root} of lead: active"
    assert "  It is active" in output
    assert "A spawn under this session would be admitted now." in output
    assert bounds(output)["max_children"] == ["1", "2", "1"]
    assert bounds(output)["max_depth"] == ["0", "3", "3"]
    assert "suspended by" not in output
    assert "ended by" not in output


def test_suspended_session_names_every_suspension_that_holds_it(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    child = zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    zone_qd.run("session", "suspend", root)
    zone_qd.run("session", "suspend", child)
    output = zone_qd.run("explain", "session", child)
    assert re.search(rf"^suspended by  {child} \(itself\)\n +{root}$", output, re.MULTILINE)
    assert "A spawn under this session would be refused now:\n  parent_not_found: " in output


@ON_BOTH
def test_session_ended_with_its_ancestor_names_actor_reason_and_event(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    child = zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    zone_qd.run("session", "stop", root, "--reason", "work finished")
    output = zone_qd.run("explain", "session", child)
    assert "work finished" in output
    assert re.search(r"^ended by +local$", output, re.MULTILINE)
    assert re.search(rf"^ended with +ancestor {root}$", output, re.MULTILINE)
    event = re.search(r"^event +(\d+) \(.* ago\)$", output, re.MULTILINE)
    assert event is not None
    [logged] = zone_qd.run_json("events", "--subject", child, "--type", "session.terminate")["items"]
    assert logged["pos"] == int(event[1])
    assert not bounds(output), "the counters of an ended tree are gone, and zeros would be misleading"
    assert re.search(r"^ended with +itself$", zone_qd.run("explain", "session", root), re.MULTILINE)


def test_session_ended_with_its_zone_names_the_zone(zone_qd: Qd, zone: FreshZone) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    zone_qd.run("zone", "stop", zone.id, "--yes")
    output = zone_qd.run("explain", "session", root)
    assert re.search(rf"^ended with +zone {zone.id}$", output, re.MULTILINE)
    assert "zone_frozen" in output


def test_explain_session_json_is_the_server_document(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    reply = zone_qd.run_json("explain", "session", root)
    assert reply["session"] == zone_qd.run_json("session", "show", root)
    assert (reply["held_by"], reply["ended_by"], reply["spawn"]["admitted"]) == ([], None, True)


def test_explain_of_missing_objects_exits_with_4(zone_qd: Qd) -> None:
    assert zone_qd("explain", "session", "no-such-session").returncode == 4
    assert zone_qd("explain", "spawn", "--app", "app", "--zone", "no-such-zone").returncode == 4
    assert zone_qd("explain", "session").returncode == 2
    assert zone_qd("explain", "spawn").returncode == 2


# -- spawns ------------------------------------------------------------------------------------------------------


def test_admissible_spawn_exits_with_0_and_creates_nothing(zone_qd: Qd, zone: FreshZone) -> None:
    output = zone_qd.run("explain", "spawn", "--app", "app")
    assert output.startswith(f"A spawn by app in zone {zone.id}, as a root, would be admitted now.\n")
    assert bounds(output)["max_sessions"][0] == "0"
    assert zone_qd.run_json("session", "list")["items"] == []


@ON_BOTH
def test_refused_spawn_exits_with_3_and_names_every_refusal(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_sessions=1", "--set", "max_tree_size=1")
    root = zone_qd.run("session", "spawn", "--app", "app")
    result = zone_qd("explain", "spawn", "--app", "app", "--parent", root)
    assert (result.returncode, result.stderr) == (3, "")
    first, *refusals = result.stdout.partition("\n\n")[0].splitlines()
    assert first.endswith(f"under {root}, would be refused now:")
    assert [line.split(":")[0].strip() for line in refusals] == [
        "agent_zone_limit_exceeded",
        "what frees it",
        "agent_tree_limit_exceeded",
        "what frees it",
    ]
    assert "a session of the zone ends" in refusals[1]
    table = bounds(result.stdout)
    assert (table["max_sessions"], table["max_tree_size"]) == (["1", "1", "0, full"], ["1", "1", "0, full"])
    assert not table["max_depth"][2].endswith("full")


def test_refused_spawn_json_is_on_stdout_and_exits_with_3(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_sessions=0")
    result = zone_qd("explain", "spawn", "--app", "app", "--json")
    assert (result.returncode, result.stderr) == (3, "")
    reply = json.loads(result.stdout)
    assert (reply["admitted"], reply["refused_by"][0]["bound"]) == (False, "max_sessions")
    assert {"bound", "limit", "used", "left", "counts", "frees"} == set(reply["bounds"][0])


@pytest.mark.parametrize("obstacle", ["frozen", "ended", "no parent", "parent suspended", "parent ended", "full"])
def test_explain_spawn_reports_the_error_of_the_real_spawn(zone_qd: Qd, zone: FreshZone, obstacle: str) -> None:
    parent = zone_qd.run("session", "spawn", "--app", "app")
    commands = {
        "frozen": ("zone", "freeze"),
        "ended": ("zone", "delete", zone.id, "--yes"),
        "no parent": ("version",),
        "parent suspended": ("session", "suspend", parent),
        "parent ended": ("session", "stop", parent),
        "full": ("zone", "quotas", "--set", "max_concurrent=0"),
    }
    words = ["spawn", "--app", "app", "--parent", "no-such-session" if obstacle == "no parent" else parent]
    zone_qd.run(*commands[obstacle])
    explained = zone_qd("explain", *words, "--json")
    refused = zone_qd("session", *words, "--json")
    assert explained.returncode == 3
    assert refused.returncode != 0
    assert json.loads(explained.stdout)["refused_by"][0]["error"] == json.loads(refused.stderr)["error"]


# -- formatting -------------------------------------------------------------------------------------------------


def test_sentences_wrap_at_the_terminal_width_without_splitting_ids(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_sessions=2")
    root = zone_qd.run("session", "spawn", "--app", "lead")
    child = zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    zone_qd.run("session", "suspend", root)
    zone_qd.run("session", "suspend", child)
    result = run_on_terminal(zone_qd, "explain", "session", child, columns=60)
    assert result.code == 0
    # The first line is a heading with an id and two user-supplied names. It is not wrapped.
    assert max(map(width, result.output.splitlines()[1:])) <= 60
    assert result.output.count(root) == zone_qd.run("explain", "session", child).count(root)


def test_control_characters_are_escaped(zone_qd: Qd) -> None:
    evil = "evil\x1b[2J"
    document = {
        "session": {"id": "s", "zone_id": "z", "application_id": evil, "status": "terminated"},
        "why": [f"It was ended: {evil}."],
        "held_by": [evil],
        "ended_by": {"actor": evil, "cause": evil, "at": "2026-01-02T03:04:05.000Z", "pos": 7, "trace": evil},
        "spawn": {"admitted": False, "refused_by": [{"error": evil, "detail": evil, "frees": evil}], "bounds": []},
    }
    with run_scripted_server(http_response(200, document)) as server:
        output = zone_qd.run("explain", "session", "s", "--url", server.url, "--token", "t")
    assert "\x1b" not in output
    assert output.count("evil\\x1b[2J") == 9
