"""An attempt of a task gets the last saved checkpoint.

The histories show what was saved. A checkpoint whose call was acknowledged is stored; one whose outcome is unknown may
be. So an attempt must get the last checkpoint that was acknowledged before it, or a later one with an unknown outcome.
A client that may be killed during a call records the call before it sends the request (`before`). Otherwise its last
checkpoint would be missing from the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.ids import Ref
from quarterdeck.maintenance.history_checker.attempts import attempt_numbers, attempt_token_of
from quarterdeck.maintenance.history_checker.model import (
    NO_CHECKPOINT,
    Evidence,
    Op,
    Outcome,
    RecordedCall,
    TaskLease,
    Violation,
)

NAME = "resumed"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    attempt: int
    call: RecordedCall
    content: bytes
    is_acknowledged: bool

    def comes_after(self, other: SavedCheckpoint) -> bool:
        """Whether it was certainly saved later. Concurrent calls of one client may be stored in any order."""
        if self.attempt != other.attempt:
            return self.attempt > other.attempt
        return self.call.client == other.call.client and self.call.started > other.call.ended


def check(evidence: Evidence) -> Iterator[Violation]:
    checkpoints, complete_tasks = _saved_checkpoints(evidence), _tasks_with_full_history(evidence)
    for call in evidence.successful_calls(Op.TASK_CLAIM):
        for lease in call.response.tasks:
            if complete_tasks is not None and (call.zone, lease.id) not in complete_tasks:
                continue
            possible = _possible_checkpoints(checkpoints.get((call.zone, lease.id), ()), lease)
            received = _canonical(lease.checkpoint_data)
            if received not in possible:
                detail = (
                    f"attempt {lease.attempt} of {lease.id} got {_format_contents([received])} "
                    f"instead of the last saved checkpoint ({_format_contents(possible)})"
                )
                yield Violation(NAME, call.zone, lease.id, detail, call=call.location)


def _tasks_with_full_history(evidence: Evidence) -> set[Ref] | None:
    """The tasks whose checkpoints can be checked. None: all tasks.

    If a task was created before the oldest stored event, some of its calls are missing.
    """
    if evidence.is_log_complete:
        return None
    return {(event.zone_id, event.subject) for event in evidence.log if event.type == "task.created"}


def _saved_checkpoints(evidence: Evidence) -> dict[Ref, list[SavedCheckpoint]]:
    numbers_by_token, checkpoints = attempt_numbers(evidence), dict[Ref, list[SavedCheckpoint]]()
    for call in evidence.history:
        if call.op != Op.TASK_PROGRESS or not call.request.has_checkpoint:
            continue
        attempt = numbers_by_token.get(attempt_token_of(call))
        if attempt is None or call.outcome is Outcome.REFUSED:
            continue
        content = _canonical(call.request.checkpoint_data)
        checkpoint = SavedCheckpoint(attempt, call, content, call.outcome is Outcome.DONE)
        checkpoints.setdefault((call.zone, call.request.id or ""), []).append(checkpoint)
    return checkpoints


def _possible_checkpoints(checkpoints: Sequence[SavedCheckpoint], lease: TaskLease) -> list[bytes]:
    """The checkpoints that this attempt may have received.

    Checkpoints with the attempt's own number may have been saved before the claim: the attempt was released and started
    again, or the claim was repeated.
    """
    earlier = [checkpoint for checkpoint in checkpoints if checkpoint.attempt < lease.attempt]
    acknowledged = [checkpoint for checkpoint in earlier if checkpoint.is_acknowledged]
    not_superseded = [
        checkpoint for checkpoint in earlier if not any(other.comes_after(checkpoint) for other in acknowledged)
    ]
    same_attempt = [checkpoint for checkpoint in checkpoints if checkpoint.attempt == lease.attempt]
    initial = [] if acknowledged else [_canonical(NO_CHECKPOINT)]
    return initial + [checkpoint.content for checkpoint in (*not_superseded, *same_attempt)]


def _canonical(content: msgspec.Raw) -> bytes:
    """Equal JSON values have equal bytes, whatever their formatting."""
    return msgspec.json.encode(msgspec.json.decode(content), order="deterministic")


def _format_contents(contents: Sequence[bytes]) -> str:
    return " or ".join(content.decode()[:80] for content in contents[:3])
