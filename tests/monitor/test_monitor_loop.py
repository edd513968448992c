"""What a monitor does with what the server says, tick by tick: with a desk and eyes that follow a script."""

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

HERE = Host("host", 1000)
AWAY = Unreachable("server_unreachable", "No server answers.")
OVER = Conflict("fleet_deleted", "fleet 1 is deleted")
LOST = Conflict("not_the_monitor", "this process does not monitor fleet 1 any more")


@pytest.fixture(autouse=True)
def restore_signals() -> Iterator[None]:
    """A monitor takes them for itself, and the loop that it ran in gives back the system's own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def watch(*, is_due: bool = True) -> MonitorState:
    return MonitorState(1, members=[WatchedMember(3, "ada", interval_seconds=60, is_due=is_due, unread=1)])


class Script(ServerApi):
    """A server that says one thing after the other: to the claim, and to each beat."""

    def __init__(self, *answers: MonitorState | Problem) -> None:
        super().__init__(1, HERE, lambda: None)
        self._answers = [*answers]
        self.heard: list[list[int] | str] = []

    def claim(self, tick_seconds: int, policy: str) -> MonitorState:
        return self._answer()

    def send_heartbeat(self, pinged: Sequence[int]) -> MonitorState:
        self.heard.append([*pinged])
        return self._answer()

    def release(self) -> None:
        self.heard.append("release")

    def _answer(self) -> MonitorState:
        answer = self._answers.pop(0)
        if isinstance(answer, Problem):
            raise answer
        return answer


class Watching(PaneObserver):
    """Sees everybody; `lands` says whether a ping does, `passes` is called at each look."""

    def __init__(self, lands: Sequence[bool] = (), passes: Callable[[], None] = lambda: None) -> None:
        super().__init__(HERE, {}, lambda line: None)
        self._lands = [*lands]
        self._passes = passes
        self.looks = 0
        self.typed: list[int] = []

    async def observe(self, members: Sequence[WatchedMember], now: float) -> dict[int, PaneObservation]:
        self.looks += 1
        self._passes()
        return {member.agent_id: PaneObservation(True, 0, member.unread) for member in members}

    async def ping(self, member: WatchedMember, is_owner: Callable[[], bool]) -> str | None:
        if not is_owner():
            return "late"
        self.typed.append(member.agent_id)
        return None if not self._lands or self._lands.pop(0) else "pane_gone"


async def run(desk: ServerApi, eyes: PaneObserver) -> list[str]:
    """What it said."""
    said: list[str] = []
    # No time passes between two ticks.
    await Monitor(desk, eyes, MonitorConfig(0, "quiet", said.append, lambda: None)).run()
    return said


async def test_while_no_server_answers_nothing_is_typed_and_what_has_landed_is_told_afterwards() -> None:
    desk, eyes = Script(watch(), AWAY, AWAY, watch(is_due=False), OVER), Watching()
    said = await run(desk, eyes)
    assert (eyes.typed, eyes.looks) == ([3], 2)
    assert desk.heard == [[3], [3], [3], []]
    assert said == ["pinged 3 ada (1 unread)", AWAY.detail, AWAY.detail, OVER.detail]


async def test_a_ping_that_did_not_land_is_not_told_and_is_tried_again() -> None:
    desk, eyes = Script(watch(), watch(), watch(is_due=False), OVER), Watching([False, True])
    await run(desk, eyes)
    assert eyes.typed == [3, 3]
    assert desk.heard == [[], [3], []]


async def test_who_has_looked_for_so_long_that_another_may_have_claimed_types_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(loop, "now", lambda: clock[0])

    def pass_by() -> None:
        clock[0] += 15.0

    desk, eyes = Script(watch(), OVER), Watching(passes=pass_by)
    said = await run(desk, eyes)
    assert eyes.typed == []
    assert said[0] == "did not ping 3 ada: late"


async def test_whoever_was_replaced_ends_at_its_next_beat_and_lets_go_of_nothing() -> None:
    desk, eyes = Script(watch(is_due=False), LOST), Watching()
    with pytest.raises(Conflict, match="does not monitor"):
        await run(desk, eyes)
    assert (eyes.typed, eyes.looks, desk.heard) == ([], 1, [[]])


async def test_whatever_else_ends_it_it_lets_go_of_the_fleet() -> None:
    desk = Script(watch(is_due=False), Forbidden("forbidden", "This role may not."))
    with pytest.raises(Forbidden):
        await run(desk, Watching())
    assert desk.heard == [[], "release"]


async def test_a_claim_whose_answer_was_lost_is_let_go_of() -> None:
    desk = Script(Lost("answer_lost", "The connection broke."))
    with pytest.raises(Lost):
        await run(desk, Watching())
    assert desk.heard == ["release"]
