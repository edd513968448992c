"""Parses `traceparent` headers (W3C Trace Context).

A header that does not parse is ignored, as the standard requires: tracing must never break a request. A later version
may append fields. Only the fields of version 00 are kept, and they are passed on as version 00. The server ignores
`tracestate`, which is vendor-specific.
"""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<known>(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?P<more>-.*)?"
)
TRACEPARENT_MAX = 512
"""In characters: longer than a header of any future version is likely to be."""


def parse_traceparent(header: str) -> str | None:
    """The traceparent to store and to pass on, or None if the header is invalid."""
    match = _TRACEPARENT.fullmatch(header) if len(header) <= TRACEPARENT_MAX else None
    if match is None or (match["more"] and match["version"] == "00"):
        return None
    return f"00-{match['known']}"


def trace_id_of(traceparent: str) -> str:
    """The trace id, by which logs are searched."""
    return traceparent[3:35]
