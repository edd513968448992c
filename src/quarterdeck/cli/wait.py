"""`qd task wait`: until tasks have ended, as their events tell."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

from quarterdeck.cli.context import Context
from quarterdeck.cli.progress_bars import Bars, is_over, on_stderr
from quarterdeck.client.api import Document
from quarterdeck.client.discovery import again
from quarterdeck.client.event_stream import Follower, Late, Message
from quarterdeck.client.http_types import TimedOut

MOVES = ("assigned", "started", "progressed", "paused", "resumed", "requeued", "unblocked", "released")
_PROGRESS = ("progressPercent", "currentStep")
TASK_ENDS = ("completed", "failed", "aborted", "archived")


def wait_for_tasks(context: Context, ids: Sequence[str]) -> list[Document]:
    """The tasks as they ended, in the order in which they were named."""
    watch = _Watch(context, [*dict.fromkeys(ids)])
    try:
        watch.run()
    finally:
        watch.bars.clear()
    return [*watch.tasks.values()]


class _Watch:
    def __init__(self, context: Context, ids: Sequence[str]) -> None:
        self._context = context
        self._ids = ids
        self.bars: Bars = on_stderr(not context.as_json)
        self.tasks: dict[str, Document] = {}
        self._open: set[str] = set(ids)

    def run(self) -> None:
        messages = self._following()
        # Looked at after the stream was opened: what happens after the look is told by the stream.
        self._look(self._ids)
        while self._open:
            try:
                message = next(messages)
            except Late:
                raise self._late() from None
            self._hear(message)

    def _following(self) -> Iterator[Message]:
        context = self._context
        types = ",".join(f"task.{move}" for move in (*MOVES, *TASK_ENDS))
        query = {"types": types, "subject": self._ids[0] if len(self._ids) == 1 else None}
        follower = Follower(context.again, context.in_zone("events"), query, self._note, None)
        limit = context.where.timeout
        follower.deadline = None if limit is None else time.monotonic() + limit
        return follower.messages(context.server())

    def _hear(self, message: Message) -> None:
        if message.event == "reset":
            # What has passed meanwhile is not in the log any more: only looking tells.
            self._look([*self._open])
            return
        event = _mapping(json.loads(message.data))
        name = event.get("subject")
        if not isinstance(name, str) or name not in self._open:
            return
        if message.event.removeprefix("task.") in TASK_ENDS:
            self._look([name])
            return
        data = _mapping(event.get("data"))
        said: Document = {key: data[key] for key in _PROGRESS if key in data}
        self.tasks[name] = {**self.tasks[name], "status": event.get("to"), **said}
        self.bars.show(self.tasks)

    def _look(self, ids: Sequence[str]) -> None:
        # By a connection of its own: the other one is taken by a stream that has no end.
        server = self._context.server()
        for name in ids:
            task = server.get(self._context.work("agent-tasks", name))
            self.tasks[name] = task
            if is_over(task):
                self._open.discard(name)
        self.bars.show(self.tasks)

    def _note(self, text: str) -> None:
        self.bars.clear()
        self._context.note(text)

    def _late(self) -> TimedOut:
        limit = self._context.where.timeout
        left = [name for name in self._ids if name in self._open]
        what = f"The task {left[0]} has" if len(left) == 1 else f"{len(left)} tasks have"
        return TimedOut("wait_timeout", f"{what} not ended within {limit:g} s.", ids=left)


def _mapping(value: object) -> Document:
    return value if isinstance(value, dict) else {}


INVOCATION_ENDS = ("succeeded", "failed", "timed_out", "canceled", "dead")


def wait_for_invocation(context: Context, path: str, invocation_id: str) -> Document:
    """The invocation as it ended. Looked at first: then its whole story is followed from the beginning of the log, and
    what happens between the two is in it."""
    server, limit = context.server(), context.where.timeout
    found = server.get(path)
    if found.get("status") in INVOCATION_ENDS:
        return found
    types = ",".join(f"invocation.{end}" for end in INVOCATION_ENDS)
    follower = Follower(
        lambda: again(context.where, context.environ),
        context.in_zone("events"),
        {"after": 0, "types": types, "subject": invocation_id},
        context.note,
        None,
    )
    follower.deadline = None if limit is None else time.monotonic() + limit
    try:
        next(message for message in follower.messages(server) if message.event != "reset")
    except Late:
        raise TimedOut(
            "wait_timeout", f"The invocation {invocation_id} has not ended within {limit:g} s.", id=invocation_id
        ) from None
    # By a connection of its own: the other one is taken by a stream that has no end.
    return context.server().get(path)
