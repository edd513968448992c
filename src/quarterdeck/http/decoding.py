"""Decodes bodies and queries.

The size of a body is limited while it is read. msgspec decodes it into the route's type, and an error names the path of
the field. Values that only one of the two database engines would refuse are refused here for both: U+0000, lone
surrogates, and integers beyond 64 bits. Nesting deeper than 64 levels is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl

import msgspec

from quarterdeck.core.errors import Invalid, Problem, TooLarge
from quarterdeck.http import suggestions
from quarterdeck.http.request import BodyTooLarge, Request

BODY_BYTES_MAX = 256 * 1024
QUERY_BYTES_MAX = 8 * 1024
DEPTH_MAX = 64
_SUSPICIOUS_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89abAB])")
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_STRING_LITERAL = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""Matches text without escapes in one step: matching it byte by byte took four times as long."""
_NON_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
_ERROR_PATH = re.compile(r" - at `\$\.?(.*?)`$")


async def read_body(request: Request, content_length: int | None, max_bytes: int | None = None) -> bytes:
    """Read the complete body. Raises TooLarge as soon as it is known to exceed `max_bytes` (None: `BODY_BYTES_MAX`)."""
    max_bytes = BODY_BYTES_MAX if max_bytes is None else max_bytes
    if content_length is not None and content_length > max_bytes:
        raise _too_large(max_bytes)
    try:
        return await request.read_body(max_bytes)
    except BodyTooLarge:
        raise _too_large(max_bytes) from None


def decode_body(decoder: msgspec.json.Decoder[object], body: bytes) -> object:
    """Decode a body into the route's type. An empty body counts as `{}`, so that the error names the missing field."""
    raw = body if body.strip() else b"{}"
    # A body with at most `DEPTH_MAX` opening brackets cannot be nested too deeply.
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX:
        _check_depth(raw)
    try:
        if not raw.isascii():
            # The decoder skips unknown fields without checking that they are UTF-8.
            raw.decode()
        if may_be_unstorable(raw):
            check_storable(msgspec.json.decode(raw))
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise to_problem(error, decoder.type) from None
    except (UnicodeDecodeError, RecursionError):
        raise Invalid("invalid_body", "The body is not JSON in UTF-8.") from None


def may_be_unstorable(raw: bytes) -> bool:
    """Whether a body may contain an escaped U+0000 or surrogate, or an integer beyond 64 bits.

    This runs for every body, so it must be fast: a regular expression for the numbers costs more than decoding the
    body.
    """
    return (b"\\u" in raw and _SUSPICIOUS_ESCAPE.search(raw) is not None) or _LONG_NUMBER in raw.translate(
        _DIGITS_TO_ZERO
    )


def decode_query(raw: bytes, query_type: type[msgspec.Struct]) -> object:
    """Decode a query string into the route's type.

    If a parameter is repeated, its last value counts. The type decides whether unknown parameters are refused.
    """
    if len(raw) > QUERY_BYTES_MAX:
        raise Invalid("invalid_query", f"The query is longer than {QUERY_BYTES_MAX} bytes.")
    try:
        pairs = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100))
    except (UnicodeDecodeError, ValueError):
        raise Invalid(
            "invalid_query", "The query is not percent-encoded UTF-8, or has more than 100 parameters."
        ) from None
    check_storable(pairs)
    try:
        return msgspec.convert(pairs, query_type, strict=False)
    except msgspec.ValidationError as error:
        raise to_problem(error, query_type, "invalid_query") from None


def to_problem(error: msgspec.DecodeError, target_type: object, code: str = "invalid_body") -> Problem:
    """Convert a msgspec error to a problem with the path of the field, and a suggestion for an unknown name."""
    text = str(error)
    path_match = _ERROR_PATH.search(text)
    path = path_match[1] if path_match is not None else ""
    message = _ERROR_PATH.sub("", text)
    name = suggestions.unknown_name(message)
    if name is not None and isinstance(target_type, type) and issubclass(target_type, msgspec.Struct):
        noun = "parameter" if code == "invalid_query" else "field"
        detail = suggestions.unknown_name_detail(noun, name, suggestions.field_names_at(target_type, path))
        short_name = name[: suggestions.NAME_CHARACTERS_MAX]
        return Invalid(code, detail, field=f"{path}.{short_name}" if path else short_name)
    if path_match is None:
        return Invalid(code, f"{text}.")
    return Invalid(code, f"{message}.", field=path or "$")


def check_storable(value: object) -> None:
    """Refuse characters and numbers that only one of the two database engines can store."""
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            if "\x00" in leaf:
                raise Invalid("invalid_characters", "Text must not contain U+0000.")
            if not leaf.isascii() and any("\ud800" <= c <= "\udfff" for c in leaf):
                raise Invalid("invalid_characters", "Text must not contain lone surrogates.")
        elif isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
            raise Invalid("invalid_number", "Integers must fit into 64 bits.")


def _leaves(value: object) -> Iterator[object]:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            pending += current.keys()
            pending += current.values()
        elif isinstance(current, list):
            pending += current
        else:
            yield current


def _check_depth(raw: bytes) -> None:
    depth = 0
    # Everything but brackets is removed first: in a body with 1,000 tasks, only one byte in 50 is a bracket.
    for byte in _STRING_LITERAL.sub(b"", raw).translate(None, _NON_BRACKETS):
        if byte in b"{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise Invalid("invalid_body", f"The body is nested deeper than {DEPTH_MAX} levels.")
        else:
            depth -= 1


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge("body_too_large", f"The body is larger than {max_bytes} bytes.", limit=max_bytes)
