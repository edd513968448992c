"""Whom a monitor pings, and since when a pane is quiet. Pure: the time and what is seen are arguments."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.clock import SECOND
from quarterdeck.core.ping_policy import PaneObservation, monitor_stale_after_ms, should_ping
from quarterdeck.monitor.pane_observer import ScreenTracker

INTERVAL = 60
BUSY = PaneObservation(is_pane_alive=True, quiet_ms=0, unread=0)


@pytest.mark.parametrize(
    ("sight", "is_pinged"),
    [
        (BUSY, False),
        (BUSY._replace(unread=1), True),
        (BUSY._replace(quiet_ms=INTERVAL * SECOND - 1), False),
        (BUSY._replace(quiet_ms=INTERVAL * SECOND), True),
    ],
)
def test_who_is_at_work_is_pinged_only_for_unread_messages(sight: PaneObservation, is_pinged: bool) -> None:
    assert should_ping(sight, INTERVAL, always=False) is is_pinged


def test_the_seeds_policy_pings_also_who_is_at_work() -> None:
    assert should_ping(BUSY, INTERVAL, always=True)


@given(st.integers(0, 10**9), st.integers(0, 9), st.booleans())
def test_nobody_types_where_no_agent_is(quiet: int, unread: int, always: bool) -> None:
    assert not should_ping(PaneObservation(False, quiet, unread), INTERVAL, always=always)


def test_a_heartbeat_may_be_three_ticks_old_and_never_less_than_15_seconds() -> None:
    assert [monitor_stale_after_ms(tick) // SECOND for tick in (1, 5, 6, 60)] == [15, 15, 18, 180]


def test_a_pane_is_quiet_from_when_it_began_to_show_what_it_shows() -> None:
    quiet = ScreenTracker()
    assert quiet.quiet_seconds("%1", "a", 100.0) == 0, "nobody knows what it showed before"
    assert quiet.quiet_seconds("%1", "a", 130.0) == 30
    assert quiet.quiet_seconds("%1", "b", 140.0) == 0
    assert quiet.quiet_seconds("%1", "b", 150.0) == 10
    assert quiet.quiet_seconds("%2", "b", 150.0) == 0


def test_a_pane_that_was_gone_is_another_when_it_comes_again() -> None:
    quiet = ScreenTracker()
    quiet.quiet_seconds("%1", "a", 100.0)
    quiet.keep_only(())
    assert quiet.quiet_seconds("%1", "a", 200.0) == 0
