"""Builds request bodies from options, with JSON from the command line, a file or standard input. Also claims work."""

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
    """Drop the options that were not given: the server applies its defaults for them."""
    return {name: value for name, value in values.items() if value is not None}


def idempotency_key(context: Context) -> str:
    """Return the value of --key, or a random key for this run.

    With the random key, a request that a proxy repeats takes effect only once. `qd` itself never repeats a request, so
    a user who may have to run the command again must give --key.
    """
    return context.text("key") or f"qd-{os.urandom(16).hex()}"


def json_option(context: Context, key: str) -> object:
    """Return the JSON value of an option, or None if it was not given.

    The value is read when the command runs, not when it is parsed, because standard input can be read only once.
    """
    text = context.text(key)
    if text is None:
        return None
    source, content = read_input(text)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError("usage", f"--{key.replace('_', '-')}: {source} is not valid JSON: {error}.") from None


def json_or_text_option(context: Context, key: str) -> object:
    """Like `json_option`, but if the text on the command line is not JSON, return it as a string."""
    text = context.text(key)
    if text is None or text == "-" or text.startswith("@"):
        return json_option(context, key)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_input(text: str) -> tuple[str, str]:
    """Return the name of the source, for error messages, and its content."""
    if text == "-":
        # sys.stdin is None if it was closed before the process started.
        return "standard input", "" if sys.stdin is None else sys.stdin.read()
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs 10 ms
            return text[1:], file.read()
    return repr(text), text


def to_milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


WAIT_OPTION = Option("--wait", "How long to wait for work, such as 20s or 1m [default: do not wait].", DURATION)


def claim_options(max_items: int) -> tuple[Option, ...]:
    """Build the options of a claim. `max_items` is the largest --max that the server accepts."""
    return (Option("--max", f"Maximum number to claim, 1 to {max_items} [default: 1].", NUMBER), WAIT_OPTION)


def wait_ms(context: Context) -> int | None:
    return to_milliseconds(context.number("wait")) or None


def claim(context: Context, path: str, body: Document, render: Callable[[Document], str], items_field: str) -> int:
    """Claim work and print it. `items_field` is the field of the response that has the claimed items."""
    server = context.server()
    # The response may take the requested wait plus the usual time.
    server.connection.timeout_seconds += context.number("wait") or 0
    body = without_none({"max": context.number("max"), **body})
    document = server.call("POST", path, body=body).document
    if page_items(document, items_field) or context.as_json:
        context.show(document, render)
    else:
        context.note("No work is available.")
    return 0
