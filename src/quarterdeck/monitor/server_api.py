"""The monitor's calls to the server: claim the fleet, send a heartbeat, release the fleet.

Each call locates the server again: the server may have been restarted at another address, and the token of a data
directory is renewed every day. A connection would not stay open from one tick to the next anyway.
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
"""Connects to the running server, or returns None. Never starts a server."""


class ServerApi:
    """All methods block. In an event loop, call them from a thread."""

    def __init__(self, fleet_id: int, host: Host, connect: ConnectServer) -> None:
        self.fleet_id = fleet_id
        self.pid = os.getpid()
        self.host = host
        self._connect = connect

    def get_state(self) -> MonitorState:
        return decode(self._call("GET"), MonitorState)

    def claim(self, tick_seconds: int, policy: str) -> MonitorState:
        """Claim the fleet. Raises `Conflict` if another monitor owns it."""
        current = self.get_state()
        body: Document = {
            **self._identity(),
            "user_id": self.host.user_id,
            "tick_seconds": tick_seconds,
            "policy": policy,
        }
        if current.pid is not None and (current.host_id, current.user_id) == (self.host.id, self.host.user_id):
            # If the previous monitor has our own pid, it has exited and the pid was reused, or it is this process and
            # the response to an earlier claim was lost.
            previous_is_alive = current.pid != self.pid and is_process_alive(current.pid)
            body |= {"previous_pid": current.pid, "previous_is_alive": previous_is_alive}
        return decode(self._call("POST", "claim", body), MonitorState)

    def send_heartbeat(self, pinged: Sequence[int]) -> MonitorState:
        """Send a heartbeat with the agent ids of pinged members.

        Raises `Conflict` if this process no longer owns the fleet or the fleet is deleted, and `NotFound` if the fleet
        does not exist.
        """
        return decode(self._call("POST", "beat", {**self._identity(), "pinged": [*pinged]}), MonitorState)

    def release(self) -> None:
        self._call("POST", "release", self._identity())

    def _identity(self) -> Document:
        return {"pid": self.pid, "host_id": self.host.id}

    def _call(self, method: str, action: str | None = None, body: Document | None = None) -> Document:
        server = self._connect()
        if server is None:
            raise Unreachable("server_unreachable", "No server is running or reachable.")
        path = build_path("api", "v1", "fleets", str(self.fleet_id), "monitor", *([action] if action else []))
        try:
            return server.call(method, path, body=body).document
        finally:
            server.connection.close()


def is_process_alive(pid: int) -> bool:
    """Whether a process is running on this host. With /proc, a zombie counts as ended."""
    if process_table.has_procfs():
        process = process_table.read_process(pid)
        return process is not None and not process.is_gone
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
