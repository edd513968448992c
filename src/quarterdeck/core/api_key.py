"""API keys as text: `qd_<zone>.<id>.<secret>`.

The key contains its zone, so that a lookup needs access to that zone only. A zone name may contain dots, but the parts
after it have a fixed length, so a key parses in one way only. The stored digest covers the complete text, not only the
secret: a row that is copied to another zone or another id matches no key.

A secret has 256 random bits and cannot be guessed, so a plain SHA-256 is as safe as a slow hash.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from quarterdeck.core.errors import Unauthenticated

SECRET_BYTES = 32
_KEY_PATTERN = re.compile(rb"qd_([A-Za-z0-9_.\-:]{1,128})\.([0-9a-f\-]{36})\.([0-9a-f]{64})")


class ParsedApiKey(msgspec.Struct, frozen=True):
    """A presented key without its secret: its claimed zone and id, and the digest to compare with the stored one."""

    zone_id: str
    id: str
    digest: str


def format_key(zone_id: str, key_id: str, secret: bytes) -> str:
    return f"qd_{zone_id}.{key_id}.{secret.hex()}"


def parse(text: bytes) -> ParsedApiKey | None:
    """Return None if this is not a key. The pattern bounds the length, so no long text is ever hashed."""
    match = _KEY_PATTERN.fullmatch(text)
    return ParsedApiKey(match[1].decode(), match[2].decode(), digest(text)) if match else None


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def invalid_key_error() -> Unauthenticated:
    """The text is the same for every invalid key, so that it does not reveal which keys exist."""
    return Unauthenticated("invalid_token", "The API key is malformed, unknown, revoked or expired.")
