"""What lies in a data directory, as far as those outside the server may know it.

Paths are plain text here: `pathlib` costs more than a third of what Python itself takes to start.
"""

# For the reason above.
# ruff: noqa: PTH100, PTH111, PTH117

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from quarterdeck.client import file_locks

_FILE_MAX = 64 * 1024


class ServerRecord(NamedTuple):
    """What the server that last served this directory wrote when it was ready. It stays when the server
    is gone."""

    pid: int
    url: str
    socket: str
    database: str
    version: str
    started_at: str

    def is_alive(self) -> bool:
        """Whether a process bears the pid. Weak evidence (pids are reused); the lock is the strong one."""
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True
        except OSError:
            return False
        return self.pid > 0


class DataDir:
    """A data directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.server_lock = f"{path}/server.lock"
        self.start_lock = f"{path}/start.lock"
        self.log = f"{path}/server.log"

    def read_record(self) -> ServerRecord | None:
        """None where no server was ever ready, or where the file is not a record."""
        try:
            document: object = json.loads(_read_file(f"{self.path}/server.json"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        if not isinstance(document, dict):
            return None
        pid = document.get("pid")
        texts = [document.get(name) for name in ("url", "socket", "database", "version", "started_at")]
        url, socket, database, version, started_at = (text if isinstance(text, str) else "" for text in texts)
        return ServerRecord(pid if isinstance(pid, int) else 0, url, socket, database, version, started_at)

    def read_admin_token(self) -> str | None:
        try:
            return _read_file(f"{self.path}/admin-token").decode("ascii", "replace").strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has_running_server(self) -> bool:
        """Whether a server runs on this directory: its flock says so, whatever the record says."""
        return file_locks.is_held(self.server_lock)


def resolve_data_dir(data: str | None, environ: Mapping[str, str]) -> DataDir:
    return DataDir(resolve_data_path(data, environ))


def resolve_data_path(data: str | None, environ: Mapping[str, str]) -> str:
    """`--data`, else QD_DATA, else the user's data directory."""
    explicit = data or environ.get("QD_DATA")
    if explicit:
        return os.path.abspath(os.path.expanduser(explicit))
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/quarterdeck")
    base = environ.get("XDG_DATA_HOME", "")
    # The base directory specification: a relative path in it is to be ignored.
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/share")
    return f"{base}/quarterdeck"


def socket_path(data_dir: DataDir, environ: Mapping[str, str]) -> str:
    """Where the server of a directory listens locally. In the runtime directory, not in the data directory:
    the path of a socket may have 108 bytes at most (104 on macOS), and a data directory may lie deep."""
    from hashlib import sha256
    from tempfile import gettempdir

    base = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(base):
        base = f"{gettempdir()}/quarterdeck-{os.getuid()}"
    name = sha256(os.path.realpath(data_dir.path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{base}/qd-{name}.sock"


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _FILE_MAX)
    finally:
        os.close(descriptor)
