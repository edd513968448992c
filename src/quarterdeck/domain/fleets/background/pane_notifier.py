"""Notices: after the commit, each new message is typed into its recipient's pane, and a receipt records the outcome.

    commit ─► load placements ─► one snapshot per tmux server ─► type one line per pane ─► write the receipt
                 │                   │                              │
                 └ no pane,          └ pane gone, another tmux      └ one notice at a time per pane,
                   another host        server, a shell: skip          up to 64 panes in parallel

The pane is checked again before each line: the previous line may have made the agent exit, and a shell would execute
the next one. The database is checked too, with one statement per snapshot: the member may have been deregistered and
its pane may now belong to another member, or the message may have been acknowledged or canceled.

How it fails. The message stays in the inbox whether or not the notice is typed. A notice that is not typed in time
fails, and its receipt gives the reason. A stuck pane delays only its own notices, and a stuck tmux server only its own
panes. While 10,000 notices are pending, new ones fail at once. If the database is unavailable, the write of a receipt
is retried for 30 s. A server that is shutting down accepts no new notices and finishes those in progress within its
grace period. A server that is killed leaves messages without a receipt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.commands import RecordReceipt
from quarterdeck.domain.fleets.model.rows import (
    FleetSettings,
    Message,
    MessageRef,
    MessageState,
    NoticeFailure,
    Placement,
)
from quarterdeck.domain.fleets.operations.placements import NoticeState, load_notice_states, load_placements
from quarterdeck.engine.background import Background, retry_while_unavailable, wait_at_most
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
"""The outcomes of notices that the metric counts."""
PENDING_MAX = 10_000
"""The maximum number of notices without a receipt. A longer queue would take too long to process."""
PANES_CONCURRENT_MAX = 64
"""The maximum number of panes of one tmux server that are typed into at the same time."""
LOOKUP_MESSAGES_MAX = 1_000
"""The maximum number of messages whose placements one statement loads."""
RECEIPT_TIMEOUT_SECONDS = 30.0
TYPED_LENGTH_MAX = 8_000
"""The maximum number of characters typed. The recipient can read the complete message in its inbox."""
QUEUED_LENGTH_MAX = TYPED_LENGTH_MAX + 1
"""The queue holds one character more than is typed, to detect that the text was longer."""


@dataclass(frozen=True, slots=True)
class NotifierDeps:
    cross_zone_engine: Engine
    submit_receipt: Callable[[RecordReceipt], Awaitable[Message]]
    host: Host
    coding_agents: Mapping[str, CodingAgent]


@dataclass(frozen=True, slots=True)
class PendingNotice:
    """A message to type into a pane."""

    message: Message
    placement: Placement
    pane_id: str


OnNoticeDone = Callable[[Message, NoticeFailure | None], None]


class _BroadcastProgress:
    """Counts the notices of a broadcast that have no receipt yet."""

    def __init__(self) -> None:
        self.pending_count = 0
        self.finished = asyncio.Event()


class PaneNotifier:
    def __init__(self, deps: NotifierDeps, settings: FleetSettings, grace_seconds: float) -> None:
        self._deps = deps
        self._timeout_seconds = settings.fleet_notice_seconds
        self._grace_seconds = grace_seconds
        self._incoming: list[Message] = []
        self._is_processing = False
        self._queues: dict[str, _TmuxQueue] = {}
        """By socket path of the tmux server."""
        self._background = Background(log)
        self._pending_count = 0
        self._broadcasts: dict[MessageRef, _BroadcastProgress] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False
        self.counts: Counter[str] = Counter()
        """Notices by outcome."""

    def __len__(self) -> int:
        """The number of notices without a receipt."""
        return self._pending_count

    def start(self) -> None:
        """Does nothing: `notify` starts the background work."""

    async def stop(self) -> None:
        """Returns when all pending notices have receipts, or when the grace period has passed."""
        self._is_stopping = True
        await wait_at_most(self._grace_seconds, self._idle.wait())
        if pending_count := self._pending_count:
            log.warning("%d notices were canceled by the shutdown; their messages stay in the inboxes", pending_count)
        # Canceling a notice starts the write of its receipt, so repeat until nothing new is started.
        while await self._background.stop(0):
            pass

    def notify(self, messages: Sequence[Message]) -> None:
        """Queue notices about delivered messages. Called after a commit, so the work is done in the background."""
        if self._is_stopping:
            log.info("%d messages were delivered during the shutdown: no notices are typed", len(messages))
            return
        self._pending_count += len(messages)
        for message in messages:
            if message.origin_task_id is not None:
                self._broadcasts.setdefault(
                    (message.zone_id, message.origin_task_id), _BroadcastProgress()
                ).pending_count += 1
        self._idle.clear()
        capacity = max(0, PENDING_MAX - self._pending_count + len(messages))
        for message in messages[capacity:]:
            self._finish_notice(message, NoticeFailure.FAILED)
        self._incoming += [
            structs.replace(message, text=message.text[:QUEUED_LENGTH_MAX]) for message in messages[:capacity]
        ]
        if self._incoming and not self._is_processing:
            self._is_processing = True
            self._background.start(self._process_incoming(), "notices")

    async def wait_for_receipts(self, summary: Message, timeout_seconds: float) -> None:
        """Returns when all deliveries of a broadcast have receipts, or after the timeout."""
        broadcast = self._broadcasts.get(summary.ref)
        if broadcast is not None:
            await wait_at_most(timeout_seconds, broadcast.finished.wait())

    # -- placements ----------------------------------------------------------------------------------------------

    async def _process_incoming(self) -> None:
        try:
            while self._incoming:
                messages, self._incoming = self._incoming[:LOOKUP_MESSAGES_MAX], self._incoming[LOOKUP_MESSAGES_MAX:]
                try:
                    await self._enqueue(messages)
                except Exception:
                    # Broad, because these messages still need receipts, and the next ones must be processed.
                    log.exception("%d notices failed: their placements could not be loaded", len(messages))
                    for message in messages:
                        self._finish_notice(message, NoticeFailure.FAILED)
        finally:
            self._is_processing = False

    async def _enqueue(self, messages: Sequence[Message]) -> None:
        refs = sorted({(message.zone_id, message.to_agent_id) for message in messages})
        placements = await self._deps.cross_zone_engine.read(lambda tx: load_placements(tx, refs))
        for message in messages:
            placement = placements.get((message.zone_id, message.to_agent_id))
            if placement is None or placement.tmux_pane_id is None:
                self._finish_notice(message, NoticeFailure.NO_PANE)
            elif (failure := keystrokes.check_host(placement, self._deps.host)) is not None:
                self._finish_notice(message, NoticeFailure(failure))
            else:
                self._queue_for(placement.tmux_socket).add(PendingNotice(message, placement, placement.tmux_pane_id))

    def _queue_for(self, socket: str) -> _TmuxQueue:
        self._queues = {path: queue for path, queue in self._queues.items() if len(queue)}
        if socket not in self._queues:
            self._queues[socket] = _TmuxQueue(
                self._deps, self._background, self._finish_notice, socket, self._timeout_seconds
            )
        return self._queues[socket]

    # -- receipts ------------------------------------------------------------------------------------------------

    def _finish_notice(self, message: Message, failure: NoticeFailure | None) -> None:
        self.counts[TYPED if failure is None else failure] += 1
        self._background.start(self._record_receipt(message, failure), f"the receipt for message {message.task_id}")

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
            self._pending_count -= 1
            self._count_receipt(message)
            if not self._pending_count:
                self._idle.set()

    def _count_receipt(self, message: Message) -> None:
        ref = (message.zone_id, message.origin_task_id or 0)
        broadcast = self._broadcasts.get(ref)
        if broadcast is not None:
            broadcast.pending_count -= 1
            if not broadcast.pending_count:
                del self._broadcasts[ref]
                broadcast.finished.set()


class _TmuxQueue:
    """The notices of one tmux server: one at a time per pane, several panes in parallel."""

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
        """By pane id."""
        self._typing_panes: set[str] = set()
        self._is_checking = False

    def __len__(self) -> int:
        """0 if the queue is idle and can be dropped."""
        return len(self._queues) + len(self._typing_panes) + self._is_checking

    def add(self, notice: PendingNotice) -> None:
        self._queues.setdefault(notice.pane_id, deque()).append(notice)
        self._start_check()

    def _start_check(self) -> None:
        if not self._is_checking and self._free_panes():
            self._is_checking = True
            self._background.start(self._check_panes(), f"the pane check of {self._socket}")

    def _free_panes(self) -> list[str]:
        """Panes with queued notices that are not being typed into, up to the concurrency limit."""
        free = [pane_id for pane_id in self._queues if pane_id not in self._typing_panes]
        return free[: max(0, PANES_CONCURRENT_MAX - len(self._typing_panes))]

    async def _check_panes(self) -> None:
        """Check the next notice of every free pane, and repeat until no free pane has a notice."""
        try:
            while pane_ids := self._free_panes():
                notices = [self._pop_notice(pane_id) for pane_id in pane_ids]
                for notice, target in zip(notices, await self._find_targets(notices), strict=True):
                    if isinstance(target, NoticeFailure):
                        self._on_done(notice.message, target)
                        continue
                    self._typing_panes.add(notice.pane_id)
                    self._background.start(
                        self._type(notice, target), f"the notice about message {notice.message.task_id}"
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
            log.warning("%d notices failed: their messages could not be loaded: %r", len(notices), problem)
        except (TmuxError, TimeoutError) as error:
            log.warning("%d notices failed: the panes of %s could not be listed: %r", len(notices), self._socket, error)
        except Exception:
            # Broad, because these notices have left the queue and need receipts, and the next must be checked.
            log.exception("%d notices failed: checking %s raised an exception", len(notices), self._socket)
        return [NoticeFailure.FAILED for _ in notices]

    def _check_notices(
        self, notices: Sequence[PendingNotice], snapshot: TmuxSnapshot, states: Mapping[MessageRef, NoticeState]
    ) -> list[TypingTarget | NoticeFailure]:
        """Blocks: reads the process table."""
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
    """Why the notice must no longer be typed, or None if it may be."""
    if state is None or state.state is not MessageState.INPUT_REQUIRED:
        return NoticeFailure.ENDED
    return None if state.pane_id == notice.pane_id else NoticeFailure.NO_PANE


def format_line(message: Message) -> str:
    """The line to type: message id, sender, time and text, without control characters."""
    header = f"[{message.task_id} | from:{message.from_agent_id} | {iso(message.created_at)}]"
    text = message.text
    if len(text) > TYPED_LENGTH_MAX:
        text = f"{text[:TYPED_LENGTH_MAX]}… (full message: qd message show --task-id {message.task_id})"
    return format_notice(header, text)
