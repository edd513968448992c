"""Converts between error responses and the classes of `core.errors`.

The server encodes a `Problem` as `application/problem+json`. This module decodes it, so that clients handle the same
classes, codes and members as code inside the server.
"""

from __future__ import annotations

import json

from quarterdeck.client.http_types import Lost, Response, TimedOut
from quarterdeck.core.errors import Internal, OutcomeUnknown, Problem, Refusal, Unavailable, concrete_types

_CODE_AND_DETAIL = frozenset({"error", "detail"})


class UnknownRefusal(Refusal, status=400, title="Refused"):
    """A 3xx or 4xx status that no class of `core.errors` has, so a proxy or another program sent it."""


def problem_from_response(response: Response) -> Problem:
    """The problem in a response with status 300 or more."""
    problem = problem_from_document(response.status, _decode_document(response.body))
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isascii() and retry_after.isdigit():
        problem.members.setdefault("retry_after", int(retry_after))
    return problem


def require_event_stream(response: Response) -> None:
    if response.status >= 300:
        raise problem_from_response(response)
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise Lost("garbled_answer", "The response is not an event stream. Is this a Quarterdeck server?")


def problem_from_document(status: int, document: dict[str, object]) -> Problem:
    """The problem in a JSON document: the body of a response, or one item of a bulk response."""
    code, detail = document.get("error"), document.get("detail")
    problem = _problem_type(status, code)(
        code if isinstance(code, str) else f"http_{status}",
        detail if isinstance(detail, str) else f"The server responded with status {status} and gave no reason.",
    )
    problem.members["status"] = status
    problem.members.update((name, value) for name, value in document.items() if name not in _CODE_AND_DETAIL)
    return problem


def problem_to_document(problem: Problem) -> dict[str, object]:
    """Encode a problem as `application/problem+json`. The server's problems and this client's have the same form."""
    standard_fields: dict[str, object] = {"type": "about:blank", "title": problem.title, "status": problem.status}
    return {**standard_fields, "detail": problem.detail, "error": problem.code, **problem.members}


def _problem_type(status: int, code: object) -> type[Problem]:
    if code == "outcome_unknown":
        return OutcomeUnknown
    if status == 504:
        return TimedOut  # a proxy's time-out has the same meaning for the caller
    # Parents come before their subclasses, so the most general class with this status is found first.
    for problem_type in [*concrete_types(Refusal), *concrete_types(Unavailable)]:
        if problem_type.status == status:
            return problem_type
    return UnknownRefusal if status < 500 else Internal


def _decode_document(body: bytes) -> dict[str, object]:
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
