"""The routes that send, acknowledge, cancel and read messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypedDict

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.paging import Listing, Page
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.fleets.model.bodies import (
    ActingAgentBody,
    InboxQuery,
    MessageBody,
    MessagesQuery,
    SentQuery,
    TimelineQuery,
)
from quarterdeck.domain.fleets.model.commands import Acknowledge, Broadcast, Cancel, Send, SendResult
from quarterdeck.domain.fleets.model.filters import (
    UPPER_BOUND,
    InboxFilter,
    MessageRequest,
    MessagesFilter,
    Position,
    SentFilter,
    TimelineFilter,
)
from quarterdeck.domain.fleets.model.rows import Message, MessageState, MessageType
from quarterdeck.domain.fleets.model.views import (
    BroadcastView,
    MessageList,
    MessageView,
    TimelineChangeView,
    TimelineEntryView,
)
from quarterdeck.domain.fleets.operations import message_reads, timeline
from quarterdeck.domain.fleets.operations.inbox_long_poll import InboxLongPoll
from quarterdeck.domain.fleets.operations.message_reads import LoadNames, MessagePage
from quarterdeck.domain.fleets.operations.messages import SubmitMessageCommand
from quarterdeck.domain.fleets.routes import request_fields
from quarterdeck.domain.fleets.routes.request_fields import (
    FLEET_PATH,
    MEMBER_PATH,
    MESSAGE_PATH,
    READ_PERMISSION,
    SPEAK_PERMISSION,
    command_fields,
    path_agent_id,
    path_message_id,
)
from quarterdeck.domain.fleets.rules import views as presenters
from quarterdeck.domain.fleets.rules.views import MemberNames, TimelineEntry
from quarterdeck.engine.transaction import Engine

TIMELINE = Listing[TimelineEntry]("timeline", lambda entry: str(entry.head.task_id))
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
"""The maximum size of a request body. A character may need several bytes, so it exceeds `MESSAGE_LENGTH_MAX`."""


@dataclass(frozen=True, slots=True)
class MessageHandlers:
    engine: Engine
    submit: SubmitMessageCommand
    load_names: Callable[[LoadNames], Awaitable[MemberNames]]
    inbox_long_poll: InboxLongPoll
    wait_max_ms: int
    wait_for_receipts: Callable[[Message, float], Awaitable[None]]
    """Returns when all notices of the broadcast with this summary have receipts, or after that many seconds."""
    open_stream: Callable[[Call[None, None]], Awaitable[object]]
    """Opens a stream of the timeline. Streams belong to the HTTP layer, so this function is injected."""

    async def send(self, call: Call[MessageBody, None]) -> Reply[MessageView | BroadcastView]:
        body = call.body
        result = await self.submit(_send_command(call))
        view = await self._build_view(result.message)
        status = 201 if result.created else 200
        if result.message.type is not MessageType.SUMMARY:
            return Reply(view, status)
        notified_count = await self._count_notified(call, result, body.wait_ms) if body.wait_ms else None
        return Reply(BroadcastView(view, len(result.deliveries), notified_count), status)

    async def _count_notified(self, call: AnyCall, result: SendResult, wait_ms: int) -> int:
        await self.wait_for_receipts(result.message, wait_ms / 1000)
        return await self.engine.read(lambda tx: timeline.count_notified(tx, result.deliveries), zones=call.zones)

    async def acknowledge(self, call: Call[ActingAgentBody, None]) -> MessageView:
        return await self._submit_and_view(
            Acknowledge(**command_fields(call), agent_id=call.body.agent_id, message_id=path_message_id(call))
        )

    async def cancel(self, call: Call[ActingAgentBody, None]) -> MessageView:
        return await self._submit_and_view(
            Cancel(**command_fields(call), agent_id=call.body.agent_id, message_id=path_message_id(call))
        )

    async def _submit_and_view(self, command: Acknowledge | Cancel) -> MessageView:
        message = await self.submit(command)
        return await self._build_view(message)

    async def _build_view(self, message: Message) -> MessageView:
        return presenters.message_view(message, await self.load_names(LoadNames(message)))

    # -- reading -------------------------------------------------------------------------------------------------

    async def show(self, call: Call[None, None]) -> MessageView:
        request = MessageRequest(**command_fields(call), message_id=path_message_id(call))
        page = await self.engine.read(lambda tx: message_reads.get_message(tx, request), zones=call.zones)
        return presenters.message_view(page.messages[0], page.names)

    async def list_messages(self, call: Call[None, MessagesQuery]) -> Reply[MessageList]:
        query = call.query
        listing = _message_listing(call.query, "messages")
        filters = MessagesFilter(**command_fields(call), **_page_fields(query, listing))
        page = await self.engine.read(lambda tx: message_reads.list_messages(tx, filters), zones=call.zones)
        return _list_reply(call, page, listing)

    async def list_sent(self, call: Call[None, SentQuery]) -> Reply[MessageList]:
        query = call.query
        listing = _message_listing(call.query, "sent")
        filters = SentFilter(
            **command_fields(call), **_page_fields(query, listing), agent_id=path_agent_id(call), state=query.status
        )
        page = await self.engine.read(lambda tx: message_reads.list_sent(tx, filters), zones=call.zones)
        return _list_reply(call, page, listing)

    async def list_inbox(self, call: Call[None, InboxQuery]) -> Reply[MessageList]:
        query = call.query
        if query.wait_ms and (query.status is not MessageState.INPUT_REQUIRED or query.cursor):
            detail = "`wait_ms` requires `status=input_required` and no `cursor`: only the first page supports waiting."
            raise Invalid("invalid_query", detail, field="wait_ms")
        listing = _message_listing(call.query, "inbox")
        filters = InboxFilter(
            **command_fields(call),
            **_page_fields(query, listing),
            agent_id=path_agent_id(call),
            state=query.status,
            is_poll=query.wait_ms is not None,
        )
        timeout_seconds = min(query.wait_ms or 0, self.wait_max_ms) / 1000
        page = await (
            self.inbox_long_poll.list_inbox(filters, timeout_seconds)
            if timeout_seconds
            else self.engine.read(lambda tx: message_reads.list_inbox(tx, filters), zones=call.zones)
        )
        return _list_reply(call, page, listing)

    async def list_timeline(self, call: Call[None, TimelineQuery]) -> Reply[Page[TimelineEntryView]]:
        query = call.query
        filters = TimelineFilter(
            **command_fields(call),
            limit=query.limit + 1,
            before_id=request_fields.start_id(TIMELINE, query, UPPER_BOUND),
        )
        page = await self.engine.read(lambda tx: timeline.list_entries(tx, filters), zones=call.zones)
        return TIMELINE.reply(
            call,
            page.entries,
            lambda entry: presenters.entry_view(entry, page.names),
            Page,
            is_truncated=page.is_truncated,
        )


def _send_command(call: Call[MessageBody, None]) -> Send | Broadcast:
    body = call.body
    key, digest = request_fields.key_and_digest(call)
    if body.to_agent_id == "*":
        return Broadcast(
            **command_fields(call),
            from_agent_id=body.from_agent_id,
            text=body.text,
            idempotency_key=key,
            request_digest=digest,
        )
    return Send(
        **command_fields(call),
        from_agent_id=body.from_agent_id,
        to_agent_id=body.to_agent_id,
        text=body.text,
        idempotency_key=key,
        request_digest=digest,
    )


class PageFields(TypedDict):
    """The paging fields that all message filters have."""

    limit: int
    after_id: int
    oldest_first: bool
    position: Position | None


def _page_fields(query: MessagesQuery, listing: Listing[Message]) -> PageFields:
    """The limit is one more than the client requested, to detect whether another page follows."""
    return PageFields(
        limit=query.limit + 1,
        after_id=query.after,
        oldest_first=query.order == "asc",
        position=request_fields.start_position(listing, query),
    )


def _message_listing(query: MessagesQuery, name: str) -> Listing[Message]:
    return Listing(f"{name}.{query.order}", lambda message: f"{message.status_timestamp}.{message.task_id}")


def _list_reply(call: Call[None, MessagesQuery], page: MessagePage, listing: Listing[Message]) -> Reply[MessageList]:
    return listing.reply(
        call,
        page.messages,
        lambda message: presenters.message_view(message, page.names),
        MessageList,
        is_truncated=page.is_truncated,
    )


SEND_DESCRIPTION = (
    "Sends a message to one member. With `*`, broadcasts it to all active members except the sender and the "
    "administrator; the response then has the summary of the broadcast and the number of recipients, and with "
    "`wait_ms` also the number of members notified in their panes. A member's own token can send only as that member."
)
INBOX_DESCRIPTION = (
    "`status=input_required` lists the unread messages by id. With `wait_ms`, the request waits until there is an "
    "unread message with an id higher than `after`, or until that time has passed. Only an active member can use "
    "`wait_ms`, even with the value 0: if the member is deregistered or its fleet is deleted, the request is refused, "
    "even while it is waiting. Without `wait_ms`, the member's messages can still be read. With any other `status`, or "
    "none, messages are listed by the time of their last state change."
)
STREAM_DESCRIPTION = (
    "Server-sent events. `entry`: a message was sent; the data is a timeline entry. `moved`: a message was "
    "acknowledged or canceled; the data has the entry's id and the changed recipients with their current state. The "
    "id of an event is a position in the event log: a client that reconnects with `Last-Event-ID` misses no change, "
    "but may receive one twice."
)


def routes(handlers: MessageHandlers) -> list[Route]:
    tags, not_found_errors = ("messages",), ("fleet_not_found",)
    messages_path, list_errors = f"{FLEET_PATH}/messages", (*not_found_errors, "invalid_cursor")
    acting_errors = (*not_found_errors, "fleet_deleted", "fleet_member_not_found", "not_oneself")
    end_errors = (*acting_errors, "message_not_found", "message_state_conflict")
    return [
        Route(
            "POST", messages_path, handlers.send, "Send or broadcast a message", LIFECYCLE, status=201, tags=tags,
            description=SEND_DESCRIPTION, permission=SPEAK_PERMISSION, body_bytes_max=MESSAGE_BYTES_MAX,
            errors=(*acting_errors, "destination_not_found", "administrator_protected", "message_not_found",
                    "broadcast_too_large", "zone_ended", "idempotency_key_conflict"),
        ),
        Route(
            "GET", messages_path, handlers.list_messages, "List a fleet's messages, newest first", LIFECYCLE, tags=tags,
            errors=list_errors, permission=READ_PERMISSION,
        ),
        Route(
            "GET", MESSAGE_PATH, handlers.show, "Show a message", LIFECYCLE, tags=tags,
            errors=(*not_found_errors, "message_not_found"), permission=READ_PERMISSION,
        ),
        Route(
            "POST", f"{MESSAGE_PATH}/ack", handlers.acknowledge, "Acknowledge a message", LIFECYCLE, tags=tags,
            errors=(*end_errors, "not_the_recipient"), permission=SPEAK_PERMISSION,
            description="Only the recipient can acknowledge a message, and only once.",
        ),
        Route(
            "POST", f"{MESSAGE_PATH}/cancel", handlers.cancel, "Cancel a message", LIFECYCLE, tags=tags,
            errors=(*end_errors, "not_the_sender"), permission=SPEAK_PERMISSION,
            description="Only the sender can cancel a message, and only before it is acknowledged.",
        ),
        Route(
            "GET", f"{MEMBER_PATH}/inbox", handlers.list_inbox, "List the messages to a member", LIFECYCLE, tags=tags,
            permission=READ_PERMISSION, errors=(*list_errors, "fleet_deleted", "fleet_member_not_found"),
            is_long_poll=True, description=INBOX_DESCRIPTION,
        ),
        Route(
            "GET", f"{MEMBER_PATH}/sent", handlers.list_sent, "List the messages from a member", LIFECYCLE, tags=tags,
            errors=(*list_errors, "fleet_member_not_found"), permission=READ_PERMISSION,
        ),
        Route(
            "GET", f"{FLEET_PATH}/timeline", handlers.list_timeline, "Show the timeline: each broadcast is one entry",
            LIFECYCLE, tags=tags, errors=list_errors, permission=READ_PERMISSION,
        ),
        Route(
            "GET", f"{FLEET_PATH}/timeline/live", handlers.open_stream, "Stream the timeline", LIFECYCLE,
            stream_event=TimelineEntryView | TimelineChangeView, tags=tags, permission=READ_PERMISSION,
            description=STREAM_DESCRIPTION,
            errors=(*not_found_errors, "invalid_last_event_id", "too_many_streams", "draining"),
        ),
    ]  # fmt: skip
