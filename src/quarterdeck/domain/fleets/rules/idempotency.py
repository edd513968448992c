"""The idempotency keys of one batch: the loaded keys, and the keys that the batch itself adds."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict, new_record


class BatchKeys:
    """Maps each key to the id of the object created under it. All objects of fleets have integer ids."""

    def __init__(self, records: Mapping[Key, KeyRecord]) -> None:
        self._records = {**records}
        self.new_records: list[KeyRecord] = []
        """The keys added by this batch."""

    def find_created_id(self, key: Key | None, request_digest: str) -> int | Problem | None:
        """The id of the object created under the key, or None. A `Problem` if a different request used the key."""
        record = None if key is None else self._records.get(key)
        if key is None or record is None:
            return None
        return int(record.subject_id) if record.digest == request_digest else key_conflict(key)

    def add(self, key: Key | None, request_digest: str, object_id: int) -> None:
        if key is not None:
            self._records[key] = record = new_record(key, request_digest, str(object_id))
            self.new_records.append(record)
