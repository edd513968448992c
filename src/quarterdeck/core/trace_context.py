"""W3C Trace Context: what of a `traceparent` is kept.

A header that does not parse is ignored, as the standard asks: whoever traces must never break what is traced. A
version later than ours may say more behind the four fields we know; those four are what we keep, as version 00.
`tracestate` is other vendors' business. Nothing here reads it, so it is dropped.
"""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<known>(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?P<more>-.*)?"
)
TRACEPARENT_MAX = 512
"""Longer than any version is likely to be."""


def parse_traceparent(header: str) -> str | None:
    """The traceparent to keep and to pass on, or None where there is none that can be understood."""
    found = _TRACEPARENT.fullmatch(header) if len(header) <= TRACEPARENT_MAX else None
    if found is None or (found["more"] and found["version"] == "00"):
        return None
    return f"00-{found['known']}"


def trace_id_of(traceparent: str) -> str:
    """The id of the trace itself, which is what logs are searched by."""
    return traceparent[3:35]
