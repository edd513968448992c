"""Which process listens at the other end of a unix socket, and whose it is. The kernel knows; a record only
remembers.

Every command that finds its server comes here, so what is imported is what `http` has imported already.
"""

from __future__ import annotations

import socket
import sys

_DARWIN_SOL_LOCAL = 0
_DARWIN_LOCAL_PEERPID = 2


def listener_pid(connection: socket.socket) -> int | None:
    """The pid of the process that called `listen`; None where the system does not say."""
    if connection.family != socket.AF_UNIX:
        return None
    if sys.platform == "linux":
        pid = _credentials(connection)[0]
    elif sys.platform == "darwin":
        pid = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERPID)
    else:
        return None
    # 0: the process lives in another pid namespace and has no number here.
    return pid or None


def listener_uid(connection: socket.socket) -> int | None:
    """The user whose process called `listen`; None where the system does not say."""
    if connection.family != socket.AF_UNIX or sys.platform != "linux":
        return None
    return _credentials(connection)[1]


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """pid and uid: of `struct ucred`, three integers of four bytes, the first two."""
    if sys.platform != "linux":
        raise NotImplementedError
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(data[:4], sys.byteorder), int.from_bytes(data[4:8], sys.byteorder)
