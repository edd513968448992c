"""The monitor's loop, tick by tick, with a scripted server and a scripted pane observer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

import pytest

from quarterdeck.client.http_types import Lost, Unreachable
from quarterdeck.core.errors import Conflict, Forbidden, Problem
from quarterdeck.core.ping_policy import PaneObservation
from quarterdeck.monitor import loop
from quarterdeck.monitor.loop import Monitor, MonitorConfig
from quarterdeck.monitor.model import MonitorState, WatchedMember
from quarterdeck.monitor.pane_observer import PaneObserver
from quarterdeck.monitor.server_api import ServerApi
from quarterdeck.tmux.host import Host

HOST = Host("host", 1000)
UNREACHABLE = Unreachable("server_unreachable", "Cannot connect to it.")
FLEET_DELETED = Conflict("fleet_deleted", "fleet 1 is deleted")
REPLACED = Conflict("not_the_monitor", "this process no longer monitors fleet 1")


@pytest.fixture(autouse=True)
def restore_signals() -> Iterator[None]:
    """The monitor installs handlers. When its event loop closes, the system's default handlers are left."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def monitor_state(*, is_due: bool = True) -> MonitorState:
    return MonitorState(1, members=[WatchedMember(3, "ada", interval_seconds=60, is_due=is_due, unread=1)])


class FakeServerApi(ServerApi):
    """Answers the claim and each heartbeat with the next of `replies`. Records the calls after the claim."""

    def __init__(self, *replies: MonitorState | Problem) -> None:
        super().__init__(1, HOST, lambda: None)
        self._replies = [*replies]
        self.calls: list[list[int] | str] = []

    def claim(self, tick_seconds: int, policy: str) -> MonitorState:
        return self._next_reply()

    def send_heartbeat(self, pinged: Sequence[int]) -> MonitorState:
        self.calls.append([*pinged])
        return self._next_reply()

    def release(self) -> None:
        self.calls.append("release")

    def _next_reply(self) -> MonitorState:
        reply = self._replies.pop(0)
        if isinstance(reply, Problem):
            raise reply
        return reply


class FakePaneObserver(PaneObserver):
    """Observes every member. `ping_results` are used in order. `on_observe` runs at each observation."""

    def __init__(self, ping_results: Sequence[bool] = (), on_observe: Callable[[], None] = lambda: None) -> None:
        super().__init__(HOST, {}, lambda line: None)
        self._ping_results = [*ping_results]
        self._on_observe = on_observe
        self.observations = 0
        self.typed: list[int] = []

    async def observe(self, members: Sequence[WatchedMember], now: float) -> dict[int, PaneObservation]:
        self.observations += 1
        self._on_observe()
        return {member.agent_id: PaneObservation(True, 0, member.unread) for member in members}

    async def ping(self, member: WatchedMember, is_owner: Callable[[], bool]) -> str | None:
        if not is_owner():
            return "late"
        self.typed.append(member.agent_id)
        return None if not self._ping_results or self._ping_results.pop(0) else "pane_gone"


async def run(api: ServerApi, observer: PaneObserver) -> list[str]:
    """Run the monitor, and return the lines that it reports."""
    lines: list[str] = []
    # No time passes between two ticks.
    await Monitor(api, observer, MonitorConfig(0, "quiet", lines.append, lambda: None)).run()
    return lines


async def test_without_a_server_nothing_is_typed_and_pings_are_reported_later() -> None:
    api = FakeServerApi(monitor_state(), UNREACHABLE, UNREACHABLE, monitor_state(is_due=False), FLEET_DELETED)
    observer = FakePaneObserver()
    lines = await run(api, observer)
    assert (observer.typed, observer.observations) == ([3], 2)
    assert api.calls == [[3], [3], [3], []]
    assert lines == ["pinged 3 ada (1 unread)", UNREACHABLE.detail, UNREACHABLE.detail, FLEET_DELETED.detail]


async def test_failed_ping_is_not_reported_and_is_retried() -> None:
    api = FakeServerApi(monitor_state(), monitor_state(), monitor_state(is_due=False), FLEET_DELETED)
    observer = FakePaneObserver([False, True])
    await run(api, observer)
    assert observer.typed == [3, 3]
    assert api.calls == [[], [3], []]


async def test_nothing_is_typed_once_another_monitor_may_have_claimed_the_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(loop, "now", lambda: clock[0])

    def advance_clock() -> None:
        clock[0] += 15.0

    api, observer = FakeServerApi(monitor_state(), FLEET_DELETED), FakePaneObserver(on_observe=advance_clock)
    lines = await run(api, observer)
    assert observer.typed == []
    assert lines[0] == "did not ping 3 ada: late"


async def test_replaced_monitor_exits_at_its_next_heartbeat_without_a_release() -> None:
    api, observer = FakeServerApi(monitor_state(is_due=False), REPLACED), FakePaneObserver()
    with pytest.raises(Conflict, match="no longer monitors"):
        await run(api, observer)
    assert (observer.typed, observer.observations, api.calls) == ([], 1, [[]])


async def test_any_other_refusal_releases_the_fleet() -> None:
    api = FakeServerApi(monitor_state(is_due=False), Forbidden("forbidden", "This role may not."))
    with pytest.raises(Forbidden):
        await run(api, FakePaneObserver())
    assert api.calls == [[], "release"]


async def test_claim_with_a_lost_reply_is_released() -> None:
    api = FakeServerApi(Lost("answer_lost", "The connection broke."))
    with pytest.raises(Lost):
        await run(api, FakePaneObserver())
    assert api.calls == ["release"]
