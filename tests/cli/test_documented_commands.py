"""What the documents tell people to type is what `qd` understands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarterdeck.cli import click_parser
from quarterdeck.cli.command_table import ParsedCommand
from quarterdeck.core.errors import Problem
from tests.support.source import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ENDS = {";", "|", ">", ">>", "&&", "||"}


def typed(document: Path) -> Iterator[str]:
    """Every line that a reader is to type, folded ones whole."""
    for block in re.findall(r"```console\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield line[2:]


def commands(line: str) -> Iterator[list[str]]:
    """The words of each `qd` in a line of shell, those within `$(…)` first. What a variable or another command gives
    may be anything: here it is `x`."""
    while inner := re.search(r"\$\(([^()]*)\)", line):
        yield from commands(inner[1])
        line = line.replace(inner[0], "x")
    command: list[str] | None = None
    for word in [*shlex.split(re.sub(r"\$\w+", "x", line), comments=True), ";"]:
        if word in ENDS:
            if command is not None:
                yield command
            command = None
        elif command is not None:
            command.append(word)
        elif word == "qd":
            command = []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_document_is_one_that_qd_understands(document: Path) -> None:
    wrong = []
    for line in typed(document):
        if line.count("'") % 2:
            continue  # a quoted body goes on in the next line: not one of ours
        for command in commands(line):
            try:
                outcome = click_parser.parse(command)
            except Problem as problem:
                wrong.append(f"qd {shlex.join(command)}: {problem.detail}")
            else:
                assert isinstance(outcome, ParsedCommand) or outcome == 0
    assert not wrong


def test_commands_are_found_wherever_they_stand_in_a_line() -> None:
    line = 'A=1 qd session tree "$(qd session spawn --app a)" | head ; id=$(qd zone list --json)  # qd no'
    assert sorted(commands(line)) == [
        ["session", "spawn", "--app", "a"],
        ["session", "tree", "x"],
        ["zone", "list", "--json"],
    ]
