"""What a monitor says to the server: that it watches over a fleet, that it still does, that it does no more.

The server is looked for anew each time: it may have been started again elsewhere, and the token of a data directory is
renewed every day. A connection would not outlive the time between two ticks anyway.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from quarterdeck.client.api import ApiClient, Document, build_path
from quarterdeck.client.http_types import Unreachable
from quarterdeck.monitor.model import MonitorState, decode
from quarterdeck.tmux import process_table
from quarterdeck.tmux.host import Host

ConnectServer = Callable[[], ApiClient | None]
"""The server, if it is there; never started."""


class ServerApi:
    """Blocks: whoever has a loop asks from a thread."""

    def __init__(self, fleet_id: int, host: Host, connect: ConnectServer) -> None:
        self.fleet_id = fleet_id
        self.pid = os.getpid()
        self.host = host
        self._connect = connect

    def get_state(self) -> MonitorState:
        return decode(self._call("GET"), MonitorState)

    def claim(self, tick_seconds: int, policy: str) -> MonitorState:
        """Raises `Conflict` where another watches over the fleet."""
        current = self.get_state()
        body: Document = {
            **self._identity(),
            "user_id": self.host.user_id,
            "tick_seconds": tick_seconds,
            "policy": policy,
        }
        if current.pid is not None and (current.host_id, current.user_id) == (self.host.id, self.host.user_id):
            # Of one that bears our own pid we know that it has ended: the pid is ours now. It may also be ourselves,
            # where the answer to an earlier claim was lost.
            previous_is_alive = current.pid != self.pid and is_process_alive(current.pid)
            body |= {"previous_pid": current.pid, "previous_is_alive": previous_is_alive}
        return decode(self._call("POST", "claim", body), MonitorState)

    def send_heartbeat(self, pinged: Sequence[int]) -> MonitorState:
        """Raises `Conflict` where this process watches over the fleet no more, or the fleet is deleted."""
        return decode(self._call("POST", "beat", {**self._identity(), "pinged": [*pinged]}), MonitorState)

    def release(self) -> None:
        self._call("POST", "release", self._identity())

    def _identity(self) -> Document:
        return {"pid": self.pid, "host_id": self.host.id}

    def _call(self, method: str, verb: str | None = None, body: Document | None = None) -> Document:
        server = self._connect()
        if server is None:
            raise Unreachable("server_unreachable", "No server answers.")
        path = build_path("api", "v1", "fleets", str(self.fleet_id), "monitor", *([verb] if verb else []))
        try:
            return server.call(method, path, body=body).document
        finally:
            server.connection.close()


def is_process_alive(pid: int) -> bool:
    """Of a process on this host. One that has ended and that nobody has buried yet is not."""
    if process_table.has_procfs():
        found = process_table.read_process(pid)
        return found is not None and not found.is_gone
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
