"""Reads of sinks for administrators, and the retry of dead entries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.core.errors import NotFound
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sinks.model import ParkedEntry, SinkRow, SinkState
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode

ENTRIES_MAX = 100
"""Maximum entries returned per sink."""


class SinkView(msgspec.Struct, frozen=True):
    """A sink: its position, its lag and the number of its entries."""

    name: str
    is_configured: Annotated[bool, Meta(description="whether this server has the sink configured")]
    position: Annotated[int, Meta(description="everything up to here was delivered or is listed as an entry")]
    head: Annotated[int, Meta(description="the last position of the log")]
    lag_events: int
    lag_seconds: Annotated[float, Meta(description="age of the oldest undelivered event")]
    waiting: Annotated[
        int, Meta(description="entries that were rejected, or wait behind a rejected one, and are retried")
    ]
    dead: Annotated[int, Meta(description="entries that are no longer retried")]
    run_at: Annotated[str, Meta(description="when a server last ran the sink")]
    error: Annotated[str, Meta(description="why this server cannot deliver")] | None = None


class SinkEntryView(msgspec.Struct, frozen=True):
    """An entry that is waiting for a retry, or is dead."""

    pos: int
    stream: str
    zone_id: str
    subject: str
    fields: dict[str, str]
    attempts: int
    next_at: Annotated[str, Meta(description="time of the next attempt")] | None
    dead_at: Annotated[str, Meta(description="when the last attempt failed")] | None
    error: str
    created_at: str


class SinkDetail(SinkView, frozen=True):
    entries: Annotated[
        list[SinkEntryView], Meta(description=f"dead entries first, newest first; at most {ENTRIES_MAX}")
    ] = []


def not_found(name: str) -> NotFound:
    return NotFound("sink_not_found", f"There is no sink {name!r}.")


async def list_names(tx: Transaction) -> list[str]:
    return [sink.name for sink in await tx.fetch(SinkRow, Q.sinks_list())]


async def load_view(tx: Transaction, name: str) -> SinkView:
    """The stored state of one sink, with all values as of one instant. Raises `NotFound`.

    The caller fills in whether the sink is configured on this server, and this server's error.
    """
    states, counts = await tx.read(Q.sink_state(name=name), Q.sink_entries_count(sink=name))
    if not states:
        raise not_found(name)
    [state] = decode(states, SinkState)
    waiting, dead = (int(str(count)) for count in counts[0])
    lag_seconds = 0 if state.oldest_at is None else max(0, tx.now - state.oldest_at) / 1000
    run_at = iso(state.updated_at)
    lag_events = state.head - state.position
    return SinkView(name, False, state.position, state.head, lag_events, lag_seconds, waiting, dead, run_at)


async def load_entries(tx: Transaction, name: str) -> list[SinkEntryView]:
    return [
        _to_entry_view(row) for row in await tx.fetch(ParkedEntry, Q.sink_entries_page(sink=name, limit=ENTRIES_MAX))
    ]


async def requeue(tx: Transaction, name: str, pos: int | None) -> int:
    """Retry dead entries: all, or those at one position. Return how many."""
    sinks, requeued = await tx.read(Q.sink_state(name=name), Q.sink_entries_requeue(sink=name, pos=pos))
    if not sinks:
        raise not_found(name)
    return len(requeued)


def _to_entry_view(row: ParkedEntry) -> SinkEntryView:
    return SinkEntryView(
        row.pos,
        row.stream,
        row.zone_id,
        row.subject,
        msgspec.json.decode(row.fields, type=dict[str, str]),
        row.attempts,
        iso(row.next_at) if row.dead_at is None else None,
        iso_or_none(row.dead_at),
        row.error,
        iso(row.created_at),
    )
