"""The plain parser. It understands what is spelled well, and never says no.

`walk` finds which command is meant, `parse` reads its options. Where either is not sure the answer is None
and Click has the word: it knows the same table, and how to explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quarterdeck.cli.command_table import GLOBALS, Ask, Command, Option
from quarterdeck.cli.registry import commands_of

_HELP = ("--help", "-h")


class Walk(NamedTuple):
    """The command that is meant, and the rest of the command line in its order."""

    command: Command
    rest: list[str]


def walk(argv: Sequence[str]) -> Walk | None:
    """Follows the words to a command, past the options that every command has."""
    options = {option.name: option for option in GLOBALS}
    words: tuple[str, ...] = ()
    commands: list[Command] = []
    rest: list[str] = []
    at = 0
    while at < len(argv):
        token = argv[at]
        if token.startswith("-"):
            option = options.get(token.partition("=")[0])
            if option is None:
                break
            size = 1 if option.kind is None or "=" in token else 2
            rest += argv[at : at + size]
            at += size
            continue
        words, at = (*words, token), at + 1
        commands = [one for one in commands or commands_of(token) if one.words[: len(words)] == words]
        if not commands:
            return None
        if commands[0].words == words:
            return Walk(commands[0], [*rest, *argv[at:]])
    return _default(commands, [*rest, *argv[at:]])


def _default(commands: Sequence[Command], rest: list[str]) -> Walk | None:
    """The command that a noun alone means. Help is wanted of the noun, not of that command."""
    meant = [command for command in commands if command.is_default]
    return Walk(meant[0], rest) if meant and rest[:1] not in ([name] for name in _HELP) else None


def parse(command: Command, rest: Sequence[str]) -> Ask | None:
    known = _options(command)
    values = blank(command)
    words: list[str] = []
    at = 0
    while at < len(rest):
        part = rest[at]
        at += 1
        if part == "--":
            words += rest[at:]
            break
        if len(part) < 2 or part[0] != "-":
            words.append(part)
            continue
        name, equals, text = part.partition("=")
        option = known.get(name)
        # A flag with a value, or a short option with an equals sign: Click knows what to make of it.
        if option is None or (equals and (option.kind is None or name == option.short)):
            return None
        if option.kind is not None and not equals:
            if at == len(rest):
                return None
            text = rest[at]
            at += 1
        if not _take(values, option, text):
            return None
    return _finish(command, values, words)


def blank(command: Command) -> dict[str, object]:
    """Every key of a command, as if nothing had been said."""
    values: dict[str, object] = {argument.key: () if argument.many else None for argument in command.arguments}
    for option in (*GLOBALS, *command.options):
        values[option.key] = () if option.many else None if option.kind else False
    return values


def _options(command: Command) -> dict[str, Option]:
    every = (*GLOBALS, *command.options)
    return {option.name: option for option in every} | {option.short: option for option in every if option.short}


def _take(values: dict[str, object], option: Option, text: str) -> bool:
    if option.kind is None:
        values[option.key] = True
        return True
    try:
        value = option.kind.convert(text)
    except ValueError:
        return False
    held = values[option.key]
    values[option.key] = (*held, value) if isinstance(held, tuple) and option.many else value
    return True


def _finish(command: Command, values: dict[str, object], words: Sequence[str]) -> Ask | None:
    """Words become arguments; None where one is missing, left over or wrong."""
    left = [*words]
    try:
        for argument in command.arguments:
            if argument.many:
                values[argument.key] = tuple(map(argument.kind.convert, left))
                left = []
            elif left:
                values[argument.key] = argument.kind.convert(left.pop(0))
    except ValueError:
        return None
    said = values.get
    if left or any(argument.required and said(argument.key) in (None, ()) for argument in command.arguments):
        return None
    if any(option.required and said(option.key) in (None, ()) for option in command.options):
        return None
    return Ask(command, values)
