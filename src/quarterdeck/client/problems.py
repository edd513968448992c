"""Which kind of `core.errors` an answer is, and how a problem looks as a document.

The server turns a `Problem` into `application/problem+json`; this is the way back, so that whoever calls
through the client handles the same kinds, codes and members as whoever calls an operation directly.
"""

from __future__ import annotations

import json

from quarterdeck.client.http_types import Answer, TimedOut
from quarterdeck.core.errors import Internal, OutcomeUnknown, Problem, Refusal, Unavailable, leaves

_NOT_MEMBERS = frozenset({"error", "detail"})


class OddRefusal(Refusal):
    """A 4xx that no kind of ours stands for: something between us and the server said it."""

    status = 400
    title = "Refused"


def from_answer(answer: Answer) -> Problem:
    """The problem an answer of 300 or more tells."""
    problem = from_document(answer.status, _document(answer.body))
    wait = answer.headers.get("retry-after", "")
    if wait.isascii() and wait.isdigit():
        problem.members.setdefault("retry_after", int(wait))
    return problem


def from_document(status: int, told: dict[str, object]) -> Problem:
    """The problem that a document tells: that of an answer, or of one item among many."""
    code, detail = told.get("error"), told.get("detail")
    problem = _kind(status, code)(
        code if isinstance(code, str) else f"http_{status}",
        detail if isinstance(detail, str) else f"The server answered {status} without saying why.",
    )
    problem.members["status"] = status
    problem.members.update((name, value) for name, value in told.items() if name not in _NOT_MEMBERS)
    return problem


def to_document(problem: Problem) -> dict[str, object]:
    """The same form for the server's problems and for those that arose on this side."""
    head: dict[str, object] = {"type": "about:blank", "title": problem.title, "status": problem.status}
    return {**head, "detail": problem.detail, "error": problem.code, **problem.members}


def _kind(status: int, code: object) -> type[Problem]:
    if code == "outcome_unknown":
        return OutcomeUnknown
    if status == 504:
        return TimedOut  # a proxy's clock ran out, which is the same to us
    # Parents come before their subclasses, so the plainest kind of a status is found first.
    for kind in [*leaves(Refusal), *leaves(Unavailable)]:
        if kind.status == status:
            return kind
    return OddRefusal if status < 500 else Internal


def _document(body: bytes) -> dict[str, object]:
    try:
        told: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
