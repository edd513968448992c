"""The paths and files of a data directory that clients use.

Paths are strings here: importing `pathlib` takes more than a third of Python's own start-up time.
"""

# No `pathlib`, for the reason above.
# ruff: noqa: PTH100, PTH105, PTH111, PTH116, PTH117

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from quarterdeck.client import file_locks

_FILE_BYTES_MAX = 64 * 1024
_LOG_MAX_BYTES = 16 * 1024 * 1024


class ServerRecord(NamedTuple):
    """The contents of `server.json`. A server writes the file when it becomes ready, and does not delete it at exit."""

    pid: int
    url: str
    socket: str
    database: str
    version: str
    started_at: str

    def pid_exists(self) -> bool:
        """Whether a process with this pid exists. It may be a different program, so only the lock is proof."""
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True
        except OSError:
            return False
        return self.pid > 0


class DataDir:
    def __init__(self, path: str) -> None:
        self.path = path
        self.server_lock_path = f"{path}/server.lock"
        self.start_lock_path = f"{path}/start.lock"
        self.log_path = f"{path}/server.log"

    def read_record(self) -> ServerRecord | None:
        """Read `server.json`. None if it does not exist or is not a JSON object.

        A field that is missing or has the wrong type is empty.
        """
        try:
            document: object = json.loads(_read_file(f"{self.path}/server.json"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        if not isinstance(document, dict):
            return None
        pid = document.get("pid")
        values = [document.get(name) for name in ("url", "socket", "database", "version", "started_at")]
        url, socket, database, version, started_at = (value if isinstance(value, str) else "" for value in values)
        return ServerRecord(pid if isinstance(pid, int) else 0, url, socket, database, version, started_at)

    def read_admin_token(self) -> str | None:
        try:
            return _read_file(f"{self.path}/admin-token").decode("ascii", "replace").strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has_running_server(self) -> bool:
        """Whether a server is running on this directory: it holds the flock on `server.lock`."""
        return file_locks.is_held(self.server_lock_path)


def resolve_data_dir(data: str | None, environ: Mapping[str, str]) -> DataDir:
    return DataDir(resolve_data_path(data, environ))


def resolve_data_path(data: str | None, environ: Mapping[str, str]) -> str:
    """The path of the data directory: `data` if given, else QD_DATA, else the default for this user."""
    explicit = data or environ.get("QD_DATA")
    if explicit:
        return os.path.abspath(os.path.expanduser(explicit))
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support/quarterdeck")
    base = environ.get("XDG_DATA_HOME", "")
    # The XDG base directory specification says to ignore relative paths.
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/share")
    return f"{base}/quarterdeck"


def socket_path(data_dir: DataDir, environ: Mapping[str, str]) -> str:
    """The path of the unix socket that a data directory's server listens on.

    The socket is in the runtime directory, not in the data directory: a socket path is limited to 108 bytes (104 on
    macOS), and the path of a data directory may be longer.
    """
    from hashlib import sha256
    from tempfile import gettempdir

    base = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(base):
        base = f"{gettempdir()}/quarterdeck-{os.getuid()}"
    name = sha256(os.path.realpath(data_dir.path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{base}/qd-{name}.sock"


def rotate_log(log_path: str) -> None:
    """Rename a log larger than 16 MiB to `.1`, which replaces any older `.1`. Only before its writer starts."""
    try:
        if os.stat(log_path).st_size > _LOG_MAX_BYTES:
            os.replace(log_path, f"{log_path}.1")
    except FileNotFoundError:
        pass


def _read_file(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _FILE_BYTES_MAX)
    finally:
        os.close(descriptor)
