"""`qd message`: send, broadcast, poll, show, ack, cancel, follow."""

from __future__ import annotations

import os
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
    Command,
    CommandTable,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.fleet_common import (
    AGENT_ID_OPTION,
    FULL_OPTION,
    agent_id_or_none,
    fleets_path,
    format_message,
    message_document,
    pick_fields,
    print_result,
    require_agent_id,
    require_fleet_id,
    require_text,
    with_fleet_errors,
)
from quarterdeck.client.api import ApiClient, Document, Query, page_items
from quarterdeck.core.errors import NotFound

_DELIVERY_WAIT_MS = 3_000
"""How long a broadcast waits for the notices in the recipients' panes. `delivered` counts those shown by then."""


def build_command_table() -> CommandTable:
    stdin_argument = (Argument("stdin", "-", choice("-"), required=False),)
    return CommandTable(
        (
            Command(
                ("message", "send"),
                "Send a message.",
                with_fleet_errors(send),
                stdin_argument,
                _SEND_OPTIONS,
                _TEXT_HELP,
            ),
            Command(
                ("message", "broadcast"),
                "Send a message to all other members.",
                with_fleet_errors(broadcast),
                stdin_argument,
                (AGENT_ID_OPTION, *_TEXT_OPTIONS, FULL_OPTION),
                _TEXT_HELP,
            ),
            Command(
                ("message", "poll"),
                "Print the unacknowledged messages of a member.",
                with_fleet_errors(poll),
                options=_POLL_OPTIONS,
                description=_POLL_HELP,
            ),
            Command(("message", "show"), "Show one message.", with_fleet_errors(show), options=_MESSAGE_OPTIONS),
            Command(
                ("message", "ack"),
                "Acknowledge a message as its recipient.",
                with_fleet_errors(ack),
                options=_MESSAGE_OPTIONS,
            ),
            Command(
                ("message", "cancel"),
                "Cancel a message as its sender.",
                with_fleet_errors(cancel),
                options=_MESSAGE_OPTIONS,
            ),
            Command(
                ("message", "follow"),
                "Print a member's unacknowledged messages, then new ones.",
                with_fleet_errors(follow),
                options=(AGENT_ID_OPTION, _AFTER_OPTION, FULL_OPTION),
                description=_FOLLOW_HELP,
            ),
        ),
        {"message": "Send and read messages between the members of a fleet."},
    )


_TEXT_OPTIONS = (
    Option("--text", "Text of the message; - for standard input.", TEXT),
    Option("--text-file", "File with the text; - for standard input.", FILE),
    Option("--key", "Idempotency key: the same key sends the message only once.", TEXT),
)
_SEND_OPTIONS = (
    AGENT_ID_OPTION,
    Option("--to", "Recipient.", MEMBER_ID, required=True),
    *_TEXT_OPTIONS,
    FULL_OPTION,
    Option("--quiet", "Print only the id."),
)
_TEXT_HELP = "Give the text with --text or --text-file, or on standard input with -."
_AFTER_OPTION = Option("--after", "Only messages with an id higher than this.", NUMBER)
_POLL_OPTIONS = (
    AGENT_ID_OPTION,
    FULL_OPTION,
    Option("--wait", "How long to wait for a message, such as 30s or 5m [default: do not wait].", DURATION),
    Option("--oldest-first", "Print the oldest messages first."),
    Option("--limit", "Maximum number of messages, 1 to 500 [default: 100].", NUMBER),
    _AFTER_OPTION,
)
_POLL_HELP = "Prints the newest first. Without --full, clips each text to QD_MAX_TEXT_LEN characters [default: 200]."
_MESSAGE_OPTIONS = (
    AGENT_ID_OPTION,
    Option("--task-id", "Message id.", MESSAGE_ID),
    Option("--message-id", "Alias for --task-id.", MESSAGE_ID),
    FULL_OPTION,
)
_FOLLOW_HELP = "Runs until Ctrl-C. With --json, prints one object per line."


# -- send ------------------------------------------------------------------------------------------------------------


def send(context: Context) -> int:
    if context.flag("full") and context.flag("quiet"):
        raise UsageError("usage", "Give --full or --quiet, not both.")
    message = _post(context, context.number("to"))
    if context.flag("quiet") and not context.as_json:
        context.write(str(message.get("task_id")))
    else:
        _print_message(context, message, "Message sent.")
    return 0


def broadcast(context: Context) -> int:
    reply = _post(context, "*", wait_ms=_DELIVERY_WAIT_MS)
    summary = reply.get("summary")
    message = summary if isinstance(summary, dict) else {}
    counts = pick_fields(reply, "recipients", "delivered")

    def format_summary() -> str:
        summary_line = f"broadcast id={message.get('task_id')} " + " ".join(
            f"{name}={count}" for name, count in counts.items()
        )
        return f"{summary_line}\n{format_message(context, message)}" if context.flag("full") else summary_line

    print_result(context, {**message_document(context, message), **counts}, format_summary)
    return 0


