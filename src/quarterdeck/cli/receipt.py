"""The receipt of an ending: what was asked, what was stopped, and what was left."""

from __future__ import annotations

from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, items_of
from quarterdeck.core.errors import EXIT_FAILED

LEFT_EXITS = "Exits 1 if the receipt names anything that is left."


def hand_out(context: Context, receipt: Document) -> int:
    """Prints it. An ending that left something has failed, however much it has ended: whoever scripts the end of a
    tree must not take a part for the whole."""
    context.show(receipt, lambda told: _told(context, told))
    left = items_of(receipt, "left")
    if left and not context.as_json:
        context.note(f"not all of it has ended: {sessions(len(left))} left; the same command ends them too")
    return EXIT_FAILED if left else 0


def _told(context: Context, receipt: Document) -> str:
    left = items_of(receipt, "left")
    whole = receipt.get("session_id") is None
    named = ("zone", receipt.get("zone_id")) if whole else ("session", receipt.get("session_id"))
    pairs: list[tuple[str, object]] = [
        named,
        ("reason", receipt.get("reason")),
        ("asked", receipt.get("asked")),
        ("stopped", receipt.get("stopped")),
        ("already stopped", receipt.get("already_stopped")),
        ("took", f"{cell(receipt.get('duration_ms'))} ms"),
        ("joined", "yes: somebody else had begun it" if receipt.get("joined") else "no"),
        ("left", sessions(len(left)) if left else "nothing"),
    ]
    if receipt.get("cascade_id") is not None:
        pairs.append(("cascade", receipt["cascade_id"]))
    shown = fields(pairs, context.paint)
    if left:
        rows = [[one.get("session_id"), one.get("reason")] for one in left]
        shown += "\n\n" + table(("LEFT", "WHY"), rows, context.paint)
    return shown


def sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
