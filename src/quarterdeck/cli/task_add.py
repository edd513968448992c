"""`qd task add`: one task from the command line, or many from a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quarterdeck.cli.command_table import (
    DURATION,
    FILE,
    ID,
    JSON_OBJECT,
    NUMBER,
    TEXT,
    Argument,
    Command,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import JSON_INPUT_HELP, idempotency_key, json_option, read_input, without_none
from quarterdeck.cli.output import as_json, cell
from quarterdeck.cli.time_args import FUTURE_TIME, parse_future_time
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import EXIT_FAILED, Problem

_BATCH_TASKS = 1_000
_BATCH_BYTES = 16 << 20
"""What is sent at once: as many tasks as the server takes, and not more than it reads in one piece."""


def build_command() -> Command:
    title_argument = (Argument("title", "TITLE", TEXT, required=False),)
    return Command(("task", "add"), "Add a task and print its id.", add, title_argument, _ADD_OPTIONS, _ADD_HELP)


_ADD_OPTIONS = (
    Option("--type", "What kind of work it is: development, research, …", TEXT),
    Option("--description", "What is to be done, in full.", TEXT),
    Option("--priority", "1 (low) to 10 (high) [default: 5].", NUMBER),
    Option("--input", f"What the agent is given: {JSON_INPUT_HELP}.", TEXT),
    Option("--depends-on", "A task that must be completed before; may be repeated.", ID, many=True),
    Option("--on-dependency-failure", "What to do when one of those fails [default: fail].", choice("fail", "run")),
    Option("--capability", "A capability its agent must have; may be repeated.", TEXT, many=True),
    Option("--tag", "A word to find it by; may be repeated.", TEXT, many=True),
    Option("--max-retries", "How often it is tried again, 0 to 100 [default: 3].", NUMBER),
    Option("--backoff", "How long to wait before the second attempt; it doubles [default: 5m].", DURATION),
    Option("--run-at", "Not to begin before: an instant, or +10m.", FUTURE_TIME),
    Option("--deadline", "How long one attempt may take: 90, 15m [default: no bound].", DURATION),
    Option("--estimate", "How many minutes it will take, about.", NUMBER),
    Option("--metadata", "A JSON object to keep with it.", JSON_OBJECT),
    Option("--id", "Its id [default: one is made].", ID),
    Option("--key", "Idempotency key: repeating the command gives the same task.", TEXT),
    Option("--file", "Add every line of this file (- for standard input), a task in JSON each.", FILE),
    Option("--wait", "Wait for the end, as `qd task wait` does; --timeout bounds it."),
)
_ADD_HELP = """Without --key every run is another task. With --file each line is a JSON object as the API takes it
({"title": …, "taskType": …, "dependsOn": […]}); what the options say holds for every line that does not say otherwise.
A task may depend on one of the same file by its "id", if that stands among the same 1,000 lines or above. The ids are
printed in the order of the lines; exits with 1 if any was refused."""


def add(context: Context) -> int:
    """The id alone on stdout, because it is what the next command wants: `qd task wait $(qd task add …)`."""
    if context.text("file") is not None:
        return _add_many(context, context.required_text("file"))
    if context.text("title") is None or context.text("type") is None:
        raise UsageError(
            "usage", "What is to be done, and what kind of work is it? `qd task add TITLE --type TYPE`, or --file FILE."
        )
    body = {"id": context.text("id"), "title": context.required_text("title"), **_task_fields(context)}
    key = idempotency_key(context)
    reply = context.server().call("POST", context.api_path("agent-tasks"), body=without_none(body), key=key)
    task_id = cell(reply.document.get("id"))
    if context.flag("wait"):
        context.note(f"added task {task_id}")
        from quarterdeck.cli.task import wait_for

        return wait_for(context, [task_id])
    context.show(reply.document, lambda _: task_id)
    _hint(context, f"`qd task wait {task_id}` waits for its end, `qd explain task {task_id}` says what it waits for")
    return 0


def _task_fields(context: Context) -> Document:
    run_at = context.text("run_at")
    return {
        "taskType": context.text("type"),
        "description": context.text("description"),
        "priority": context.number("priority"),
        "inputContext": json_option(context, "input"),
        "dependsOn": context.values("depends_on") or None,
        "onDependencyFailure": context.text("on_dependency_failure"),
        "requiredCapabilities": context.values("capability") or None,
        "tags": context.values("tag") or None,
        "maxRetries": context.number("max_retries"),
        "retryBackoffSeconds": context.number("backoff"),
        "runAt": None if run_at is None else parse_future_time(run_at, time.time()),
        "timeoutSeconds": context.number("deadline"),
        "estimatedDurationMinutes": context.number("estimate"),
        "metadata": context.parsed.values["metadata"],
    }


def _hint(context: Context, text: str) -> None:
    """For people, and for nobody who reads the answer with a program."""
    if not context.as_json and sys.stdout.isatty():
        context.note(text)


# -- many ----------------------------------------------------------------------------------------------------------


class TaskLine(NamedTuple):
    number: int
    task: Document


def _add_many(context: Context, file: str) -> int:
    if any(context.text(name) is not None for name in ("title", "id")):
        raise UsageError("usage", "--file stands for the titles and ids: give neither TITLE nor --id with it.")
    if file == "-" and context.text("input") == "-":
        raise UsageError("usage", "Standard input can be read once: either the tasks or --input come from it.")
    lines = read_lines(file, without_none(_task_fields(context)))
    sender = _BatchSender(context, "standard input" if file == "-" else file, len(lines))
    try:
        for index, batch in enumerate(batches(lines)):
            sender.send(batch, index)
    finally:
        sender.bars.clear()
        if not context.flag("wait"):
            # Also of what was added before something went wrong: nobody could find it again.
            sender.show()
    if context.flag("wait"):
        from quarterdeck.cli.task import wait_for

        context.note(f"added {len(sender.ids)} of {len(lines)} tasks")
        exit_code = wait_for(context, sender.ids) if sender.ids else 0
        return exit_code if len(sender.ids) == len(lines) else EXIT_FAILED
    return 0 if len(sender.ids) == len(lines) else EXIT_FAILED


def read_lines(file: str, defaults: Document) -> list[TaskLine]:
    """The tasks of a file. One that cannot be read stops them all: half of a plan is worse than none."""
    source, text = read_input("-" if file == "-" else f"@{file}")
    lines: list[TaskLine] = []
    # Not splitlines: that would also cut at characters that JSON allows within a string.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            decoded: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError("usage", f"{source}, line {number}: this is not JSON: {error}.") from None
        if not isinstance(decoded, dict):
            raise UsageError("usage", f'{source}, line {number}: this is no task, such as {{"title": "…"}}.')
        lines.append(TaskLine(number, {**defaults, **decoded}))
    return lines


def batches(lines: Sequence[TaskLine]) -> Iterator[list[TaskLine]]:
    batch: list[TaskLine] = []
    batch_bytes = 0
    for line in lines:
        line_bytes = len(as_json(line.task).encode())
        if batch and (len(batch) == _BATCH_TASKS or batch_bytes + line_bytes > _BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(line)
        batch_bytes += line_bytes
    if batch:
        yield batch


class _BatchSender:
    """What has become of the lines so far."""

    def __init__(self, context: Context, file: str, total: int) -> None:
        self._context = context
        self._file = file
        self._total = total
        self._server = context.server()
        self._key = idempotency_key(context)
        from quarterdeck.cli.progress_bars import stderr_bars  # whoever adds one does not pay for it

        self.bars = stderr_bars(not context.as_json)
        self.outcomes: list[Document] = []
        self.ids: list[str] = []

    def send(self, batch: Sequence[TaskLine], index: int) -> None:
        body: Document = {"tasks": [line.task for line in batch]}
        try:
            reply = self._server.call(
                "POST", self._context.api_path("agent-tasks"), body=body, key=f"{self._key}-{index}"
            )
        except Problem as problem:
            problem.detail = self._locate_problem(problem, batch)
            raise
        for line, outcome in zip(batch, page_items(reply.document), strict=True):
            self._record_outcome(line, outcome)
        self.bars.show_count(len(self.outcomes), self._total, "tasks")

    def show(self) -> None:
        if self._context.as_json:
            self._context.show({"items": self.outcomes}, lambda _: "")
        elif self.ids:
            self._context.write("\n".join(self.ids))

    def _record_outcome(self, line: TaskLine, outcome: Document) -> None:
        self.outcomes.append(outcome)
        if "error" not in outcome:
            self.ids.append(cell(outcome.get("id")))
        elif not self._context.as_json:
            self.bars.clear()
            self._context.note(f"{self._file}, line {line.number}: {cell(outcome.get('detail'))}")

    def _locate_problem(self, problem: Problem, batch: Sequence[TaskLine]) -> str:
        """The same refusal, with the line that it is about: the request's own count is not the file's."""
        import re  # 5 ms, and few tasks are refused

        match = re.match(r"(?:\$\.)?tasks\[(\d+)\]", str(problem.members.get("field")))
        if match is None or int(match[1]) >= len(batch):
            return problem.detail
        return f"{self._file}, line {batch[int(match[1])].number}: {problem.detail}"
