"""The pid and uid of the process that listens on a unix socket, as the kernel reports them.

The kernel's answer is current, while `server.json` may be out of date. Every command that connects imports this module,
so it imports only what `http_sync` imports anyway.
"""

from __future__ import annotations

import socket
import sys

_DARWIN_SOL_LOCAL = 0
_DARWIN_LOCAL_PEERPID = 2


def listener_pid(connection: socket.socket) -> int | None:
    """The pid of the process that called `listen`. None if the socket is not a unix socket or the pid is unknown."""
    if connection.family != socket.AF_UNIX:
        return None
    if sys.platform == "linux":
        pid = _credentials(connection)[0]
    elif sys.platform == "darwin":
        pid = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERPID)
    else:
        return None
    # 0: the process is in another pid namespace and has no pid in this one.
    return pid or None


def listener_uid(connection: socket.socket) -> int | None:
    """The uid of the process that called `listen`. None if the socket is not a unix socket or the uid is unknown."""
    if connection.family != socket.AF_UNIX or sys.platform != "linux":
        return None
    return _credentials(connection)[1]


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """pid and uid: the first two of the three 4-byte integers of `struct ucred`."""
    if sys.platform != "linux":
        raise NotImplementedError
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(data[:4], sys.byteorder), int.from_bytes(data[4:8], sys.byteorder)
