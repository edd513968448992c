"""`qd task wait` and `qd invocation wait`: follow the event stream until tasks or an invocation have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import nested
from quarterdeck.cli.output import decode_object
from quarterdeck.cli.progress_bars import ProgressBars, is_finished, stderr_bars
from quarterdeck.client.api import Document, Query
from quarterdeck.client.event_stream import DeadlineReached, EventStream, SseMessage
from quarterdeck.client.http_types import TimedOut

TASK_PROGRESS_EVENTS = ("assigned", "started", "progressed", "paused", "resumed", "requeued", "unblocked", "released")
_PROGRESS_FIELDS = ("progressPercent", "currentStep")
TASK_END_EVENTS = ("completed", "failed", "aborted", "archived")


def wait_for_tasks(context: Context, ids: Sequence[str]) -> list[Document]:
    """Wait until all tasks have ended. Returns them in the order of `ids`."""
    watch = _TaskWatch(context, [*dict.fromkeys(ids)])
    try:
        watch.run()
    finally:
        watch.bars.clear()
    return [*watch.tasks.values()]


class _TaskWatch:
    def __init__(self, context: Context, ids: Sequence[str]) -> None:
        self._context = context
        self._ids = ids
        self.bars: ProgressBars = stderr_bars(not context.as_json)
        self.tasks: dict[str, Document] = {}
        self._unfinished: set[str] = set(ids)

    def run(self) -> None:
        messages = self._open_stream()
        # Load after opening the stream: the stream then delivers every change that happens after the load.
        self._load_tasks(self._ids)
        while self._unfinished:
            try:
                message = next(messages)
            except DeadlineReached:
                raise self._timeout_error() from None
            self._handle_message(message)

    def _open_stream(self) -> Iterator[SseMessage]:
        context = self._context
        types = ",".join(f"task.{event}" for event in (*TASK_PROGRESS_EVENTS, *TASK_END_EVENTS))
        query = {"types": types, "subject": self._ids[0] if len(self._ids) == 1 else None}
        return _event_stream(context, query, self._note).messages(context.server())

    def _handle_message(self, message: SseMessage) -> None:
        if message.event == "reset":
            # The log no longer has the position of the stream, so events may have been missed: load the tasks again.
            self._load_tasks([*self._unfinished])
            return
        event = decode_object(message.data) or {}
        task_id = event.get("subject")
        if not isinstance(task_id, str) or task_id not in self._unfinished:
            return
        if message.event.removeprefix("task.") in TASK_END_EVENTS:
            self._load_tasks([task_id])
            return
        data = nested(event, "data")
        progress: Document = {key: data[key] for key in _PROGRESS_FIELDS if key in data}
        self.tasks[task_id] = {**self.tasks[task_id], "status": event.get("to"), **progress}
        self.bars.show(self.tasks)

    def _load_tasks(self, ids: Sequence[str]) -> None:
        # Use a separate connection: the first one carries the stream.
        server = self._context.server()
        for task_id in ids:
            task = server.get(self._context.api_path("agent-tasks", task_id))
            self.tasks[task_id] = task
            if is_finished(task):
                self._unfinished.discard(task_id)
        self.bars.show(self.tasks)

    def _note(self, text: str) -> None:
        self.bars.clear()
        self._context.note(text)

    def _timeout_error(self) -> TimedOut:
        timeout = self._context.server_location.timeout
        unfinished = [task_id for task_id in self._ids if task_id in self._unfinished]
        subject = f"Task {unfinished[0]} has" if len(unfinished) == 1 else f"{len(unfinished)} tasks have"
        return TimedOut("wait_timeout", f"{subject} not ended within {timeout:g} s.", ids=unfinished)


def _event_stream(context: Context, query: Query, report: Callable[[str], None]) -> EventStream:
    """Build the stream of the zone's events. It ends with `DeadlineReached` after --timeout."""
    stream = EventStream(context.find_running_server, context.zone_path("events"), query, report, None)
    timeout = context.server_location.timeout
    stream.deadline = None if timeout is None else time.monotonic() + timeout
    return stream


INVOCATION_END_STATES = ("succeeded", "failed", "timed_out", "canceled", "dead")


def wait_for_invocation(context: Context, path: str, invocation_id: str) -> Document:
    """Wait until the invocation has ended, and return it.

    Loads the invocation first. If it has not ended, reads its events from the start of the log: the invocation may end
    before the stream is open.
    """
    server, timeout = context.server(), context.server_location.timeout
    invocation = server.get(path)
    if invocation.get("status") in INVOCATION_END_STATES:
        return invocation
    types = ",".join(f"invocation.{state}" for state in INVOCATION_END_STATES)
    stream = _event_stream(context, {"after": 0, "types": types, "subject": invocation_id}, context.note)
    try:
        next(message for message in stream.messages(server) if message.event != "reset")
    except DeadlineReached:
        raise TimedOut(
            "wait_timeout", f"Invocation {invocation_id} has not ended within {timeout:g} s.", id=invocation_id
        ) from None
    # Use a separate connection: the first one carries the stream.
    return context.server().get(path)
