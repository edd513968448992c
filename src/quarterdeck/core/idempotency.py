"""Idempotency keys: their format, what a key identifies, and when two requests are equal.

The text of a key identifies one request within a zone, an application and an operation. A key is stored only if the
operation succeeds; a refused request stores nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from quarterdeck.core.errors import Invalid, KeyConflict

KEY_BYTES_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Key(msgspec.Struct, frozen=True):
    """The text of a key with the zone, application and operation in which it is unique."""

    zone_id: str
    application_id: str
    operation: str
    key: str


class KeyRecord(msgspec.Struct, frozen=True, array_like=True):
    """A stored key with the digest of its request and the id of the object that the request created."""

    zone_id: str
    application_id: str
    operation: str
    key: str
    digest: str
    subject_id: str

    def full_key(self) -> Key:
        return Key(self.zone_id, self.application_id, self.operation, self.key)


def new_record(key: Key, digest: str, subject_id: str) -> KeyRecord:
    return KeyRecord(key.zone_id, key.application_id, key.operation, key.key, digest, subject_id)


def request_key(header_key: str | None, body_key: str | None) -> str | None:
    """The key of a request, from its header or its body. If both give one, they must be equal."""
    if header_key is not None and body_key is not None and header_key != body_key:
        raise Invalid(
            "idempotency_key_mismatch",
            "The Idempotency-Key header and the body's idempotency_key differ.",
            field="idempotency_key",
        )
    key = header_key if header_key is not None else body_key
    if key is None:
        return None
    if not key or len(key.encode()) > KEY_BYTES_MAX or _CONTROL.search(key):
        raise Invalid(
            "invalid_idempotency_key",
            f"An Idempotency-Key must have 1 to {KEY_BYTES_MAX} bytes and no control characters.",
            field="Idempotency-Key",
        )
    return key


def request_digest(body: msgspec.Struct) -> str:
    """A digest of the decoded body, with defaults filled in: white space and the order of fields do not matter."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


def key_conflict(key: Key) -> KeyConflict:
    return KeyConflict(
        "idempotency_key_conflict",
        f"The key {key.key!r} was already used in this zone with a different body. Use a new key for a new request.",
    )


class BatchKeys:
    """The keys of one batch: the stored ones, and those that its commands add."""

    def __init__(self, stored: Mapping[Key, KeyRecord]) -> None:
        self._records = {**stored}
        self.new_records: list[KeyRecord] = []

    def find(self, key: Key | None, digest: str) -> str | KeyConflict | None:
        """The id of the object that was created under the key, or None. A `KeyConflict` if another request used it."""
        record = None if key is None else self._records.get(key)
        if key is None or record is None:
            return None
        return record.subject_id if record.digest == digest else key_conflict(key)

    def add(self, key: Key | None, digest: str, subject_id: str) -> None:
        if key is not None:
            self._records[key] = record = new_record(key, digest, subject_id)
            self.new_records.append(record)
