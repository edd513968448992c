"""Which process listens at the other end of a unix socket. The kernel knows; a record only remembers."""

from __future__ import annotations

import socket
import struct
import sys

_DARWIN_SOL_LOCAL = 0
_DARWIN_LOCAL_PEERPID = 2


def listener_pid(connection: socket.socket) -> int | None:
    """The pid of the process that called `listen`; None where the system does not say."""
    if connection.family != socket.AF_UNIX:
        return None
    if sys.platform == "linux":
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = int(struct.unpack("3i", told)[0])
    elif sys.platform == "darwin":
        pid = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERPID)
    else:
        return None
    # 0: the process lives in another pid namespace and has no number here.
    return pid or None
