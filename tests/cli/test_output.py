"""Text output: aligned tables, session trees, and no unescaped control characters."""

from __future__ import annotations

import pytest

from quarterdeck.cli.errors import format_problem
from quarterdeck.cli.output import TextStyler, cell, fields, format_duration, table, width
from quarterdeck.cli.session_tree import ASCII_GLYPHS, UNICODE_GLYPHS, age_and_expiry, draw, glyphs_for
from quarterdeck.client.api import Document
from quarterdeck.core.errors import Invalid, LimitReached, NotFound, Unavailable

PLAIN = TextStyler(False)
COLORED = TextStyler(True)
NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z


def session(id_: str, parent: str | None = None, **overrides: object) -> Document:
    return {
        "id": id_,
        "parent_id": parent,
        "application_id": "app",
        "status": "active",
        "spawned_at": "2026-01-02T03:03:05.000Z",
        "expires_at": "2026-01-02T04:03:05.000Z",
        **overrides,
    }


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    text = table(("ID", "NAME"), [["a", "long name"], ["longer", None]], PLAIN)
    assert text.splitlines() == ["ID      NAME", "a       long name", "longer  -"]


def test_wide_characters_count_as_two_columns() -> None:
    lines = table(("ID", "NAME"), [["甲板", "x"], ["ab", "y"]], PLAIN).splitlines()
    assert {width(line[: line.rindex(end)]) for line, end in zip(lines[1:], "xy", strict=True)} == {6}


def test_fields_are_aligned_by_name() -> None:
    assert fields([("a", 1), ("long", True)], PLAIN) == "a     1\nlong  yes"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (61, "1m 1s"),
        (3600, "1h"),
        (12000, "3h 20m"),
        (187200, "2d 4h"),
    ],
)
def test_spans_use_their_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_control_characters_in_cells_are_escaped() -> None:
    text = cell("evil\x1b[2J\r\n\x9b31m")
    assert text.isprintable()
    assert text == "evil\\x1b[2J\\r\\n\\x9b31m"
    assert cell({"reason": "a\x9bb"}).isprintable()


def test_tree_draws_branches() -> None:
    items = [session("r"), session("a", "r"), session("b", "r"), session("a1", "a"), session("a2", "a")]
    lines = [line.split("  app")[0].rstrip() for line in draw(items, NOW, PLAIN).splitlines()]
    assert lines == ["r", "├─ a", "│  ├─ a1", "│  └─ a2", "└─ b"]


def test_tree_line_shows_application_status_age_and_time_left() -> None:
    assert draw([session("r")], NOW, PLAIN) == "r  app  active  1m  59m left"


def test_tree_columns_are_aligned_at_any_depth() -> None:
    items = [session("r"), session("child", "r"), session("grandchild", "child")]
    assert len({line.index("app") for line in draw(items, NOW, PLAIN).splitlines()}) == 1


def test_subtree_starts_with_the_requested_session() -> None:
    assert draw([session("child", "absent"), session("x", "child")], NOW, PLAIN).splitlines()[1].startswith("└─ x")


def test_ended_sessions_are_dimmed_and_live_ones_colored_by_status() -> None:
    ended = session("e", "r", status="terminated", terminated_at="2026-01-02T03:03:35.000Z")
    first, second = draw([session("r"), ended], NOW, COLORED).splitlines()
    assert "\x1b[32mactive" in first
    assert second.startswith("\x1b[2m└─ e")
    assert second.endswith("30s  ended\x1b[0m")


def test_plain_output_has_no_escape_sequences() -> None:
    assert "\x1b" not in draw([session("r", status="terminated")], NOW, PLAIN)


def test_glyphs_depend_on_the_encoding() -> None:
    assert glyphs_for("utf-8") is UNICODE_GLYPHS
    assert glyphs_for("UTF8") is UNICODE_GLYPHS
    assert glyphs_for("ascii") is ASCII_GLYPHS
    assert draw([session("r"), session("a", "r")], NOW, PLAIN, ASCII_GLYPHS).splitlines()[1].startswith("`- a")


def test_tree_deeper_than_the_recursion_limit_is_drawn() -> None:
    chain = [session("n0"), *(session(f"n{index}", f"n{index - 1}") for index in range(1, 1500))]
    assert len(draw(chain, NOW, PLAIN).splitlines()) == 1500


def test_age_of_an_ended_session_is_its_lifetime() -> None:
    assert age_and_expiry(session("e", status="terminated", terminated_at="2026-01-02T03:03:15.000Z"), NOW) == (
        "10s",
        "ended",
    )


def test_quota_refusal_names_bound_limit_usage_and_what_frees_it() -> None:
    problem = LimitReached(
        "agent_depth_limit_exceeded", "Too deep.", bound="max_depth", limit=10, used=10, frees="a shallower parent"
    )
    assert format_problem(problem).splitlines() == [
        "qd: Too deep.",
        "    max_depth: limit 10, used 10; what frees it: a shallower parent",
    ]


def test_invalid_value_is_printed_with_its_field() -> None:
    problem = Invalid("invalid_body", "Expected `int` <= 100.", field="max_depth")
    assert format_problem(problem).splitlines() == ["qd: Expected `int` <= 100.", "    field: max_depth"]


def test_retry_after_is_printed() -> None:
    assert format_problem(Unavailable("queue_full", "Busy.", retry_after=2)).endswith("after 2 s")
    assert format_problem(NotFound("agent_not_found", "No such session.")) == "qd: No such session."
