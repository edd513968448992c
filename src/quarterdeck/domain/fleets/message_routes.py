"""The route table of messages: what members say to each other, and how it is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypedDict

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.fleets import route_params
from quarterdeck.domain.fleets.model.bodies import (
    AgentBody,
    InboxQuery,
    MessageBody,
    MessagesQuery,
    SentQuery,
    TimelineQuery,
)
from quarterdeck.domain.fleets.model.commands import (
    Acknowledge,
    Broadcast,
    Cancel,
    Send,
    Sent,
    SpokenCommand,
    SpokenOutcome,
)
from quarterdeck.domain.fleets.model.filters import (
    LAST,
    InboxFilter,
    MessagesFilter,
    OfMessage,
    Position,
    SentFilter,
    TimelineFilter,
)
from quarterdeck.domain.fleets.model.rows import Message, MessageState, MessageType
from quarterdeck.domain.fleets.model.views import (
    BroadcastView,
    EntryView,
    MessageList,
    MessageView,
    MovedView,
    TimelineView,
)
from quarterdeck.domain.fleets.operations import message_reads, timeline
from quarterdeck.domain.fleets.operations.inbox_long_poll import Awaiting
from quarterdeck.domain.fleets.operations.message_reads import NamesOf, Pages
from quarterdeck.domain.fleets.route_params import FLEET, MEMBER, MESSAGE, READ, SPEAK, agent_id, here, message_id
from quarterdeck.domain.fleets.rules import views as showing
from quarterdeck.domain.fleets.rules.views import Names
from quarterdeck.engine.transaction import Engine

TIMELINE = "timeline"
MESSAGE_MAX = 2 * 1024 * 1024
"""Bytes of a body: a message of so many characters may need several for each."""


@dataclass(frozen=True, slots=True)
class MessageDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[SpokenCommand], Awaitable[SpokenOutcome]]
    names: Callable[[NamesOf], Awaitable[Names]]
    awaiting: Awaiting
    wait_max_ms: int
    settled: Callable[[Message, float], Awaitable[None]]
    """Returns when the notices of a broadcast have their receipts, or so many seconds have passed."""
    follow: Callable[[Call], Awaitable[object]]
    """Opens a stream of what is said. Streams are the shell's, so the composition root lends this."""

    async def send(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, MessageBody)
        done = await self.submit(_spoken(call, body))
        assert isinstance(done, Sent)
        view = await self._view(done.message)
        status = 201 if done.made else 200
        if done.message.type is not MessageType.SUMMARY:
            return Reply(view, status)
        told = await self._told(call, done, body.wait_ms) if body.wait_ms else None
        return Reply(BroadcastView(view, len(done.deliveries), told), status)

    async def _told(self, call: Call, done: Sent, wait_ms: int) -> int:
        await self.settled(done.message, wait_ms / 1000)
        return await route_params.read(self.engine, call, lambda tx: timeline.told(tx, done.deliveries))

    async def acknowledge(self, call: Call) -> MessageView:
        body = call.body
        assert isinstance(body, AgentBody)
        return await self._moved(Acknowledge(**here(call), agent_id=body.agent_id, message_id=message_id(call)))

    async def cancel(self, call: Call) -> MessageView:
        body = call.body
        assert isinstance(body, AgentBody)
        return await self._moved(Cancel(**here(call), agent_id=body.agent_id, message_id=message_id(call)))

    async def _moved(self, ask: Acknowledge | Cancel) -> MessageView:
        moved = await self.submit(ask)
        assert isinstance(moved, Message)
        return await self._view(moved)

    async def _view(self, message: Message) -> MessageView:
        return showing.message_view(message, await self.names(NamesOf(message)))

    # -- reading -------------------------------------------------------------------------------------------------

    async def show(self, call: Call) -> MessageView:
        wanted = OfMessage(**here(call), message_id=message_id(call))
        found = await route_params.read(self.engine, call, lambda tx: message_reads.message(tx, wanted))
        return showing.message_view(found.messages[0], found.names)

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, MessagesQuery)
        listing = f"messages.{query.order}"
        wanted = MessagesFilter(**here(call), **_paged(query, listing))
        found = await route_params.read(self.engine, call, lambda tx: message_reads.messages(tx, wanted))
        return _listed(call, found, listing)

    async def sent(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, SentQuery)
        listing = f"sent.{query.order}"
        wanted = SentFilter(**here(call), **_paged(query, listing), agent_id=agent_id(call), state=query.status)
        found = await route_params.read(self.engine, call, lambda tx: message_reads.sent(tx, wanted))
        return _listed(call, found, listing)

    async def inbox(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, InboxQuery)
        if query.wait_ms and (query.status is not MessageState.INPUT_REQUIRED or query.cursor):
            detail = "Only whoever asks for what is `input_required`, and is on the first page, can wait for more."
            raise Invalid("invalid_query", detail, field="wait_ms")
        listing = f"inbox.{query.order}"
        wanted = InboxFilter(
            **here(call),
            **_paged(query, listing),
            agent_id=agent_id(call),
            state=query.status,
            is_poll=query.wait_ms is not None,
        )
        seconds = min(query.wait_ms or 0, self.wait_max_ms) / 1000
        found = await (
            self.awaiting.inbox(wanted, seconds)
            if seconds
            else route_params.read(self.engine, call, lambda tx: message_reads.inbox(tx, wanted))
        )
        return _listed(call, found, listing)

    async def timeline(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, TimelineQuery)
        wanted = TimelineFilter(
            **here(call),
            limit=query.limit + 1,
            before=route_params.number_of(TIMELINE, query.cursor) if query.cursor else LAST,
        )
        found = await route_params.read(self.engine, call, lambda tx: timeline.page(tx, wanted))
        places = [str(entry.head.task_id) for entry in found.entries]
        shown, last = paging.trim_page(places, query.limit)
        last = places[-1] if found.is_cut else last
        cursor = paging.encode(TIMELINE, last) if last else None
        views = [showing.entry_view(entry, found.names) for entry in found.entries[:shown]]
        return Reply(TimelineView(views, cursor), 200, call.next_link(cursor))


