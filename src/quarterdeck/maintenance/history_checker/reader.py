"""Histories from files: JSON Lines, one call each, as `docs/checking.md` has it.

A line that cannot be read stops everything with its place: a judge that passes over what it does not understand proves
less than it says. Only the last line of a file may be cut short, which is what a client leaves that was killed while it
wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from quarterdeck.core.errors import Invalid
from quarterdeck.maintenance.history_checker.model import Answer, Asked, Call, Line, Op
from quarterdeck.maintenance.history_checker.task_model import TaskAnswer, TaskAsked, Work

LINE_MAX = 32 << 20
"""Bytes. A claim of a hundred invocations with everything in them fits."""
OPS = frozenset(Op)
OF_TASKS = frozenset(op for op in Op if op.startswith("task."))
_line = msgspec.json.Decoder(Line).decode
_asked = msgspec.json.Decoder(Asked).decode
_answer = msgspec.json.Decoder(Answer | None).decode
_task_asked = msgspec.json.Decoder(TaskAsked).decode
_task_answer = msgspec.json.Decoder(TaskAnswer | None).decode


class History(msgspec.Struct, frozen=True):
    calls: list[Call]
    cut: int = 0
    """Files whose last line was not whole."""


def read(files: Sequence[Path]) -> History:
    calls: list[Call] = []
    cut = 0
    for file in files:
        try:
            with file.open("rb") as handle:
                for call in _lines(handle, file):
                    if call is None:
                        cut += 1
                    else:
                        calls.append(call)
        except OSError as error:
            raise Invalid("invalid_history", f"{file} cannot be read: {error.strerror}.") from error
    return History(_told_once(calls), cut)


def _lines(handle: BinaryIO, file: Path) -> Iterator[Call | None]:
    number = 0
    while raw := handle.readline(LINE_MAX):
        number += 1
        if not raw.strip():
            continue
        try:
            call = _call(_line(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not raw.endswith(b"\n") and len(raw) < LINE_MAX:
                yield None
                return
            raise _wrong(file, number, str(error)) from None
        if call.ended < call.started:
            raise _wrong(file, number, "it ended before it started")
        if call.before and call.status is not None:
            raise _wrong(file, number, "it was written before the call, and has its answer")
        call.file, call.line = file.name, number
        yield call


def _call(line: Line) -> Call:
    """Of what no promise is about, only that it was."""
    is_judged = line.op in OPS
    return Call(
        line.client,
        line.seq,
        line.started,
        line.ended,
        line.op,
        line.zone,
        line.status,
        _asked(line.asked) if is_judged else Asked(),
        _answer(line.answer) if is_judged else None,
        line.session,
        work=Work(_task_asked(line.asked), _task_answer(line.answer)) if line.op in OF_TASKS else None,
        before=line.before,
    )


def _told_once(calls: Sequence[Call]) -> list[Call]:
    """One call told twice would count as two; but what was written before it gives way to what was written after."""
    met: dict[tuple[str, int], Call] = {}
    for call in calls:
        first = met.get((call.client, call.seq))
        if first is not None and (call.before or not first.before):
            raise Invalid(
                "invalid_history", f"{first.where} and {call.where} are both call {call.seq} of {call.client}."
            )
        met[call.client, call.seq] = call
    return [*met.values()]


def _wrong(file: Path, number: int, why: str) -> Invalid:
    return Invalid("invalid_history", f"{file}:{number} is not a call: {why}.")
