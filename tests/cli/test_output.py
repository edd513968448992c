"""What people read: tables that are aligned, trees that are trees, and nothing that can move the cursor."""

from __future__ import annotations

import pytest

from quarterdeck.cli.errors import format_problem
from quarterdeck.cli.output import TextStyler, cell, fields, span, table, width
from quarterdeck.cli.session_tree import ASCII_GLYPHS, UNICODE_GLYPHS, age_and_lifetime, draw, glyphs_for
from quarterdeck.client.api import Document
from quarterdeck.core.errors import Invalid, LimitReached, NotFound, Unavailable

PLAINLY = TextStyler(False)
COLOURED = TextStyler(True)
NOW = 1_767_323_045.0  # 2026-01-02T03:04:05Z


def session(id_: str, parent: str | None = None, **more: object) -> Document:
    return {
        "id": id_,
        "parent_id": parent,
        "application_id": "app",
        "status": "active",
        "spawned_at": "2026-01-02T03:03:05.000Z",
        "expires_at": "2026-01-02T04:03:05.000Z",
        **more,
    }


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    drawn = table(("ID", "NAME"), [["a", "long name"], ["longer", None]], PLAINLY)
    assert drawn.splitlines() == ["ID      NAME", "a       long name", "longer  -"]


def test_wide_characters_count_twice_so_that_columns_stay_aligned() -> None:
    lines = table(("ID", "NAME"), [["甲板", "x"], ["ab", "y"]], PLAINLY).splitlines()
    assert {width(line[: line.rindex(end)]) for line, end in zip(lines[1:], "xy", strict=True)} == {6}


def test_fields_are_aligned_by_their_names() -> None:
    assert fields([("a", 1), ("long", True)], PLAINLY) == "a     1\nlong  yes"


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
def test_spans_are_told_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_text_of_strangers_cannot_move_the_cursor() -> None:
    shown = cell("evil\x1b[2J\r\n\x9b31m")
    assert shown.isprintable()
    assert shown == "evil\\x1b[2J\\r\\n\\x9b31m"
    assert cell({"reason": "a\x9bb"}).isprintable()


def test_a_tree_is_drawn_with_its_branches() -> None:
    items = [session("r"), session("a", "r"), session("b", "r"), session("a1", "a"), session("a2", "a")]
    drawn = [line.split("  app")[0].rstrip() for line in draw(items, NOW, PLAINLY).splitlines()]
    assert drawn == ["r", "├─ a", "│  ├─ a1", "│  └─ a2", "└─ b"]


def test_a_tree_shows_application_status_age_and_the_time_left() -> None:
    assert draw([session("r")], NOW, PLAINLY) == "r  app  active  1m  59m left"


def test_the_columns_of_a_tree_are_aligned_whatever_its_depth() -> None:
    items = [session("r"), session("child", "r"), session("grandchild", "child")]
    assert len({line.index("app") for line in draw(items, NOW, PLAINLY).splitlines()}) == 1


def test_a_subtree_begins_with_the_session_that_was_asked_for() -> None:
    assert draw([session("child", "absent"), session("x", "child")], NOW, PLAINLY).splitlines()[1].startswith("└─ x")


def test_an_ended_session_is_dimmed_and_a_live_one_bears_the_colour_of_its_status() -> None:
    ended = session("e", "r", status="terminated", terminated_at="2026-01-02T03:03:35.000Z")
    first, second = draw([session("r"), ended], NOW, COLOURED).splitlines()
    assert "\x1b[32mactive" in first
    assert second.startswith("\x1b[2m└─ e")
    assert second.endswith("30s  ended\x1b[0m")


def test_without_colours_there_is_no_escape_sequence() -> None:
    assert "\x1b" not in draw([session("r", status="terminated")], NOW, PLAINLY)


def test_a_terminal_without_box_lines_gets_plain_ones() -> None:
    assert glyphs_for("utf-8") is UNICODE_GLYPHS
    assert glyphs_for("UTF8") is UNICODE_GLYPHS
    assert glyphs_for("ascii") is ASCII_GLYPHS
    assert draw([session("r"), session("a", "r")], NOW, PLAINLY, ASCII_GLYPHS).splitlines()[1].startswith("`- a")


def test_a_tree_deeper_than_pythons_stack_is_drawn() -> None:
    chain = [session("n0"), *(session(f"n{at}", f"n{at - 1}") for at in range(1, 1500))]
    assert len(draw(chain, NOW, PLAINLY).splitlines()) == 1500


def test_the_life_of_an_ended_session_is_how_long_it_was() -> None:
    assert age_and_lifetime(session("e", status="terminated", terminated_at="2026-01-02T03:03:15.000Z"), NOW) == (
        "10s",
        "ended",
    )


def test_a_quota_refusal_names_bound_limit_used_and_what_frees_it() -> None:
    refused = LimitReached(
        "agent_depth_limit_exceeded", "Too deep.", bound="max_depth", limit=10, used=10, frees="a shallower parent"
    )
    assert format_problem(refused).splitlines() == [
        "qd: Too deep.",
        "    max_depth: limit 10, used 10; what frees it: a shallower parent",
    ]


def test_a_wrong_value_is_told_with_the_field_it_stands_in() -> None:
    wrong = Invalid("invalid_body", "Expected `int` <= 100.", field="max_depth")
    assert format_problem(wrong).splitlines() == ["qd: Expected `int` <= 100.", "    in max_depth"]


def test_where_waiting_helps_the_sentence_says_how_long() -> None:
    assert format_problem(Unavailable("queue_full", "Busy.", retry_after=2)).endswith("after 2 s")
    assert format_problem(NotFound("agent_not_found", "No such session.")) == "qd: No such session."
