"""The keyring, and the format of an encrypted value.

`qs1.<key id>.<nonce>.<ciphertext and tag>`, the last two in base64url without padding. AES-256-GCM; the associated data
is zone|table|row|field. `qs1` identifies this format: a different cipher would have a different prefix.

Nonces are 96 random bits. Among 2³² values under one key, two have the same nonce with a probability of 2⁻³³, which is
the limit of NIST SP 800-38D. Replace a key before it encrypts more than 2³² values (`qd secrets status` counts the
stored ones).
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
"""What an encrypted value is bound to: (zone, table, row, field)."""


class SecretSettings(msgspec.Struct, frozen=True):
    """The encryption keys."""

    secret_keys: (
        Annotated[
            str,
            Meta(
                max_length=16_384,
                description="id:base64 of 32 bytes, separated by commas; the first encrypts, all decrypt. "
                "Default: the file `secret-keys` in the data directory",
            ),
        ]
        | None
    ) = None
    secret_keys_lost: (
        Annotated[str, Meta(max_length=4_096, description="ids of lost keys to start without, separated by commas")]
        | None
    ) = None


class KeyringError(ValueError):
    """The keys cannot be used. The message never contains a key."""


class DecryptionError(Exception):
    """A value cannot be decrypted. The error names the key, never the content."""

    def __init__(self, key_id: str, reason: str) -> None:
        super().__init__(reason)
        self.key_id = key_id


@dataclass(frozen=True, slots=True)
class SecretKey:
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"SecretKey({self.id!r})"

    def to_text(self) -> str:
        """As written in QD_SECRET_KEYS or in the key file."""
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"


class Keyring:
    """Keys by id. The first encrypts; all decrypt."""

    def __init__(self, keys: Sequence[SecretKey]) -> None:
        if not keys:
            raise KeyringError("There is no key to encrypt secrets with.")
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
        # There are no lone surrogates: the HTTP server rejects them.
        ciphertext = self._encryption_cipher.encrypt(nonce, plaintext.encode(), _associated_data(field_ref))
        return f"{FORMAT}.{self.encryption_key_id}.{_to_base64(nonce)}.{_to_base64(ciphertext)}"

    def decrypt(self, encrypted: str, field_ref: FieldRef) -> str:
        """Raises `DecryptionError`."""
        format_, _, rest = encrypted.partition(".")
        key_id, _, rest = rest.partition(".")
        cipher = self._ciphers.get(key_id)
        if format_ != FORMAT:
            raise DecryptionError("", "this release does not support its format")
        if cipher is None:
            raise DecryptionError(key_id, "its key is not in the keyring")
        nonce, _, ciphertext = rest.partition(".")
        try:
            return cipher.decrypt(_from_base64(nonce), _from_base64(ciphertext), _associated_data(field_ref)).decode()
        except (InvalidTag, ValueError):
            # A different key with this id, or a changed or moved value: these cannot be distinguished.
            raise DecryptionError(key_id, "it was changed or moved, or another key with this id encrypted it") from None


def key_id_of(encrypted: str) -> str:
    return encrypted.split(".", 2)[1]


def parse_keys(text: str) -> list[SecretKey]:
    """Parse keys as in QD_SECRET_KEYS and the key file: `id:base64`, separated by commas or line breaks."""
    keys = []
    for position, item in enumerate(re.split(r"[,\s]+", text.strip()), 1):
        if not item:
            continue
        key_id, _, encoded = item.partition(":")
        if not _KEY_ID.fullmatch(key_id):
            raise KeyringError(f"Key {position} needs an id of letters, digits, `-` and `_`, followed by a colon.")
        try:
            secret = _from_base64(encoded.rstrip("=").translate(_TO_URLSAFE))
        except (ValueError, binascii.Error):
            secret = b""
        if len(secret) != KEY_BYTES:
            # Names the key by its position: if the id was left out, the text before the colon may be the key.
            raise KeyringError(f"Key {position} is not {KEY_BYTES} bytes in base64.")
        keys.append(SecretKey(key_id, secret))
    return keys


def generate_key() -> SecretKey:
    return SecretKey(f"k{secrets.token_hex(4)}", secrets.token_bytes(KEY_BYTES))


_TO_URLSAFE = str.maketrans("+/", "-_")


def _associated_data(field_ref: FieldRef) -> bytes:
    # Escaped, so that no two tuples have the same encoding.
    return "|".join(part.replace("%", "%25").replace("|", "%7C") for part in field_ref).encode()


def _to_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
