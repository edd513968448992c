"""Request bodies of fleets: no control characters, and a limited prompt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quarterdeck.core.errors import Invalid
from quarterdeck.domain.fleets.model.bodies import FleetBody, MemberBody, Pane
from quarterdeck.domain.fleets.routes.request_fields import PROMPT_BYTES_MAX, check_prompt_size

MEMBER = {"name": "alice", "description": "reviews"}
PANE = {"socket": "/tmp/s", "pane_id": "%1"}


@pytest.mark.parametrize("control", ["\n", "\r\n", "\x1b", "\x7f", "\x85", "\x9b"])
@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (MemberBody, MEMBER, "name"),
        (MemberBody, {**MEMBER, "coding_agent": "claude"}, "coding_agent"),
        (MemberBody, {**MEMBER, "model": "sonnet"}, "model"),
        (FleetBody, {"coding_agent": "claude"}, "coding_agent"),
        (Pane, PANE, "pane_id"),
    ],
)
def test_control_characters_in_names_agents_models_and_panes_are_refused(
    kind: type[msgspec.Struct], body: dict[str, Any], field: str, control: str
) -> None:
    msgspec.convert(body, kind)
    for text in (f"{body[field]}{control}", f"{control}{body[field]}"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**body, field: text}, kind)


def test_names_accept_any_language() -> None:
    for name in ("Zoë", "漢字", "a b", "👩🏽‍💻", "\u00a0"):
        msgspec.convert({**MEMBER, "name": name}, MemberBody)


@pytest.mark.parametrize("character", ["x", "漢"])
def test_prompt_is_limited_in_bytes_and_the_error_names_its_size(character: str) -> None:
    maximum = PROMPT_BYTES_MAX // len(character.encode())
    check_prompt_size(MemberBody(name="a", description="", prompt=character * maximum))
    check_prompt_size(MemberBody(name="a", description=""))
    with pytest.raises(Invalid) as refused:
        check_prompt_size(MemberBody(name="a", description="", prompt=character * (maximum + 1)))
    used = len(character.encode()) * (maximum + 1)
    assert refused.value.detail.startswith(f"The prompt has {used} bytes; at most {PROMPT_BYTES_MAX} are allowed")
    assert refused.value.members["field"] == "prompt"
