"""Commands, options and arguments as data, read by both parsers.

Every `qd` command imports this module, so it contains only named tuples and small converters. A converter takes the
text of one value and returns the parsed value, or raises ValueError with a message for the user. The message has no
final period, because the parser adds one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from quarterdeck.core.ids import is_path_id

if TYPE_CHECKING:
    from quarterdeck.cli.context import Context

Values = Mapping[str, object]


class ParamType(NamedTuple):
    """How a value is shown in help, parsed, and completed by the shell."""

    metavar: str
    parse: Callable[[str], object]
    choices: tuple[str, ...] = ()
    completion_source: str = ""
    """The list on the server that completes the value: fleets, members or messages (`shell_completion`)."""


class Option(NamedTuple):
    """`--name VALUE`, or a flag if `type` is None."""

    name: str
    help: str
    type: ParamType | None = None
    many: bool = False
    """The option may be repeated. Its value is a tuple."""
    required: bool = False
    short: str = ""

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


class Argument(NamedTuple):
    key: str
    metavar: str
    type: ParamType
    required: bool = True
    many: bool = False
    """The argument takes all remaining words. Only the last argument of a command can be `many`."""


class Command(NamedTuple):
    """One command. `words` is what the user types: `("session", "show")`."""

    words: tuple[str, ...]
    summary: str
    run: Callable[[Context], int]
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    description: str = ""
    is_default: bool = False
    """The noun without a verb runs this command: `qd events` is `qd events list`."""


class CommandTable(NamedTuple):
    """The commands of a module, and the help summary of each of its nouns."""

    commands: tuple[Command, ...]
    summaries: Mapping[str, str]


class ParsedCommand(NamedTuple):
    """A parsed command line. `values` has a key for every option and argument: None, False or () if not given."""

    command: Command
    values: Values


def choice(*allowed: str) -> ParamType:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not allowed. Use one of: {', '.join(allowed)}")
        return text

    return ParamType("|".join(allowed), parse, allowed)


def uppercase_choice(*allowed: str) -> ParamType:
    """Accept one of several words in upper or lower case. The API uses upper case."""

    def parse(text: str) -> str:
        if text.upper() not in allowed:
            raise ValueError(f"{text!r} is not allowed. Use one of: {', '.join(lowercase)}")
        return text.upper()

    lowercase = tuple(word.lower() for word in allowed)
    return ParamType("|".join(lowercase), parse, lowercase)


def _parse_id(text: str) -> str:
    if not is_path_id(text):
        raise ValueError(f"{text!r} is not an id. An id has 1 to 128 characters: letters, digits, _ . - :")
    return text


def _parse_int(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(f"{text!r} is not an integer (0 or greater)")
    return int(text)


def _parse_numeric_id(text: str) -> int:
    number = _parse_int(text)
    if not 1 <= number <= 2**53:
        raise ValueError(f"{text!r} is not a numeric id. Use a positive integer")
    return number


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> int:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNIT_SECONDS else (text, "s")
    try:
        return _parse_int(number) * _UNIT_SECONDS[unit]
    except ValueError:
        raise ValueError(f"{text!r} is not a duration. Use seconds or a unit: 90, 90s, 15m, 2h, 1d") from None


def _parse_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise ValueError(f"{text!r} is not a positive number of seconds")
    return number


def _parse_json_object(text: str) -> dict[str, object]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError('the value is not a JSON object. Example: {"purpose": "review"}')
    return value


def _parse_limit(text: str) -> tuple[str, int | None]:
    """Parse `max_depth=5`, or `max_depth=default`, which removes the zone's own limit."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ValueError(f"{text!r} is not a limit. Use NAME=NUMBER or NAME=default")
    return name, None if value == "default" else _parse_int(value)


TEXT = ParamType("TEXT", str)
ID = ParamType("ID", _parse_id)
NUMBER = ParamType("N", _parse_int)
FLEET_ID = ParamType("INT", _parse_numeric_id, completion_source="fleets")
MEMBER_ID = ParamType("INT", _parse_numeric_id, completion_source="members")
MESSAGE_ID = ParamType("INT", _parse_numeric_id, completion_source="messages")
DURATION = ParamType("DURATION", parse_duration)
SECONDS = ParamType("SECONDS", _parse_seconds)
JSON_OBJECT = ParamType("JSON", _parse_json_object)
LIMIT = ParamType("NAME=N", _parse_limit)
DIRECTORY = ParamType("DIR", str)
FILE = ParamType("FILE", str)

GLOBAL_OPTIONS = (
    Option("--json", "Print JSON. Errors are JSON too, on stderr."),
    Option("--zone", "Zone to use [env: QD_ZONE; default: default].", ID),
    Option("--fleet-id", "Fleet to use [env: QD_FLEET_ID].", FLEET_ID),
    Option("--data", "Data directory of the server to use [env: QD_DATA].", DIRECTORY),
    Option("--url", "URL of the server to use. qd never starts this server [env: QD_URL].", ParamType("URL", str)),
    Option("--token", "Bearer token or API key [env: QD_TOKEN; default: the data directory's admin token].", TEXT),
    Option("--timeout", "Seconds to wait for the server's response [default: 30].", SECONDS),
    Option("--no-color", "Do not use colors, even on a terminal [env: NO_COLOR]."),
)
"""Accepted before, between and after the words of every command."""
