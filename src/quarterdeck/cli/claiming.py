"""Taking work: of a service, or for an agent."""

from __future__ import annotations

from collections.abc import Callable

from quarterdeck.cli.command_table import DURATION, NUMBER, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import milliseconds, without_nothing
from quarterdeck.client.api import Document, items_of

WAIT = Option("--wait", "How long to wait for work if there is none: 20, 1m.", DURATION)


def how_much(most: int) -> tuple[Option, ...]:
    """`most` is what the server lets one claim ask for."""
    return (Option("--max", f"How many at most, 1 to {most} [default: 1].", NUMBER), WAIT)


def wait_ms(context: Context) -> int | None:
    return milliseconds(context.number("wait")) or None


def claim(context: Context, path: str, body: Document, draw: Callable[[Document], str], name: str) -> int:
    """`name` is that of the member of the answer in which the leases stand."""
    server = context.server()
    # The answer may take as long as it is asked to wait, and then as long as any answer.
    server.connection.timeout += context.number("wait") or 0
    body = without_nothing({"max": context.number("max"), **body})
    told = server.call("POST", path, body=body).document
    if items_of(told, name) or context.as_json:
        context.show(told, draw)
    else:
        context.note("there is nothing to do")
    return 0
