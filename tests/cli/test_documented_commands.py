"""Every `qd` command in the documentation is valid."""

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
SEPARATORS = {";", "|", ">", ">>", "&&", "||"}


def console_lines(document: Path) -> Iterator[str]:
    """Yields every command line of the console blocks, with continuation lines joined."""
    for block in re.findall(r"```console\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield line[2:]


def commands(line: str) -> Iterator[list[str]]:
    """Yields the arguments of each `qd` command in a shell line, those inside `$(…)` first.

    Variables and command substitutions are replaced by `x`."""
    while inner := re.search(r"\$\(([^()]*)\)", line):
        yield from commands(inner[1])
        line = line.replace(inner[0], "x")
    command: list[str] | None = None
    for word in [*shlex.split(re.sub(r"\$\w+", "x", line), comments=True), ";"]:
        if word in SEPARATORS:
            if command is not None:
                yield command
            command = None
        elif command is not None:
            command.append(word)
        elif word == "qd":
            command = []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_documented_command_is_valid(document: Path) -> None:
    errors = []
    for line in console_lines(document):
        if line.count("'") % 2:
            continue  # a quoted body continues on the next line, so this is not a `qd` command
        for command in commands(line):
            try:
                outcome = click_parser.parse(command)
            except Problem as problem:
                errors.append(f"qd {shlex.join(command)}: {problem.detail}")
            else:
                assert isinstance(outcome, ParsedCommand) or outcome == 0
    assert not errors


def test_commands_are_found_anywhere_in_a_shell_line() -> None:
    line = 'A=1 qd session tree "$(qd session spawn --app a)" | head ; id=$(qd zone list --json)  # qd no'
    assert sorted(commands(line)) == [
        ["session", "spawn", "--app", "a"],
        ["session", "tree", "x"],
        ["zone", "list", "--json"],
    ]
