"""Whoever begins after another's answer comes after it in the log.

An answer is given after the commit, and positions are in the order of commits. So what a call made that began after
another had been answered stands behind it; also when the two were answered by different servers. It holds between
calls whose times are of one clock, which those of one file are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.maintenance.history_checker.invariants.no_lost_acks import MADE
from quarterdeck.maintenance.history_checker.model import Call, Evidence, Finding, Op, Outcome
from quarterdeck.maintenance.history_checker.replay import Lives, reading

NAME = "order"


@dataclass(frozen=True, slots=True)
class _Placed:
    call: Call
    pos: int
    is_own: bool
    """Whether this very call caused it: of an ending only somebody did, before the answer."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    by_file: dict[str, list[_Placed]] = {}
    for placed in _placed(evidence):
        by_file.setdefault(placed.call.file, []).append(placed)
    for calls in by_file.values():
        yield from _inverted(calls)


def _placed(evidence: Evidence) -> Iterator[_Placed]:
    """Calls whose effect has a position."""
    made: dict[tuple[str, str, str], Call] = {}
    for call in evidence.history:
        if call.op in MADE and call.created and call.said.id:
            made.setdefault((MADE[call.op], call.zone, call.said.id), call)
    lives = Lives(evidence)
    for event, told in reading(evidence):
        lives.feed(event, told)
        # Once: a service may be registered again later, by somebody else.
        if maker := made.pop((event.type, event.zone_id, event.subject), None):
            yield _Placed(maker, event.pos, is_own=True)
    for call in evidence.history:
        if call.op == Op.TERMINATE and call.outcome is Outcome.DONE:
            life = lives.get(call.zone, call.asked.id)
            if life and life.ended_pos is not None:
                yield _Placed(call, life.ended_pos, is_own=False)


def _inverted(calls: Sequence[_Placed]) -> Iterator[Finding]:
    answered = sorted(calls, key=lambda placed: placed.call.ended)
    last: _Placed | None = None
    done = 0
    for later in sorted(calls, key=lambda placed: placed.call.started):
        while done < len(answered) and answered[done].call.ended < later.call.started:
            if last is None or answered[done].pos > last.pos:
                last = answered[done]
            done += 1
        if later.is_own and last is not None and later.pos < last.pos:
            call, before = later.call, last.call
            name = call.said.id or ""
            detail = (
                f"{name} stands at {later.pos}, though it was asked for when {before.said.id or before.asked.id}, at "
                f"{last.pos}, had been answered ({before.where})"
            )
            yield Finding(NAME, call.zone, name, detail, later.pos, call.where)
