"""The server's responses to a monitor."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from quarterdeck.client.api import Document
from quarterdeck.client.http_types import Lost

T = TypeVar("T", bound=msgspec.Struct)


class PanePlacement(msgspec.Struct, frozen=True):
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
    """Pings are enabled for this member, and its interval has passed by the server's clock."""
    unread: int
    placement: PanePlacement | None = None


class MonitorState(msgspec.Struct, frozen=True):
    """The monitor of a fleet and the members it watches."""

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
        raise Lost("garbled_answer", f"The server's response is not valid: {error}.") from None
