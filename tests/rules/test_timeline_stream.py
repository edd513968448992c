"""What a fleet's live timeline tells, by the events it finds: of each entry once, and nothing is missed."""

from __future__ import annotations

import json

from quarterdeck.engine.event_log import Event
from quarterdeck.http.timeline_stream import PendingEntry, collect_entries


def event(pos: int, subject: int, kind: str = "sent", fleet: int = 1, origin: int | None = None) -> Event:
    data = json.dumps({"fleetId": fleet, "origin": origin})
    return Event(pos, "e", "z", f"message.{kind}", str(subject), "a", None, None, data, None, 1)


def test_what_happens_to_an_entry_is_told_with_it_and_later_by_itself_and_of_other_fleets_nothing() -> None:
    found = [
        event(10, 7, origin=7),
        event(11, 9),
        event(12, 5, fleet=2),
        event(13, 8, "acknowledged", origin=7),
        event(14, 2, "acknowledged", origin=1),
        event(15, 3, "canceled", origin=1),
        event(16, 9, "acknowledged"),
    ]
    assert collect_entries(found, 1, 20) == [
        PendingEntry(7, 10, is_new=True, last_pos=10),
        PendingEntry(9, 11, is_new=True, last_pos=13),
        PendingEntry(1, 14, is_new=False, changed_messages={2, 3}, last_pos=20),
    ]
    assert collect_entries([event(1, 1, fleet=2)], 1, 5) == []


def test_wherever_a_live_timeline_is_cut_and_taken_up_again_nothing_is_missed() -> None:
    log = [
        event(1, 1, origin=1),
        event(2, 2, "acknowledged", origin=1),
        event(3, 4),
        event(5, 4, "canceled"),
        event(6, 3, "acknowledged", origin=1),
        event(7, 5),
    ]
    for begin in range(8):
        told = collect_entries([each for each in log if each.pos > begin], 1, 7)
        for cut in range(len(told)):
            seen = told[: cut + 1]
            again = collect_entries([each for each in log if each.pos > seen[-1].last_pos], 1, 7)
            assert _heard([*seen, *again]) >= _heard(told), (begin, cut)
            assert [each.last_pos for each in told] == sorted({each.last_pos for each in told})


def _heard(told: list[PendingEntry]) -> set[tuple[int, int | None]]:
    return {(each.entry_id, None) for each in told if each.is_new} | {
        (each.entry_id, message) for each in told for message in each.changed_messages
    }
