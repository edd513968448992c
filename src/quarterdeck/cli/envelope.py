"""How a message looks: an envelope in brackets with the text below it, or a small document; in full, every column."""

from __future__ import annotations

from quarterdeck.cli.context import Context
from quarterdeck.cli.fleet_common import clipped, harmless, picked
from quarterdeck.client.api import Document

COLUMNS = (
    *("task_id", "context_id", "from_agent_id", "to_agent_id", "type", "created_at"),
    *("status_state", "status_timestamp", "origin_task_id", "text"),
)


def document(context: Context, message: Document) -> Document:
    """`{"id","from","ts","text"}`, and what it is where it is not plainly from one to one; or all columns."""
    if context.flag("full"):
        return picked(message, *COLUMNS)
    told: Document = {
        "id": message.get("task_id"),
        "from": message.get("from_agent_id"),
        "ts": message.get("status_timestamp"),
        "text": clipped(context, message.get("text")),
    }
    if message.get("type") != "unicast":
        told["kind"] = message.get("type")
    if message.get("origin_task_id") is not None:
        told["origin"] = message["origin_task_id"]
    return told


def block(context: Context, message: Document) -> str:
    """The envelope in brackets and the text below it; or a line for every column, the text last."""
    told = document(context, message)
    text = harmless(str(told.pop("text") or ""))
    if context.flag("full"):
        told |= {name: message[name] for name in ("notified_at", "notice") if message.get(name) is not None}
        lines = [f"{name}: {'' if value is None else value}" for name, value in told.items()]
        return "\n".join([*lines, f"text: {text}"])
    head = [str(told["id"]), f"from:{told['from']}", str(told["ts"])]
    head += [f"{name}:{told[name]}" for name in ("kind", "origin") if name in told]
    return f"[{' | '.join(head)}]\n{text}"
