"""Real server processes: started like a user starts them, and then stopped, killed or frozen."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from quarterdeck.http.auth import LocalIssuer
from tests.support.child_processes import minimal_environment, signal_on_parent_death, tail
from tests.support.eventually import eventually

START_LIMIT = 30.0
STOP_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server. Without a database URL it has a SQLite file in its data directory."""

    data: Path
    database: str | None = None
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = 0
    """0 is a free port. None omits the flag, for tests of ports."""

    def command(self, ready_fd: int) -> list[str]:
        command = [*self.command_line("up"), "--ready-fd", str(ready_fd)]
        if self.port is not None:
            command += ["--port", str(self.port)]
        if self.database is not None:
            command += ["--database", self.database]
        return [*command, *self.arguments]

    def command_line(self, *words: str) -> list[str]:
        """The command line of another command on the same data directory."""
        return [sys.executable, "-m", "quarterdeck", *words, "--data", str(self.data)]

    @property
    def database_url(self) -> str:
        """The database that the server will open, for tests that read it directly."""
        return self.database or f"sqlite:///{self.data / 'quarterdeck.db'}"

    def with_environment(self, **variables: str) -> Launch:
        """The same launch with these variables in its environment."""
        return replace(self, environment={**self.environment, **variables})


def launch_on(url: str, directory: Path) -> Launch:
    """The launch of a server on an existing database. A SQLite file is in its data directory."""
    if url.startswith("sqlite:///"):
        return Launch(Path(url.removeprefix("sqlite:///")).parent)
    return Launch(directory / "data", database=url)


class ServerProcess:
    """A server process, running or ended."""

    def __init__(self, launch: Launch, process: subprocess.Popen[bytes], log: Path) -> None:
        self.launch = launch
        self.log = log
        self.url = ""
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def issuer(self) -> LocalIssuer:
        """The server's own issuer: the server accepts tokens that it signs."""
        key_file = self.launch.environment.get("QD_SIGNING_KEY")
        return LocalIssuer.open(Path(key_file) if key_file else self.launch.data / "signing-key.pem")

    @property
    def secret_keys(self) -> str:
        """The server's encryption keys. Another server on its database needs the same."""
        configured = self.launch.environment.get("QD_SECRET_KEYS")
        return configured or (self.launch.data / "secret-keys").read_text().strip()

    @property
    def admin_token(self) -> str:
        return (self.launch.data / "admin-token").read_text().strip()

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def client(self, token: str | None = None, timeout: float = 30.0) -> httpx.AsyncClient:
        """An HTTP client with the admin token, or another; use it as a context. An empty token sends no header."""
        bearer = self.admin_token if token is None else token
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        # No pool limit: a race needs one connection per client.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # There is no TLS. Without verification the client does not load the machine's certificates.
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False, verify=False
        )

    def terminate(self) -> None:
        """SIGTERM: the server drains. `wait` returns when it has ended."""
        self._process.terminate()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, also for a frozen process. It has ended when this returns."""
        if self.is_running:
            self._process.kill()
        self._process.wait(timeout=STOP_LIMIT)

    def freeze(self) -> None:
        """SIGSTOP: the process keeps its connections, locks and leases, and does nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def wait(self, limit: float = STOP_LIMIT) -> int:
        """Wait until the process has ended. Return its exit code."""
        return await asyncio.to_thread(self._process.wait, limit)

    async def stop(self) -> int:
        self.terminate()
        return await self.wait()


class Servers:
    """Starts the servers of one test, and kills all of them in `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count(1)
        self.started: list[ServerProcess] = []

    async def start(self, launch: Launch | None = None) -> ServerProcess:
        """Start a server and wait until it prints `ready`. If it ends before, the test fails with its log."""
        if launch is None:
            launch = Launch(self.directory / f"data-{len(self.started) + 1}")
        server, ready_fd = self._spawn(launch)
        self.started.append(server)
        try:
            line = await asyncio.wait_for(_first_line(ready_fd), START_LIMIT)
        except TimeoutError:
            raise AssertionError(f"not ready after {START_LIMIT} s; its log ends:\n{tail(server.log)}") from None
        word, _, url = line.partition(" ")
        assert word == "ready", f"the server ended before it was ready; its log ends:\n{tail(server.log)}"
        server.url = url
        return server

    async def start_expecting_failure(self, launch: Launch) -> ServerProcess:
        """Start a server that must refuse to start. Return when the process has ended."""
        server, ready_fd = self._spawn(launch)
        os.close(ready_fd)
        self.started.append(server)
        await server.wait(START_LIMIT)
        return server

    async def run_command(self, launch: Launch, *words: str) -> ServerProcess:
        """Run another command of the program in the launch's environment. Return when it has ended."""
        process = self._run(launch, launch.command_line(*words))
        self.started.append(process)
        await process.wait(START_LIMIT)
        return process

    async def start_command(self, launch: Launch, *words: str, line_prefix: str) -> ServerProcess:
        """Start another command that keeps running. Return when it has printed a line with this prefix."""
        process = self._run(launch, launch.command_line(*words))
        self.started.append(process)

        async def has_printed_line() -> bool:
            assert process.is_running, f"it ended before it printed {line_prefix!r}; its log ends:\n{tail(process.log)}"
            return any(line.startswith(line_prefix) for line in process.log_text.splitlines())

        await eventually(has_printed_line, f"`{' '.join(words)}` printed {line_prefix!r}", START_LIMIT)
        return process

    def close(self) -> None:
        for server in self.started:
            server.kill()

    def logs(self) -> str:
        return "\n".join(f"--- server {server.pid} {server.url}\n{tail(server.log)}" for server in self.started)

    def _spawn(self, launch: Launch) -> tuple[ServerProcess, int]:
        read_end, write_end = os.pipe()
        server = self._run(launch, launch.command(write_end), write_end)
        # Only the child may have the write end open: its death must close the pipe.
        os.close(write_end)
        return server, read_end

    def _run(self, launch: Launch, command: list[str], *pass_fds: int) -> ServerProcess:
        log = self.directory / f"server-{next(self._numbers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**minimal_environment(), **launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                start_new_session=True,
                preexec_fn=signal_on_parent_death(signal.SIGKILL),
            )
        return ServerProcess(launch, process, log)


async def _first_line(read_end: int) -> str:
    """The first line from a pipe, or its part if the writer has ended. Closes the pipe."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read_end, "rb"))
    try:
        return (await reader.readline()).decode().strip()
    finally:
        transport.close()
