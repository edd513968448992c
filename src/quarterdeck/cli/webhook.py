"""`qd webhook`: add, list, show, set, remove, rotate-secret, test, deliveries, replay."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import ID, TEXT, Argument, Command, CommandTable, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import idempotency_key, without_none
from quarterdeck.cli.list_output import PAGING, ago, print_details, print_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, page_items


def build_command_table() -> CommandTable:
    id_argument = Argument("id", "ID", ID)
    delivery_argument = Argument("delivery", "DELIVERY", ID, required=False)
    return CommandTable(
        (
            Command(
                ("webhook", "add"),
                "Add a webhook and print its id and secret.",
                add,
                (Argument("target", "URL", TEXT),),
                _ADD_OPTIONS,
                _ADD_HELP,
            ),
            Command(("webhook", "list"), "List webhooks, newest first.", list_),
            Command(("webhook", "show"), "Show one webhook.", show, (id_argument,)),
            Command(("webhook", "set"), "Change, enable or disable a webhook.", set_, (id_argument,), _SET_OPTIONS),
            Command(("webhook", "remove"), "Remove a webhook.", remove, (id_argument,)),
            Command(
                ("webhook", "rotate-secret"),
                "Create a new secret for a webhook and print it.",
                rotate,
                (id_argument,),
                description=_ROTATE_HELP,
            ),
            Command(("webhook", "test"), "Send a webhook.test event to a webhook.", test, (id_argument,)),
            Command(
                ("webhook", "deliveries"),
                "List the deliveries of a webhook, newest first.",
                deliveries,
                (id_argument,),
                _DELIVERIES_OPTIONS,
            ),
            Command(
                ("webhook", "replay"),
                "Send one delivery again, or all failed deliveries.",
                replay,
                (id_argument, delivery_argument),
                _REPLAY_OPTIONS,
            ),
        ),
        {"webhook": "Manage webhooks: URLs that receive task and agent events."},
    )


_WEBHOOK_OPTIONS = (
    Option("--type", "Event type to send; repeatable [default: task.status_changed, alert].", TEXT, many=True),
    Option("--description", "Purpose of the webhook.", TEXT),
)
_ADD_OPTIONS = (*_WEBHOOK_OPTIONS, Option("--key", "Idempotency key: the same key returns the same webhook.", TEXT))
_ADD_HELP = """Types are task.status_changed, alert, the types of the event log (task.created, agent.stale, …), and *
for all task and agent events. The secret that signs deliveries is printed once and cannot be shown again."""
_SET_OPTIONS = (
    Option("--to", "New URL.", TEXT),
    *_WEBHOOK_OPTIONS,
    Option("--enabled", "Whether events are sent to the webhook.", choice("yes", "no")),
)
_ROTATE_HELP = "For one day, deliveries are signed with both the old and the new secret."
_DELIVERIES_OPTIONS = (
    Option("--status", "Only deliveries with this status.", choice("pending", "delivered", "failed")),
    *PAGING,
)
_REPLAY_OPTIONS = (Option("--failed", "Send all failed deliveries again."),)


def add(context: Context) -> int:
    body = {"url": context.required_text("target"), **_webhook_fields(context)}
    key = idempotency_key(context)
    reply = context.server().call("POST", context.api_path("webhooks"), body=without_none(body), key=key)
    return _print_secret(context, reply.document)


def list_(context: Context) -> int:
    document = context.server().get(context.api_path("webhooks"))
    context.show(document, lambda document: _table(context, page_items(document)))
    return 0


def show(context: Context) -> int:
    return print_details(context, _path(context))


def set_(context: Context) -> int:
    enabled = context.text("enabled")
    changes = {
        "url": context.text("to"),
        **_webhook_fields(context),
        "enabled": None if enabled is None else enabled == "yes",
    }
    body = without_none(changes)
    if not body:
        raise UsageError("usage", "Give at least one option to change. Try `qd webhook set --help`.")
    reply = context.server().call("PATCH", _path(context), body=body)
    context.show(reply.document, lambda document: cell(document.get("id")))
    return 0


def remove(context: Context) -> int:
    context.server().call("DELETE", _path(context))
    removed: Document = {"id": context.required_text("id"), "status": "removed"}
    context.show(removed, lambda document: f"Removed webhook {cell(document['id'])}.")
    return 0


def rotate(context: Context) -> int:
    return _print_secret(context, context.server().call("POST", _path(context, "rotate-secret")).document)


def test(context: Context) -> int:
    reply = context.server().call("POST", _path(context, "test"))
    context.show(reply.document, lambda document: cell(document.get("id")))
    return 0


def deliveries(context: Context) -> int:
    return print_list(context, _path(context, "deliveries"), {"status": context.text("status")}, _delivery_table)


def replay(context: Context) -> int:
    requested_id, all_failed = context.text("delivery"), context.flag("failed")
    if (requested_id is None) != all_failed:
        raise UsageError("usage", "Give the id of one DELIVERY, or --failed for all failed deliveries.")
    server, replayed = context.server(), []
    if requested_id is not None:
        ids: list[object] = [requested_id]
    else:
        # Load all ids first: a replayed delivery leaves the list of failed deliveries, which would shift the pages.
        pages = server.pages(_path(context, "deliveries"), {"status": "failed", "limit": 500})
        ids = [delivery.get("id") for page in pages for delivery in page_items(page)]
    for delivery_id in ids:
        path = _path(context, "deliveries", str(delivery_id), "replay")
        replayed.append(server.call("POST", path).document)
    context.show({"items": replayed}, lambda document: _format_replay_count(len(replayed)))
    return 0


def _path(context: Context, *segments: str) -> str:
    return context.api_path("webhooks", context.required_text("id"), *segments)


def _webhook_fields(context: Context) -> Document:
    return {"types": context.values("type") or None, "description": context.text("description")}


def _print_secret(context: Context, webhook: Document) -> int:
    pairs: list[tuple[str, object]] = [("id", webhook.get("id")), ("secret", webhook.get("secret"))]
    context.show(webhook, lambda _: fields(pairs, context.styler))
    secret_text = "is shown only once" if webhook.get("secret") else "was rotated in the meantime and is not shown"
    context.note(f"The secret {secret_text}. Create a new one with `qd webhook rotate-secret ID`.")
    return 0


def _format_replay_count(count: int) -> str:
    return f"Sending {count} {'delivery' if count == 1 else 'deliveries'} again."


def _table(context: Context, webhooks: list[Document]) -> str:
    if not webhooks:
        return f"No webhooks in zone {context.zone}."
    now = time.time()
    rows = [
        [
            webhook.get("id"),
            webhook.get("url"),
            webhook.get("types"),
            "enabled" if webhook.get("enabled") else webhook.get("disabledReason"),
            ago(webhook.get("failingSince"), now),
        ]
        for webhook in webhooks
    ]
    return table(("ID", "URL", "TYPES", "STATE", "FAILING SINCE"), rows, context.styler)


def _delivery_table(context: Context, deliveries: list[Document]) -> str:
    if not deliveries:
        return "No deliveries found."
    now = time.time()
    field_names = ("id", "event", "status", "attempts", "answerStatus")
    rows = [
        [*(delivery.get(name) for name in field_names), ago(delivery.get("createdAt"), now), delivery.get("error")]
        for delivery in deliveries
    ]
    return table(("ID", "EVENT", "STATUS", "ATTEMPTS", "RESPONSE", "CREATED", "ERROR"), rows, context.styler)
