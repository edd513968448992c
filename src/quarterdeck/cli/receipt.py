"""Termination receipts: how many sessions were to be stopped, how many were stopped, and which are left."""

from __future__ import annotations

from quarterdeck.cli.command_table import Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import Column, fields_and_table
from quarterdeck.cli.output import cell
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import EXIT_FAILED

RECEIPT_EXIT_HELP = "Exits 1 if the receipt lists sessions that were not terminated."


RECEIPT_OPTION = Option(
    "--receipt", "Print a receipt: how many sessions were stopped, and which were not.", field="receipt"
)


def delete_and_print(context: Context, path: str, document: Document, text: str) -> int | None:
    """Send the DELETE request. Prints its receipt if --receipt is given, otherwise the document or the text."""
    reply = context.server().call("DELETE", path, query=context.query())
    if context.flag("receipt"):
        return print_receipt(context, reply.document)
    context.show(document, text)
    return None


def print_receipt(context: Context, receipt: Document) -> int:
    """Print the receipt and return the exit code.

    A termination that left sessions has failed: a script must not mistake a partial termination for a complete one.
    """
    context.show(receipt, lambda document: _format_receipt(context, document))
    remaining = page_items(receipt, "left")
    if remaining:
        context.hint(f"{format_session_count(len(remaining))} left. Run the same command again to terminate them.")
    return EXIT_FAILED if remaining else 0


def _format_receipt(context: Context, receipt: Document) -> str:
    remaining = page_items(receipt, "left")
    is_zone = receipt.get("session_id") is None
    subject = ("zone", receipt.get("zone_id")) if is_zone else ("session", receipt.get("session_id"))
    pairs: list[tuple[str, object]] = [
        subject,
        ("reason", receipt.get("reason")),
        ("requested", receipt.get("asked")),
        ("stopped", receipt.get("stopped")),
        ("already stopped", receipt.get("already_stopped")),
        ("duration", f"{cell(receipt.get('duration_ms'))} ms"),
        ("joined", "yes: another request had already started the termination" if receipt.get("joined") else "no"),
        ("left", format_session_count(len(remaining)) if remaining else "none"),
    ]
    if receipt.get("cascade_id") is not None:
        pairs.append(("cascade", receipt["cascade_id"]))
    return fields_and_table(context, pairs, (Column("LEFT", "session_id"), Column("REASON", "reason")), remaining)


def format_session_count(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
