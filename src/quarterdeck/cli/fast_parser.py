"""The fast parser. It parses well-formed command lines and reports no errors.

`find_command` finds the command, `parse` reads its options. Both return None for a command line that they do not
understand completely. The caller then uses the Click parser, which reads the same table and explains the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quarterdeck.cli.command_table import GLOBAL_OPTIONS, Command, Option, ParsedCommand
from quarterdeck.cli.registry import commands_of

_HELP_NAMES = ("--help", "-h")


class CommandMatch(NamedTuple):
    """A command, and the command line without its words, in order."""

    command: Command
    rest: list[str]


def find_command(argv: Sequence[str]) -> CommandMatch | None:
    """Find the command by its words. Global options before and between the words become part of `rest`."""
    options = {option.name: option for option in GLOBAL_OPTIONS}
    words: tuple[str, ...] = ()
    commands: list[Command] = []
    rest: list[str] = []
    index = 0
    while index < len(argv):
        token = argv[index]
        if token.startswith("-"):
            option = options.get(token.partition("=")[0])
            if option is None:
                break
            size = 1 if option.type is None or "=" in token else 2
            rest += argv[index : index + size]
            index += size
            continue
        words, index = (*words, token), index + 1
        commands = [command for command in commands or commands_of(token) if command.words[: len(words)] == words]
        if not commands:
            return None
        if commands[0].words == words:
            return CommandMatch(commands[0], [*rest, *argv[index:]])
    return _find_default(commands, [*rest, *argv[index:]])


def _find_default(commands: Sequence[Command], rest: list[str]) -> CommandMatch | None:
    """Find the default command of the noun. Returns None for --help, so that Click prints the help of the noun."""
    defaults = [command for command in commands if command.is_default]
    return CommandMatch(defaults[0], rest) if defaults and rest[:1] not in ([name] for name in _HELP_NAMES) else None


def parse(command: Command, rest: Sequence[str]) -> ParsedCommand | None:
    options = _options_by_name(command)
    values = empty_values(command)
    words: list[str] = []
    index = 0
    while index < len(rest):
        arg = rest[index]
        index += 1
        if arg == "--":
            words += rest[index:]
            break
        if len(arg) < 2 or arg[0] != "-":
            words.append(arg)
            continue
        name, separator, text = arg.partition("=")
        option = options.get(name)
        # Click handles unknown options, a flag with a value, and a short option with an equals sign.
        if option is None or (separator and (option.type is None or name == option.short)):
            return None
        if option.type is not None and not separator:
            if index == len(rest):
                return None
            text = rest[index]
            index += 1
        if not _store_value(values, option, text):
            return None
    return _bind_arguments(command, values, words)


def empty_values(command: Command) -> dict[str, object]:
    """Return the values of a command line without options and arguments."""
    values: dict[str, object] = {argument.key: () if argument.many else None for argument in command.arguments}
    for option in (*GLOBAL_OPTIONS, *command.options):
        values[option.key] = () if option.many else None if option.type else False
    return values


def _options_by_name(command: Command) -> dict[str, Option]:
    options = (*GLOBAL_OPTIONS, *command.options)
    return {option.name: option for option in options} | {option.short: option for option in options if option.short}


def _store_value(values: dict[str, object], option: Option, text: str) -> bool:
    if option.type is None:
        values[option.key] = True
        return True
    try:
        value = option.type.parse(text)
    except ValueError:
        return False
    current = values[option.key]
    values[option.key] = (*current, value) if isinstance(current, tuple) and option.many else value
    return True


def _bind_arguments(command: Command, values: dict[str, object], words: Sequence[str]) -> ParsedCommand | None:
    """Parse the words as arguments. Returns None if an argument or required option is missing, extra or invalid."""
    remaining = [*words]
    try:
        for argument in command.arguments:
            if argument.many:
                values[argument.key] = tuple(map(argument.type.parse, remaining))
                remaining = []
            elif remaining:
                values[argument.key] = argument.type.parse(remaining.pop(0))
    except ValueError:
        return None
    get_value = values.get
    if remaining or any(argument.required and get_value(argument.key) in (None, ()) for argument in command.arguments):
        return None
    if any(option.required and get_value(option.key) in (None, ()) for option in command.options):
        return None
    return ParsedCommand(command, values)
