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

FORMAT = "qs1"
KEY_BYTES = 32
NONCE_BYTES = 12
KEYS_MAX = 100
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

FieldRef = tuple[str, str, str, str]
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


class KeyringError(ValueError):
    """Keys that cannot serve. Its text is a sentence, and never holds a key."""


class DecryptionError(Exception):
    """A sealed value that stays shut. Names its key, never its content."""

    def __init__(self, key_id: str, reason: str) -> None:
        super().__init__(reason)
        self.key_id = key_id


@dataclass(frozen=True, slots=True)
class SecretKey:
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key({self.id!r})"

    def to_text(self) -> str:
        """As it stands in QD_SECRET_KEYS or in the key file."""
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"


class Keyring:
    """Keys by their id. The first seals; all of them open."""

    def __init__(self, keys: Sequence[SecretKey]) -> None:
        if not keys:
            raise KeyringError("There is no key to seal secrets with.")
        if len(keys) > KEYS_MAX:
            raise KeyringError(f"There are more than {KEYS_MAX} keys for secrets.")
        if len({key.id for key in keys}) < len(keys):
            raise KeyringError("Two keys for secrets have the same id.")
        self.key_ids = tuple(key.id for key in keys)
        self.encryption_key_id = self.key_ids[0]
        self._ciphers = {key.id: AESGCM(key.secret) for key in keys}
        self._encryption_cipher = self._ciphers[self.encryption_key_id]

    def encrypt(self, plaintext: str, field_ref: FieldRef) -> str:
        nonce = os.urandom(NONCE_BYTES)
        # A lone surrogate cannot be here: the shell lets none in.
        ciphertext = self._encryption_cipher.encrypt(nonce, plaintext.encode(), _associated_data(field_ref))
        return f"{FORMAT}.{self.encryption_key_id}.{_to_base64(nonce)}.{_to_base64(ciphertext)}"

    def decrypt(self, encrypted: str, field_ref: FieldRef) -> str:
        """Raises Unopened."""
        format_, _, rest = encrypted.partition(".")
        key_id, _, rest = rest.partition(".")
        cipher = self._ciphers.get(key_id)
        if format_ != FORMAT:
            raise DecryptionError("", "it is not in a form that this release knows")
        if cipher is None:
            raise DecryptionError(key_id, "its key is not in the ring")
        nonce, _, ciphertext = rest.partition(".")
        try:
            return cipher.decrypt(_from_base64(nonce), _from_base64(ciphertext), _associated_data(field_ref)).decode()
        except (InvalidTag, ValueError):
            # The key is another one of that name, or the value was changed or moved: nothing tells these apart.
            raise DecryptionError(key_id, "it was changed or moved, or its key is another one of that name") from None


def key_id_of(encrypted: str) -> str:
    return encrypted.split(".", 2)[1]


def parse_keys(text: str) -> list[SecretKey]:
    """Keys as QD_SECRET_KEYS and the key file tell them: `id:base64`, separated by commas or lines."""
    keys = []
    for position, item in enumerate(re.split(r"[,\s]+", text.strip()), 1):
        if not item:
            continue
        key_id, _, encoded = item.partition(":")
        if not _KEY_ID.fullmatch(key_id):
            raise KeyringError(f"Key {position} has no id of letters, digits, `-` and `_`, followed by a colon.")
        try:
            secret = _from_base64(encoded.rstrip("=").translate(_TO_URLSAFE))
        except (ValueError, binascii.Error):
            secret = b""
        if len(secret) != KEY_BYTES:
            # By its place: what stands before the colon may be a key, if somebody has left out its id.
            raise KeyringError(f"Key {position} is not {KEY_BYTES} bytes in base64.")
        keys.append(SecretKey(key_id, secret))
    return keys


def generate_key() -> SecretKey:
    return SecretKey(f"k{secrets.token_hex(4)}", secrets.token_bytes(KEY_BYTES))


_TO_URLSAFE = str.maketrans("+/", "-_")


def _associated_data(field_ref: FieldRef) -> bytes:
    # Escaped, so that no two quadruples are spelt alike wherever one name ends and the next begins.
    return "|".join(part.replace("%", "%25").replace("|", "%7C") for part in field_ref).encode()


def _to_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
