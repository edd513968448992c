"""Written by `make sdk` from `sdk/zones.py`: do not edit."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.sdk import zones
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.types import Quotas, Receipt, Zone


class Zones:
    def __init__(self, inner: zones.Zones, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def get(self) -> Zone:
        return self._loop_thread.run(self._inner.get())

    def put(self, *, name: str | None = None, quotas: Mapping[str, int | None] | None = None) -> Zone:
        """Makes the zone, or changes what is named. For administrators."""
        return self._loop_thread.run(self._inner.put(name=name, quotas=quotas))

    def quotas(self) -> Quotas:
        """The limits in force, and what is used."""
        return self._loop_thread.run(self._inner.quotas())

    def freeze(self) -> Zone:
        """Stops every admission to the zone. For administrators."""
        return self._loop_thread.run(self._inner.freeze())

    def thaw(self) -> Zone:
        return self._loop_thread.run(self._inner.thaw())

    def stop(self, *, reason: str | None = None) -> Receipt:
        """The big red button: freezes the zone and ends every session in it. For administrators."""
        return self._loop_thread.run(self._inner.stop(reason=reason))
