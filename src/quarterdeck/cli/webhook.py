"""`qd webhook`: add, list, show, set, remove, rotate-secret, test, deliveries, replay."""

from __future__ import annotations

from quarterdeck.cli.command_table import ID, ID_ARGUMENT, TEXT, YES_NO, Argument, Group, Option, choice, key_option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.list_output import (
    PAGING,
    Column,
    field_text,
    load_all,
    print_details,
    print_items,
    print_list,
    time_ago,
)
from quarterdeck.cli.output import fields
from quarterdeck.client.api import Document

GROUP = Group("webhook", "Manage webhooks: URLs that receive task and agent events.")


_WEBHOOK_OPTIONS = (
    Option(
        "--type",
        "Event type to send; repeatable [default: task.status_changed, alert].",
        TEXT,
        many=True,
        field="types",
    ),
    Option("--description", "Purpose of the webhook.", TEXT, field="description"),
)


@GROUP.command(
    "add",
    "Add a webhook and print its id and secret.",
    Argument("target", "URL", TEXT, field="url"),
    *_WEBHOOK_OPTIONS,
    key_option("webhook"),
    description=(
        "Types are task.status_changed, alert, the types of the event log (task.created, agent.stale, …), and "
        "* for all task and agent events. The secret that signs deliveries is printed once and cannot be "
        "shown again."
    ),
)
def add(context: Context) -> None:
    path, key = context.api_path("webhooks"), context.idempotency_key()
    _print_secret(context, context.server().call("POST", path, body=context.body(), key=key).document)


@GROUP.command("list", "List webhooks, newest first.")
def list_(context: Context) -> None:
    print_items(context, context.api_path("webhooks"), _COLUMNS, f"No webhooks in zone {context.zone}.")


@GROUP.command("show", "Show one webhook.", ID_ARGUMENT)
def show(context: Context) -> None:
    print_details(context, _path(context))


@GROUP.command(
    "set",
    "Change, enable or disable a webhook.",
    ID_ARGUMENT,
    Option("--to", "New URL.", TEXT, field="url"),
    *_WEBHOOK_OPTIONS,
    Option("--enabled", "Whether events are sent to the webhook.", YES_NO, field="enabled"),
)
def set_(context: Context) -> None:
    context.send("PATCH", _path(context), field_text("id"), body=context.changes())


@GROUP.command("remove", "Remove a webhook.", ID_ARGUMENT)
def remove(context: Context) -> None:
    webhook_id = context.required_text("id")
    context.remove(_path(context), {"id": webhook_id, "status": "removed"}, f"Removed webhook {webhook_id}.")


@GROUP.command(
    "rotate-secret",
    "Create a new secret for a webhook and print it.",
    ID_ARGUMENT,
    description="For one day, deliveries are signed with both the old and the new secret.",
)
def rotate(context: Context) -> None:
    _print_secret(context, context.server().call("POST", _path(context, "rotate-secret")).document)


@GROUP.command("test", "Send a webhook.test event to a webhook.", ID_ARGUMENT)
def test(context: Context) -> None:
    context.send("POST", _path(context, "test"), field_text("id"))


@GROUP.command(
    "deliveries",
    "List the deliveries of a webhook, newest first.",
    ID_ARGUMENT,
    Option("--status", "Only deliveries with this status.", choice("pending", "delivered", "failed"), field="status"),
    *PAGING,
)
def deliveries(context: Context) -> None:
    print_list(context, _path(context, "deliveries"), _DELIVERY_COLUMNS, "No deliveries found.")


@GROUP.command(
    "replay",
    "Send one delivery again, or all failed deliveries.",
    ID_ARGUMENT,
    Argument("delivery", "DELIVERY", ID, required=False),
    Option("--failed", "Send all failed deliveries again."),
)
def replay(context: Context) -> None:
    requested_id, all_failed = context.text("delivery"), context.flag("failed")
    if (requested_id is None) != all_failed:
        raise usage_error("Give the id of one DELIVERY, or --failed for all failed deliveries.")
    server, ids = context.server(), [requested_id]
    if all_failed:
        # Load all ids first: a replayed delivery leaves the list of failed deliveries, which would shift the pages.
        failed = load_all(server, _path(context, "deliveries"), status="failed")
        ids = [str(delivery.get("id")) for delivery in failed]
    replayed = [
        server.call("POST", _path(context, "deliveries", str(delivery_id), "replay")).document for delivery_id in ids
    ]
    noun = "delivery" if len(replayed) == 1 else "deliveries"
    context.show({"items": replayed}, f"Sending {len(replayed)} {noun} again.")


def _path(context: Context, *segments: str) -> str:
    return context.api_path("webhooks", context.required_text("id"), *segments)


def _print_secret(context: Context, webhook: Document) -> None:
    pairs: list[tuple[str, object]] = [("id", webhook.get("id")), ("secret", webhook.get("secret"))]
    context.show(webhook, lambda _: fields(pairs, context.styler))
    secret_text = "is shown only once" if webhook.get("secret") else "was rotated in the meantime and is not shown"
    context.note(f"The secret {secret_text}. Create a new one with `qd webhook rotate-secret ID`.")


_COLUMNS = (
    Column("ID", "id"),
    Column("URL", "url"),
    Column("TYPES", "types"),
    Column("STATE", lambda webhook, _: "enabled" if webhook.get("enabled") else webhook.get("disabledReason")),
    Column("FAILING SINCE", time_ago("failingSince")),
)


_DELIVERY_COLUMNS = (
    Column("ID", "id"),
    Column("EVENT", "event"),
    Column("STATUS", "status"),
    Column("ATTEMPTS", "attempts"),
    Column("RESPONSE", "answerStatus"),
    Column("CREATED", time_ago("createdAt")),
    Column("ERROR", "error"),
)
