"""What may come in.

Bodies are bounded before they are read, decoded by msgspec against the type the route names, and refused with the
path of the field. What only one of the two engines would refuse is refused here, for both: U+0000 and lone
surrogates, integers beyond 64 bits, nesting deeper than 64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl

import msgspec

from quarterdeck.core.errors import Invalid, Problem, TooLarge
from quarterdeck.http import suggestions
from quarterdeck.http.request import Request, TooMuch

BODY_MAX = 256 * 1024
QUERY_MAX = 8 * 1024
DEPTH_MAX = 64
_ESCAPED = re.compile(rb"\\u(?:0000|[dD][89abAB])")
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
"""Spelt so that what is no escape is run through at once: byte by byte it took four times as long."""
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
_WHERE = re.compile(r" - at `\$\.?(.*?)`$")


async def read_body(request: Request, declared: int | None, most: int | None = None) -> bytes:
    """The whole body, or a refusal as soon as it is known to be too large: for this route, if it says how large one may
    be, or for any."""
    most = BODY_MAX if most is None else most
    if declared is not None and declared > most:
        raise _too_large(most)
    try:
        return await request.body(most)
    except TooMuch:
        raise _too_large(most) from None


def decode_body(decoder: msgspec.json.Decoder[object], body: bytes) -> object:
    """The body as the route's type. An empty one is an empty object: what is required is then named as missing."""
    raw = body if body.strip() else b"{}"
    # Fewer brackets than the bound cannot be nested deeper than it; only others are worth measuring.
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX:
        _check_depth(raw)
    try:
        if not raw.isascii():
            # The decoder passes over the fields it does not know without looking at their bytes.
            raw.decode()
        if is_suspicious(raw):
            check_text(msgspec.json.decode(raw))
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise explained(error, decoder.type) from None
    except (UnicodeDecodeError, RecursionError):
        raise Invalid("invalid_body", "The body is not JSON in UTF-8.") from None


def is_suspicious(raw: bytes) -> bool:
    """Whether it may hold an escaped NUL, a surrogate or a number beyond 64 bits. Every body is asked this, so it is
    asked in the fastest way: a pattern for the numbers costs more than decoding the whole."""
    return (b"\\u" in raw and _ESCAPED.search(raw) is not None) or _LONG_NUMBER in raw.translate(_AS_ZEROS)


def decode_query(raw: bytes, kind: type[msgspec.Struct]) -> object:
    """The query string as the route's type. Of a repeated parameter the last counts; whether one that is not known is
    refused or passed over is for the type to say."""
    if len(raw) > QUERY_MAX:
        raise Invalid("invalid_query", f"The query is longer than {QUERY_MAX} bytes.")
    try:
        pairs = dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100))
    except (UnicodeDecodeError, ValueError):
        raise Invalid("invalid_query", "The query is not percent-encoded UTF-8.") from None
    check_text(pairs)
    try:
        return msgspec.convert(pairs, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explained(error, kind, "invalid_query") from None


def explained(error: msgspec.DecodeError, kind: object, code: str = "invalid_body") -> Problem:
    """msgspec's complaint as a sentence, with the path of the field apart; of a name that is not known, also what may
    have been meant by it."""
    text = str(error)
    where = _WHERE.search(text)
    place = where[1] if where is not None else ""
    said = _WHERE.sub("", text)
    name = suggestions.unknown_name(said)
    if name is not None and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        thing = "parameter" if code == "invalid_query" else "field"
        told = suggestions.sentence(thing, name, suggestions.names_at(kind, place))
        shown = name[: suggestions.SHOWN_MAX]
        return Invalid(code, told, field=f"{place}.{shown}" if place else shown)
    if where is None:
        return Invalid(code, f"{text}.")
    return Invalid(code, f"{said}.", field=place or "$")


def check_text(value: object) -> None:
    """Refuses characters and numbers that one engine would store and the other would not."""
    for leaf in _leaves(value):
        if isinstance(leaf, str):
            if "\x00" in leaf:
                raise Invalid("invalid_characters", "Text may not hold U+0000.")
            if not leaf.isascii() and any("\ud800" <= c <= "\udfff" for c in leaf):
                raise Invalid("invalid_characters", "Text may not hold lone surrogates.")
        elif isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
            raise Invalid("invalid_number", "Integers may not need more than 64 bits.")


def _leaves(value: object) -> Iterator[object]:
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            pending += found.keys()
            pending += found.values()
        elif isinstance(found, list):
            pending += found
        else:
            yield found


def _check_depth(raw: bytes) -> None:
    depth = 0
    # Everything but brackets is dropped first, in one go: of a body of a thousand tasks a fiftieth is left to count.
    for byte in _STRINGS.sub(b"", raw).translate(None, _NO_BRACKETS):
        if byte in b"{[":
            depth += 1
            if depth > DEPTH_MAX:
                raise Invalid("invalid_body", f"The body is nested deeper than {DEPTH_MAX} levels.")
        else:
            depth -= 1


def _too_large(most: int) -> TooLarge:
    return TooLarge("body_too_large", f"The body is larger than {most} bytes.", limit=most)
