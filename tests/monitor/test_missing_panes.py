"""Missing panes and stale monitors. What this host cannot see counts neither as missing nor as stale."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from quarterdeck.cli.monitor import is_live
from quarterdeck.monitor.missing_panes import CREATION_MAX_SECONDS, find_missing_panes
from quarterdeck.monitor.model import PanePlacement
from quarterdeck.tmux.host import Host, this_host

HOST = Host("h", 7)
CREATED_AT, NOW = "1970-01-01T00:16:40.000Z", 1_000.0
PLACEMENT = PanePlacement(
    tmux_session="main", tmux_window_id="@1", tmux_pane_id="%1", coding_agent="claude", host_id=HOST.id,
    user_id=HOST.user_id, tmux_socket="/nowhere/s", tmux_pid=1, created_at=CREATED_AT,
)  # fmt: skip
replace = msgspec.structs.replace


async def test_unreachable_tmux_makes_no_pane_missing_and_is_reported_once(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    socket.touch()
    placements = [replace(PLACEMENT, tmux_socket=str(socket), tmux_pane_id=pane_id) for pane_id in ("%1", "%2")]
    report = await find_missing_panes(placements, HOST, NOW)
    assert report.reasons == [None, None]
    [unreachable] = report.unreachable
    assert (unreachable.socket, unreachable.reason) == (str(socket), f"{socket} is not a socket of this user.")


async def test_panes_of_a_stopped_tmux_server_are_missing() -> None:
    report = await find_missing_panes([PLACEMENT], HOST, NOW)
    assert report == (["its pane %1 no longer exists"], [])


async def test_placements_of_other_hosts_or_users_are_not_judged_unless_never_created() -> None:
    placements = [
        replace(PLACEMENT, host_id="other"),
        replace(PLACEMENT, user_id=8),
        replace(PLACEMENT, tmux_pane_id=None),
    ]
    assert await find_missing_panes(placements, HOST, NOW + CREATION_MAX_SECONDS) == ([None, None, None], [])
    late = await find_missing_panes(placements, HOST, NOW + CREATION_MAX_SECONDS + 1)
    assert late.reasons == [None, None, "its pane was never created"]


@pytest.mark.parametrize(
    ("host_id", "user_id", "expected"),
    [(this_host().id, os.geteuid(), False), (this_host().id, os.geteuid() + 1, True), ("other", os.geteuid(), True)],
)
def test_pid_of_a_monitor_is_checked_only_on_its_own_host_and_as_its_own_user(
    host_id: str, user_id: int, expected: bool
) -> None:
    # No process has this pid: it is above the highest pid of Linux.
    monitor = {"pid": 2**22 + 1, "host_id": host_id, "user_id": user_id, "is_recent": True}
    assert is_live(monitor) is expected
    assert not is_live({**monitor, "is_recent": False})
