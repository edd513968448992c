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
from quarterdeck.domain.fleets.model.commands import MessageOutcome, RecordReceipt
from quarterdeck.domain.fleets.model.rows import (
    FleetSettings,
    Message,
    MessageRef,
    MessageState,
    NoticeFailure,
    Placement,
)
from quarterdeck.domain.fleets.operations.placements import NoticeState, load_notice_states, load_placements
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
OUTCOMES = (TYPED, *NoticeFailure)
"""What may come of a notice: what is counted."""
PENDING_MAX = 10_000
"""Notices that have no receipt yet: more would be a queue that nobody catches up with."""
PANES_CONCURRENT_MAX = 64
"""Panes of one tmux server that are typed into at the same time."""
LOOKUP_MAX = 1_000
"""Recipients whose panes are looked up with one statement."""
RECEIPT_TIMEOUT_SECONDS = 30.0
TYPED_LENGTH_MAX = 8_000
"""Code points of a message that are typed: a pane is no pipe, and the whole can be polled for."""
KEPT_LENGTH_MAX = TYPED_LENGTH_MAX + 1
"""What is kept of a text that waits to be typed: one more tells that there was more."""


@dataclass(frozen=True, slots=True)
class NotifierDeps:
    """What it acts through."""

    cross_zone_engine: Engine
    submit_receipt: Callable[[RecordReceipt], Awaitable[MessageOutcome]]
    host: Host
    coding_agents: Mapping[str, CodingAgent]


@dataclass(frozen=True, slots=True)
class PendingNotice:
    """One notice, and the pane it is for."""

    message: Message
    placement: Placement
    pane_id: str


OnNoticeDone = Callable[[Message, NoticeFailure | None], None]


class _BroadcastProgress:
    """How many of its notices have no receipt yet."""

    def __init__(self) -> None:
        self.pending = 0
        self.finished = asyncio.Event()


