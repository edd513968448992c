"""The ids of this host and this user. Pane ids and pids are valid only for the same host and user.

The machine id is confidential, so the host id is a hash of it. Containers of one image often share a machine id but
have their own pids. So outside the initial pid namespace the hash also includes the host name and the namespace.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
PID_NAMESPACE_LINK = Path("/proc/self/ns/pid")
INITIAL_NAMESPACE = "pid:[4026531836]"
"""Linux boots with this pid namespace, whose number is fixed."""


@dataclass(frozen=True, slots=True)
class Host:
    id: str
    user_id: int


def this_host() -> Host:
    return Host(host_id(_machine_id(), _pid_namespace()), os.geteuid())


def host_id(machine_id: str, namespace: str | None) -> str:
    parts = [machine_id]
    if namespace not in (None, INITIAL_NAMESPACE):
        parts += [socket.gethostname(), str(namespace)]
    return hashlib.sha256("\n".join(["quarterdeck", *parts]).encode()).hexdigest()[:32]


def _machine_id() -> str:
    for path in MACHINE_ID_FILES:
        try:
            machine_id = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        # Until the first boot is complete, the file may contain a placeholder.
        if re.fullmatch(r"[0-9a-f]{32}", machine_id):
            return machine_id
    node = uuid.getnode()
    # Without a network card, Python generates a random node id per process and sets this bit.
    is_random = bool(node >> 40 & 1)
    return socket.gethostname() if is_random else f"{socket.gethostname()} {node:012x}"


def _pid_namespace() -> str | None:
    try:
        return str(PID_NAMESPACE_LINK.readlink())
    except OSError:
        return None
