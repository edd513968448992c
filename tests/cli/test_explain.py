"""`qd explain`: why a session is as it is and what a spawn would meet, on both engines."""

from __future__ import annotations

import json
import re

import pytest

from quarterdeck.cli.output import width
from tests.cli.cli_support import Qd, http_response, run_on_terminal, run_scripted_server
from tests.support.engine_marks import ON_BOTH
from tests.support.zone import FreshZone


def bounds(told: str) -> dict[str, list[str]]:
    """The table of bounds: used, limit and left by name."""
    rows = [re.split("  +", line) for line in told.splitlines() if line.startswith("max_")]
    return {name: numbers for name, *numbers in rows}


# -- sessions ----------------------------------------------------------------------------------------------------


def test_a_session_that_runs_is_explained_with_what_a_spawn_under_it_would_meet(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_children=2", "--set", "max_depth=3")
    root = zone_qd.run("session", "spawn", "--app", "lead")
    zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    told = zone_qd.run("explain", "session", root)
    assert told.splitlines()[0] == f"session {root} of lead: active"
    assert "  It is active" in told
    assert "A spawn under it would be admitted now." in told
    assert bounds(told)["max_children"] == ["1", "2", "1"]
    assert bounds(told)["max_depth"] == ["0", "3", "3"]
    assert "held by" not in told
    assert "ended by" not in told


def test_a_session_that_sleeps_is_explained_by_everybody_who_holds_it(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    child = zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    zone_qd.run("session", "suspend", root)
    zone_qd.run("session", "suspend", child)
    told = zone_qd.run("explain", "session", child)
    assert re.search(rf"^held by  {child} \(itself\)\n +{root}$", told, re.MULTILINE)
    assert "A spawn under it would be refused now:\n  parent_not_found: " in told


@ON_BOTH
def test_a_session_that_ended_with_its_ancestor_is_explained_by_who_ended_that_and_why(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    child = zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    zone_qd.run("session", "stop", root, "--reason", "that is enough")
    told = zone_qd.run("explain", "session", child)
    assert "that is enough" in told
    assert re.search(r"^ended by +local$", told, re.MULTILINE)
    assert re.search(rf"^through +its ancestor {root}$", told, re.MULTILINE)
    event = re.search(r"^event +(\d+) \(.* ago\)$", told, re.MULTILINE)
    assert event is not None
    [logged] = zone_qd.run_json("events", "--subject", child, "--type", "session.terminate")["items"]
    assert logged["pos"] == int(event[1])
    assert not bounds(told), "what an ended tree once counted is gone, and zeros would tell a tale"
    assert re.search(r"^through +itself$", zone_qd.run("explain", "session", root), re.MULTILINE)


def test_a_session_that_ended_with_its_zone_is_explained_by_the_zone(zone_qd: Qd, zone: FreshZone) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    zone_qd.run("zone", "stop", zone.id, "--yes")
    told = zone_qd.run("explain", "session", root)
    assert re.search(rf"^through +its zone {zone.id}$", told, re.MULTILINE)
    assert "zone_frozen" in told


def test_for_programs_the_explanation_of_a_session_is_the_server_s_document(zone_qd: Qd) -> None:
    root = zone_qd.run("session", "spawn", "--app", "lead")
    told = zone_qd.run_json("explain", "session", root)
    assert told["session"] == zone_qd.run_json("session", "show", root)
    assert (told["held_by"], told["ended_by"], told["spawn"]["admitted"]) == ([], None, True)


def test_what_is_not_there_cannot_be_explained(zone_qd: Qd) -> None:
    assert zone_qd("explain", "session", "nobody").returncode == 4
    assert zone_qd("explain", "spawn", "--app", "app", "--zone", "nowhere").returncode == 4
    assert zone_qd("explain", "session").returncode == 2
    assert zone_qd("explain", "spawn").returncode == 2


# -- spawns ------------------------------------------------------------------------------------------------------


def test_a_spawn_that_would_be_admitted_exits_with_0_and_makes_nothing(zone_qd: Qd, zone: FreshZone) -> None:
    told = zone_qd.run("explain", "spawn", "--app", "app")
    assert told.startswith(f"A spawn by app in zone {zone.id}, as a new tree, would be admitted now.\n")
    assert bounds(told)["max_sessions"][0] == "0"
    assert zone_qd.run_json("session", "list")["items"] == []


@ON_BOTH
def test_a_spawn_that_would_be_refused_exits_with_3_and_names_all_that_refuses_it(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_sessions=1", "--set", "max_tree_size=1")
    root = zone_qd.run("session", "spawn", "--app", "app")
    done = zone_qd("explain", "spawn", "--app", "app", "--parent", root)
    assert (done.returncode, done.stderr) == (3, "")
    first, *refusals = done.stdout.partition("\n\n")[0].splitlines()
    assert first.endswith(f"under {root}, would be refused now:")
    assert [line.split(":")[0].strip() for line in refusals] == [
        "agent_zone_limit_exceeded",
        "what frees it",
        "agent_tree_limit_exceeded",
        "what frees it",
    ]
    assert "a session of the zone ends" in refusals[1]
    table = bounds(done.stdout)
    assert (table["max_sessions"], table["max_tree_size"]) == (["1", "1", "0, full"], ["1", "1", "0, full"])
    assert not table["max_depth"][2].endswith("full")


def test_for_programs_a_refused_spawn_is_a_document_on_stdout_and_still_exits_with_3(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_sessions=0")
    done = zone_qd("explain", "spawn", "--app", "app", "--json")
    assert (done.returncode, done.stderr) == (3, "")
    told = json.loads(done.stdout)
    assert (told["admitted"], told["refused_by"][0]["bound"]) == (False, "max_sessions")
    assert {"bound", "limit", "used", "left", "counts", "frees"} == set(told["bounds"][0])


@pytest.mark.parametrize("wrong", ["frozen", "ended", "no parent", "parent asleep", "parent ended", "full"])
def test_whatever_refuses_a_spawn_is_told_by_its_explanation_first(zone_qd: Qd, zone: FreshZone, wrong: str) -> None:
    parent = zone_qd.run("session", "spawn", "--app", "app")
    spoil = {
        "frozen": ("zone", "freeze"),
        "ended": ("zone", "delete", zone.id, "--yes"),
        "no parent": ("version",),
        "parent asleep": ("session", "suspend", parent),
        "parent ended": ("session", "stop", parent),
        "full": ("zone", "quotas", "--set", "max_concurrent=0"),
    }
    words = ["spawn", "--app", "app", "--parent", "nobody" if wrong == "no parent" else parent]
    zone_qd.run(*spoil[wrong])
    explained = zone_qd("explain", *words, "--json")
    refused = zone_qd("session", *words, "--json")
    assert explained.returncode == 3
    assert refused.returncode != 0
    assert json.loads(explained.stdout)["refused_by"][0]["error"] == json.loads(refused.stderr)["error"]


# -- how it is told ----------------------------------------------------------------------------------------------


def test_on_a_terminal_sentences_are_folded_at_its_width_and_ids_stay_whole(zone_qd: Qd) -> None:
    zone_qd.run("zone", "quotas", "--set", "max_sessions=2")
    root = zone_qd.run("session", "spawn", "--app", "lead")
    child = zone_qd.run("session", "spawn", "--app", "worker", "--parent", root)
    zone_qd.run("session", "suspend", root)
    zone_qd.run("session", "suspend", child)
    shown = run_on_terminal(zone_qd, "explain", "session", child, columns=60)
    assert shown.code == 0
    # The first line is a heading with an id and two words of strangers: it is left to the terminal.
    assert max(map(width, shown.output.splitlines()[1:])) <= 60
    assert shown.output.count(root) == zone_qd.run("explain", "session", child).count(root)


def test_the_words_of_strangers_cannot_move_the_cursor(zone_qd: Qd) -> None:
    evil = "evil\x1b[2J"
    document = {
        "session": {"id": "s", "zone_id": "z", "application_id": evil, "status": "terminated"},
        "why": [f"It was ended: {evil}."],
        "held_by": [evil],
        "ended_by": {"actor": evil, "cause": evil, "at": "2026-01-02T03:04:05.000Z", "pos": 7, "trace": evil},
        "spawn": {"admitted": False, "refused_by": [{"error": evil, "detail": evil, "frees": evil}], "bounds": []},
    }
    with run_scripted_server(http_response(200, document)) as server:
        told = zone_qd.run("explain", "session", "s", "--url", server.url, "--token", "t")
    assert "\x1b" not in told
    assert told.count("evil\\x1b[2J") == 9
