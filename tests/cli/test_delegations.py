"""`qd delegation` and `qd explain delegation`."""

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


def spawn_sessions(qd: Qd, number: int) -> list[str]:
    return [qd.run("session", "spawn", "--app", f"app-{n}") for n in range(number)]


def create_delegation(qd: Qd, source: str, target: str, *words: str) -> str:
    return qd.run("delegation", "create", "--from", source, "--to", target, "--scope", "read", *words)


def parse_graph(output: str) -> list[tuple[int, str, str]]:
    """Returns depth, session and edge of each line."""
    edges = []
    for line in output.splitlines():
        match = re.match(r"([├└│─ ]*)([0-9a-f-]{36})(?:.*?\b([0-9a-f-]{36}))?", line)
        assert match is not None, line
        edges.append((len(match[1]) // 3, match[2], match[3] or ""))
    return edges


def test_create_prints_only_the_id_and_sends_every_option(zone_qd: Qd) -> None:
    one, two, three = spawn_sessions(zone_qd, 3)
    words = ["--scope", "write", "--resource", "repo:a", "--resource", "repo:b", "--hops", "3", "--ttl", "10m"]
    first = create_delegation(zone_qd, one, two, *words, "--constraints", '{"actions": ["merge"]}', "--key", "k")
    reply = zone_qd.run_json("delegation", "show", first)
    assert (reply["source_session_id"], reply["target_session_id"]) == (one, two)
    assert (reply["scopes"], reply["resources"], reply["max_hops"]) == (["read", "write"], ["repo:a", "repo:b"], 3)
    assert reply["constraints_json"]["actions"] == ["merge"]
    again = create_delegation(zone_qd, one, two, *words, "--constraints", '{"actions": ["merge"]}', "--key", "k")
    assert again == first
    narrow = ["--resource", "repo:a", "--constraints", '{"actions": ["merge"]}', "--parent", first]
    below = create_delegation(zone_qd, two, three, *narrow)
    assert zone_qd.run_json("delegation", "show", below)["parent_edge_id"] == first
    output = zone_qd.run("delegation", "show", below)
    assert re.search(r"^scopes +read$", output, re.MULTILINE)
    assert "delegation_edge_id" not in output and "source_agent_id" not in output, (
        "the same ids are not repeated under other names"
    )


def test_create_refuses_cycles_self_delegation_and_exceeded_authority(zone_qd: Qd) -> None:
    one, two = spawn_sessions(zone_qd, 2)
    create_delegation(zone_qd, one, two)
    for words, code in (
        (("--from", two, "--to", one, "--scope", "read"), "delegation_cycle_denied"),
        (("--from", two, "--to", spawn_sessions(zone_qd, 1)[0], "--scope", "admin"), "delegation_exceeds_authority"),
        (("--from", one, "--to", one), "self_delegation_denied"),
    ):
        result = zone_qd("delegation", "create", *words, "--json")
        assert (result.returncode, json.loads(result.stderr)["error"]) == (1, code)


def test_exceeded_authority_is_listed_per_field(zone_qd: Qd) -> None:
    one, two, three = spawn_sessions(zone_qd, 3)
    create_delegation(zone_qd, one, two, "--resource", "repo:a")
    words = ("--from", two, "--to", three, "--scope", "write", "--resource", "repo:b")
    result = zone_qd("delegation", "create", *words)
    assert result.returncode == 1
    _, *parts, frees = result.stderr.splitlines()
    assert len(parts) == 2
    assert "write" in parts[0]
    assert "repo:b" in parts[1]
    assert frees.startswith("    what frees it: ")


@ON_BOTH
def test_list_filters_by_source_target_and_status(zone_qd: Qd) -> None:
    one, two, three = spawn_sessions(zone_qd, 3)
    first, second = create_delegation(zone_qd, one, two), create_delegation(zone_qd, two, three)
    header, *rows = zone_qd.run("delegation", "list").splitlines()
    assert header.split() == ["ID", "FROM", "TO", "SCOPES", "RESOURCES", "STATUS", "HOPS", "EXPIRY"]
    assert [re.split("  +", row)[:7] for row in rows] == [
        [second, two, three, "read", "all", "active", "unlimited hops"],
        [first, one, two, "read", "all", "active", "unlimited hops"],
    ]
    for words, expected in (
        (("--from", two), [second]),
        (("--to", two), [first]),
        (("--status", "revoked"), []),
        (("--limit", "1", "--all"), [second, first]),
    ):
        assert [edge["id"] for edge in zone_qd.run_json("delegation", "list", *words)["items"]] == expected
    assert zone_qd.run("delegation", "list", "--status", "expired").startswith("No delegations found in zone")


def test_revoke_prints_the_revoked_delegations_and_terminated_sessions(zone_qd: Qd) -> None:
    chain = spawn_sessions(zone_qd, 4)
    edges = [create_delegation(zone_qd, source, target) for source, target in pairwise(chain)]
    kept = zone_qd.run("delegation", "revoke", edges[2], "--keep-sessions")
    assert kept == f"Revoked {edges[2]}: 1 delegation revoked, 0 sessions terminated."
    assert zone_qd.run_json("session", "show", chain[3])["status"] == "active"
    output = zone_qd.run("delegation", "revoke", edges[0])
    assert output == f"Revoked {edges[0]}: 2 delegations revoked, 2 sessions terminated."
    states = [zone_qd.run_json("session", "show", session)["status"] for session in chain]
    assert states == ["active", "terminated", "terminated", "active"]
    assert zone_qd.run("delegation", "revoke", edges[0]) == f"Delegation {edges[0]} had already ended."
    assert zone_qd.run_json("delegation", "revoke", edges[0])["revoked_edges"] == 0


@ON_BOTH
def test_graph_nests_derived_delegations_under_their_parent(zone_qd: Qd) -> None:
    top, left, right, both, leaf = spawn_sessions(zone_qd, 5)
    to_left, to_right = (
        create_delegation(zone_qd, top, left, "--ttl", "20m"),
        create_delegation(zone_qd, top, right, "--ttl", "30m"),
    )
    from_left, from_right = (
        create_delegation(zone_qd, left, both, "--ttl", "5m"),
        create_delegation(zone_qd, right, both, "--ttl", "10m"),
    )
    last = create_delegation(zone_qd, both, leaf)
    output = zone_qd.run("delegation", "graph", top)
    assert parse_graph(output) == [
        (0, top, ""),
        (1, left, to_left),
        (2, both, from_left),
        (1, right, to_right),
        (2, both, from_right),
        (3, leaf, last),
    ]
    assert [line for line in output.splitlines() if "also above" in line] == [
        line for line in output.splitlines() if from_right in line
    ]
    edge_graph = zone_qd.run("delegation", "graph", from_left)
    assert parse_graph(edge_graph) == [
        (0, top, ""),
        (1, left, to_left),
        (2, both, from_left),
        (0, both, ""),
        (1, leaf, last),
    ], "edges that are reachable but derived from another edge are drawn separately"
    leaf_graph = zone_qd.run("delegation", "graph", leaf)
    assert parse_graph(leaf_graph) == [(0, both, ""), (1, leaf, last)]
    reply = zone_qd.run_json("delegation", "graph", top)
    assert {edge["id"] for edge in reply["items"]} == {to_left, to_right, from_left, from_right, last}
    assert reply["truncated"] is False


def test_graph_reports_truncation_no_delegation_and_missing_ids(zone_qd: Qd) -> None:
    chain = spawn_sessions(zone_qd, 4)
    first, *_ = [create_delegation(zone_qd, source, target) for source, target in pairwise(chain)]
    truncated = zone_qd("delegation", "graph", first, "--limit", "2")
    assert len(truncated.stdout.splitlines()) == 3
    assert "More than 2 delegations exist" in truncated.stderr
    [unconnected] = spawn_sessions(zone_qd, 1)
    result = zone_qd("delegation", "graph", unconnected)
    assert (result.stdout, result.returncode) == (f"{unconnected}\n", 0)
    assert "no active delegation" in result.stderr
    missing = zone_qd("delegation", "graph", "no-such")
    assert missing.returncode == 4
    assert "no delegation or session 'no-such'" in missing.stderr


def test_authority_prints_scopes_with_their_edges_or_a_reason(zone_qd: Qd) -> None:
    one, two = spawn_sessions(zone_qd, 2)
    edge = create_delegation(zone_qd, one, two, "--resource", "repo:a")
    output = zone_qd.run("delegation", "authority", two)
    assert re.search(r"^scopes +read$", output, re.MULTILINE)
    assert re.split("  +", output.splitlines()[-1])[:6] == [edge, one, two, "read", "repo:a", "active"]
    assert zone_qd.run_json("delegation", "authority", two)["edges"][0]["id"] == edge
    assert re.search(r"^scopes +none\nreason +\S+", zone_qd.run("delegation", "authority", one), re.MULTILINE)
    assert zone_qd("delegation", "authority", "no-such").returncode == 4


def test_explain_delegation_prints_state_parent_and_limits(zone_qd: Qd) -> None:
    one, two, three = spawn_sessions(zone_qd, 3)
    first = create_delegation(zone_qd, one, two, "--resource", "repo:a")
    second = create_delegation(zone_qd, two, three, "--resource", "repo:a")
    output = zone_qd.run("explain", "delegation", second)
    assert output.splitlines()[0] == f"delegation {second} from {two} to {three}: active"
    assert output.splitlines()[1].startswith("  It is active")
    assert re.search(rf"^derived from +{first}$", output, re.MULTILINE)
    assert "\nwhat cannot be derived from it:\n  Scopes other than read." in output
    zone_qd.run("delegation", "revoke", first)
    output = zone_qd.run("explain", "delegation", second)
    assert output.splitlines()[0].endswith(": revoked")
    assert re.search(r"^ended by +local$", output, re.MULTILINE)
    assert zone_qd.run_json("explain", "delegation", second)["edge"]["id"] == second
    assert zone_qd("explain", "delegation", "no-such").returncode == 4


# -- draw() -----------------------------------------------------------------------------------------------------


def edge(name: str, source: str, target: str, parent: str | None = None, **fields: object) -> Document:
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
        **fields,
    }


def test_graph_lines_are_aligned_with_scopes_hops_and_expiry() -> None:
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
        "`- b     read, write      active   1 more hop    1h left       e1",
        "   |- c  read for r1, r2  active   no more hops  1h left       e2",
        "   `- d  read             revoked  1 more hop    ended 4m ago  e3",
    ]


def test_requested_edge_or_session_is_bold_on_a_terminal() -> None:
    edges = [edge("e1", "a", "b"), edge("e2", "b", "c", "e1")]
    bold = [line.startswith("\x1b[1m") for line in draw(edges, "e2", NOW, TextStyler(is_enabled=True)).splitlines()]
    assert bold == [False, False, True]
    bold = [line.startswith("\x1b[1m") for line in draw(edges, "b", NOW, TextStyler(is_enabled=True)).splitlines()]
    assert bold == [False, True, False]


def test_chain_longer_than_the_recursion_limit_is_drawn() -> None:
    chain = [edge(f"e{n:05}", f"s{n}", f"s{n + 1}", f"e{n - 1:05}" if n else None) for n in range(3_000)]
    assert len(draw(chain, "s0", NOW, TextStyler(is_enabled=False)).splitlines()) == 3_001


@pytest.mark.parametrize("words", [("create",), ("create", "--from", "a"), ("show",), ("graph",), ("revoke",)])
def test_missing_argument_is_a_usage_error(zone_qd: Qd, words: tuple[str, ...]) -> None:
    assert zone_qd("delegation", *words).returncode == 2
