"""What a monitor says to the server: that it watches over a fleet, that it still does, that it does no more.

The server is looked for anew each time: it may have been started again elsewhere, and the token of a data directory is
renewed every day. A connection would not outlive the time between two ticks anyway.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from quarterdeck.client.api import Document, Server, path_of
from quarterdeck.client.http_types import Unreachable
from quarterdeck.monitor.model import Watch, read
from quarterdeck.tmux import process_table
from quarterdeck.tmux.host import Host

Reach = Callable[[], Server | None]
"""The server, if it is there; never started."""


class Desk:
    """Blocks: whoever has a loop asks from a thread."""

    def __init__(self, fleet_id: int, host: Host, reach: Reach) -> None:
        self.fleet_id = fleet_id
        self.pid = os.getpid()
        self.host = host
        self._reach = reach

    def look(self) -> Watch:
        return read(self._ask("GET"), Watch)

    def claim(self, tick_seconds: int, policy: str) -> Watch:
        """Raises `Conflict` where another watches over the fleet."""
        held = self.look()
        body: Document = {
            **self._oneself(),
            "user_id": self.host.user_id,
            "tick_seconds": tick_seconds,
            "policy": policy,
        }
        if held.pid is not None and (held.host_id, held.user_id) == (self.host.id, self.host.user_id):
            # Of one that bears our own pid we know that it has ended: the pid is ours now. It may also be ourselves,
            # where the answer to an earlier claim was lost.
            alive = held.pid != self.pid and is_alive(held.pid)
            body |= {"previous_pid": held.pid, "previous_is_alive": alive}
        return read(self._ask("POST", "claim", body), Watch)

    def beat(self, pinged: Sequence[int]) -> Watch:
        """Raises `Conflict` where this process watches over the fleet no more, or the fleet is deleted."""
        return read(self._ask("POST", "beat", {**self._oneself(), "pinged": [*pinged]}), Watch)

    def release(self) -> None:
        self._ask("POST", "release", self._oneself())

    def _oneself(self) -> Document:
        return {"pid": self.pid, "host_id": self.host.id}

    def _ask(self, method: str, verb: str | None = None, body: Document | None = None) -> Document:
        server = self._reach()
        if server is None:
            raise Unreachable("server_unreachable", "No server answers.")
        path = path_of("api", "v1", "fleets", str(self.fleet_id), "monitor", *([verb] if verb else []))
        try:
            return server.call(method, path, body=body).document
        finally:
            server.connection.close()


def is_alive(pid: int) -> bool:
    """Of a process on this host. One that has ended and that nobody has buried yet is not."""
    if process_table.has_proc():
        found = process_table.of_pid(pid)
        return found is not None and not found.is_gone
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
