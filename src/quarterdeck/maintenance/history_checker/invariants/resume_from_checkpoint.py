"""Whoever began an attempt was given what was last saved of the task.

What was saved is known by the histories: a checkpoint whose call was acknowledged was kept, one whose outcome nobody
knows may have been. So what an attempt is given is the last that was acknowledged before it, or one that may have been
kept after that. A client that may be killed in the middle of a call writes it down before (`before`): else nobody could
know of a checkpoint that it saved with its last breath.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.maintenance.history_checker.attempts import numbers, token_of
from quarterdeck.maintenance.history_checker.model import Call, Evidence, Finding, Op, Outcome, Ref
from quarterdeck.maintenance.history_checker.task_model import NO_CHECKPOINT, TaskLease

NAME = "resumed"


@dataclass(frozen=True, slots=True)
class Saved:
    attempt: int
    call: Call
    content: bytes
    is_known: bool
    """Whether it was acknowledged."""

    def comes_after(self, other: Saved) -> bool:
        """For certain: what one client sends at once may be kept in any order."""
        if self.attempt != other.attempt:
            return self.attempt > other.attempt
        return self.call.client == other.call.client and self.call.started > other.call.ended


def judge(evidence: Evidence) -> Iterator[Finding]:
    saved, known = _saved(evidence), _known_whole(evidence)
    for call in evidence.history:
        if call.op != Op.TASK_CLAIM or call.outcome is not Outcome.DONE or call.work is None:
            continue
        for lease in call.work.leases:
            if known is not None and (call.zone, lease.id) not in known:
                continue
            may_be = _possible(saved.get((call.zone, lease.id), ()), lease)
            if _canonical(lease.checkpoint_data) not in may_be:
                detail = (
                    f"attempt {lease.attempt} of {lease.id} was not given what was last saved "
                    f"({_shown(may_be)}), but {_shown([_canonical(lease.checkpoint_data)])}"
                )
                yield Finding(NAME, call.zone, lease.id, detail, call=call.where)


def _known_whole(evidence: Evidence) -> set[Ref] | None:
    """The tasks of which everything that was saved may be judged; None: all. Of one that is older than the log that is
    left, calls are missing."""
    if evidence.whole:
        return None
    return {(event.zone_id, event.subject) for event in evidence.log if event.type == "task.created"}


def _saved(evidence: Evidence) -> dict[Ref, list[Saved]]:
    known, found = numbers(evidence), dict[Ref, list[Saved]]()
    for call in evidence.history:
        if call.op != Op.TASK_PROGRESS or call.work is None or not call.work.asked.saves:
            continue
        attempt = known.get(token_of(call))
        if attempt is None or call.outcome is Outcome.REFUSED:
            continue
        content = _canonical(call.work.asked.checkpoint_data)
        one = Saved(attempt, call, content, call.outcome is Outcome.DONE)
        found.setdefault((call.zone, call.asked.id or ""), []).append(one)
    return found


def _possible(saved: Sequence[Saved], lease: TaskLease) -> list[bytes]:
    """What this attempt may have been given. What was saved under its own number may have been before (the attempt was
    given back and begun anew, or the claim was repeated) or not."""
    before = [each for each in saved if each.attempt < lease.attempt]
    certain = [each for each in before if each.is_known]
    left = [each for each in before if not any(other.comes_after(each) for other in certain)]
    own = [each for each in saved if each.attempt == lease.attempt]
    unsaved = [] if certain else [_canonical(NO_CHECKPOINT)]
    return unsaved + [each.content for each in (*left, *own)]


def _canonical(content: msgspec.Raw) -> bytes:
    """The same JSON is the same, however it is spelt."""
    return msgspec.json.encode(msgspec.json.decode(content), order="deterministic")


def _shown(contents: Sequence[bytes]) -> str:
    return " or ".join(content.decode()[:80] for content in contents[:3])
