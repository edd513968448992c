"""Text typed into panes: one line without control sequences."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st

from quarterdeck.tmux.notice_text import default_prompt, format_notice, one_line

HEADER = "[7 | from:1 | 2026-01-02T03:04:05.678Z]"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("plain words", "plain words"),
        ("two\nlines\r\nand\ta tab", "two lines and a tab"),
        ("'quotes' \"double\" `ticks` $(touch x) \\ ; && |", "'quotes' \"double\" `ticks` $(touch x) \\ ; && |"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("end\x1b[201~\rrm -rf /", "end rm -rf /"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("c1 \x9b31m csi \x9d0;t\x9c osc", "c1 csi osc"),
        ("\x1b\x1b[A\x1bOB", ""),
        ("nul\0bell\x07back\x08del\x7f", "nul bell back del"),
        ("turned \u202eright\u202c \u2066round\u2069", "turned right round"),
        ("hidden \U000e0041\U000e0042tags\u200b\ufeff", "hidden tags"),
        ("line\u2028and\u2029paragraph", "line and paragraph"),
        ("👩\u200d🔬 й ü 漢字", "👩\u200d🔬 й ü 漢字"),
        ("half a pair \ud83d", "half a pair"),
    ],
)
def test_body_becomes_one_line_of_text(body: str, expected: str) -> None:
    assert one_line(body) == expected


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=400), st.text(max_size=50))
def test_line_contains_no_control_characters(body: str, header: str) -> None:
    line = format_notice(header, body)
    hidden = [c for c in line if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp", "Cf") and c not in "\u200c\u200d"]
    assert not hidden
    assert line == line.encode().decode()


@given(st.text(alphabet="\x1b\x9b\x9d[]0;~m\x07\\ab201", max_size=60))
def test_removing_escape_sequences_leaves_no_new_sequence(body: str) -> None:
    assert one_line(one_line(body)) == one_line(body)
    assert "\x1b" not in one_line(body)


def test_line_starts_with_the_header() -> None:
    assert format_notice(HEADER, "hello") == f"{HEADER} hello"


@pytest.mark.parametrize("body", ["/exit", "!rm -rf .", "#remember", "@file", "-x", "$x", "\x1b[m/exit"])
def test_line_never_starts_like_an_agent_command(body: str) -> None:
    assert format_notice(HEADER, body).startswith(HEADER)
    assert format_notice("", body).startswith("[message] ")
    assert format_notice(body, "").startswith("[message] ")


def test_default_prompt_names_the_agent_its_director_and_the_message_commands() -> None:
    prompt = default_prompt(name="al\nice", agent_id=6, fleet_id=3, director_name="Director", director_id=1)
    assert prompt.startswith("You are al ice, agent 6 of fleet 3. Your director is Director, agent 1.")
    for command in ("qd message poll", "qd message ack --task-id", "qd message send --to 1 --text"):
        assert command in prompt
