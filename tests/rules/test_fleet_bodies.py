"""What requests of the fleet plane may say: nothing that would end a line, and no more than a program can be told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quarterdeck.core.errors import Invalid
from quarterdeck.domain.fleets.model.bodies import FleetBody, MemberBody, Pane
from quarterdeck.domain.fleets.route_params import PROMPT_BYTES_MAX, check_prompt_size

MEMBER = {"name": "alice", "description": "reviews"}
PANE = {"socket": "/tmp/s", "pane_id": "%1"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1b", "\x7f", "\x85", "\x9b"])
@pytest.mark.parametrize(
    ("kind", "good", "field"),
    [
        (MemberBody, MEMBER, "name"),
        (MemberBody, {**MEMBER, "coding_agent": "claude"}, "coding_agent"),
        (MemberBody, {**MEMBER, "model": "sonnet"}, "model"),
        (FleetBody, {"coding_agent": "claude"}, "coding_agent"),
        (Pane, PANE, "pane_id"),
    ],
)
def test_no_name_coding_agent_model_or_pane_ends_a_line_or_moves_a_cursor(
    kind: type[msgspec.Struct], good: dict[str, Any], field: str, end: str
) -> None:
    msgspec.convert(good, kind)
    for text in (f"{good[field]}{end}", f"{end}{good[field]}"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**good, field: text}, kind)


def test_names_are_in_any_language() -> None:
    for name in ("Zoë", "漢字", "a b", "👩🏽‍💻", "\u00a0"):
        msgspec.convert({**MEMBER, "name": name}, MemberBody)


@pytest.mark.parametrize("letter", ["x", "漢"])
def test_a_prompt_is_bounded_by_its_bytes_and_told_how_many_it_has(letter: str) -> None:
    most = PROMPT_BYTES_MAX // len(letter.encode())
    check_prompt_size(MemberBody(name="a", description="", prompt=letter * most))
    check_prompt_size(MemberBody(name="a", description=""))
    with pytest.raises(Invalid) as refused:
        check_prompt_size(MemberBody(name="a", description="", prompt=letter * (most + 1)))
    used = len(letter.encode()) * (most + 1)
    assert refused.value.detail.startswith(
        f"The prompt has {used} bytes, and an agent can be begun with {PROMPT_BYTES_MAX}"
    )
    assert refused.value.members["field"] == "prompt"
