"""Which host this is, and as whom: pane ids and pids mean something only there.

The machine's own id is not for others to see, so what is shown is a digest of it. Containers of one image often share
it, and have pids of their own: outside of the first pid namespace the host's name and the namespace are part of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
NAMESPACE = Path("/proc/self/ns/pid")
INITIAL_NAMESPACE = "pid:[4026531836]"
"""The number that Linux gives to the pid namespace it boots with, always."""


@dataclass(frozen=True, slots=True)
class Host:
    id: str
    user_id: int


def this_host() -> Host:
    return Host(host_id(_machine_id(), _pid_namespace()), os.geteuid())


def host_id(machine: str, namespace: str | None) -> str:
    parts = [machine]
    if namespace not in (None, INITIAL_NAMESPACE):
        parts += [socket.gethostname(), str(namespace)]
    return hashlib.sha256("\n".join(["quarterdeck", *parts]).encode()).hexdigest()[:32]


def _machine_id() -> str:
    for path in MACHINE_IDS:
        try:
            found = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        # Before its first boot is over a machine's file may hold a word instead.
        if re.fullmatch(r"[0-9a-f]{32}", found):
            return found
    node = uuid.getnode()
    # Where no network card has an address, Python makes one up for each process; it marks it by this bit.
    is_random = bool(node >> 40 & 1)
    return socket.gethostname() if is_random else f"{socket.gethostname()} {node:012x}"


def _pid_namespace() -> str | None:
    try:
        return str(NAMESPACE.readlink())
    except OSError:
        return None
