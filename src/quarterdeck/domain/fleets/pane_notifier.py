"""Notices: what was delivered is typed into its recipient's pane, after the commit, and a receipt says so, or why not.

    committed ─► where the panes are ─► one look at each tmux server ─► a line into each pane ─► a receipt
                    │                       │                              │
                    └ no pane, another      └ gone, another tmux server,   └ one after the other in a pane,
                      host                    a shell: nothing is typed      side by side otherwise

Each line is looked at the pane for anew: the one before it may have told the agent to leave, and what is typed at the
shell's prompt behind it would be executed. And so is the database, with one statement for a look: a member that has
left meanwhile may have left its pane to another, and what was canceled, or acknowledged already, is nobody's news.

How it fails. A notice is a courtesy: the message waits for its recipient, notified or not. What cannot be typed in time
has failed, and its receipt says so; a pane that is stuck holds up nothing but its own notices, and a tmux server that
is stuck only its own panes. Beyond so many that wait, notices fail at once. While the database is away receipts are
tried again for a while. A server that stops takes no new ones and gives what is under way its time; one that is killed
leaves messages without a receipt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.commands import Receipt, SpokenOutcome
from quarterdeck.domain.fleets.model.rows import FleetSettings, Message, MessageRef, MessageState, Notice, Placement
from quarterdeck.domain.fleets.operations.placements import Pending, pending, placements
from quarterdeck.engine.background import Background, retry_while_unavailable
from quarterdeck.engine.transaction import Engine
from quarterdeck.tmux import keystrokes
from quarterdeck.tmux.coding_agents import CodingAgent
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.keystrokes import TmuxSnapshot, TypingTarget
from quarterdeck.tmux.notice_text import format_notice
from quarterdeck.tmux.panes import Tmux

log = logging.getLogger("quarterdeck.fleets")
TYPED = "typed"
OUTCOMES = (TYPED, *Notice)
"""What may come of a notice: what is counted."""
WAITING_MAX = 10_000
"""Notices that have no receipt yet: more would be a queue that nobody catches up with."""
AT_ONCE = 64
"""Panes of one tmux server that are typed into at the same time."""
LOADED_MAX = 1_000
"""Recipients whose panes are looked up with one statement."""
RECEIPT_SECONDS = 30.0
TEXT_MAX = 8_000
"""Code points of a message that are typed: a pane is no pipe, and the whole can be polled for."""
KEPT_MAX = TEXT_MAX + 1
"""What is kept of a text that waits to be typed: one more tells that there was more."""


@dataclass(frozen=True, slots=True)
class Means:
    """What it acts through."""

    everywhere: Engine
    receipt: Callable[[Receipt], Awaitable[SpokenOutcome]]
    host: Host
    coding_agents: Mapping[str, CodingAgent]


@dataclass(frozen=True, slots=True)
class Due:
    """One notice, and the pane it is for."""

    message: Message
    placement: Placement
    pane_id: str


Settled = Callable[[Message, Notice | None], None]


class _Broadcast:
    """How many of its notices have no receipt yet."""

    def __init__(self) -> None:
        self.left = 0
        self.stop_waiting = asyncio.Event()


class Notifier:
    def __init__(self, means: Means, told: FleetSettings, grace_seconds: float) -> None:
        self._means = means
        self._seconds = told.fleet_notice_seconds
        self._grace_seconds = grace_seconds
        self._come: list[Message] = []
        self._loading = False
        self._desks: dict[str, _Desk] = {}
        self._errands = Background(log)
        self._waiting = 0
        self._broadcasts: dict[MessageRef, _Broadcast] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._stops = False
        self.counts: Counter[str] = Counter()
        """Notices, by what came of them."""

    def __len__(self) -> int:
        """Notices that have no receipt yet."""
        return self._waiting

    def start(self) -> None:
        """Nothing goes on here until something is delivered."""

    async def stop(self) -> None:
        """Returns when what was under way has its receipts, or has had its time."""
        self._stops = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                await self._idle.wait()
        if left := self._waiting:
            log.warning("%d notices were cut; their messages wait to be polled for", left)
        # Whoever is cut may begin with its receipt: that is cut as well, before it has begun.
        while await self._errands.stop(0):
            pass

    def delivered(self, messages: Sequence[Message]) -> None:
        """Told after a commit, and in a hurry: everything else happens in an errand."""
        if self._stops:
            log.info("%d messages were delivered while the server stopped: nobody is notified", len(messages))
            return
        self._waiting += len(messages)
        for message in messages:
            if message.origin_task_id is not None:
                self._broadcasts.setdefault((message.zone_id, message.origin_task_id), _Broadcast()).left += 1
        self._idle.clear()
        room = max(0, WAITING_MAX - self._waiting + len(messages))
        for message in messages[room:]:
            self._settle(message, Notice.FAILED)
        self._come += [structs.replace(each, text=each.text[:KEPT_MAX]) for each in messages[:room]]
        if self._come and not self._loading:
            self._loading = True
            self._errands.start(self._load(), "notices")

    async def settled(self, summary: Message, seconds: float) -> None:
        """Returns when all that was delivered of a broadcast has its receipt, or after so many seconds."""
        broadcast = self._broadcasts.get(summary.ref)
        if broadcast is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await broadcast.stop_waiting.wait()

    # -- where the panes are -------------------------------------------------------------------------------------

    async def _load(self) -> None:
        try:
            while self._come:
                messages, self._come = self._come[:LOADED_MAX], self._come[LOADED_MAX:]
                try:
                    await self._turn_to(messages)
                except Exception:
                    # Whatever it was, nobody else would write the receipts of these, nor go on with the next.
                    log.exception("%d notices failed: their panes could not be looked up", len(messages))
                    for message in messages:
                        self._settle(message, Notice.FAILED)
        finally:
            self._loading = False

    async def _turn_to(self, messages: Sequence[Message]) -> None:
        refs = sorted({(message.zone_id, message.to_agent_id) for message in messages})
        known = await self._means.everywhere.read(lambda tx: placements(tx, refs))
        for message in messages:
            placement = known.get((message.zone_id, message.to_agent_id))
            if placement is None or placement.tmux_pane_id is None:
                self._settle(message, Notice.NO_PANE)
            elif (why_not := keystrokes.check_host(placement, self._means.host)) is not None:
                self._settle(message, Notice(why_not))
            else:
                self._desk(placement.tmux_socket).add(Due(message, placement, placement.tmux_pane_id))

    def _desk(self, socket: str) -> _Desk:
        self._desks = {name: desk for name, desk in self._desks.items() if len(desk)}
        if socket not in self._desks:
            self._desks[socket] = _Desk(self._means, self._errands, self._settle, socket, self._seconds)
        return self._desks[socket]

    # -- receipts ------------------------------------------------------------------------------------------------

    def _settle(self, message: Message, notice: Notice | None) -> None:
        self.counts[TYPED if notice is None else notice] += 1
        self._errands.start(self._receive(message, notice), f"the receipt of message {message.task_id}")

    async def _receive(self, message: Message, notice: Notice | None) -> None:
        ask = Receipt(zone_id=message.zone_id, fleet_id=message.fleet_id, message_id=message.task_id, notice=notice)
        until = asyncio.get_running_loop().time() + RECEIPT_SECONDS
        try:
            await retry_while_unavailable(lambda: self._means.receipt(ask), until)
        except Problem as problem:
            log.warning("message %d has no receipt: %r", message.task_id, problem)
        finally:
            self._waiting -= 1
            self._count_down(message)
            if not self._waiting:
                self._idle.set()

    def _count_down(self, message: Message) -> None:
        ref = (message.zone_id, message.origin_task_id or 0)
        broadcast = self._broadcasts.get(ref)
        if broadcast is not None:
            broadcast.left -= 1
            if not broadcast.left:
                del self._broadcasts[ref]
                broadcast.stop_waiting.set()


class _Desk:
    """What is to be typed in one tmux server: in each pane one after the other, in all of them at once."""

    def __init__(self, means: Means, errands: Background, settled: Settled, socket: str, seconds: float) -> None:
        self._means = means
        self._errands = errands
        self._settled = settled
        self._socket = socket
        self._seconds = seconds
        self._tmux = Tmux(socket, seconds)
        self._queues: dict[str, deque[Due]] = {}
        self._typing: set[str] = set()
        self._is_looking = False

    def __len__(self) -> int:
        """0: nothing goes on here, and another desk may take its place."""
        return len(self._queues) + len(self._typing) + self._is_looking

    def add(self, due: Due) -> None:
        self._queues.setdefault(due.pane_id, deque()).append(due)
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_looking and self._ready():
            self._is_looking = True
            self._errands.start(self._look(), f"a look at {self._socket}")

    def _ready(self) -> list[str]:
        """Panes that something waits for and nobody types into, as many as there may be at once."""
        free = [pane_id for pane_id in self._queues if pane_id not in self._typing]
        return free[: max(0, AT_ONCE - len(self._typing))]

    async def _look(self) -> None:
        """One look for all that wait, and again for those that came meanwhile."""
        try:
            while ready := self._ready():
                due = [self._taken(pane_id) for pane_id in ready]
                for each, found in zip(due, await self._found(due), strict=True):
                    if isinstance(found, Notice):
                        self._settled(each.message, found)
                        continue
                    self._typing.add(each.pane_id)
                    self._errands.start(self._type(each, found), f"the notice of message {each.message.task_id}")
        finally:
            self._is_looking = False

    def _taken(self, pane_id: str) -> Due:
        queue = self._queues[pane_id]
        due = queue.popleft()
        if not queue:
            del self._queues[pane_id]
        return due

    async def _found(self, due: Sequence[Due]) -> list[TypingTarget | Notice]:
        try:
            async with asyncio.timeout(self._seconds):
                looked = await keystrokes.take_snapshot(self._tmux)
                refs = [each.message.ref for each in due]
                now = await self._means.everywhere.read(lambda tx: pending(tx, refs))
                return await asyncio.to_thread(self._judged, due, looked, now)
        except Problem as problem:
            log.warning("%d notices failed: their messages could not be looked up: %r", len(due), problem)
        except (TmuxError, TimeoutError) as error:
            log.warning("%d notices failed: %s cannot be looked at: %r", len(due), self._socket, error)
        except Exception:
            # These were taken: their receipts are written here or never, and the next must be looked at.
            log.exception("%d notices failed: a look at %s", len(due), self._socket)
        return [Notice.FAILED for _ in due]

    def _judged(
        self, due: Sequence[Due], looked: TmuxSnapshot, now: Mapping[MessageRef, Pending]
    ) -> list[TypingTarget | Notice]:
        """Blocks."""
        return [over(each, now.get(each.message.ref)) or self._judge(each, looked) for each in due]

    def _judge(self, due: Due, looked: TmuxSnapshot) -> TypingTarget | Notice:
        agent = self._means.coding_agents.get(due.placement.coding_agent)
        judged = keystrokes.check_pane(looked, due.placement, self._means.host, agent)
        return judged if isinstance(judged, TypingTarget) else Notice(judged)

    async def _type(self, due: Due, ready: TypingTarget) -> None:
        notice: Notice | None = Notice.FAILED
        try:
            async with asyncio.timeout(self._seconds):
                why_not = await keystrokes.type_line(self._tmux, ready, line(due.message))
            notice = None if why_not is None else Notice(why_not)
        except (TmuxError, TimeoutError) as error:
            log.warning("message %d was not typed into %s: %r", due.message.task_id, due.pane_id, error)
        finally:
            self._typing.discard(due.pane_id)
            self._settled(due.message, notice)
            self._go_on()


def over(due: Due, now: Pending | None) -> Notice | None:
    """Why nobody is to be told of it any more."""
    if now is None or now.state is not MessageState.INPUT_REQUIRED:
        return Notice.ENDED
    return None if now.pane_id == due.pane_id else Notice.NO_PANE


def line(message: Message) -> str:
    """What is typed: of whom, and what. One line, without anything that a terminal would obey."""
    header = f"[{message.task_id} | from:{message.from_agent_id} | {iso(message.created_at)}]"
    text = message.text
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… (the whole: qd message show --task-id {message.task_id})"
    return format_notice(header, text)
