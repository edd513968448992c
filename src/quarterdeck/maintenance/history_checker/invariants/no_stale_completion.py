"""No completion with the token of an ended attempt is accepted.

The response that returned a token shows its attempt. An accepted completion must be the end of that attempt in the
event log. If the attempt ended in another way (its lease expired, its deadline passed, it was released), the client
that completed it was no longer its holder.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.maintenance.history_checker.attempts import accepted_completions
from quarterdeck.maintenance.history_checker.model import Evidence, Violation

NAME = "stale"


def check(evidence: Evidence) -> Iterator[Violation]:
    for completion in accepted_completions(evidence):
        call = completion.call
        # An attempt without an end is not stale but lost: the invariant `acknowledged` reports it.
        if not completion.own_ends or any(end.verb in completion.expected_verbs for end in completion.own_ends):
            continue
        last = completion.own_ends[-1]
        expected = " or ".join(sorted(completion.expected_verbs))
        detail = (
            f"attempt {completion.attempt} of {call.request.id} ended as {last.verb}, but {call.client} sent its token "
            f"and got the response {expected}"
        )
        yield Violation(NAME, call.zone, call.request.id or "", detail, last.pos, call.location)
