"""The live timeline of a fleet: events of one entry are merged, and a reconnect misses nothing."""

from __future__ import annotations

import json

from quarterdeck.engine.event_log import Event
from quarterdeck.http.timeline_stream import PendingEntry, collect_entries


def event(pos: int, subject: int, kind: str = "sent", fleet: int = 1, origin: int | None = None) -> Event:
    data = json.dumps({"fleetId": fleet, "origin": origin})
    return Event(pos, "e", "z", f"message.{kind}", str(subject), "a", None, None, data, None, 1)


def test_changes_are_merged_into_new_entries_and_other_fleets_are_ignored() -> None:
    events = [
        event(10, 7, origin=7),
        event(11, 9),
        event(12, 5, fleet=2),
        event(13, 8, "acknowledged", origin=7),
        event(14, 2, "acknowledged", origin=1),
        event(15, 3, "canceled", origin=1),
        event(16, 9, "acknowledged"),
    ]
    assert collect_entries(events, 1, 20) == [
        PendingEntry(7, 10, is_new=True, last_pos=10),
        PendingEntry(9, 11, is_new=True, last_pos=13),
        PendingEntry(1, 14, is_new=False, changed_message_ids={2, 3}, last_pos=20),
    ]
    assert collect_entries([event(1, 1, fleet=2)], 1, 5) == []


def test_stream_resumed_at_any_entry_misses_no_change() -> None:
    log = [
        event(1, 1, origin=1),
        event(2, 2, "acknowledged", origin=1),
        event(3, 4),
        event(5, 4, "canceled"),
        event(6, 3, "acknowledged", origin=1),
        event(7, 5),
    ]
    for start in range(8):
        entries = collect_entries([log_event for log_event in log if log_event.pos > start], 1, 7)
        for cut in range(len(entries)):
            sent = entries[: cut + 1]
            resumed = collect_entries([log_event for log_event in log if log_event.pos > sent[-1].last_pos], 1, 7)
            assert _changes([*sent, *resumed]) >= _changes(entries), (start, cut)
            assert [entry.last_pos for entry in entries] == sorted({entry.last_pos for entry in entries})


def _changes(entries: list[PendingEntry]) -> set[tuple[int, int | None]]:
    return {(entry.entry_id, None) for entry in entries if entry.is_new} | {
        (entry.entry_id, message) for entry in entries for message in entry.changed_message_ids
    }
