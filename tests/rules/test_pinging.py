"""Whom a monitor pings, and since when a pane is quiet. Pure: the time and what is seen are arguments."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.clock import SECOND
from quarterdeck.core.ping_policy import Sight, is_worth_a_ping, stale_after
from quarterdeck.monitor.pane_observer import Quiet

INTERVAL = 60
BUSY = Sight(pane_lives=True, quiet_ms=0, unread=0)


@pytest.mark.parametrize(
    ("sight", "is_pinged"),
    [
        (BUSY, False),
        (BUSY._replace(unread=1), True),
        (BUSY._replace(quiet_ms=INTERVAL * SECOND - 1), False),
        (BUSY._replace(quiet_ms=INTERVAL * SECOND), True),
    ],
)
def test_who_is_at_work_is_pinged_only_for_unread_messages(sight: Sight, is_pinged: bool) -> None:
    assert is_worth_a_ping(sight, INTERVAL, always=False) is is_pinged


def test_the_seeds_policy_pings_also_who_is_at_work() -> None:
    assert is_worth_a_ping(BUSY, INTERVAL, always=True)


@given(st.integers(0, 10**9), st.integers(0, 9), st.booleans())
def test_nobody_types_where_no_agent_is(quiet: int, unread: int, always: bool) -> None:
    assert not is_worth_a_ping(Sight(False, quiet, unread), INTERVAL, always=always)


def test_a_heartbeat_may_be_three_ticks_old_and_never_less_than_15_seconds() -> None:
    assert [stale_after(tick) // SECOND for tick in (1, 5, 6, 60)] == [15, 15, 18, 180]


def test_a_pane_is_quiet_from_when_it_began_to_show_what_it_shows() -> None:
    quiet = Quiet()
    assert quiet.seconds("%1", "a", 100.0) == 0, "nobody knows what it showed before"
    assert quiet.seconds("%1", "a", 130.0) == 30
    assert quiet.seconds("%1", "b", 140.0) == 0
    assert quiet.seconds("%1", "b", 150.0) == 10
    assert quiet.seconds("%2", "b", 150.0) == 0


def test_a_pane_that_was_gone_is_another_when_it_comes_again() -> None:
    quiet = Quiet()
    quiet.seconds("%1", "a", 100.0)
    quiet.keep(())
    assert quiet.seconds("%1", "a", 200.0) == 0
