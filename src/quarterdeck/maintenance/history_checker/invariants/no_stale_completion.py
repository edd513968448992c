"""No stale completion was accepted.

Which attempt a token is of is known by the answer that handed it out. A completion that was accepted must be how that
very attempt ended. If the log says that it had ended otherwise (its lease ran out, its deadline passed, it was given
back), whoever completed it was no longer its holder.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.attempts import accepted
from quarterdeck.maintenance.history_checker.model import Evidence, Finding

NAME = "stale"


def judge(evidence: Evidence) -> Iterator[Finding]:
    for taken in accepted(evidence):
        call = taken.call
        # Without any end of its own it is not stale but lost, which is another promise.
        if not taken.own or any(end.verb in taken.wanted for end in taken.own):
            continue
        last = taken.own[-1]
        told = " or ".join(sorted(taken.wanted))
        detail = (
            f"attempt {taken.attempt} of {call.asked.id} ended as {last.verb}, and {call.client}, who bore its token, "
            f"was told that it was {told}"
        )
        yield Finding(NAME, call.zone, call.asked.id or "", detail, last.pos, call.where)
