"""docs/states/ and the table of docs/roles.md are drawn from what the code runs on; `make states` draws them again."""

from __future__ import annotations

import os
from enum import StrEnum

import pytest

from quarterdeck.app import STATE_MACHINES
from quarterdeck.core.caller import Role
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.zones.rules import PERMISSIONS
from tests.support.source import ROOT

STATES = ROOT / "docs" / "states"
ROLES = ROOT / "docs" / "roles.md"
BEGIN = "<!-- powers: written by `make states` from the table in the code; a test compares -->"
END = "<!-- end of powers -->"
WRITE = bool(os.environ.get("QD_WRITE_STATES"))


@pytest.mark.parametrize("machine", STATE_MACHINES, ids=lambda machine: machine.name)
def test_the_page_of_a_noun_shows_the_arrows_the_code_runs_on(machine: StateMachine[StrEnum, StrEnum]) -> None:
    file = STATES / f"{machine.name}.md"
    if WRITE:
        STATES.mkdir(parents=True, exist_ok=True)
        file.write_text(page(machine), encoding="utf-8")
    assert file.exists(), f"run `make states`: {file.name} is missing"
    assert file.read_text(encoding="utf-8") == page(machine), (
        f"run `make states`: {file.name} is not what the code says"
    )


def test_every_page_belongs_to_a_noun_that_exists() -> None:
    known = {f"{machine.name}.md" for machine in STATE_MACHINES} | {"README.md"}
    assert {file.name for file in STATES.glob("*.md")} <= known


def test_the_page_of_roles_shows_the_powers_the_code_decides_by() -> None:
    text = ROLES.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    told, end, tail = rest.partition(END)
    if WRITE:
        told = powers()
        ROLES.write_text(head + BEGIN + told + end + tail, encoding="utf-8")
    assert told == powers(), "run `make states`: docs/roles.md is not what the code says"


def powers() -> str:
    rows = [
        [f"`{power}`", *("yes" if role in allowed else "·" for role in Role)] for power, allowed in PERMISSIONS.items()
    ]
    return "\n".join(["", "", *table(["power", *Role], rows), "", ""])


def page(machine: StateMachine[StrEnum, StrEnum]) -> str:
    """The diagram, and the same as a table in which the refused pairs can be seen."""
    states = list(machine.states)
    rows = [
        [f"**{verb}**", *(str(machine.next_state(verb, state) or "·") for state in states)]
        for verb in machine.transitions
    ]
    lines = [
        f"# States of {'an' if machine.name[0] in 'aeiou' else 'a'} {machine.name}",
        "",
        "Drawn by `make states` from the table in the code; a test compares.",
        "",
        "```mermaid",
        machine.diagram(),
        "```",
        "",
        "Where each verb leads from each state; a dot is a refusal.",
        "",
        *table(["verb", *(str(state) for state in states)], rows),
        "",
    ]
    return "\n".join(lines)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
