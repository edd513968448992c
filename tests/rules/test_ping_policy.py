"""Which members a monitor pings, and since when a pane is quiet."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.clock import SECOND
from quarterdeck.core.ping_policy import PaneObservation, monitor_stale_after_ms, should_ping
from quarterdeck.monitor.pane_observer import ScreenTracker

INTERVAL = 60
BUSY = PaneObservation(is_pane_alive=True, quiet_ms=0, unread=0)


@pytest.mark.parametrize(
    ("observation", "is_pinged"),
    [
        (BUSY, False),
        (BUSY._replace(unread=1), True),
        (BUSY._replace(quiet_ms=INTERVAL * SECOND - 1), False),
        (BUSY._replace(quiet_ms=INTERVAL * SECOND), True),
    ],
)
def test_member_is_pinged_only_if_quiet_or_with_unread_messages(observation: PaneObservation, is_pinged: bool) -> None:
    assert should_ping(observation, INTERVAL, always=False) is is_pinged


def test_policy_always_pings_a_working_member_too() -> None:
    assert should_ping(BUSY, INTERVAL, always=True)


@given(st.integers(0, 10**9), st.integers(0, 9), st.booleans())
def test_pane_without_an_agent_is_never_pinged(quiet_ms: int, unread: int, always: bool) -> None:
    assert not should_ping(PaneObservation(False, quiet_ms, unread), INTERVAL, always=always)


def test_monitor_is_stale_after_three_ticks_and_at_least_15_seconds() -> None:
    assert [monitor_stale_after_ms(tick) // SECOND for tick in (1, 5, 6, 60)] == [15, 15, 18, 180]


def test_pane_is_quiet_since_its_last_change() -> None:
    tracker = ScreenTracker()
    assert tracker.quiet_seconds("%1", "a", 100.0) == 0, "the earlier content is unknown"
    assert tracker.quiet_seconds("%1", "a", 130.0) == 30
    assert tracker.quiet_seconds("%1", "b", 140.0) == 0
    assert tracker.quiet_seconds("%1", "b", 150.0) == 10
    assert tracker.quiet_seconds("%2", "b", 150.0) == 0


def test_pane_that_disappeared_starts_again() -> None:
    tracker = ScreenTracker()
    tracker.quiet_seconds("%1", "a", 100.0)
    tracker.keep_only(())
    assert tracker.quiet_seconds("%1", "a", 200.0) == 0
