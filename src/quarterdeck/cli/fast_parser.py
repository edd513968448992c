"""The fast parser. It parses well-formed command lines and reports no errors.

`find_command` finds the command, and `parse` parses its options and arguments. Both return None for a command line that
they do not fully understand. The caller then uses the Click parser, which has the same table and explains the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quarterdeck.cli.command_table import GLOBAL_OPTIONS, Command, Option, ParsedCommand
from quarterdeck.cli.registry import load_commands

_HELP_NAMES = ("--help", "-h")


class CommandMatch(NamedTuple):
    """A command, and the rest of the command line: all arguments except the words of the command, in order."""

    command: Command
    args: list[str]


def find_command(argv: Sequence[str]) -> CommandMatch | None:
    """Find the command by its words. Global options before and between the words become part of `args`."""
    options = {option.name: option for option in GLOBAL_OPTIONS}
    words: tuple[str, ...] = ()
    commands: list[Command] = []
    args: list[str] = []
    index = 0
    while index < len(argv):
        token = argv[index]
        if token.startswith("-"):
            option = options.get(token.partition("=")[0])
            if option is None:
                break
            size = 1 if option.type is None or "=" in token else 2
            args += argv[index : index + size]
            index += size
            continue
        words, index = (*words, token), index + 1
        commands = [command for command in commands or load_commands(token) if command.words[: len(words)] == words]
        if not commands:
            return None
        if commands[0].words == words:
            return CommandMatch(commands[0], [*args, *argv[index:]])
    return _find_default(commands, [*args, *argv[index:]])


def _find_default(commands: Sequence[Command], args: list[str]) -> CommandMatch | None:
    """Find the default command of the noun. Returns None for --help, so that Click prints the help of the noun."""
    defaults = [command for command in commands if command.is_default]
    return CommandMatch(defaults[0], args) if defaults and args[:1] not in ([name] for name in _HELP_NAMES) else None


def parse(command: Command, args: Sequence[str]) -> ParsedCommand | None:
    options = _options_by_name(command)
    values = empty_values(command)
    words: list[str] = []
    index = 0
    while index < len(args):
        arg = args[index]
        index += 1
        if arg == "--":
            words += args[index:]
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
            if index == len(args):
                return None
            text = args[index]
            index += 1
        if not _store_value(values, option, text):
            return None
    return _bind_arguments(command, values, words)


def empty_values(command: Command) -> dict[str, object]:
    """Return the values for a command line with no options or arguments."""
    values: dict[str, object] = {argument.key: () if argument.many else None for argument in command.arguments}
    for option in (*GLOBAL_OPTIONS, *command.options):
        values[option.key] = () if option.many else None if option.type else False
    return values


def _options_by_name(command: Command) -> dict[str, Option]:
    options = (*GLOBAL_OPTIONS, *command.options)
    return {option.name: option for option in options} | {option.short: option for option in options if option.short}


def _store_value(values: dict[str, object], option: Option, text: str) -> bool:
    """Parse and store the value of an option. Returns False if the text is invalid."""
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
    """Parse the words as arguments. Returns None if one is invalid or extra, or a required value is missing."""
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
