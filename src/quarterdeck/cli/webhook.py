"""Webhooks: add, list, show, change, remove, their secrets, what was sent to them, and to have it sent again."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import ID, TEXT, Argument, Command, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.input import key_or_fresh, without_nothing
from quarterdeck.cli.list_output import PAGES, ago, show_list, show_one
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, items_of


def noun() -> Noun:
    one = Argument("id", "ID", ID)
    maybe = Argument("delivery", "DELIVERY", ID, required=False)
    return Noun(
        (
            Command(
                ("webhook", "add"),
                "Have a URL told what happens; prints its id and secret.",
                add,
                (Argument("target", "URL", TEXT),),
                _ADD,
                _ADDING,
            ),
            Command(("webhook", "list"), "List webhooks, newest first.", list_),
            Command(("webhook", "show"), "Show one webhook.", show, (one,)),
            Command(("webhook", "set"), "Change a webhook, enable or disable it.", set_, (one,), _SET),
            Command(("webhook", "remove"), "Remove a webhook.", remove, (one,)),
            Command(
                ("webhook", "rotate-secret"),
                "Sign with another secret from now on, and print it.",
                rotate,
                (one,),
                description=_ROTATING,
            ),
            Command(("webhook", "test"), "Send a webhook.test to it.", test, (one,)),
            Command(("webhook", "deliveries"), "List what was sent, newest first.", deliveries, (one,), _DELIVERIES),
            Command(
                ("webhook", "replay"), "Send a delivery again, or every one that failed.", replay, (one, maybe), _REPLAY
            ),
        ),
        {"webhook": "URLs outside that are told what happens to tasks and agents."},
    )


_SAID = (
    Option("--type", "What it hears of; may be repeated [default: task.status_changed, alert].", TEXT, many=True),
    Option("--description", "What it is for.", TEXT),
)
_ADD = (*_SAID, Option("--key", "Idempotency key: repeating the command gives the same webhook.", TEXT))
_ADDING = """Types are task.status_changed, alert, those of the log (task.created, agent.stale, …), and * for everything
of tasks and agents. The secret that deliveries are signed with is printed this once."""
_SET = (
    Option("--to", "Another URL.", TEXT),
    *_SAID,
    Option("--enabled", "Whether it hears of anything.", choice("yes", "no")),
)
_ROTATING = "For a day the secret before it still signs, beside the new one."
_DELIVERIES = (Option("--status", "Only those in this status.", choice("pending", "delivered", "failed")), *PAGES)
_REPLAY = (Option("--failed", "Every delivery that failed."),)


def add(context: Context) -> int:
    body = {"url": context.given("target"), **_said(context)}
    key = key_or_fresh(context)
    reply = context.server().call("POST", context.work("webhooks"), body=without_nothing(body), key=key)
    return _hand_out(context, reply.document)


def list_(context: Context) -> int:
    document = context.server().get(context.work("webhooks"))
    context.show(document, lambda told: _table(context, items_of(told)))
    return 0


def show(context: Context) -> int:
    return show_one(context, _path(context))


def set_(context: Context) -> int:
    enabled = context.text("enabled")
    said = {"url": context.text("to"), **_said(context), "enabled": None if enabled is None else enabled == "yes"}
    body = without_nothing(said)
    if not body:
        raise Usage("usage", "Nothing was said to change. Try `qd webhook set --help`.")
    reply = context.server().call("PATCH", _path(context), body=body)
    context.show(reply.document, lambda told: cell(told.get("id")))
    return 0


def remove(context: Context) -> int:
    context.server().call("DELETE", _path(context))
    gone: Document = {"id": context.given("id"), "status": "removed"}
    context.show(gone, lambda told: f"removed {cell(told['id'])}")
    return 0


def rotate(context: Context) -> int:
    return _hand_out(context, context.server().call("POST", _path(context, "rotate-secret")).document)


def test(context: Context) -> int:
    reply = context.server().call("POST", _path(context, "test"))
    context.show(reply.document, lambda told: cell(told.get("id")))
    return 0


def deliveries(context: Context) -> int:
    return show_list(context, _path(context, "deliveries"), {"status": context.text("status")}, _sent)


def replay(context: Context) -> int:
    named, all_failed = context.text("delivery"), context.flag("failed")
    if (named is None) != all_failed:
        raise Usage("usage", "Which delivery? Name one, or give --failed for all that failed.")
    server, replayed = context.server(), []
    if named is not None:
        ids: list[object] = [named]
    else:
        # All of them before the first is sent again: what is sent again is no longer on the list.
        pages = server.pages(_path(context, "deliveries"), {"status": "failed", "limit": 500})
        ids = [one.get("id") for page in pages for one in items_of(page)]
    for one in ids:
        path = _path(context, "deliveries", str(one), "replay")
        replayed.append(server.call("POST", path).document)
    context.show({"items": replayed}, lambda told: _counted(len(replayed)))
    return 0


def _path(context: Context, *rest: str) -> str:
    return context.work("webhooks", context.given("id"), *rest)


def _said(context: Context) -> Document:
    return {"types": context.many("type") or None, "description": context.text("description")}


def _hand_out(context: Context, webhook: Document) -> int:
    pairs: list[tuple[str, object]] = [("id", webhook.get("id")), ("secret", webhook.get("secret"))]
    context.show(webhook, lambda _: fields(pairs, context.paint))
    how = "is shown this once" if webhook.get("secret") else "was rotated since, and is not shown"
    context.note(f"the secret {how}; `qd webhook rotate-secret ID` makes another")
    return 0


def _counted(number: int) -> str:
    return f"sends {number} {'delivery' if number == 1 else 'deliveries'} again"


def _table(context: Context, webhooks: list[Document]) -> str:
    if not webhooks:
        return f"no webhooks in zone {context.zone}"
    now = time.time()
    rows = [
        [
            one.get("id"),
            one.get("url"),
            one.get("types"),
            "enabled" if one.get("enabled") else one.get("disabledReason"),
            ago(one.get("failingSince"), now),
        ]
        for one in webhooks
    ]
    return table(("ID", "URL", "TYPES", "STATE", "FAILING SINCE"), rows, context.paint)


def _sent(context: Context, found: list[Document]) -> str:
    if not found:
        return "nothing was sent"
    now = time.time()
    named = ("id", "event", "status", "attempts", "answerStatus")
    rows = [[*(one.get(name) for name in named), ago(one.get("createdAt"), now), one.get("error")] for one in found]
    return table(("ID", "EVENT", "STATUS", "TRIES", "ANSWER", "MADE", "ERROR"), rows, context.paint)
