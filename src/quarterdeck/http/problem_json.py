"""Problems as HTTP responses: an RFC 9457 body with the problem's code in the member `error`."""

from __future__ import annotations

import msgspec

from quarterdeck.core.errors import Problem

CONTENT_TYPE = b"application/problem+json"


def encode_body(problem: Problem, request_id: str) -> bytes:
    """Encode the members of RFC 9457, the error code, the request id and the problem's own members such as `limit`."""
    members: dict[str, object] = {
        "type": f"urn:quarterdeck:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "error": problem.code,
        "request_id": request_id,
        **problem.members,
    }
    return msgspec.json.encode(members)


def problem_headers(problem: Problem) -> list[tuple[bytes, bytes]]:
    result = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
    if problem.retry_after is not None:
        result.append((b"retry-after", str(problem.retry_after).encode()))
    if problem.status == 401:
        result.append((b"www-authenticate", f'Bearer error="{problem.code}"'.encode()))
    return result
