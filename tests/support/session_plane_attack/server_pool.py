"""The servers that clients may ask. Each has a slot; whatever is done to it, somebody puts a server back there."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.server import ServerProcess, Servers


class ServerPool:
    def __init__(self, servers: Servers, started: Sequence[ServerProcess]) -> None:
        self._servers = servers
        self._slots = list(started)
        self._frozen: set[int] = set()
        self.actions: list[str] = []
        """What was done, in words, for the report of a failed run."""

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, slot: int) -> ServerProcess:
        return self._slots[slot]

    @property
    def running_slots(self) -> list[int]:
        return [slot for slot in range(len(self)) if slot not in self._frozen and self._slots[slot].is_running]

    def kill(self, slot: int) -> None:
        self.actions.append(f"killed {slot}")
        self._slots[slot].kill()

    async def restart(self, slot: int) -> None:
        """A server in this slot again, on the same data directory; on a port of its own."""
        self._slots[slot] = await self._servers.start(self._slots[slot].launch)
        self.actions.append(f"started {slot}")

    def freeze(self, slot: int) -> None:
        self.actions.append(f"froze {slot}")
        self._frozen.add(slot)
        self._slots[slot].freeze()

    def thaw(self, slot: int) -> None:
        self.actions.append(f"thawed {slot}")
        self._slots[slot].thaw()
        self._frozen.discard(slot)