class PaneNotifier:
    def __init__(self, deps: NotifierDeps, settings: FleetSettings, grace_seconds: float) -> None:
        self._deps = deps
        self._timeout_seconds = settings.fleet_notice_seconds
        self._grace_seconds = grace_seconds
        self._incoming: list[Message] = []
        self._is_loading = False
        self._queues: dict[str, _PaneQueue] = {}
        self._background = Background(log)
        self._pending = 0
        self._broadcasts: dict[MessageRef, _BroadcastProgress] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False
        self.counts: Counter[str] = Counter()
        """Notices, by what came of them."""

    def __len__(self) -> int:
        """Notices that have no receipt yet."""
        return self._pending

    def start(self) -> None:
        """Nothing goes on here until something is delivered."""

    async def stop(self) -> None:
        """Returns when what was under way has its receipts, or has had its time."""
        self._is_stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                await self._idle.wait()
        if pending := self._pending:
            log.warning("%d notices were cut; their messages wait to be polled for", pending)
        # Whoever is cut may begin with its receipt: that is cut as well, before it has begun.
        while await self._background.stop(0):
            pass

    def notify(self, messages: Sequence[Message]) -> None:
        """Told after a commit, and in a hurry: everything else happens in an errand."""
        if self._is_stopping:
            log.info("%d messages were delivered while the server stopped: nobody is notified", len(messages))
            return
        self._pending += len(messages)
        for message in messages:
            if message.origin_task_id is not None:
                self._broadcasts.setdefault(
                    (message.zone_id, message.origin_task_id), _BroadcastProgress()
                ).pending += 1
        self._idle.clear()
        capacity = max(0, PENDING_MAX - self._pending + len(messages))
        for message in messages[capacity:]:
            self._finish_notice(message, NoticeFailure.FAILED)
        self._incoming += [
            structs.replace(message, text=message.text[:KEPT_LENGTH_MAX]) for message in messages[:capacity]
        ]
        if self._incoming and not self._is_loading:
            self._is_loading = True
            self._background.start(self._process_incoming(), "notices")

    async def wait_for_receipts(self, summary: Message, timeout_seconds: float) -> None:
        """Returns when all that was delivered of a broadcast has its receipt, or after so many seconds."""
        broadcast = self._broadcasts.get(summary.ref)
        if broadcast is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await broadcast.finished.wait()

    # -- where the panes are -------------------------------------------------------------------------------------

    async def _process_incoming(self) -> None:
        try:
            while self._incoming:
                messages, self._incoming = self._incoming[:LOOKUP_MAX], self._incoming[LOOKUP_MAX:]
                try:
                    await self._enqueue(messages)
                except Exception:
                    # Whatever it was, nobody else would write the receipts of these, nor go on with the next.
                    log.exception("%d notices failed: their panes could not be looked up", len(messages))
                    for message in messages:
                        self._finish_notice(message, NoticeFailure.FAILED)
        finally:
            self._is_loading = False

    async def _enqueue(self, messages: Sequence[Message]) -> None:
        refs = sorted({(message.zone_id, message.to_agent_id) for message in messages})
        found = await self._deps.cross_zone_engine.read(lambda tx: load_placements(tx, refs))
        for message in messages:
            placement = found.get((message.zone_id, message.to_agent_id))
            if placement is None or placement.tmux_pane_id is None:
                self._finish_notice(message, NoticeFailure.NO_PANE)
            elif (failure := keystrokes.check_host(placement, self._deps.host)) is not None:
                self._finish_notice(message, NoticeFailure(failure))
            else:
                self._queue_for(placement.tmux_socket).add(PendingNotice(message, placement, placement.tmux_pane_id))

    def _queue_for(self, socket: str) -> _PaneQueue:
        self._queues = {name: queue for name, queue in self._queues.items() if len(queue)}
        if socket not in self._queues:
            self._queues[socket] = _PaneQueue(
                self._deps, self._background, self._finish_notice, socket, self._timeout_seconds
            )
        return self._queues[socket]

    # -- receipts ------------------------------------------------------------------------------------------------

    def _finish_notice(self, message: Message, failure: NoticeFailure | None) -> None:
        self.counts[TYPED if failure is None else failure] += 1
        self._background.start(self._record_receipt(message, failure), f"the receipt of message {message.task_id}")

    async def _record_receipt(self, message: Message, failure: NoticeFailure | None) -> None:
        command = RecordReceipt(
            zone_id=message.zone_id, fleet_id=message.fleet_id, message_id=message.task_id, failure=failure
        )
        deadline = asyncio.get_running_loop().time() + RECEIPT_TIMEOUT_SECONDS
        try:
            await retry_while_unavailable(lambda: self._deps.submit_receipt(command), deadline)
        except Problem as problem:
            log.warning("message %d has no receipt: %r", message.task_id, problem)
        finally:
            self._pending -= 1
            self._count_receipt(message)
            if not self._pending:
                self._idle.set()

    def _count_receipt(self, message: Message) -> None:
        ref = (message.zone_id, message.origin_task_id or 0)
        broadcast = self._broadcasts.get(ref)
        if broadcast is not None:
            broadcast.pending -= 1
            if not broadcast.pending:
                del self._broadcasts[ref]
                broadcast.finished.set()


