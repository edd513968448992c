"""The servers that clients use. Each has a slot, and every server that is killed is restarted in its slot."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.server import ServerProcess, Servers


class ServerPool:
    def __init__(self, servers: Servers, started: Sequence[ServerProcess]) -> None:
        self._servers = servers
        self._slots = list(started)
        self._frozen: set[int] = set()
        self.actions: list[str] = []
        """The actions on servers, for the report of a failed run."""

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
        """Start a server in this slot with the launch of the last one: same data directory, possibly another port."""
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