def _post(context: Context, recipient: object, **extra_fields: int) -> Document:
    """Send the message. Its idempotency key prevents a repeated request from sending it twice."""
    sender_id, text = require_agent_id(context), require_text(context, context.text("stdin"))
    body: Document = {"from_agent_id": sender_id, "to_agent_id": recipient, "text": text, **extra_fields}
    key = context.text("key") or f"qd-{os.urandom(16).hex()}"
    return (
        context.server().call("POST", fleets_path(require_fleet_id(context), "messages"), body=body, key=key).document
    )


# -- one message -----------------------------------------------------------------------------------------------------


def show(context: Context) -> int:
    fleet_id, message_id = require_fleet_id(context), _message_id(context)
    server = context.server()
    agent_id = agent_id_or_none(context)
    if agent_id is not None:
        _require_member(server, fleet_id, agent_id)
    message = server.get(fleets_path(fleet_id, "messages", message_id))
    print_result(context, message_document(context, message), lambda: format_message(context, message))
    return 0


def _require_member(server: ApiClient, fleet_id: int, agent_id: int) -> None:
    """Raise unless the agent is an active member: only members may read the messages of a fleet."""
    if server.get(fleets_path(fleet_id, "members", agent_id)).get("status") != "active":
        raise NotFound("fleet_member_not_found", f"agent {agent_id} is not a member of fleet {fleet_id}.")


def ack(context: Context) -> int:
    return _finish_message(context, "ack", "Message acknowledged.")


def cancel(context: Context) -> int:
    return _finish_message(context, "cancel", "Message canceled.")


def _finish_message(context: Context, verb: str, confirmation: str) -> int:
    path = fleets_path(require_fleet_id(context), "messages", _message_id(context), verb)
    message = context.server().call("POST", path, body={"agent_id": require_agent_id(context)}).document
    # The caller has read or written the text, so do not print it again.
    _print_message(context, message, confirmation, with_text=context.flag("full"))
    return 0


def _message_id(context: Context) -> int:
    ids = {context.number("task_id"), context.number("message_id")} - {None}
    if len(ids) != 1:
        raise UsageError("usage", "Give one message id, with --task-id or its alias --message-id.")
    [message_id] = ids
    assert message_id is not None  # None was removed above
    return message_id


# -- poll and follow -------------------------------------------------------------------------------------------------


def poll(context: Context) -> int:
    order = "asc" if context.flag("oldest_first") else "desc"
    inbox = _Inbox(context, order=order, limit=context.number("limit"))
    wait_seconds = context.number("wait")
    messages = inbox.wait_for_messages(wait_seconds) if wait_seconds else inbox.fetch(context.server(), 0)
    documents = [message_document(context, message) for message in messages]
    print_result(
        context,
        documents,
        lambda: "\n\n".join(format_message(context, message) for message in messages) or "No messages found.",
    )
    if inbox.has_more and not context.as_json:
        context.note("More messages exist. Use --limit to print more, or --after to continue after an id.")
    return 0


def follow(context: Context) -> int:
    inbox = _Inbox(context, order="asc")

    def print_messages(messages: list[Document]) -> bool:
        for message in messages:
            inbox.after_id = _id_or_none(message)
            _print_followed_message(context, message)
        return False

    inbox.poll_repeatedly(print_messages)
    return 0


class _Inbox:
    """The unacknowledged messages of a member."""

    def __init__(self, context: Context, *, order: str, limit: int | None = None) -> None:
        self._context = context
        self._path = fleets_path(require_fleet_id(context), "members", require_agent_id(context), "inbox")
        self._order = order
        self._limit = limit
        self.after_id = context.number("after")
        self.has_more = False

    def fetch(self, server: ApiClient, wait_ms: int) -> list[Document]:
        query: Query = {
            "status": "input_required",
            "order": self._order,
            "after": self.after_id,
            "limit": self._limit,
            # Sent even if it is 0, to mark the request as a poll. The server refuses to poll for an inactive member.
            "wait_ms": wait_ms,
        }
        page = server.get(self._path, query)
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
    print_result(
        context,
        message_document(context, message),
        lambda: f"{confirmation}\n{format_message(context, message)}" if with_text else confirmation,
    )


def _print_followed_message(context: Context, message: Document) -> None:
    """Print a message with a blank line after it, and flush stdout so that a reader of a pipe gets it at once."""
    print_result(context, message_document(context, message), lambda: f"{format_message(context, message)}\n\n")
    sys.stdout.flush()
