"""What the server says of those who are watched over."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from quarterdeck.client.api import Document
from quarterdeck.client.http_types import Lost

T = TypeVar("T", bound=msgspec.Struct)


class PanePlacement(msgspec.Struct, frozen=True):
    """Where a member's pane is."""

    tmux_session: str
    tmux_window_id: str
    tmux_pane_id: str | None
    coding_agent: str
    host_id: str
    user_id: int
    tmux_socket: str
    tmux_pid: int
    created_at: str


class WatchedMember(msgspec.Struct, frozen=True):
    agent_id: int
    name: str
    interval_seconds: int
    is_due: bool
    """By the server's clock, and if it is to be pinged at all."""
    unread: int
    placement: PanePlacement | None = None


class MonitorState(msgspec.Struct, frozen=True):
    """Who watches over a fleet, and over whom."""

    fleet_id: int
    pid: int | None = None
    host_id: str | None = None
    user_id: int | None = None
    tick_seconds: int = 5
    members: list[WatchedMember] = []


def decode(document: Document, response_type: type[T]) -> T:
    try:
        return msgspec.convert(document, response_type)
    except msgspec.ValidationError as error:
        raise Lost("garbled_answer", f"The server's answer is not what a monitor can read: {error}.") from None
