"""Reads histories from files: JSON Lines, one call per line, in the format of `docs/checking.md`.

A line that cannot be read stops the check with an error that names the line: a check that skipped lines would prove
less than it claims. Only the last line of a file may be incomplete, because a client may be killed while it is writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from quarterdeck.core.errors import Invalid
from quarterdeck.maintenance.history_checker.model import CallRequest, CallResponse, HistoryLine, Op, RecordedCall

LINE_MAX_BYTES = 32 << 20
"""Enough for a claim of 100 invocations with all their content."""
OPS = frozenset(Op)
_decode_line = msgspec.json.Decoder(HistoryLine).decode
_decode_request = msgspec.json.Decoder(CallRequest).decode
_decode_response = msgspec.json.Decoder(CallResponse | None).decode


class History(msgspec.Struct, frozen=True):
    calls: list[RecordedCall]
    truncated_file_count: int = 0
    """The number of files whose last line is incomplete."""


def read_histories(files: Sequence[Path]) -> History:
    calls: list[RecordedCall] = []
    truncated_file_count = 0
    for file in files:
        try:
            with file.open("rb") as handle:
                for call in _read_calls(handle, file):
                    if call is None:
                        truncated_file_count += 1
                    else:
                        calls.append(call)
        except OSError as error:
            raise Invalid("invalid_history", f"{file} cannot be read: {error.strerror}.") from error
    return History(_merge_duplicates(calls), truncated_file_count)


def _read_calls(handle: BinaryIO, file: Path) -> Iterator[RecordedCall | None]:
    """Yield the calls in a file, then None if the last line is incomplete."""
    line_number = 0
    while raw := handle.readline(LINE_MAX_BYTES):
        line_number += 1
        if not raw.strip():
            continue
        try:
            call = _to_call(_decode_line(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not raw.endswith(b"\n") and len(raw) < LINE_MAX_BYTES:
                yield None
                return
            raise _invalid_line(file, line_number, str(error)) from None
        if call.ended < call.started:
            raise _invalid_line(file, line_number, "`ended` is before `started`")
        if call.is_write_ahead and call.status is not None:
            raise _invalid_line(file, line_number, "a line with `before` must have a null status")
        call.file, call.line = file.name, line_number
        yield call


def _to_call(line: HistoryLine) -> RecordedCall:
    """Convert a line to a call. Request and response are decoded only if an invariant uses the call."""
    is_checked = line.op in OPS
    return RecordedCall(
        line.client,
        line.seq,
        line.started,
        line.ended,
        line.op,
        line.zone,
        line.status,
        _decode_request(line.asked) if is_checked else CallRequest(),
        _decode_response(line.answer) if is_checked else None,
        line.session,
        is_write_ahead=line.before,
    )


def _merge_duplicates(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Replace a line written before its request with the later line for the same call. Other duplicates are errors."""
    seen: dict[tuple[str, int], RecordedCall] = {}
    for call in calls:
        first = seen.get((call.client, call.seq))
        if first is not None and (call.is_write_ahead or not first.is_write_ahead):
            raise Invalid(
                "invalid_history", f"{first.location} and {call.location} both have seq {call.seq} of {call.client}."
            )
        seen[call.client, call.seq] = call
    return [*seen.values()]


def _invalid_line(file: Path, line_number: int, reason: str) -> Invalid:
    return Invalid("invalid_history", f"{file}:{line_number} is not a valid call: {reason}.")
