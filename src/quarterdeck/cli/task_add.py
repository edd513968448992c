"""`qd task add`: adds one task from the command line, or many from a file."""

from __future__ import annotations

import json
import sys
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
    Group,
    Option,
    choice,
    key_option,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.input import FUTURE_TIME, JSON_INPUT, JSON_INPUT_HELP, read_input
from quarterdeck.cli.output import cell, to_json_line
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import EXIT_FAILED, Problem

GROUP = Group("task")
_MAX_BATCH_TASKS = 1_000
_MAX_BATCH_BYTES = 16 << 20
"""The server accepts at most this many tasks and bytes (16 MiB) in one request."""


@GROUP.command(
    "add",
    "Add a task and print its id.",
    Argument("title", "TITLE", TEXT, required=False, field="title"),
    Option("--type", "Task type, such as development or research.", TEXT, field="taskType"),
    Option("--description", "Full description of the work.", TEXT, field="description"),
    Option("--priority", "Priority, 1 (low) to 10 (high) [default: 5].", NUMBER, field="priority"),
    Option("--input", f"Input for the agent: {JSON_INPUT_HELP}.", JSON_INPUT, field="inputContext"),
    Option("--depends-on", "Task that must be completed first; repeatable.", ID, many=True, field="dependsOn"),
    Option(
        "--on-dependency-failure",
        "What to do if a dependency fails [default: fail].",
        choice("fail", "run"),
        field="onDependencyFailure",
    ),
    Option(
        "--capability",
        "Capability that the agent must have; repeatable.",
        TEXT,
        many=True,
        field="requiredCapabilities",
    ),
    Option("--tag", "Tag to find the task by; repeatable.", TEXT, many=True, field="tags"),
    Option("--max-retries", "Maximum number of retries, 0 to 100 [default: 3].", NUMBER, field="maxRetries"),
    Option(
        "--backoff",
        "Delay before the second attempt; doubles each time [default: 5m].",
        DURATION,
        field="retryBackoffSeconds",
    ),
    Option(
        "--run-at",
        "Earliest start: a time, or +10m for 10 minutes from now [default: now].",
        FUTURE_TIME,
        field="runAt",
    ),
    Option(
        "--deadline",
        "Time limit for each attempt, such as 90s or 15m [default: no limit].",
        DURATION,
        field="timeoutSeconds",
    ),
    Option("--estimate", "Estimated duration in minutes.", NUMBER, field="estimatedDurationMinutes"),
    Option("--metadata", "JSON object to store with the task.", JSON_OBJECT, field="metadata"),
    Option("--id", "Task id [default: generated].", ID, field="id"),
    key_option("task"),
    Option("--file", "File of tasks, one JSON object per line; - for standard input.", FILE),
    Option("--wait", "Wait until the task ends, as `qd task wait` does; --timeout limits the wait."),
    description=(
        "Without --key, each run adds a new task. With --file, each line is a JSON object as in the API "
        '({"title": …, "taskType": …, "dependsOn": […]}); options apply to each line that does not set the '
        'field itself. A task may depend on another task in the file by its "id" if that task is in the same '
        "request (up to 1,000 lines) or an earlier one. The ids are printed in the order of the lines. Exits "
        "1 if a task was refused."
    ),
)
def add(context: Context) -> int:
    # Only the id goes to stdout, so that a script can use it: qd task wait $(qd task add …)
    if context.text("file") is not None:
        return _add_many(context, context.required_text("file"))
    if context.text("title") is None or context.text("type") is None:
        raise usage_error(
            'Give a TITLE and --type, or --file FILE. Example: qd task add "Fix the build" --type development'
        )
    path, key = context.api_path("agent-tasks"), context.idempotency_key()
    reply = context.server().call("POST", path, body=context.body(), key=key)
    task_id = cell(reply.document.get("id"))
    if context.flag("wait"):
        context.note(f"Added task {task_id}.")
        from quarterdeck.cli.task import wait_and_print_results

        return wait_and_print_results(context, [task_id])
    context.show(reply.document, task_id)
    if sys.stdout.isatty():
        context.hint(f"Wait for it with `qd task wait {task_id}`. See its state with `qd explain task {task_id}`.")
    return 0


# -- tasks from a file ---------------------------------------------------------------------------------------------


class TaskLine(NamedTuple):
    number: int
    task: Document


def _add_many(context: Context, file: str) -> int:
    if any(context.text(name) is not None for name in ("title", "id")):
        raise usage_error("--file cannot be combined with TITLE or --id: the file has the titles and ids.")
    if file == "-" and context.text("input") == "-":
        raise usage_error("--file and --input cannot both be -: standard input can be read only once.")
    lines = read_lines(file, context.body())
    sender = _BatchSender(context, "standard input" if file == "-" else file, len(lines))
    try:
        for index, batch in enumerate(split_into_batches(lines)):
            sender.send(batch, index)
    finally:
        sender.bars.clear()
        if not context.flag("wait"):
            # After an error too: the user needs the ids of the tasks that were already added.
            sender.show()
    if context.flag("wait"):
        from quarterdeck.cli.task import wait_and_print_results

        context.note(f"Added {len(sender.ids)} of {len(lines)} tasks.")
        exit_code = wait_and_print_results(context, sender.ids) if sender.ids else 0
        return exit_code if len(sender.ids) == len(lines) else EXIT_FAILED
    return 0 if len(sender.ids) == len(lines) else EXIT_FAILED


def read_lines(file: str, defaults: Document) -> list[TaskLine]:
    """Read the tasks from a file. One invalid line fails the command before any task is added."""
    source, text = read_input("-" if file == "-" else f"@{file}")
    lines: list[TaskLine] = []
    # Not splitlines(): it also splits at characters that JSON allows in a string.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            decoded: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise usage_error(f"{source}, line {number}: not valid JSON: {error}.") from None
        if not isinstance(decoded, dict):
            raise usage_error(f'{source}, line {number}: not a JSON object. Example: {{"title": "…"}}.')
        lines.append(TaskLine(number, {**defaults, **decoded}))
    return lines


def split_into_batches(lines: Sequence[TaskLine]) -> Iterator[list[TaskLine]]:
    batch: list[TaskLine] = []
    batch_bytes = 0
    for line in lines:
        line_bytes = len(to_json_line(line.task).encode())
        if batch and (len(batch) == _MAX_BATCH_TASKS or batch_bytes + line_bytes > _MAX_BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(line)
        batch_bytes += line_bytes
    if batch:
        yield batch


class _BatchSender:
    """Sends batches of lines and collects the outcomes."""

    def __init__(self, context: Context, file: str, total: int) -> None:
        self._context = context
        self._file = file
        self._total = total
        self._server = context.server()
        self._key = context.idempotency_key()
        from quarterdeck.cli.progress_bars import stderr_bars  # imported here: adding one task does not need it

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
        """Prefix the problem's text with its line number in the file, if the problem names a task in the request."""
        import re  # the import takes 5 ms, and few tasks are refused

        match = re.match(r"(?:\$\.)?tasks\[(\d+)\]", str(problem.members.get("field")))
        if match is None or int(match[1]) >= len(batch):
            return problem.detail
        return f"{self._file}, line {batch[int(match[1])].number}: {problem.detail}"
