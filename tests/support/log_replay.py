"""Replays the event log: what was true between any two commits, not only at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.support.zone import FreshZone

PAGE_EVENTS = 1_000
Event = Mapping[str, Any]


async def read_full_log(zone: FreshZone) -> list[Event]:
    """Every event of a zone, in the order of their commits."""
    events: list[Event] = []
    after: int | None = 0
    async with zone.client() as client:
        while after is not None:
            response = await client.get(f"{zone.path}/events", params={"limit": PAGE_EVENTS, "after": after})
            assert response.status_code == 200, response.text
            page = response.json()
            events += page["items"]
            after = page["next_after"]
    return events


def peak_counts(log: Sequence[Event]) -> Counter[str]:
    """By bound: the highest count between any two commits.

    Only for terminations of one transaction: a cascade frees the slots of marked sessions before the log has their end.
    """
    peak: Counter[str] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    live_sessions: dict[str, list[tuple[str, str]]] = {}

    def count(key: tuple[str, str]) -> None:
        counts[key] += 1
        peak[key[0]] = max(peak[key[0]], counts[key])

    for event in log:
        subject = event["subject"]
        if event["type"] == "session.spawn":
            assert subject not in live_sessions, f"{subject} was spawned twice"
            live_sessions[subject] = [*_live_counters(event["data"])]
            for key in live_sessions[subject]:
                count(key)
            count(("max_tree_spawns", event["data"]["root_id"]))
            peak["max_depth"] = max(peak["max_depth"], event["data"]["depth"])
        elif event["type"] == "session.terminate":
            counts.subtract(live_sessions.pop(subject))
    return peak


def _live_counters(spawned: Event) -> Iterator[tuple[str, str]]:
    """Yield (bound, counter key) for each bound on live sessions that a spawn counts against."""
    yield "max_sessions", ""
    yield "max_sessions_per_application", spawned["application_id"]
    yield "max_tree_size", spawned["root_id"]
    if spawned["parent_id"] is not None:
        yield "max_concurrent", ""
        yield "max_children", spawned["parent_id"]


def sessions_alive(log: Sequence[Event]) -> set[str]:
    return _subjects(log, "session.spawn") - _subjects(log, "session.terminate")


def _subjects(log: Sequence[Event], event_type: str) -> set[str]:
    return {event["subject"] for event in log if event["type"] == event_type}


def assert_children_ended_before_their_parents(log: Sequence[Event]) -> None:
    """Every session ended at most once, and after its children."""
    parents = {e["subject"]: e["data"]["parent_id"] for e in log if e["type"] == "session.spawn"}
    ends = [event["subject"] for event in log if event["type"] == "session.terminate"]
    order = {subject: index for index, subject in enumerate(ends)}
    assert len(order) == len(ends), "a session ended twice"
    for subject, parent in parents.items():
        if parent in order:
            assert order[subject] < order[parent], f"{parent} ended before its child {subject}"