def _spoken(call: Call, body: MessageBody) -> Send | Broadcast:
    key, digest = route_params.key_of(call)
    if body.to_agent_id == "*":
        return Broadcast(**here(call), from_agent_id=body.from_agent_id, text=body.text, key=key, digest=digest)
    return Send(
        **here(call),
        from_agent_id=body.from_agent_id,
        to_agent_id=body.to_agent_id,
        text=body.text,
        key=key,
        digest=digest,
    )


class Paged(TypedDict):
    """What every page of messages is asked for by."""

    limit: int
    after: int
    oldest_first: bool
    position: Position | None


def _paged(query: MessagesQuery, listing: str) -> Paged:
    """One more than is shown, so that it is known whether there are more."""
    return Paged(
        limit=query.limit + 1,
        after=query.after,
        oldest_first=query.order == "asc",
        position=route_params.position_of(listing, query.cursor) if query.cursor else None,
    )


def _listed(call: Call, found: Pages, listing: str) -> Reply:
    assert isinstance(call.query, MessagesQuery)
    places = [f"{each.status_timestamp}.{each.task_id}" for each in found.messages]
    shown, last = paging.trim_page(places, call.query.limit)
    last = places[-1] if found.is_cut else last
    cursor = paging.encode(listing, last) if last else None
    views = [showing.message_view(each, found.names) for each in found.messages[:shown]]
    return Reply(MessageList(views, cursor), 200, call.next_link(cursor))


