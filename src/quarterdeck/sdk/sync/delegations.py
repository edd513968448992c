"""Written by `make sdk` from `sdk/delegations.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from quarterdeck.sdk import delegations
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import DelegateOptions
from quarterdeck.sdk.types import Authority, Delegation, DelegationStatus, Revoked


class Delegations:
    def __init__(self, inner: delegations.Delegations, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def create(
        self, source: str, target: str, *, key: str | None = None, **options: Unpack[DelegateOptions]
    ) -> Delegation:
        """Lends authority of the session `source` to the session `target`: never more than it has."""
        return self._loop_thread.run(self._inner.create(source, target, key=key, **options))

    def get(self, edge_id: str) -> Delegation:
        return self._loop_thread.run(self._inner.get(edge_id))

    def list(
        self, *, source: str | None = None, target: str | None = None, status: DelegationStatus | None = None
    ) -> Iterator[Delegation]:
        """Newest first."""
        return self._loop_thread.iterate(self._inner.list(source=source, target=target, status=status))

    def revoke(self, edge_id: str, *, keep_sessions: bool = False) -> Revoked:
        """Takes an edge back, with all that are derived from it, and ends whoever is left without authority. With
        `keep_sessions` they run on without it."""
        return self._loop_thread.run(self._inner.revoke(edge_id, keep_sessions=keep_sessions))

    def authority(self, session_id: str) -> Authority:
        """By which edges a session holds what."""
        return self._loop_thread.run(self._inner.authority(session_id))
