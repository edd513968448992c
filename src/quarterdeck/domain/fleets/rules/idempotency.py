"""What the keys of a batch stand for: those that were used before, and those that the batch itself has used."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict, new_record


class BatchKeys:
    """Whatever is kept under a key here has a number."""

    def __init__(self, records: Mapping[Key, KeyRecord]) -> None:
        self._records = {**records}
        self.new_records: list[KeyRecord] = []
        """Those of this batch."""

    def find_created(self, key: Key | None, request_digest: str) -> int | Problem | None:
        """What the key stands for. None: nothing was made under it."""
        record = None if key is None else self._records.get(key)
        if key is None or record is None:
            return None
        return int(record.subject_id) if record.digest == request_digest else key_conflict(key)

    def add(self, key: Key | None, request_digest: str, object_id: int) -> None:
        if key is not None:
            self._records[key] = record = new_record(key, request_digest, str(object_id))
            self.new_records.append(record)
