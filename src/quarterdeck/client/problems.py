"""Which kind of `core.errors` an answer is, and how a problem looks as a document.

The server turns a `Problem` into `application/problem+json`; this is the way back, so that whoever calls
through the client handles the same kinds, codes and members as whoever calls an operation directly.
"""

from __future__ import annotations

import json

from quarterdeck.client.http_types import Response, TimedOut
from quarterdeck.core.errors import Internal, OutcomeUnknown, Problem, Refusal, Unavailable, concrete_types

_BASE_FIELDS = frozenset({"error", "detail"})


class UnknownRefusal(Refusal):
    """A 4xx that no kind of ours stands for: something between us and the server said it."""

    status = 400
    title = "Refused"


def problem_from_response(response: Response) -> Problem:
    """The problem an answer of 300 or more tells."""
    problem = problem_from_document(response.status, _decode_document(response.body))
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isascii() and retry_after.isdigit():
        problem.members.setdefault("retry_after", int(retry_after))
    return problem


def problem_from_document(status: int, document: dict[str, object]) -> Problem:
    """The problem that a document tells: that of an answer, or of one item among many."""
    code, detail = document.get("error"), document.get("detail")
    problem = _problem_type(status, code)(
        code if isinstance(code, str) else f"http_{status}",
        detail if isinstance(detail, str) else f"The server answered {status} without saying why.",
    )
    problem.members["status"] = status
    problem.members.update((name, value) for name, value in document.items() if name not in _BASE_FIELDS)
    return problem


def problem_to_document(problem: Problem) -> dict[str, object]:
    """The same form for the server's problems and for those that arose on this side."""
    base_fields: dict[str, object] = {"type": "about:blank", "title": problem.title, "status": problem.status}
    return {**base_fields, "detail": problem.detail, "error": problem.code, **problem.members}


def _problem_type(status: int, code: object) -> type[Problem]:
    if code == "outcome_unknown":
        return OutcomeUnknown
    if status == 504:
        return TimedOut  # a proxy's clock ran out, which is the same to us
    # Parents come before their subclasses, so the plainest kind of a status is found first.
    for kind in [*concrete_types(Refusal), *concrete_types(Unavailable)]:
        if kind.status == status:
            return kind
    return UnknownRefusal if status < 500 else Internal


def _decode_document(body: bytes) -> dict[str, object]:
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
