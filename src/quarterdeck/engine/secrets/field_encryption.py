"""Encrypts, decrypts and masks the secrets in stored JSON.

Encryption scans the text once and parses it only if it may hold secrets. Decryption and masking never parse: an object
that starts with `{"$sealed":` is only ever created here (requests with that key are refused), and inside a JSON string
its quotes would be escaped. So a pattern finds exactly the encrypted values.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import re
from collections.abc import Iterable

import msgspec

from quarterdeck.core import redaction
from quarterdeck.core.errors import Invalid
from quarterdeck.core.redaction import ENCRYPTED_MARKER, MASK, SECRET_MARKER, SECRETS_MAX
from quarterdeck.engine.secrets.keyring import DecryptionError, FieldRef, Keyring, key_id_of

log = logging.getLogger("quarterdeck.secrets")
_MARKER_JSON = f'"{ENCRYPTED_MARKER}"'
_VALUE_PATTERN = rf'{{"{re.escape(ENCRYPTED_MARKER)}":"(qs1\.[A-Za-z0-9_.-]+)"}}'
_ENCRYPTED = re.compile(_VALUE_PATTERN)
_MASKABLE = re.compile(rf'{{"{re.escape(SECRET_MARKER)}":{_VALUE_PATTERN}}}|{_VALUE_PATTERN}')
_MASK_JSON = f'"{MASK}"'


class FieldCipher:
    """Created once, in the composition root. `pepper` protects the digests of secrets against guessing."""

    def __init__(self, keyring: Keyring, pepper: bytes) -> None:
        self.keyring = keyring
        self._pepper = pepper
        self.decryption_failures = 0
        """How often a value could not be decrypted."""
        self._reported_key_ids: set[str] = set()

    def encrypt(self, value: object, field_ref: FieldRef) -> str:
        """The JSON text to store. Raises `Invalid` for the reserved `$sealed`, for a malformed `$secret`, and for more
        than `SECRETS_MAX` secrets."""
        text = msgspec.json.encode(value)
        if not redaction.may_hold_secrets(text):
            return text.decode()
        # Decoded from the text, so that the walk covers exactly what would be stored, whatever types the value had.
        plain = msgspec.json.decode(text)
        counter = itertools.count(1)

        def encrypt_secret(secret: str) -> dict[str, str]:
            if next(counter) > SECRETS_MAX:
                raise Invalid("too_many_secrets", f"One value may hold at most {SECRETS_MAX} secrets.")
            return {ENCRYPTED_MARKER: self.keyring.encrypt(secret, field_ref)}

        return msgspec.json.encode(redaction.replace_secrets(plain, encrypt_secret)).decode()

    def decrypt(self, text: str, field_ref: FieldRef) -> str:
        """The plain text, as it was sent. Values that cannot be decrypted are masked."""
        return (
            _ENCRYPTED.sub(lambda match: self._decrypt_to_json(match[1], field_ref), text)
            if _MARKER_JSON in text
            else text
        )

    def mask(self, text: str) -> str:
        """The text with all secrets masked."""
        return _MASKABLE.sub(_MASK_JSON, text) if _MARKER_JSON in text else text

    def reencrypt(self, text: str, field_ref: FieldRef) -> str:
        """The text with all secrets under the current key. Values that cannot be decrypted are left unchanged."""
        return (
            _ENCRYPTED.sub(lambda match: self._reencrypt_match(match, field_ref), text)
            if _MARKER_JSON in text
            else text
        )

    def redact(self, text: str, stored: Iterable[tuple[str, FieldRef]] = ()) -> str:
        """Free text (an error, a stack trace) without the secrets of the stored JSON that it may quote."""
        secrets: set[str] = set()
        for stored_text, field_ref in stored:
            if _MARKER_JSON in stored_text:
                secrets |= self._decrypt_secrets(stored_text, field_ref)
        return redaction.redact_text(text, secrets)

    def digest(self, value: msgspec.Struct) -> str:
        """Like `core.idempotency.request_digest`, for values with secrets: a short secret could be guessed from a plain
        digest."""
        text = msgspec.json.encode(value, order="deterministic")
        if redaction.may_hold_secrets(text):
            return hmac.digest(self._pepper, text, hashlib.sha256).hex()
        return hashlib.sha256(text).hexdigest()

    def _decrypt_secrets(self, text: str, field_ref: FieldRef) -> set[str]:
        secrets = set()
        for encrypted in _ENCRYPTED.findall(text):
            try:
                secrets.add(self.keyring.decrypt(encrypted, field_ref))
            except DecryptionError as error:
                self._report_failure(error, field_ref)
        return secrets

    def _decrypt_to_json(self, encrypted: str, field_ref: FieldRef) -> str:
        try:
            return msgspec.json.encode(self.keyring.decrypt(encrypted, field_ref)).decode()
        except DecryptionError as error:
            self._report_failure(error, field_ref)
            return _MASK_JSON

    def _reencrypt_match(self, match: re.Match[str], field_ref: FieldRef) -> str:
        if key_id_of(match[1]) == self.keyring.encryption_key_id:
            return match[0]
        try:
            encrypted = self.keyring.encrypt(self.keyring.decrypt(match[1], field_ref), field_ref)
        except DecryptionError as error:
            self._report_failure(error, field_ref)
            return match[0]
        return f'{{"{ENCRYPTED_MARKER}":"{encrypted}"}}'

    def _report_failure(self, error: DecryptionError, field_ref: FieldRef) -> None:
        self.decryption_failures += 1
        if error.key_id in self._reported_key_ids:
            return  # only counted; otherwise every claim would log a line
        self._reported_key_ids.add(error.key_id)
        zone, table, row, field = field_ref
        log.error(
            "cannot decrypt a secret under the key %r: %s (zone %s, %s of %s %s; later failures are only counted)",
            error.key_id, error, zone, field, table, row,
        )  # fmt: skip


def key_ids_in(text: str) -> list[str]:
    """The key id of each encrypted value in a stored text."""
    return [key_id_of(encrypted) for encrypted in _ENCRYPTED.findall(text)]
