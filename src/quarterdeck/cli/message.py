"""`qd message`: send, broadcast, poll, show, ack, cancel, follow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from quarterdeck.cli.command_table import (
    DURATION,
    FILE,
    MEMBER_ID,
    MESSAGE_ID,
    NUMBER,
    TEXT,
    Argument,
    Group,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.fleet_common import (
    AGENT_ID_OPTION,
    FULL_OPTION,
    agent_id_or_none,
    fleet_path,
    fleets_path,
    format_message,
    message_document,
    pick_fields,
    require_agent_id,
    require_fleet_id,
    require_text,
    with_fleet_errors,
)
from quarterdeck.client.api import ApiClient, Document, page_items
from quarterdeck.core.errors import NotFound

_DELIVERY_WAIT_MS = 3_000
"""How long a broadcast waits for the notices in the recipients' panes. `delivered` counts those shown by then."""


GROUP = Group("message", "Send and read messages between the members of a fleet.", wrap=with_fleet_errors)


_TEXT_OPTIONS = (
    Option("--text", "Text of the message; - for standard input.", TEXT),
    Option("--text-file", "File with the text; - for standard input.", FILE),
    Option("--key", "Idempotency key: the same key sends the message only once.", TEXT),
)
_TEXT_HELP = "Give the text with --text or --text-file, or on standard input with -."
_AFTER_OPTION = Option("--after", "Only messages with an id higher than this.", NUMBER, field="after")
_MESSAGE_OPTIONS = (
    AGENT_ID_OPTION,
    Option("--task-id", "Message id.", MESSAGE_ID),
    Option("--message-id", "Alias for --task-id.", MESSAGE_ID),
    FULL_OPTION,
)


# -- send ------------------------------------------------------------------------------------------------------------


@GROUP.command(
    "send",
    "Send a message.",
    Argument("stdin", "-", choice("-"), required=False),
    AGENT_ID_OPTION,
    Option("--to", "Recipient.", MEMBER_ID, required=True, field="to_agent_id"),
    *_TEXT_OPTIONS,
    FULL_OPTION,
    Option("--quiet", "Print only the id."),
    description=_TEXT_HELP,
)
def send(context: Context) -> None:
    if context.flag("full") and context.flag("quiet"):
        raise usage_error("Give --full or --quiet, not both.")
    message = _post(context)
    if context.flag("quiet") and not context.as_json:
        context.write(str(message.get("task_id")))
    else:
        _print_message(context, message, "Message sent.")


@GROUP.command(
    "broadcast",
    "Send a message to all other members.",
    Argument("stdin", "-", choice("-"), required=False),
    AGENT_ID_OPTION,
    *_TEXT_OPTIONS,
    FULL_OPTION,
    description=_TEXT_HELP,
)
def broadcast(context: Context) -> None:
    reply = _post(context, to_agent_id="*", wait_ms=_DELIVERY_WAIT_MS)
    summary = reply.get("summary")
    message = summary if isinstance(summary, dict) else {}
    counts = pick_fields(reply, "recipients", "delivered")

    def format_summary(_: Document) -> str:
        counts_text = " ".join(f"{name}={count}" for name, count in counts.items())
        line = f"broadcast id={message.get('task_id')} {counts_text}"
        return f"{line}\n{format_message(context, message)}" if context.flag("full") else line

    context.show({**message_document(context, message), **counts}, format_summary)


def _post(context: Context, **extra_fields: str | int) -> Document:
    """Send the message. Its idempotency key prevents a repeated request from sending it twice."""
    body = context.body(
        from_agent_id=require_agent_id(context), text=require_text(context, context.text("stdin")), **extra_fields
    )
    path, key = fleet_path(context, "messages"), context.idempotency_key()
    return context.server().call("POST", path, body=body, key=key).document


# -- one message -----------------------------------------------------------------------------------------------------


@GROUP.command("show", "Show one message.", *_MESSAGE_OPTIONS)
def show(context: Context) -> None:
    fleet_id, message_id, agent_id = require_fleet_id(context), _message_id(context), agent_id_or_none(context)
    server = context.server()
    if agent_id is not None:
        _require_member(server, fleet_id, agent_id)
    message = server.get(fleets_path(fleet_id, "messages", message_id))
    context.show(message_document(context, message), lambda _: format_message(context, message))


def _require_member(server: ApiClient, fleet_id: int, agent_id: int) -> None:
    """Raise unless the agent is an active member: only members may read the messages of a fleet."""
    if server.get(fleets_path(fleet_id, "members", agent_id)).get("status") != "active":
        raise NotFound("fleet_member_not_found", f"agent {agent_id} is not a member of fleet {fleet_id}.")


@GROUP.command("ack", "Acknowledge a message as its recipient.", *_MESSAGE_OPTIONS)
def ack(context: Context) -> None:
    _finish_message(context, "ack", "Message acknowledged.")


