"""API keys as text: `qd_<zone>.<id>.<secret>`.

The zone stands in the key so that looking a key up needs to see no zone but its own. The name of a zone may hold dots;
what follows it is of a fixed length, so a key can be read in one way only. The digest is of the whole text and not of
the secret alone: a row that was copied into another zone, or to another id, opens nothing.

A secret is 256 bits of chance, so a plain SHA-256 of it is as good as a slow one: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from quarterdeck.core.errors import Unauthenticated

SECRET_BYTES = 32
_KEY_PATTERN = re.compile(rb"qd_([A-Za-z0-9_.\-:]{1,128})\.([0-9a-f\-]{36})\.([0-9a-f]{64})")


class ParsedApiKey(msgspec.Struct, frozen=True):
    """A key as somebody showed it, without its secret: what it claims to be, and the digest that must prove it."""

    zone_id: str
    id: str
    digest: str


def format_key(zone_id: str, key_id: str, secret: bytes) -> str:
    return f"qd_{zone_id}.{key_id}.{secret.hex()}"


def parse(text: bytes) -> ParsedApiKey | None:
    """None: this is no key. The form bounds its length, so nothing long is ever digested."""
    found = _KEY_PATTERN.fullmatch(text)
    return ParsedApiKey(found[1].decode(), found[2].decode(), digest(text)) if found else None


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def invalid_key_error() -> Unauthenticated:
    """One sentence for every key that opens nothing: which of them it is, is nobody's business but the owner's."""
    return Unauthenticated("invalid_token", "The API key is malformed, unknown, revoked or expired.")
