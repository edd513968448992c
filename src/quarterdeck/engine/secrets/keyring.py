"""The key ring, and the form of a sealed value.

`qs1.<key id>.<nonce>.<ciphertext and tag>`, the last two in base64url without padding. AES-256-GCM; the associated data
is zone|table|row|field. `qs1` names all of that: another cipher would be another word.

Nonces are 96 random bits. With chance alone two of 2³² values under one key have the same with a probability of 2⁻³³,
which is where NIST SP 800-38D draws the line: a key that may seal more than four thousand million values is to be
replaced before (`qd secrets status` counts those that are kept).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Meta

FORM = "qs1"
KEY_BYTES = 32
NONCE_BYTES = 12
KEYS_MAX = 100
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

About = tuple[str, str, str, str]
"""What a sealed value is bound to: (zone, table, row, field)."""


class SecretSettings(msgspec.Struct, frozen=True):
    """What can be told of keys."""

    secret_keys: (
        Annotated[
            str,
            Meta(
                max_length=16_384,
                description="id:base64 of 32 bytes, separated by commas; the first seals, all open. "
                "Without it, the file `secret-keys` in the data directory",
            ),
        ]
        | None
    ) = None
    secret_keys_lost: (
        Annotated[str, Meta(max_length=4_096, description="ids of keys to start without; separated by commas")] | None
    ) = None


class RingError(ValueError):
    """Keys that cannot serve. Its text is a sentence, and never holds a key."""


class Unopened(Exception):
    """A sealed value that stays shut. Names its key, never its content."""

    def __init__(self, key_id: str, why: str) -> None:
        super().__init__(why)
        self.key_id = key_id


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key({self.id!r})"

    def told(self) -> str:
        """As it stands in QD_SECRET_KEYS or in the key file."""
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"


class Ring:
    """Keys by their id. The first seals; all of them open."""

    def __init__(self, keys: Sequence[Key]) -> None:
        if not keys:
            raise RingError("There is no key to seal secrets with.")
        if len(keys) > KEYS_MAX:
            raise RingError(f"There are more than {KEYS_MAX} keys for secrets.")
        if len({key.id for key in keys}) < len(keys):
            raise RingError("Two keys for secrets have the same id.")
        self.ids = tuple(key.id for key in keys)
        self.sealing_id = self.ids[0]
        self._ciphers = {key.id: AESGCM(key.secret) for key in keys}
        self._sealing = self._ciphers[self.sealing_id]

    def seal(self, clear: str, about: About) -> str:
        nonce = os.urandom(NONCE_BYTES)
        # A lone surrogate cannot be here: the shell lets none in.
        sealed = self._sealing.encrypt(nonce, clear.encode(), _bound_to(about))
        return f"{FORM}.{self.sealing_id}.{_text(nonce)}.{_text(sealed)}"

    def open(self, sealed: str, about: About) -> str:
        """Raises Unopened."""
        form, _, rest = sealed.partition(".")
        key_id, _, rest = rest.partition(".")
        cipher = self._ciphers.get(key_id)
        if form != FORM:
            raise Unopened("", "it is not in a form that this release knows")
        if cipher is None:
            raise Unopened(key_id, "its key is not in the ring")
        nonce, _, content = rest.partition(".")
        try:
            return cipher.decrypt(_bytes(nonce), _bytes(content), _bound_to(about)).decode()
        except (InvalidTag, ValueError):
            # The key is another one of that name, or the value was changed or moved: nothing tells these apart.
            raise Unopened(key_id, "it was changed or moved, or its key is another one of that name") from None


def key_id_of(sealed: str) -> str:
    return sealed.split(".", 2)[1]


def parse(told: str) -> list[Key]:
    """Keys as QD_SECRET_KEYS and the key file tell them: `id:base64`, separated by commas or lines."""
    keys = []
    for place, word in enumerate(re.split(r"[,\s]+", told.strip()), 1):
        if not word:
            continue
        key_id, _, encoded = word.partition(":")
        if not _ID.fullmatch(key_id):
            raise RingError(f"Key {place} has no id of letters, digits, `-` and `_`, followed by a colon.")
        try:
            secret = _bytes(encoded.rstrip("=").translate(_URLSAFE))
        except (ValueError, binascii.Error):
            secret = b""
        if len(secret) != KEY_BYTES:
            # By its place: what stands before the colon may be a key, if somebody has left out its id.
            raise RingError(f"Key {place} is not {KEY_BYTES} bytes in base64.")
        keys.append(Key(key_id, secret))
    return keys


def new_key() -> Key:
    return Key(f"k{secrets.token_hex(4)}", secrets.token_bytes(KEY_BYTES))


_URLSAFE = str.maketrans("+/", "-_")


def _bound_to(about: About) -> bytes:
    # Escaped, so that no two quadruples are spelt alike wherever one name ends and the next begins.
    return "|".join(part.replace("%", "%25").replace("|", "%7C") for part in about).encode()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
