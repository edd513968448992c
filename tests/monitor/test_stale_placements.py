"""What can be told of a pane, or of a monitor, from here; and what cannot is not taken for an end."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from quarterdeck.cli.monitor import is_live
from quarterdeck.monitor.model import PanePlacement
from quarterdeck.monitor.stale_placements import PENDING_SECONDS, find_stale
from quarterdeck.tmux.host import Host, this_host

HERE = Host("h", 7)
AT, NOW = "1970-01-01T00:16:40.000Z", 1_000.0
PLACED = PanePlacement(
    tmux_session="main", tmux_window_id="@1", tmux_pane_id="%1", coding_agent="claude", host_id=HERE.id,
    user_id=HERE.user_id, tmux_socket="/nowhere/s", tmux_pid=1, created_at=AT,
)  # fmt: skip
replace = msgspec.structs.replace


async def test_a_tmux_that_does_not_answer_makes_no_pane_stale_and_is_named_once(tmp_path: Path) -> None:
    odd = tmp_path / "s"
    odd.touch()
    placed = [replace(PLACED, tmux_socket=str(odd), tmux_pane_id=name) for name in ("%1", "%2")]
    found = await find_stale(placed, HERE, NOW)
    assert found.reasons == [None, None]
    [unseen] = found.unreachable
    assert (unseen.socket, unseen.reason) == (str(odd), f"{odd} is not a socket of this user.")


async def test_a_tmux_that_has_ended_has_no_panes_any_more() -> None:
    found = await find_stale([PLACED], HERE, NOW)
    assert found == (["its pane %1 is gone"], [])


async def test_of_another_host_or_user_nothing_is_told_but_that_a_pane_was_never_made() -> None:
    placed = [replace(PLACED, host_id="other"), replace(PLACED, user_id=8), replace(PLACED, tmux_pane_id=None)]
    assert await find_stale(placed, HERE, NOW + PENDING_SECONDS) == ([None, None, None], [])
    late = await find_stale(placed, HERE, NOW + PENDING_SECONDS + 1)
    assert late.reasons == [None, None, "its pane was never made"]


@pytest.mark.parametrize(
    ("host_id", "user_id", "live"),
    [(this_host().id, os.geteuid(), False), (this_host().id, os.geteuid() + 1, True), ("other", os.geteuid(), True)],
)
def test_only_on_its_host_and_as_its_user_is_a_monitors_pid_judged(host_id: str, user_id: int, live: bool) -> None:
    # No process has this pid: it is beyond the highest that Linux gives out.
    told = {"pid": 2**22 + 1, "host_id": host_id, "user_id": user_id, "is_recent": True}
    assert is_live(told) is live
    assert not is_live({**told, "is_recent": False})