SENDING = (
    "To one member, or to `*`: a broadcast, which goes to everybody who is there but the sender and the administrator, "
    "and is answered with its summary; with `wait_ms` also with how many were told of it in their panes. A token of a "
    "member's own sends as that member alone."
)
POLLING = (
    "What still waits for the member is `status=input_required`, newest first; with `wait_ms` the answer comes when "
    "there is something with an id higher than `after`, or when the time is up. To poll, by `wait_ms` (also 0), is for "
    "members that are there: one that has left, or whose fleet is deleted, is refused, also while it waits. Without it "
    "their messages can still be read. Everything else is listed by when it last moved."
)
FOLLOWING = (
    "Server-sent events. When something is said: `entry`, as the timeline shows it. When a message is acknowledged or "
    "canceled: `moved`, with the entry's id and those of its recipients who have moved, as they are then. The id of an "
    "event is a position of the log: who comes again with `Last-Event-ID` misses nothing, and may hear of a move twice."
)


def routes(desk: MessageDesk) -> list[Route]:
    tags, missing = ("messages",), ("fleet_not_found",)
    of_fleet, lists = f"{FLEET}/messages", (*missing, "invalid_cursor")
    acts = (*missing, "fleet_deleted", "fleet_member_not_found", "not_oneself")
    ends = (*acts, "message_not_found", "message_state_conflict")
    return [
        Route(
            "POST", of_fleet, desk.send, "Send a message, or broadcast one", LIFECYCLE, body=MessageBody, status=201,
            response=MessageView | BroadcastView, tags=tags, description=SENDING, permission=SPEAK, body_bytes_max=MESSAGE_MAX,
            errors=(*acts, "destination_not_found", "administrator_protected", "message_not_found",
                      "broadcast_too_large", "zone_ended", "idempotency_key_conflict"),
        ),
        Route(
            "GET", of_fleet, desk.list_all, "List a fleet's messages, newest first", LIFECYCLE, query=MessagesQuery,
            response=MessageList, tags=tags, errors=lists, permission=READ,
        ),
        Route(
            "GET", MESSAGE, desk.show, "Show a message", LIFECYCLE, response=MessageView, tags=tags,
            errors=(*missing, "message_not_found"), permission=READ,
        ),
        Route(
            "POST", f"{MESSAGE}/ack", desk.acknowledge, "Acknowledge a message", LIFECYCLE, body=AgentBody,
            response=MessageView, tags=tags, errors=(*ends, "not_the_recipient"), permission=SPEAK,
            description="By its recipient, once.",
        ),
        Route(
            "POST", f"{MESSAGE}/cancel", desk.cancel, "Cancel a message", LIFECYCLE, body=AgentBody,
            response=MessageView, tags=tags, errors=(*ends, "not_the_sender"), permission=SPEAK,
            description="By its sender, before it was acknowledged.",
        ),
        Route(
            "GET", f"{MEMBER}/inbox", desk.inbox, "List what a member was sent", LIFECYCLE, query=InboxQuery,
            response=MessageList, tags=tags, errors=(*lists, "fleet_deleted", "fleet_member_not_found"), permission=READ,
            is_long_poll=True, description=POLLING,
        ),
        Route(
            "GET", f"{MEMBER}/sent", desk.sent, "List what a member has sent", LIFECYCLE, query=SentQuery,
            response=MessageList, tags=tags, errors=(*lists, "fleet_member_not_found"), permission=READ,
        ),
        Route(
            "GET", f"{FLEET}/timeline", desk.timeline, "Show what was said, broadcasts as one", LIFECYCLE,
            query=TimelineQuery, response=TimelineView, tags=tags, errors=lists, permission=READ,
        ),
        Route(
            "GET", f"{FLEET}/timeline/live", desk.follow, "Follow what is said", LIFECYCLE,
            stream_event=EntryView | MovedView, tags=tags, permission=READ, description=FOLLOWING,
            errors=(*missing, "invalid_last_event_id", "too_many_streams", "draining"),
        ),
    ]  # fmt: skip
