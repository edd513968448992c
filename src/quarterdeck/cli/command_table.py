"""What a command is: a row that both parsers read.

Plain named tuples and small converters, because every `qd` imports this. A converter takes the text of one
value and returns what it means, or raises ValueError with a sentence for the user.
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
    """How the text of a value is shown in help, read, and completed."""

    metavar: str
    parse: Callable[[str], object]
    choices: tuple[str, ...] = ()
    completion_source: str = ""
    """Of what only the server knows: which list it is completed from (`completing`)."""


class Option(NamedTuple):
    """`--name VALUE`, or a flag where `kind` is None."""

    name: str
    help: str
    type: ParamType | None = None
    many: bool = False
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
    """Takes all words that are left: only the last argument of a command can."""


class Command(NamedTuple):
    """One row. `words` are what the user types: `("session", "show")`."""

    words: tuple[str, ...]
    summary: str
    run: Callable[[Context], int]
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    description: str = ""
    is_default: bool = False
    """The noun alone means this command: `qd events` is `qd events list`."""


class CommandTable(NamedTuple):
    """What a module offers: its commands, and what its nouns are about."""

    commands: tuple[Command, ...]
    summaries: Mapping[str, str]


class ParsedCommand(NamedTuple):
    """A command line, understood. Every option and argument has a key; what was not said is None, False
    or ()."""

    command: Command
    values: Values


def choice(*allowed: str) -> ParamType:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return ParamType("|".join(allowed), parse, allowed)


def uppercase_choice(*allowed: str) -> ParamType:
    """One of what stands on the wire in capitals, typed in whichever letters."""

    def parse(text: str) -> str:
        if text.upper() not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text.upper()

    lowercase = tuple(word.lower() for word in allowed)
    return ParamType("|".join(lowercase), parse, lowercase)


def _parse_id(text: str) -> str:
    if not is_path_id(text):
        raise ValueError(f"{text!r} is not an id: 1 to 128 of letters, digits and _ . - :")
    return text


def _parse_int(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _parse_numeric_id(text: str) -> int:
    number = _parse_int(text)
    if not 1 <= number <= 2**53:
        raise ValueError(f"{text!r} is not an id: 1, 2, 3, … are")
    return number


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> int:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNIT_SECONDS else (text, "s")
    try:
        return _parse_int(number) * _UNIT_SECONDS[unit]
    except ValueError:
        raise ValueError(f"{text!r} is not a time: 90, 90s, 15m, 2h and 1d are") from None


def _parse_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise ValueError(f"{text!r} is not a number of seconds above 0")
    return number


def _parse_json_object(text: str) -> dict[str, object]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError('this is not a JSON object, such as {"purpose": "review"}')
    return value


def _parse_limit(text: str) -> tuple[str, int | None]:
    """`max_depth=5`; `max_depth=default` takes the zone's own setting away."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ValueError(f"{text!r} is not NAME=NUMBER or NAME=default")
    return name, None if value == "default" else _parse_int(value)


TEXT = ParamType("TEXT", str)
ID = ParamType("ID", _parse_id)
NUMBER = ParamType("N", _parse_int)
FLEET_ID = ParamType("INT", _parse_numeric_id, completion_source="fleets")
MEMBER_ID = ParamType("INT", _parse_numeric_id, completion_source="members")
MESSAGE_ID = ParamType("INT", _parse_numeric_id, completion_source="messages")
DURATION = ParamType("TIME", parse_duration)
SECONDS = ParamType("SECONDS", _parse_seconds)
JSON_OBJECT = ParamType("JSON", _parse_json_object)
LIMIT = ParamType("NAME=N", _parse_limit)
PATH = ParamType("DIR", str)
FILE = ParamType("FILE", str)

GLOBAL_OPTIONS = (
    Option("--json", "Answer in JSON, also errors (on stderr)."),
    Option("--zone", "The zone to work in [env QD_ZONE; default: default].", ID),
    Option("--fleet-id", "The fleet to work in [env QD_FLEET_ID].", FLEET_ID),
    Option("--data", "The data directory whose server to use [env QD_DATA].", PATH),
    Option("--url", "Use the server at this address, and never start one [env QD_URL].", ParamType("URL", str)),
    Option("--token", "The bearer token or API key [env QD_TOKEN; default: the data directory's admin token].", TEXT),
    Option("--timeout", "How long to wait for an answer [default: 30].", SECONDS),
    Option("--no-color", "No colours, also on a terminal [env NO_COLOR]."),
)
"""Accepted before, between and after the words of every command."""