class _PaneQueue:
    """What is to be typed in one tmux server: in each pane one after the other, in all of them at once."""

    def __init__(
        self, deps: NotifierDeps, background: Background, on_done: OnNoticeDone, socket: str, timeout_seconds: float
    ) -> None:
        self._deps = deps
        self._background = background
        self._on_done = on_done
        self._socket = socket
        self._timeout_seconds = timeout_seconds
        self._tmux = Tmux(socket, timeout_seconds)
        self._queues: dict[str, deque[PendingNotice]] = {}
        self._typing_panes: set[str] = set()
        self._is_checking = False

    def __len__(self) -> int:
        """0: nothing goes on here, and another desk may take its place."""
        return len(self._queues) + len(self._typing_panes) + self._is_checking

    def add(self, notice: PendingNotice) -> None:
        self._queues.setdefault(notice.pane_id, deque()).append(notice)
        self._start_check()

    def _start_check(self) -> None:
        if not self._is_checking and self._free_panes():
            self._is_checking = True
            self._background.start(self._check_panes(), f"a look at {self._socket}")

    def _free_panes(self) -> list[str]:
        """Panes that something waits for and nobody types into, as many as there may be at once."""
        free = [pane_id for pane_id in self._queues if pane_id not in self._typing_panes]
        return free[: max(0, PANES_CONCURRENT_MAX - len(self._typing_panes))]

    async def _check_panes(self) -> None:
        """One look for all that wait, and again for those that came meanwhile."""
        try:
            while pane_ids := self._free_panes():
                notices = [self._pop_notice(pane_id) for pane_id in pane_ids]
                for notice, target in zip(notices, await self._find_targets(notices), strict=True):
                    if isinstance(target, NoticeFailure):
                        self._on_done(notice.message, target)
                        continue
                    self._typing_panes.add(notice.pane_id)
                    self._background.start(
                        self._type(notice, target), f"the notice of message {notice.message.task_id}"
                    )
        finally:
            self._is_checking = False

    def _pop_notice(self, pane_id: str) -> PendingNotice:
        queue = self._queues[pane_id]
        notice = queue.popleft()
        if not queue:
            del self._queues[pane_id]
        return notice

    async def _find_targets(self, notices: Sequence[PendingNotice]) -> list[TypingTarget | NoticeFailure]:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                snapshot = await keystrokes.take_snapshot(self._tmux)
                refs = [notice.message.ref for notice in notices]
                states = await self._deps.cross_zone_engine.read(lambda tx: load_notice_states(tx, refs))
                return await asyncio.to_thread(self._check_notices, notices, snapshot, states)
        except Problem as problem:
            log.warning("%d notices failed: their messages could not be looked up: %r", len(notices), problem)
        except (TmuxError, TimeoutError) as error:
            log.warning("%d notices failed: %s cannot be looked at: %r", len(notices), self._socket, error)
        except Exception:
            # These were taken: their receipts are written here or never, and the next must be looked at.
            log.exception("%d notices failed: a look at %s", len(notices), self._socket)
        return [NoticeFailure.FAILED for _ in notices]

    def _check_notices(
        self, notices: Sequence[PendingNotice], snapshot: TmuxSnapshot, states: Mapping[MessageRef, NoticeState]
    ) -> list[TypingTarget | NoticeFailure]:
        """Blocks."""
        return [
            skip_reason(notice, states.get(notice.message.ref)) or self._check_notice(notice, snapshot)
            for notice in notices
        ]

    def _check_notice(self, notice: PendingNotice, snapshot: TmuxSnapshot) -> TypingTarget | NoticeFailure:
        agent = self._deps.coding_agents.get(notice.placement.coding_agent)
        target = keystrokes.check_pane(snapshot, notice.placement, self._deps.host, agent)
        return target if isinstance(target, TypingTarget) else NoticeFailure(target)

    async def _type(self, notice: PendingNotice, target: TypingTarget) -> None:
        failure: NoticeFailure | None = NoticeFailure.FAILED
        try:
            async with asyncio.timeout(self._timeout_seconds):
                reason = await keystrokes.type_line(self._tmux, target, format_line(notice.message))
            failure = None if reason is None else NoticeFailure(reason)
        except (TmuxError, TimeoutError) as error:
            log.warning("message %d was not typed into %s: %r", notice.message.task_id, notice.pane_id, error)
        finally:
            self._typing_panes.discard(notice.pane_id)
            self._on_done(notice.message, failure)
            self._start_check()


def skip_reason(notice: PendingNotice, state: NoticeState | None) -> NoticeFailure | None:
    """Why nobody is to be told of it any more."""
    if state is None or state.state is not MessageState.INPUT_REQUIRED:
        return NoticeFailure.ENDED
    return None if state.pane_id == notice.pane_id else NoticeFailure.NO_PANE


def format_line(message: Message) -> str:
    """What is typed: of whom, and what. One line, without anything that a terminal would obey."""
    header = f"[{message.task_id} | from:{message.from_agent_id} | {iso(message.created_at)}]"
    text = message.text
    if len(text) > TYPED_LENGTH_MAX:
        text = f"{text[:TYPED_LENGTH_MAX]}… (the whole: qd message show --task-id {message.task_id})"
    return format_notice(header, text)