@GROUP.command("cancel", "Cancel a message as its sender.", *_MESSAGE_OPTIONS)
def cancel(context: Context) -> None:
    _finish_message(context, "cancel", "Message canceled.")


def _finish_message(context: Context, verb: str, confirmation: str) -> None:
    path = fleets_path(require_fleet_id(context), "messages", _message_id(context), verb)
    message = context.server().call("POST", path, body={"agent_id": require_agent_id(context)}).document
    # The caller has read or written the text, so do not print it again.
    _print_message(context, message, confirmation, with_text=context.flag("full"))


def _message_id(context: Context) -> int | None:
    ids = {context.number("task_id"), context.number("message_id")} - {None}
    if len(ids) != 1:
        raise usage_error("Give one message id, with --task-id or its alias --message-id.")
    return ids.pop()


# -- poll and follow -------------------------------------------------------------------------------------------------


@GROUP.command(
    "poll",
    "Print the unacknowledged messages of a member.",
    AGENT_ID_OPTION,
    FULL_OPTION,
    Option("--wait", "How long to wait for a message, such as 30s or 5m [default: do not wait].", DURATION),
    Option("--oldest-first", "Print the oldest messages first."),
    Option("--limit", "Maximum number of messages, 1 to 500 [default: 100].", NUMBER, field="limit"),
    _AFTER_OPTION,
    description="Prints the newest first. Without --full, clips each text to QD_MAX_TEXT_LEN characters "
    "[default: 200].",
)
def poll(context: Context) -> None:
    order = "asc" if context.flag("oldest_first") else "desc"
    inbox, wait_seconds = _Inbox(context, order=order), context.number("wait")
    messages = inbox.wait_for_messages(wait_seconds) if wait_seconds else inbox.fetch(context.server(), 0)
    context.show(
        [message_document(context, message) for message in messages],
        lambda _: "\n\n".join(format_message(context, message) for message in messages) or "No messages found.",
    )
    if inbox.has_more:
        context.hint("More messages exist. Use --limit to print more, or --after to continue after an id.")


@GROUP.command(
    "follow",
    "Print a member's unacknowledged messages, then new ones.",
    AGENT_ID_OPTION,
    _AFTER_OPTION,
    FULL_OPTION,
    description="Runs until Ctrl-C. With --json, prints one object per line.",
)
def follow(context: Context) -> None:
    inbox = _Inbox(context, order="asc")

    def print_messages(messages: list[Document]) -> bool:
        for message in messages:
            inbox.query["after"] = _id_or_none(message)
            _print_followed_message(context, message)
        return False

    inbox.poll_repeatedly(print_messages)


class _Inbox:
    """The unacknowledged messages of a member."""

    def __init__(self, context: Context, *, order: str) -> None:
        self._context = context
        self._path = fleets_path(require_fleet_id(context), "members", require_agent_id(context), "inbox")
        self.query = context.query(status="input_required", order=order)
        self.has_more = False

    def fetch(self, server: ApiClient, wait_ms: int) -> list[Document]:
        # `wait_ms` is sent even if it is 0, to mark the request as a poll. The server refuses to poll for an inactive
        # member.
        page = server.get(self._path, {**self.query, "wait_ms": wait_ms})
        self.has_more = page.get("next_cursor") is not None
        return page_items(page, "messages")

    def wait_for_messages(self, seconds: int) -> list[Document]:
        """Return the messages in the inbox. If it is empty, wait up to `seconds` for the first message."""
        deadline = time.monotonic() + seconds
        messages: list[Document] = []

        def is_done(new_messages: list[Document]) -> bool:
            messages.extend(new_messages)
            return bool(new_messages) or time.monotonic() >= deadline

        self.poll_repeatedly(is_done, deadline)
        return messages

    def poll_repeatedly(self, handle: Callable[[list[Document]], bool], deadline: float | None = None) -> None:
        from quarterdeck.cli.long_poll import WAIT_MS, repeat_long_poll  # imported here: only waiting needs it

        def poll_once(server: ApiClient) -> bool:
            wait_ms = WAIT_MS if deadline is None else min(WAIT_MS, max(round((deadline - time.monotonic()) * 1000), 0))
            return handle(self.fetch(server, wait_ms))

        repeat_long_poll(self._context, poll_once, deadline=deadline)


def _id_or_none(message: Document) -> int | None:
    task_id = message.get("task_id")
    return task_id if isinstance(task_id, int) else None


def _print_message(context: Context, message: Document, confirmation: str, *, with_text: bool = True) -> None:
    context.show(
        message_document(context, message),
        lambda _: f"{confirmation}\n{format_message(context, message)}" if with_text else confirmation,
    )


def _print_followed_message(context: Context, message: Document) -> None:
    """Print a message with a blank line after it, and flush stdout so that a reader of a pipe gets it at once."""
    context.show(message_document(context, message), lambda _: f"{format_message(context, message)}\n\n")
    sys.stdout.flush()
