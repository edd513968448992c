"""What the keys of a batch stand for: those that were used before, and those that the batch itself has used."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict, new_record


class Keys:
    """Whatever is kept under a key here has a number."""

    def __init__(self, known: Mapping[Key, KeyRecord]) -> None:
        self._known = {**known}
        self.bindings: list[KeyRecord] = []
        """Those of this batch."""

    def made_before(self, key: Key | None, digest: str) -> int | Problem | None:
        """What the key stands for. None: nothing was made under it."""
        known = None if key is None else self._known.get(key)
        if key is None or known is None:
            return None
        return int(known.subject_id) if known.digest == digest else key_conflict(key)

    def bind(self, key: Key | None, digest: str, number: int) -> None:
        if key is not None:
            self._known[key] = binding = new_record(key, digest, str(number))
            self.bindings.append(binding)
