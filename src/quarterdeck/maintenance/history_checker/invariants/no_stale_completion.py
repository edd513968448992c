"""No stale completion was accepted.

Which attempt a token is of is known by the answer that handed it out. A completion that was accepted must be how that
very attempt ended. If the log says that it had ended otherwise (its lease ran out, its deadline passed, it was given
back), whoever completed it was no longer its holder.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.attempts import accepted_completions
from quarterdeck.maintenance.history_checker.model import Evidence, Violation

NAME = "stale"


def check(evidence: Evidence) -> Iterator[Violation]:
    for completion in accepted_completions(evidence):
        call = completion.call
        # Without any end of its own it is not stale but lost, which is another promise.
        if not completion.own_ends or any(end.verb in completion.expected_verbs for end in completion.own_ends):
            continue
        last = completion.own_ends[-1]
        expected = " or ".join(sorted(completion.expected_verbs))
        detail = (
            f"attempt {completion.attempt} of {call.request.id} ended as {last.verb}, and {call.client}, who bore its token, "
            f"was told that it was {expected}"
        )
        yield Violation(NAME, call.zone, call.request.id or "", detail, last.pos, call.location)
