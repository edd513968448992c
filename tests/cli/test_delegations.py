"""`qd delegation`: lent, drawn and taken back from the command line, on both engines."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from quarterdeck.cli.delegation_graph import draw
from quarterdeck.cli.output import TextStyler
from quarterdeck.cli.session_tree import ASCII_GLYPHS
from quarterdeck.client.api import Document
from tests.cli.cli_support import Qd
from tests.support.engine_marks import ON_BOTH

NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z


def sessions(qd: Qd, number: int) -> list[str]:
    return [qd.run("session", "spawn", "--app", f"app-{n}") for n in range(number)]


def lent(qd: Qd, source: str, target: str, *words: str) -> str:
    return qd.run("delegation", "create", "--from", source, "--to", target, "--scope", "read", *words)


def lines_of(told: str) -> list[tuple[int, str, str]]:
    """How deep, which session, by which edge."""
    found = []
    for line in told.splitlines():
        match = re.match(r"([├└│─ ]*)([0-9a-f-]{36})(?:.*?\b([0-9a-f-]{36}))?", line)
        assert match is not None, line
        found.append((len(match[1]) // 3, match[2], match[3] or ""))
    return found


def test_create_prints_the_id_alone_and_hands_on_everything_that_was_said(zone_qd: Qd) -> None:
    one, two, three = sessions(zone_qd, 3)
    words = ["--scope", "write", "--resource", "repo:a", "--resource", "repo:b", "--hops", "3", "--ttl", "10m"]
    first = lent(zone_qd, one, two, *words, "--constraints", '{"actions": ["merge"]}', "--key", "k")
    told = zone_qd.run_json("delegation", "show", first)
    assert (told["source_session_id"], told["target_session_id"]) == (one, two)
    assert (told["scopes"], told["resources"], told["max_hops"]) == (["read", "write"], ["repo:a", "repo:b"], 3)
    assert told["constraints_json"]["actions"] == ["merge"]
    again = lent(zone_qd, one, two, *words, "--constraints", '{"actions": ["merge"]}', "--key", "k")
    assert again == first
    narrow = ["--resource", "repo:a", "--constraints", '{"actions": ["merge"]}', "--parent", first]
    below = lent(zone_qd, two, three, *narrow)
    assert zone_qd.run_json("delegation", "show", below)["parent_edge_id"] == first
    shown = zone_qd.run("delegation", "show", below)
    assert re.search(r"^scopes +read$", shown, re.MULTILINE)
    assert "delegation_edge_id" not in shown and "source_agent_id" not in shown, "once is enough"


def test_what_exceeds_or_closes_a_cycle_is_refused_in_a_sentence(zone_qd: Qd) -> None:
    one, two = sessions(zone_qd, 2)
    lent(zone_qd, one, two)
    for words, code in (
        (("--from", two, "--to", one, "--scope", "read"), "delegation_cycle_denied"),
        (("--from", two, "--to", sessions(zone_qd, 1)[0], "--scope", "admin"), "delegation_exceeds_authority"),
        (("--from", one, "--to", one), "self_delegation_denied"),
    ):
        done = zone_qd("delegation", "create", *words, "--json")
        assert (done.returncode, json.loads(done.stderr)["error"]) == (1, code)


def test_what_exceeds_is_told_part_by_part(zone_qd: Qd) -> None:
    one, two, three = sessions(zone_qd, 3)
    lent(zone_qd, one, two, "--resource", "repo:a")
    words = ("--from", two, "--to", three, "--scope", "write", "--resource", "repo:b")
    done = zone_qd("delegation", "create", *words)
    assert done.returncode == 1
    _, *parts, frees = done.stderr.splitlines()
    assert len(parts) == 2
    assert "write" in parts[0]
    assert "repo:b" in parts[1]
    assert frees.startswith("    what frees it: ")


@ON_BOTH
def test_a_list_is_narrowed_by_either_end_and_by_status(zone_qd: Qd) -> None:
    one, two, three = sessions(zone_qd, 3)
    first, second = lent(zone_qd, one, two), lent(zone_qd, two, three)
    heads, *rows = zone_qd.run("delegation", "list").splitlines()
    assert heads.split() == ["ID", "FROM", "TO", "SCOPES", "FOR", "STATUS", "HOPS", "LIFE"]
    assert [re.split("  +", row)[:7] for row in rows] == [
        [second, two, three, "read", "all", "active", "freely"],
        [first, one, two, "read", "all", "active", "freely"],
    ]
    for words, found in (
        (("--from", two), [second]),
        (("--to", two), [first]),
        (("--status", "revoked"), []),
        (("--limit", "1", "--all"), [second, first]),
    ):
        assert [one["id"] for one in zone_qd.run_json("delegation", "list", *words)["items"]] == found
    assert zone_qd.run("delegation", "list", "--status", "expired").startswith("no such delegations in zone")


def test_revoking_tells_what_it_took_and_ended(zone_qd: Qd) -> None:
    chain = sessions(zone_qd, 4)
    edges = [lent(zone_qd, source, target) for source, target in pairwise(chain)]
    kept = zone_qd.run("delegation", "revoke", edges[2], "--keep-sessions")
    assert kept == f"revoked {edges[2]}: 1 delegation taken back, 0 sessions ended"
    assert zone_qd.run_json("session", "show", chain[3])["status"] == "active"
    told = zone_qd.run("delegation", "revoke", edges[0])
    assert told == f"revoked {edges[0]}: 2 delegations taken back, 2 sessions ended"
    states = [zone_qd.run_json("session", "show", one)["status"] for one in chain]
    assert states == ["active", "terminated", "terminated", "active"]
    assert zone_qd.run("delegation", "revoke", edges[0]) == f"revoked {edges[0]}: it was over already"
    assert zone_qd.run_json("delegation", "revoke", edges[0])["revoked_edges"] == 0


@ON_BOTH
def test_the_graph_shows_under_each_delegation_what_falls_with_it(zone_qd: Qd) -> None:
    top, left, right, both, leaf = sessions(zone_qd, 5)
    to_left, to_right = lent(zone_qd, top, left, "--ttl", "20m"), lent(zone_qd, top, right, "--ttl", "30m")
    from_left, from_right = lent(zone_qd, left, both, "--ttl", "5m"), lent(zone_qd, right, both, "--ttl", "10m")
    last = lent(zone_qd, both, leaf)
    told = zone_qd.run("delegation", "graph", top)
    assert lines_of(told) == [
        (0, top, ""),
        (1, left, to_left),
        (2, both, from_left),
        (1, right, to_right),
        (2, both, from_right),
        (3, leaf, last),
    ]
    assert [line for line in told.splitlines() if "also above" in line] == [
        line for line in told.splitlines() if from_right in line
    ]
    around = zone_qd.run("delegation", "graph", from_left)
    assert lines_of(around) == [
        (0, top, ""),
        (1, left, to_left),
        (2, both, from_left),
        (0, both, ""),
        (1, leaf, last),
    ], "what is only reached from it, and derived from another, stands apart"
    inbound = zone_qd.run("delegation", "graph", leaf)
    assert lines_of(inbound) == [(0, both, ""), (1, leaf, last)]
    told = zone_qd.run_json("delegation", "graph", top)
    assert {edge["id"] for edge in told["items"]} == {to_left, to_right, from_left, from_right, last}
    assert told["truncated"] is False


def test_a_graph_that_is_cut_says_so_and_one_of_nothing_too(zone_qd: Qd) -> None:
    chain = sessions(zone_qd, 4)
    first, *_ = [lent(zone_qd, source, target) for source, target in pairwise(chain)]
    cut = zone_qd("delegation", "graph", first, "--limit", "2")
    assert len(cut.stdout.splitlines()) == 3
    assert "there are more than these 2" in cut.stderr
    [lonely] = sessions(zone_qd, 1)
    done = zone_qd("delegation", "graph", lonely)
    assert (done.stdout, done.returncode) == (f"{lonely}\n", 0)
    assert "no active delegation" in done.stderr
    missing = zone_qd("delegation", "graph", "no-such")
    assert missing.returncode == 4
    assert "neither a delegation nor a session 'no-such'" in missing.stderr


def test_authority_tells_what_a_session_holds_and_by_which_or_why_nothing(zone_qd: Qd) -> None:
    one, two = sessions(zone_qd, 2)
    edge = lent(zone_qd, one, two, "--resource", "repo:a")
    told = zone_qd.run("delegation", "authority", two)
    assert re.search(r"^scopes +read$", told, re.MULTILINE)
    assert re.split("  +", told.splitlines()[-1])[:6] == [edge, one, two, "read", "repo:a", "active"]
    assert zone_qd.run_json("delegation", "authority", two)["edges"][0]["id"] == edge
    assert re.search(r"^holds +nothing\nbecause +\S+", zone_qd.run("delegation", "authority", one), re.MULTILINE)
    assert zone_qd("delegation", "authority", "no-such").returncode == 4


def test_a_delegation_is_explained_in_sentences_with_its_line(zone_qd: Qd) -> None:
    one, two, three = sessions(zone_qd, 3)
    first, second = lent(zone_qd, one, two, "--resource", "repo:a"), ""
    second = lent(zone_qd, two, three, "--resource", "repo:a")
    told = zone_qd.run("explain", "delegation", second)
    assert told.splitlines()[0] == f"delegation {second} from {two} to {three}: active"
    assert told.splitlines()[1].startswith("  It is active")
    assert re.search(rf"^derived from +{first}$", told, re.MULTILINE)
    assert "\nwhat could not be derived from it:\n  Scopes other than read." in told
    zone_qd.run("delegation", "revoke", first)
    told = zone_qd.run("explain", "delegation", second)
    assert told.splitlines()[0].endswith(": revoked")
    assert re.search(r"^ended by +local$", told, re.MULTILINE)
    assert zone_qd.run_json("explain", "delegation", second)["edge"]["id"] == second
    assert zone_qd("explain", "delegation", "no-such").returncode == 4


# -- the drawing itself ------------------------------------------------------------------------------------------


def edge(name: str, source: str, target: str, parent: str | None = None, **more: object) -> Document:
    return {
        "id": name,
        "source_session_id": source,
        "target_session_id": target,
        "parent_edge_id": parent,
        "scopes": ["read"],
        "resources": None,
        "max_hops": 1,
        "status": "active",
        "expires_at": "2026-01-02T04:04:05.000Z",
        **more,
    }


def test_a_drawing_is_aligned_and_says_what_is_lent_for_how_far_and_how_long() -> None:
    drawn = draw(
        [
            edge("e2", "b", "c", "e1", max_hops=0, resources=["r1", "r2"]),
            edge("e1", "a", "b", scopes=["read", "write"]),
            edge("e3", "b", "d", "e1", status="revoked", ended_at="2026-01-02T03:00:05.000Z"),
        ],
        "e2",
        NOW,
        TextStyler(is_enabled=False),
        ASCII_GLYPHS,
    )
    assert drawn.splitlines() == [
        "a",
        "`- b     read, write      active   1 hop more  1h left       e1",
        "   |- c  read for r1, r2  active   last hop    1h left       e2",
        "   `- d  read             revoked  1 hop more  ended 4m ago  e3",
    ]


def test_what_was_asked_about_stands_out_on_a_terminal() -> None:
    edges = [edge("e1", "a", "b"), edge("e2", "b", "c", "e1")]
    bold = [line.startswith("\x1b[1m") for line in draw(edges, "e2", NOW, TextStyler(is_enabled=True)).splitlines()]
    assert bold == [False, False, True]
    bold = [line.startswith("\x1b[1m") for line in draw(edges, "b", NOW, TextStyler(is_enabled=True)).splitlines()]
    assert bold == [False, True, False]


def test_a_chain_longer_than_pythons_own_stack_is_drawn() -> None:
    long = [edge(f"e{n:05}", f"s{n}", f"s{n + 1}", f"e{n - 1:05}" if n else None) for n in range(3_000)]
    assert len(draw(long, "s0", NOW, TextStyler(is_enabled=False)).splitlines()) == 3_001


@pytest.mark.parametrize("words", [("create",), ("create", "--from", "a"), ("show",), ("graph",), ("revoke",)])
def test_a_line_that_lacks_something_is_a_mistake(zone_qd: Qd, words: tuple[str, ...]) -> None:
    assert zone_qd("delegation", *words).returncode == 2
