"""What was given for a body: JSON on the command line, in a file or on standard input; and what was not given."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

from quarterdeck.cli.command_table import DURATION, NUMBER, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.client.api import Document, page_items

JSON_INPUT_HELP = "JSON, @FILE, or - for standard input"


def without_none(values: Mapping[str, object]) -> Document:
    """A body of what was said: what was not is left to the server's defaults."""
    return {name: value for name, value in values.items() if value is not None}


def idempotency_key(context: Context) -> str:
    """The idempotency key that was given, or one of this run. Should the answer be lost, the request that is sent again
    is known by it, and makes nothing twice."""
    return context.text("key") or f"qd-{os.urandom(16).hex()}"


def json_option(context: Context, key: str) -> object:
    """What an option says as JSON; None where it was not given. Read when the command runs, not when it is parsed: what
    comes in on a pipe can be read once."""
    text = context.text(key)
    if text is None:
        return None
    source, content = read_input(text)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError("usage", f"--{key.replace('_', '-')}: {source} is not JSON: {error}.") from None


def json_or_text_option(context: Context, key: str) -> object:
    """The same for what people write: text that is no JSON is itself."""
    text = context.text(key)
    if text is None or text == "-" or text.startswith("@"):
        return json_option(context, key)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_input(text: str) -> tuple[str, str]:
    """Where it was said, and what."""
    if text == "-":
        # None: it was closed before we began.
        return "standard input", "" if sys.stdin is None else sys.stdin.read()
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs 10 ms
            return text[1:], file.read()
    return repr(text), text


def to_milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


WAIT_OPTION = Option("--wait", "How long to wait for work if there is none: 20, 1m.", DURATION)


def claim_options(limit: int) -> tuple[Option, ...]:
    """`most` is what the server lets one claim ask for."""
    return (Option("--max", f"How many at most, 1 to {limit} [default: 1].", NUMBER), WAIT_OPTION)


def wait_ms(context: Context) -> int | None:
    return to_milliseconds(context.number("wait")) or None


def claim(context: Context, path: str, body: Document, render: Callable[[Document], str], items_field: str) -> int:
    """`name` is that of the member of the answer in which the leases stand."""
    server = context.server()
    # The answer may take as long as it is asked to wait, and then as long as any answer.
    server.connection.timeout += context.number("wait") or 0
    body = without_none({"max": context.number("max"), **body})
    document = server.call("POST", path, body=body).document
    if page_items(document, items_field) or context.as_json:
        context.show(document, render)
    else:
        context.note("there is nothing to do")
    return 0
