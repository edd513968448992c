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

    Run = Callable[[Context], int | None]

Values = Mapping[str, object]


class ParamType(NamedTuple):
    """How a value is shown in help, parsed, and completed by the shell."""

    metavar: str
    parse: Callable[[str], object]
    choices: tuple[str, ...] = ()
    completion_source: str = ""
    """The list on the server that completes the value: fleets, members or messages (`shell_completion`)."""
    encode: Callable[[str], object] | None = None
    """Converts the parsed text for the request when the command runs: reads a file, or resolves a relative time."""


class Option(NamedTuple):
    """`--name VALUE`, or a flag if `type` is None."""

    name: str
    help: str
    type: ParamType | None = None
    many: bool = False
    """The option may be repeated. Its value is a tuple."""
    required: bool = False
    short: str = ""
    field: str = ""
    """The field of the request that the option fills (`Context.body`, `Context.query`)."""

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
    field: str = ""
    """The field of the request that the argument fills, as for an option."""


class Command(NamedTuple):
    """One command. `words` is what the user types: `("session", "show")`."""

    words: tuple[str, ...]
    summary: str
    run: Run
    """Returns the exit code, or None for 0."""
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    description: str = ""
    is_default: bool = False
    """The noun without a verb runs this command: `qd events` is `qd events list`."""


class Group:
    """The commands of one noun, in the order of its help: `GROUP = Group("key", …)` in its module."""

    def __init__(self, name: str, summary: str = "", wrap: Callable[[Run], Run] | None = None) -> None:
        self.name = name
        """Empty for commands of one word, such as `qd up`."""
        self.summary = summary
        self._wrap = wrap
        self.commands: list[Command] = []

    def command(
        self, name: str, summary: str, *params: Argument | Option, description: str = "", is_default: bool = False
    ) -> Callable[[Run], Run]:
        """Add the decorated function as a command."""
        words = (self.name, name) if self.name else (name,)
        arguments = tuple(param for param in params if isinstance(param, Argument))
        options = tuple(param for param in params if isinstance(param, Option))

        def add(run: Run) -> Run:
            wrapped = self._wrap(run) if self._wrap else run
            self.commands.append(Command(words, summary, wrapped, arguments, options, description, is_default))
            return run

        return add


class ParsedCommand(NamedTuple):
    """A parsed command line. `values` has a key for every option and argument: None, False or () if not given."""

    command: Command
    values: Values


def choice(*allowed: str, convert: Callable[[str], str] = str) -> ParamType:
    """Accept one of several words. `convert` is applied to both before they are compared."""
    values = [convert(word) for word in allowed]

    def parse(text: str) -> str:
        if convert(text) not in values:
            raise ValueError(f"{text!r} is not allowed. Use one of: {', '.join(allowed)}")
        return convert(text)

    return ParamType("|".join(allowed), parse, allowed)


def uppercase_choice(*allowed: str) -> ParamType:
    """Accept one of several words in upper or lower case. The API uses upper case."""
    return choice(*(word.lower() for word in allowed), convert=str.upper)


ROLE = uppercase_choice("OWNER", "ADMIN", "MEMBER", "AGENT")
LEVEL = uppercase_choice("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL")
YES_NO = choice("yes", "no")._replace(encode=lambda text: text == "yes")


def key_option(noun: str) -> Option:
    """Build the option for the idempotency key of a command that creates an object."""
    return Option("--key", f"Idempotency key: the same key returns the same {noun}.", TEXT)


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


def _json_value(kind: type, description: str) -> ParamType:
    def parse(text: str) -> object:
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the value is not valid JSON: {error}") from None
        if not isinstance(value, kind):
            raise ValueError(f"the value is not {description}")
        return value

    return ParamType("JSON", parse)


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
DURATION_MS = ParamType("DURATION", lambda text: parse_duration(text) * 1000)
SECONDS = ParamType("SECONDS", _parse_seconds)
JSON_OBJECT = _json_value(dict, 'a JSON object. Example: {"purpose": "review"}')
JSON_ARRAY = _json_value(list, 'a JSON array. Example: [{"name": "review"}]')
LIMIT = ParamType("NAME=N", _parse_limit)
DIRECTORY = ParamType("DIR", str)
FILE = ParamType("FILE", str)

ID_ARGUMENT = Argument("id", "ID", ID)
IDS_ARGUMENT = Argument("ids", "ID", ID, many=True)
REASON_OPTION = Option("--reason", "Reason to record [default: requested].", TEXT, field="reason")
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
